"""What kartosql writes against what the real library wrote: schemas, cells, and upgrades."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import golden
from kartosql.formats.xskipper.layout import Secrets, layout_for
from kartosql.formats.xskipper.naming import folder_name, path_of, table_identifier
from kartosql.formats.xskipper.refreshing import Sources, refresh, specs_of
from kartosql.formats.xskipper.scans import DataFile, parquet_scan
from kartosql.formats.xskipper.segment import ROW_METADATA, checked_keys
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.store import Store

_ARROW = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(10,0)": pa.decimal128(10, 0),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}
# Bytes have no order in the original, and regular expressions are a plugin's: neither is written.
_NOT_WRITTEN = ("built_types_minmax", "built_regex", "emulated_v0_unversioned")


def _params(keep: Any) -> list[Any]:
    return golden.samples(lambda s: s["name"] not in _NOT_WRITTEN and keep(s))


def _folder(sample: dict[str, Any]) -> Path:
    return golden.find(f"xskipper/{sample['metadata_dir']}")


def _layout(sample: dict[str, Any]) -> Any:
    """Return the layout of metadata like those of a sample."""
    secrets = None
    keys = (sample["encrypted"] or {}).get("keys")
    if keys:
        about = sample["encrypted"]["obj_name_metadata"]
        plain = about.get("encryption.plaintext.footer") == "true"
        secrets = Secrets(checked_keys(keys), about["encryption.footer.key"], plain)
    specs = specs_of(MetadataStore.open(_folder(sample), keys).indexes)
    columns = {}
    for index in sample["indexes"]:
        described = index["spark_type"]
        name = described.get("elementType") or (
            described["fields"][0]["type"] if described["type"] == "struct" else None
        )
        columns[index["cols"][0]] = _ARROW[name] if name else columns.get(index["cols"][0], pa.string())
    if sample["data_format"] == "parquet":
        part = next(golden.find(f"xskipper/{sample['data_dir']}").rglob("*.parquet"))
        # Filters do not tell the types of their columns.
        columns = {f.name.lower(): f.type for f in pq.read_schema(part)} | columns
        columns |= {f.name.lower(): f.type for f in pq.read_schema(part) if columns[f.name.lower()] == pa.string()}
    partitions = {n.removeprefix("virtual_"): _ARROW[t] for n, t in sample["partition_columns"].items()}
    return layout_for(sample["table_identifier"], specs, columns, partitions, secrets)


def _plain(described: Any) -> Any:
    """Return a schema with the order of keys' groups, which differs from run to run, put right."""
    found = json.loads(json.dumps(described))
    keys = found["fields"][0]["metadata"].get("encryption", {})
    if "encryption.column.keys" in keys:
        groups = [g.split(":") for g in keys["encryption.column.keys"].split(";")]
        keys["encryption.column.keys"] = sorted((label, sorted(names.split(","))) for label, names in groups)
    return found


@pytest.mark.parametrize("sample", _params(lambda s: s["version"] == 4))
def test_the_schema_in_the_footer_is_that_of_the_original(sample):
    part = next(_folder(sample).glob("*.parquet"))
    original = json.loads(pq.read_metadata(part).metadata[ROW_METADATA.encode()])
    assert _plain(_layout(sample).described()) == _plain(original)


def _files(sample: dict[str, Any], partitions: dict[str, Any]) -> list[DataFile]:
    found = []
    for name in sample["objects"]:
        path, _, time = name.rpartition("#")
        values = {}
        for part in path.split("/"):
            key, equals, raw = part.partition("=")
            if equals and key in partitions:
                values[key] = pa.scalar(raw).cast(partitions[key]).as_py()
        found.append(DataFile(path, int(time), path.removeprefix(sample["object_prefix"] + "/"), values))
    return found


def _cells(folder: Path, keys: Any = None) -> dict[str, dict[str, Any]]:
    """Return all rows of metadata by their object, with sets in place of lists and bits in place of filters."""
    store = MetadataStore.open(folder, keys)
    found: dict[str, dict[str, Any]] = {}
    for segment in store.segments:
        columns = {}
        for field in [i.column for i in segment.schema.indexes] + ["virtual_" + n for n in segment.schema.virtual]:
            values = segment.column(field)
            if pa.types.is_struct(values.type):
                columns[field] = [tuple((v or {"min": None, "max": None}).values()) for v in values.to_pylist()]
            elif pa.types.is_list(values.type):
                columns[field] = [frozenset(v or ()) for v in values.to_pylist()]
            elif pa.types.is_binary(values.type):
                columns[field] = [v and v[-119_000:] for v in values.to_pylist()]
            else:
                columns[field] = values.to_pylist()
        for row, name in enumerate(segment.ids()):
            found[name] = {c: v[row] for c, v in columns.items()}
    assert store.problems == []
    return found


