"""Metadata made, kept up to date, encrypted and dropped."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import skipping_data
from kartosql.errors import FormatError, StoreError, UsageError
from kartosql.formats.xskipper import kinds, refreshing, scans
from kartosql.formats.xskipper.kinds import IndexSpec
from kartosql.formats.xskipper.layout import Secrets, layout_for
from kartosql.formats.xskipper.refreshing import MAX_PARTS, Sources, drop, refresh, specs_of
from kartosql.formats.xskipper.scans import DataFile, parquet_scan
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.store import Store
from skipping_data import bounds_of

OPENED = scans._opened
TABLE = "/lake/t"
TYPES = {"i": pa.int64(), "s": pa.string(), "d": pa.float64()}
SPECS = [IndexSpec("minmax", "i"), IndexSpec("valuelist", "s"), IndexSpec("bloomfilter", "s", fpp=0.1, ndv=50)]
K1, K2 = b"1" * 16, b"2" * 32


class Lake:
    """A folder of Parquet files with metadata beside them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = Store(root / "data", create=True)
        self.base = Store(root)
        self.scanned: list[list[str]] = []

    def write(self, name: str, numbers: list[int | None], time: int = 1000, **columns: Any) -> None:
        table = {
            "i": pa.array(numbers, pa.int64()),
            "s": pa.array([None if n is None else f"v{n}" for n in numbers], pa.string()),
        }
        table["d"] = pa.array(columns.pop("d", [None] * len(numbers)), pa.float64())
        path = self.root / "data" / name
        pq.write_table(pa.table({**table, **columns}), path)
        os.utime(path, ns=(time * 1_000_000, time * 1_000_000))

    @property
    def files(self) -> list[DataFile]:
        paths = sorted((self.root / "data").glob("*.parquet"))
        return [DataFile(f"{TABLE}/{p.name}", p.stat().st_mtime_ns // 1_000_000, p.name) for p in paths]

    def scan(self, keys: Any, columns: Any) -> Any:
        self.scanned.append(list(keys))
        return parquet_scan(self.data)(keys, columns)

    def refresh(self, specs: Any = SPECS, **options: Any) -> Any:
        sources = Sources(self.scan, options.pop("still", None))
        return refresh(self.base, "meta", self.files, layout_for(TABLE, specs, TYPES, **options), sources)

    def open(self, keys: Any = None) -> MetadataStore:
        return MetadataStore.open(self.root / "meta", keys)

    def read(self, where: str, keys: Any = None) -> list[str]:
        found = self.open(keys).select(where, [(f.path, f.modified_ms) for f in self.files])
        return [path.rsplit("/", 1)[-1].removesuffix(".parquet") for path in found]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.write("a.parquet", [1, 2, 3])
    made.write("b.parquet", [10, 20])
    made.write("c.parquet", [None])
    return made


def test_new_metadata_skip_at_once(lake):
    done = lake.refresh()
    assert (done.added, done.removed, done.kept, done.unindexed) == (3, 0, 0, ())
    assert lake.read("i > 5") == ["b"]
    assert lake.read("s = 'v2'") == ["a"]
    assert lake.read("s IS NULL") == ["a", "b", "c"]
    store = lake.open()
    assert (store.versions, store.table_identifiers, len(store.objects)) == ([4], [TABLE], 3)
    assert specs_of(store.indexes) == SPECS


def test_a_refresh_reads_new_and_changed_files_only(lake):
    lake.refresh()
    parts = set(lake.base.list_below("meta"))
    assert lake.refresh().kept == 3
    assert set(lake.base.list_below("meta")) == parts
    lake.write("d.parquet", [100])
    assert (lake.refresh().added, lake.scanned[-1]) == (1, ["d.parquet"])
    assert parts < set(lake.base.list_below("meta"))
    lake.write("a.parquet", [50], time=2000)
    (lake.root / "data" / "b.parquet").unlink()
    done = lake.refresh()
    assert (done.added, done.removed, done.kept, lake.scanned[-1]) == (1, 2, 2, ["a.parquet"])
    assert lake.read("i > 40") == ["a", "d"]
    assert sorted(lake.open().objects) == sorted(f.id for f in lake.files)


def test_other_indexes_are_collected_anew(lake):
    lake.refresh()
    done = lake.refresh([*SPECS[:2], replace(SPECS[2], ndv=60)])
    assert (done.added, done.kept) == (3, 0)
    assert lake.refresh(SPECS[:1]).kept == 3
    assert [i.name for i in lake.open().indexes] == ["minmax"]
    assert lake.read("i > 5") == ["b"]


def test_many_small_parts_are_merged(lake):
    for number in range(MAX_PARTS + 3):
        lake.write(f"n{number}.parquet", [1000 + number])
        lake.refresh()
    assert len(lake.base.list_below("meta")) <= MAX_PARTS + 1
    assert lake.read("i = 1005") == ["n5"]
    assert len(lake.open().objects) == MAX_PARTS + 6


def test_parts_that_are_full_stay_as_they_are(lake, monkeypatch):
    monkeypatch.setattr("kartosql.formats.xskipper.refreshing.PART_BYTES", 1000)
    specs = [*SPECS[:2], replace(SPECS[2], ndv=1000)]
    for number in range(MAX_PARTS + 3):
        lake.write(f"n{number}.parquet", [1000 + number])
        lake.refresh(specs)
    before = lake.base.list_below("meta").keys()
    assert len(before) == MAX_PARTS + 3
    lake.write("another.parquet", [7])
    assert (lake.refresh(specs).added, lake.scanned[-1]) == (1, ["another.parquet"])
    assert before < lake.base.list_below("meta").keys()


def test_files_that_change_meanwhile_are_not_indexed(lake):
    done = lake.refresh(
        still=lambda files: [None if "a." in f.path else f.modified_ms + ("b." in f.path) for f in files]
    )
    assert (done.added, done.unindexed) == (1, (f"{TABLE}/a.parquet", f"{TABLE}/b.parquet"))
    assert lake.read("i = 999") == ["a", "b"]


def test_files_that_cannot_be_indexed_are_kept(lake):
    (lake.root / "data" / "torn.parquet").write_bytes(b"PAR1 nothing PAR1")
    pq.write_table(pa.table({"i": ["text"], "s": ["x"]}), lake.root / "data" / "typed.parquet")
    pq.write_table(pa.table({"i": [1]}), lake.root / "data" / "without.parquet")
    pq.write_table(pa.table({"i": [1], "I": [2], "s": ["x"]}), lake.root / "data" / "twice.parquet")
    done = lake.refresh()
    assert done.added == 4
    assert {p.rsplit("/", 1)[-1] for p in done.unindexed} == {"torn.parquet", "typed.parquet", "twice.parquet"}
    assert lake.read("i = 999") == ["torn", "twice", "typed"]


def test_a_column_that_a_file_lacks_is_null_in_it(lake):
    pq.write_table(pa.table({"i": [1]}), lake.root / "data" / "without.parquet")
    assert not lake.refresh().unindexed
    assert "without" not in lake.read("s >= 'a'")
    assert "without" in lake.read("s IS NULL")
    assert "without" in lake.read("i = 1")


def test_bounds_come_from_footers_where_these_are_exact(lake, monkeypatch):
    lake.write("n.parquet", [7], d=[math.nan])
    opened = []
    monkeypatch.setattr(scans, "_opened", lambda content, columns: opened.append(columns) or OPENED(content, columns))
    specs = [IndexSpec("minmax", "i"), IndexSpec("minmax", "s")]
    assert lake.refresh(specs).added == 4
    assert lake.read("i BETWEEN 5 AND 8") == ["n"]
    assert lake.read("s >= 'v7'") == ["n"]
    assert opened == []
    # Footers know nothing of NaN, so rows are read for floating-point numbers.
    lake.refresh([*specs, IndexSpec("minmax", "d")])
    assert opened == [["d"]] * 4
    assert lake.read("d > 1e9") == ["n"]
    assert lake.read("d < 1e9") == []


def test_bounds_of_cut_statistics_are_not_taken(lake):
    lake.write("a.parquet", [1], s=["x" * 100])
    bounds = partial(bounds_of, lake.root / "data" / "a.parquet")
    assert bounds("s", pa.string()) is None
    assert bounds("i", pa.int64()) == (1, 1)
    assert bounds("I", pa.int64()) is None
    assert bounds("i", pa.string()) is None
    assert bounds("none", pa.int64()) is None
    pq.write_table(pa.table({"u": pa.array([1, (1 << 32) - 1], pa.uint32())}), lake.root / "data" / "u.parquet")
    assert bounds_of(lake.root / "data" / "u.parquet", "u", pa.int64()) is None


@pytest.mark.parametrize("plaintext", [False, True])
def test_encrypted_metadata_open_with_their_keys(lake, plaintext):
    secrets = Secrets({"foot": K1, "col": K2}, "foot", plaintext)
    specs = [replace(SPECS[0], key="col"), SPECS[1], replace(SPECS[2], key="foot")]
    assert lake.refresh(specs, secrets=secrets).added == 3
    raw = b"".join(p.read_bytes() for p in (lake.root / "meta").glob("part-*"))
    assert raw.startswith(b"PAR1" if plaintext else b"PARE")
    keys = {"foot": K1, "col": K2}
    assert lake.read("i > 5", keys) == ["b"]
    assert lake.read("s = 'v2'", keys) == ["a"]
    # What the keys open is used, and nothing else.
    assert lake.read("i > 5", {"foot": K1}) == ["a", "b", "c"]
    assert lake.read("s = 'v2'", {"foot": K1}) == ["a"]
    assert lake.read("i > 5", {"foot": K2, "col": K2}) == ["a", "b", "c"]
    assert lake.read("i > 5") == ["a", "b", "c"]
    assert bool(lake.open().indexes) == plaintext
    # A refresh needs the keys, and keeps the metadata encrypted.
    with pytest.raises(UsageError, match="encrypted"):
        lake.refresh()
    lake.write("d.parquet", [100])
    done = lake.refresh(specs, secrets=secrets)
    assert (done.added, done.kept) == (1, 3)
    assert lake.read("i > 50", keys) == ["d"]
    assert lake.read("i > 50") == ["a", "b", "c", "d"]


def test_bad_keys_are_refused(lake):
    for bad in ("short", b"short", "!" * 24, 5):
        with pytest.raises(UsageError):
            lake.open({"k": bad}) if lake.refresh() else None
    with pytest.raises(UsageError):
        lake.refresh([replace(SPECS[0], key="k")])
    with pytest.raises(UsageError):
        lake.refresh(secrets=Secrets({"k": K1}, "k"))
    with pytest.raises(UsageError):
        lake.refresh([replace(SPECS[0], key="k")], secrets=Secrets({"k": K1}, "other"))


def test_metadata_of_others_are_left_alone(lake):
    lake.refresh()
    before = lake.base.list_below("meta")
    layout = layout_for("/lake/other", SPECS, TYPES)
    with pytest.raises(UsageError, match="about the table"):
        refresh(lake.base, "meta", lake.files, layout, Sources(lake.scan))
    part = next((lake.root / "meta").glob("part-*"))
    newer = part.read_bytes().replace(b'"version":4', b'"version":5')
    (lake.root / "meta" / "part-newer.parquet").write_bytes(newer)
    with pytest.raises(FormatError) as caught:
        lake.refresh()
    assert caught.value.code == "unsupported-version"
    (lake.root / "meta" / "part-newer.parquet").unlink()
    assert lake.base.list_below("meta") == before
    assert MetadataStore.open(lake.root / "meta", table="/lake/other").objects == []


def test_damaged_parts_are_replaced(lake):
    lake.refresh()
    (lake.root / "meta" / "part-torn.parquet").write_bytes(b"PAR1 torn")
    assert "part-torn" in lake.open().problems[0]
    assert lake.read("i > 5") == ["b"]
    lake.refresh()
    assert lake.open().problems == []


def test_dropping_removes_all(lake):
    lake.refresh()
    assert drop(lake.base, "meta") == 1
    assert lake.base.list_below("meta") == {}
    assert MetadataStore.below(lake.base, "meta").select("i = 1", [("x", 1)]) == ["x"]


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (("minmax", "none"), "unknown-column"),
        (("bloomfilter", "d"), "unsupported-type"),
        (("minmax", "list"), "unsupported-type"),
        (("suffix", "i"), "invalid-argument"),
        (("prefix", "i"), "unsupported-type"),
        (("minmax", ""), "invalid-argument"),
    ],
)
def test_impossible_indexes_are_refused(spec, code):
    with pytest.raises(UsageError) as caught:
        layout_for(TABLE, [IndexSpec(*spec)], {**TYPES, "list": pa.list_(pa.int64())})
    assert caught.value.code == code