@pytest.mark.parametrize("sample", _params(lambda s: s["data_format"] == "parquet" and s["version"] == 4))
def test_metadata_collected_from_the_data_are_those_of_the_original(sample, tmp_path):
    layout = _layout(sample)
    data = Store(golden.find(f"xskipper/{sample['data_dir']}"))
    files = _files(sample, dict(layout.partitions))
    done = refresh(Store(tmp_path), "meta", files, layout, Sources(parquet_scan(data)))
    assert (done.added, done.unindexed) == (len(files), ())
    keys = (sample["encrypted"] or {}).get("keys")
    written, original = _cells(tmp_path / "meta", keys), _cells(_folder(sample), keys)
    assert written.keys() == original.keys()
    for name, row in original.items():
        for column, cell in row.items():
            # The original's bounds of floating-point numbers come from footers, where NaN is missing.
            if not (sample["name"] == "built_trap_ne_nan" and column == "x_minmax_1"):
                assert _shown(written[name][column]) == _shown(cell), (name, column)
    store, listing = MetadataStore.open(tmp_path / "meta", keys), [(f.path, f.modified_ms) for f in files]
    for case in sample["cases"]:
        read = {p.removeprefix(sample["object_prefix"] + "/") for p in store.select(case["predicate"], listing)}
        assert set(case["must_keep"]) <= read, case["predicate"]
        assert read.isdisjoint(case["must_skip"]), case["predicate"]
        assert read.isdisjoint(case["sound_skip"]), case["predicate"]


def _shown(cell: Any) -> Any:
    """Return a cell as text in which NaN equals itself, and times with and without UTC do."""
    if isinstance(cell, frozenset | tuple):
        return sorted(map(_shown, cell)) if isinstance(cell, frozenset) else [*map(_shown, cell)]
    return repr(cell.replace(tzinfo=None) if isinstance(cell, dt.datetime) else cell)


def _none(keys: Any, columns: Any) -> Any:
    raise AssertionError("nothing has to be read again")


@pytest.mark.parametrize("sample", _params(lambda s: s["version"] in (1, 2, 3)))
def test_older_versions_become_the_newest_without_a_look_at_the_data(sample, tmp_path):
    shutil.copytree(_folder(sample), tmp_path / "meta")
    (tmp_path / "meta").chmod(0o755)
    newest = golden.sample(sample["name"].replace(f"_v{sample['version']}_", "_v4_"))
    layout = _layout(newest)
    files = _files(sample, dict(layout.partitions))
    before = _cells(tmp_path / "meta")
    done = refresh(Store(tmp_path), "meta", files, layout, Sources(_none))
    assert (done.added, done.removed, done.kept) == (0, 0, len(files))
    store = MetadataStore.open(tmp_path / "meta")
    assert store.versions == [4]
    described = json.loads(pq.read_metadata(next((tmp_path / "meta").glob("part-*"))).metadata[ROW_METADATA.encode()])
    assert described == json.loads(
        pq.read_metadata(next(_folder(newest).glob("*.parquet"))).metadata[ROW_METADATA.encode()]
    )
    after = _cells(tmp_path / "meta")
    assert after.keys() == before.keys()
    for name, row in before.items():
        cells = [_shown(after[name][i["column"]]) for i in newest["indexes"]]
        assert cells == [_shown(row[i["column"]]) for i in sample["indexes"]]
    listing = [(f.path, f.modified_ms) for f in files]
    for case in newest["cases"]:
        read = {p.removeprefix(sample["object_prefix"] + "/") for p in store.select(case["predicate"], listing)}
        assert set(case["must_keep"]) <= read
        assert read.isdisjoint(case["must_skip"])


@pytest.mark.parametrize("sample", _params(lambda s: True))
def test_names_of_folders_are_hashes_of_identifiers(sample):
    assert folder_name(sample["table_identifier"]) == sample["metadata_dir"].rsplit("/", 1)[-1]
    if sample["version"]:
        assert table_identifier("s3a://bucket" + sample["table_identifier"] + "/") == sample["table_identifier"]
    assert path_of(sample["objects"][0]).startswith(sample["object_prefix"] + "/")