@pytest.mark.parametrize(("fpp", "ndv"), [(0, 10), (1, 10), (0.1, 0), (1e-300, 1 << 39), (math.nan, 10)])
def test_impossible_filters_are_refused(fpp, ndv):
    with pytest.raises(UsageError):
        IndexSpec("bloomfilter", "i", fpp, ndv)
    with pytest.raises(UsageError):
        layout_for(TABLE, [SPECS[0], SPECS[0]], TYPES)


def test_a_crash_between_writing_and_removing_does_no_harm(lake, monkeypatch):
    lake.refresh()
    lake.write("a.parquet", [50], time=2000)

    def crash(self, keys):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, "delete", crash)
        with pytest.raises(KeyboardInterrupt):
            lake.refresh()
    assert len(lake.base.list_below("meta")) > 1
    assert lake.read("i > 40") == ["a"]
    assert lake.refresh().added == 0
    assert sorted(lake.open().objects) == sorted(f.id for f in lake.files)


def test_rows_that_disagree_keep_their_file(lake):
    lake.refresh()
    part = next((lake.root / "meta").glob("part-*"))
    table, about = pq.read_table(part), pq.read_metadata(part).metadata
    bounds = pa.array([{"min": 500, "max": 500}] * 3, table.schema.field("i_minmax_1").type)
    changed = table.set_column(table.schema.get_field_index("i_minmax_1"), "i_minmax_1", bounds)
    with pq.ParquetWriter(lake.root / "meta" / "part-other.parquet", changed.schema, store_schema=False) as writer:
        writer.add_key_value_metadata(about)
        writer.write_table(changed)
    assert lake.read("i = 500") == ["a", "b", "c"]
    assert lake.read("i = 10") == ["b"]
    assert lake.read("i = 999") == []


def test_neither_making_nor_using_metadata_imports_pandas(lake):
    code = f"""
import sys
from functools import partial
import pyarrow as pa
from kartosql.formats.xskipper.scans import DataFile
from kartosql.formats.xskipper.kinds import IndexSpec
from kartosql.formats.xskipper.layout import layout_for
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.formats.xskipper.refreshing import Sources, refresh
from kartosql.formats.xskipper.scans import parquet_scan
from kartosql.store import Store
data, base = Store({str(lake.root / "data")!r}), Store({str(lake.root)!r})
files = [DataFile(f"/t/{{n}}", 1, f"{{n}}.parquet", {{"p": n}}) for n in "abc"]
types = {{"i": pa.int64(), "s": pa.string(), "d": pa.float64()}}
for specs in ([("minmax", "i")], [("minmax", "d"), ("valuelist", "s"), ("bloomfilter", "s"), ("bloomfilter", "i")]):
    layout = layout_for("/t", [IndexSpec(*s) for s in specs], types, {{"p": pa.string()}})
    assert refresh(base, "m", files, layout, Sources(parquet_scan(data))).added == 3
store = MetadataStore.below(base, "m")
listing = [(f.path, 1) for f in files]
assert store.select("s = 'v2' AND i IN (2, 5) AND p < 'b'", listing) == ["/t/a"]
assert store.select("d > 1.5 OR i = 99", listing) == []
print([m for m in ("pandas", "pyspark", "polars") if m in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def _rows(lake: Lake) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(lake.root / "meta", arrow_extensions_enabled=False).to_pylist()
    # The order within a list says nothing.
    return [{n: sorted(v) if isinstance(v, list) else v for n, v in row.items()} for row in rows]


def test_large_files_and_filters_of_many_values_are_made_alike(lake, monkeypatch):
    """Filters do not depend on whether files are read at once, nor on how many values are held."""
    lake.write("large.parquet", list(range(3_000)))
    made = []
    for whole, held in ((1 << 20, 1 << 20), (0, 1 << 20), (1 << 20, 10_000), (0, 0)):
        monkeypatch.setattr(scans, "_WHOLE", whole)
        monkeypatch.setattr(kinds, "_HELD_BYTES", held)
        monkeypatch.setattr(scans, "_BATCH", 700)
        drop(lake.base, "meta")
        specs = [*SPECS, IndexSpec("bloomfilter", "i", ndv=3_000)]
        assert lake.refresh(specs).added == 4
        made.append(sorted(_rows(lake), key=lambda r: r["obj_name"]))
    assert made[1:] == made[:1] * 3


def test_part_files_that_are_written_meanwhile_are_removed_if_one_fails(lake, monkeypatch):
    monkeypatch.setattr(refreshing, "PART_ROWS", 1)
    monkeypatch.setattr(scans, "_BATCH_BYTES", 1)
    assert lake.refresh().added == 3
    before = sorted((lake.root / "meta").glob("part-*"))
    assert len(before) >= 2
    for name in ("d", "e", "f", "g", "h"):
        lake.write(f"{name}.parquet", [1])
    put, done = lake.base.put, []

    def failing(key: str, data: bytes) -> None:
        if len(done) == 2:
            raise StoreError("The disk is full.", code="cannot-write")
        done.append(key)
        put(key, data)

    monkeypatch.setattr(lake.base, "put", failing)
    with pytest.raises(StoreError, match="full"):
        lake.refresh()
    assert len(done) == 2
    assert sorted((lake.root / "meta").glob("part-*")) == before
    monkeypatch.setattr(lake.base, "put", put)
    assert lake.refresh().added == 5


def test_sizes_stay_with_entries_and_those_of_older_metadata_stay_unknown(lake):
    def sized() -> list[DataFile]:
        return [replace(f, size=(lake.root / "data" / f.key).stat().st_size) for f in lake.files]

    def known() -> dict[str, int | None]:
        found = lake.open().segments
        return {Path(name).stem: n for s in found for name, n in zip(s.ids(), s.sizes(), strict=True)}

    def again(specs: Any) -> None:
        refresh(lake.base, "meta", sized(), layout_for(TABLE, specs, TYPES), Sources(lake.scan))

    lake.refresh()
    assert known() == {"a": None, "b": None, "c": None}
    lake.write("d.parquet", [7])
    wanted = {"a": None, "b": None, "c": None, "d": (lake.root / "data" / "d.parquet").stat().st_size}
    for specs in (SPECS, SPECS[:2], SPECS[:1]):  # entries are copied to other part files
        again(specs)
        assert known() == wanted
    listing = [(f.path, f.modified_ms, f.size + 1) for f in sized()]
    assert lake.open().select("i = 500", listing) == [f"{TABLE}/d.parquet"]
    assert lake.open().select("i = 500", [f[:2] for f in listing]) == []


@pytest.mark.parametrize("sizes", [b"[1]", b"{}", b"[1, 2, true]", b"[1, 2", b"\xff"])
def test_sizes_that_make_no_sense_make_a_part_file_unused(lake, sizes):
    lake.refresh()
    (key,) = lake.base.list_below("meta")
    skipping_data.with_sizes(lake.root / key, sizes)
    assert lake.read("i > 500") == ["a", "b", "c"]
    (problem,) = lake.open().problems
    assert "sizes" in problem
