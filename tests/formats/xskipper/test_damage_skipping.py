"""Damaged and hostile metadata: no file is skipped for them, nothing else happens, and it is told once."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.errors import KartosqlError
from kartosql.formats.xskipper import bloom, segment
from kartosql.formats.xskipper.kinds import IndexSpec
from kartosql.formats.xskipper.layout import layout_for
from kartosql.formats.xskipper.refreshing import Sources, refresh
from kartosql.formats.xskipper.scans import DataFile
from kartosql.formats.xskipper.segment import ROW_METADATA
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.parquet import DAMAGE
from kartosql.store import Store
from skipping_data import bounds_of, might_contain

TABLE = "/lake/t"
FILES = [DataFile(f"{TABLE}/{n}", 1000 + n, str(n)) for n in range(6)]
LISTING = [(f.path, f.modified_ms) for f in FILES]
SPECS = [IndexSpec("minmax", "i"), IndexSpec("valuelist", "s"), IndexSpec("bloomfilter", "i", fpp=0.1, ndv=20)]
QUERIES = {"i = 3": 3, "s = 'v3'": 3, "i > 4": 5, "i IN (3, 99)": 3, "s LIKE 'v3%'": 3}


def _scan(keys: Any, columns: Any) -> Any:
    for number, key in enumerate(keys):
        rows = {"i": pa.array([int(key)]), "s": pa.array([f"v{key}"])}
        yield number, pa.RecordBatch.from_pydict({c: rows[c] for c in columns})


@pytest.fixture
def part(tmp_path: Path) -> Path:
    layout = layout_for(TABLE, SPECS, {"i": pa.int64(), "s": pa.string()})
    assert refresh(Store(tmp_path), "meta", FILES, layout, Sources(_scan)).added == 6
    (found,) = (tmp_path / "meta").glob("part-*")
    return found


def _selected(folder: Path, where: str) -> tuple[set[str], list[str]]:
    store = MetadataStore.open(folder)
    found = set(store.select(where, LISTING))
    assert store.select(where, LISTING) == store.select(where, LISTING)
    assert len(store.describe()["indexes"]) == len(store.indexes)
    return found, store.problems


def _rewritten(part: Path, change: Any = None, columns: Any = None) -> None:
    """Write a part file again with another schema in its footer, or with other columns."""
    table = pq.read_table(part)
    described = json.loads(pq.read_metadata(part).metadata[ROW_METADATA.encode()])
    for name, values in (columns or {}).items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    text = json.dumps(described)
    if change is not None:
        changed = change(described)
        text = changed if isinstance(changed, str) else json.dumps(described if changed is None else changed)
    with pq.ParquetWriter(part, table.schema, store_schema=False) as writer:
        writer.add_key_value_metadata({ROW_METADATA: text, "org.apache.spark.version": "4.0.0"})
        writer.write_table(table)


def _without_bounds(described: Any) -> None:
    described["fields"] = [f for f in described["fields"] if not f["name"].startswith("i_minmax")]


def _with_text_bounds(described: Any) -> None:
    for member in _field(described, "i_minmax")["type"]["fields"]:
        member["type"] = "string"


def _field(described: Any, name: str) -> Any:
    return next(f for f in described["fields"] if f["name"].startswith(name))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: "no JSON",
        lambda d: "[" * 100_000,
        lambda d: "[]",
        lambda d: {"fields": 5},
        lambda d: {"fields": [5]},
        lambda d: {"fields": []},
        lambda d: _field(d, "obj_name")["metadata"].update(version="4"),
        lambda d: _field(d, "obj_name")["metadata"].update(version=5),
        lambda d: _field(d, "obj_name")["metadata"].update(version=-1),
        lambda d: _field(d, "obj_name").update(name="object"),
        lambda d: {"fields": d["fields"] * 5_000},
    ],
)
def test_a_schema_that_is_odd_makes_its_file_unknown(part, change):
    _rewritten(part, change)
    for where in QUERIES:
        found, problems = _selected(part.parent, where)
        assert len(found) == 6
        assert len(problems) == 1


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("i_minmax", lambda f: f.update(type="long")),
        ("i_minmax", lambda f: f["type"]["fields"].pop()),
        ("i_minmax", lambda f: f["type"].update(fields=5)),
        ("i_minmax", lambda f: f["type"]["fields"][0].update(type="string")),
        ("i_minmax", lambda f: [e.update(type="string") for e in f["type"]["fields"]]),
        ("i_minmax", lambda f: [e.update(type="decimal(38,0)") for e in f["type"]["fields"]]),
        ("i_minmax", lambda f: f.update(type={"type": "udt", "sqlType": "binary"})),
        ("i_minmax", lambda f: f["metadata"]["index"].update(cols="i")),
        ("i_minmax", lambda f: f["metadata"]["index"].update(cols=["i", "j"])),
        ("i_minmax", lambda f: f["metadata"]["index"].update(cols=[5])),
        ("i_minmax", lambda f: f["metadata"]["index"].update(name=None)),
        ("i_minmax", lambda f: f["metadata"]["index"].update(name="valuelist")),
        ("i_minmax", lambda f: f["metadata"]["index"].update(name="bloomfilter")),
        ("i_minmax", lambda f: f.update(name="elsewhere")),
        ("s_valuelist", lambda f: f["type"].update(elementType="long")),
        ("s_valuelist", lambda f: f["metadata"]["index"].update(name="minmax")),
        ("s_valuelist", lambda f: f.update(type={"type": "udt", "sqlType": "binary"})),
        ("s_valuelist", lambda f: f["metadata"]["index"].update(params=[1, {}, "x"])),
        ("s_valuelist", lambda f: f["metadata"]["index"].update(params="x")),
    ],
)
def test_an_index_that_is_odd_is_not_used(part, name, change):
    _rewritten(part, lambda d: change(_field(d, name)))
    for where, number in QUERIES.items():
        found, problems = _selected(part.parent, where)
        assert f"{TABLE}/{number}" in found
        assert len(problems) <= 2


def test_rows_without_a_name_are_nobodys(part):
    _rewritten(part, columns={"obj_name": pa.array([None] * 6, pa.string())})
    assert len(_selected(part.parent, "i = 3")[0]) == 6
    _rewritten(part, columns={"obj_name": pa.array([f"x{n}" for n in range(6)])})
    assert len(_selected(part.parent, "i = 3")[0]) == 6
    _rewritten(part, columns={"obj_name": pa.array(range(6))})
    assert len(_selected(part.parent, "i = 3")[0]) == 6


def test_text_that_is_no_utf_8_is_not_used(part):
    raw = pa.array([[b"v\xff"]] * 6, pa.list_(pa.binary()))
    _rewritten(part, columns={"s_valuelist_1": _unchecked(raw)})
    found, problems = _selected(part.parent, "s = 'v3'")
    assert len(found) == 6
    assert len(problems) == 1


def _unchecked(lists: pa.Array) -> pa.Array:
    """Return lists of bytes as lists of texts, whatever the bytes are."""
    values = pa.Array.from_buffers(pa.string(), len(lists.values), lists.values.buffers())
    return pa.ListArray.from_arrays(lists.offsets, values)


def test_bounds_the_wrong_way_round_bound_nothing(part):
    type_ = pq.read_schema(part).field("i_minmax_1").type
    _rewritten(part, columns={"i_minmax_1": pa.array([{"min": 9, "max": 1}] * 6, type_)})
    assert len(_selected(part.parent, "i > 20")[0]) == 6
    _rewritten(part, columns={"i_minmax_1": pa.array([{"min": None, "max": 1}] * 6, type_)})
    assert _selected(part.parent, "i < -20")[0] == {f.path for f in FILES}
    assert _selected(part.parent, "i > 20")[0] == set()


@pytest.mark.parametrize("name", ["obj_name", "s_valuelist_1", "i_minmax_1"])
def test_a_value_that_stands_in_all_rows_is_counted_before_it_is_repeated(part, monkeypatch, name):
    monkeypatch.setattr(segment, "MAX_COLUMN_BYTES", 50_000)
    long = "v" * 10_000
    cells = {
        "obj_name": pa.array([long] * 6),
        "s_valuelist_1": pa.array([[long]] * 6),
        "i_minmax_1": pa.array([{"min": long, "max": long}] * 6),
    }
    _rewritten(part, _with_text_bounds, {name: cells[name]})
    assert part.stat().st_size < 20_000
    found, problems = _selected(part.parent, "s = 'v3' AND i > 'v'")
    assert len(found) == 6 or name == "i_minmax_1"
    assert any("more than 50,000 bytes" in p for p in problems), (found, problems)


def test_bounds_need_both_members(part):
    type_ = pa.struct([("min", pa.int64()), ("most", pa.int64())])
    _rewritten(part, columns={"i_minmax_1": pa.array([{"min": 1, "most": 1}] * 6, type_)})
    found, problems = _selected(part.parent, "i > 4")
    assert len(found) == 6
    assert len(problems) == 1


def test_cells_that_are_no_filters_are_tried_so_often_only(part, monkeypatch):
    tried, layout = [], bloom.CellLayout
    monkeypatch.setattr(bloom, "MAX_FAILURES", 2)
    monkeypatch.setattr(bloom, "CellLayout", lambda cell: tried.append(cell) or layout(cell))
    good = pq.read_table(part).column("i_bloomfilter_1").to_pylist()
    _rewritten(part, _without_bounds, {"i_bloomfilter_1": pa.array([b"a", b"b", b"c", *good[3:]], pa.binary())})
    found, problems = _selected(part.parent, "i = 99")
    assert found == {f.path for f in FILES}
    assert len(tried) == 2
    assert len(problems) == 2


@pytest.mark.parametrize("seed", range(6))
def test_cells_that_are_no_filters_hold_everything(part, seed):
    rng = random.Random(seed)
    cells = pq.read_table(part).column("i_bloomfilter_1").to_pylist()
    assert might_contain(cells[3], [3])
    for number in range(6):
        if number != 3:
            cell = bytearray(cells[number])
            for _ in range(3):
                cell[rng.randrange(len(cell))] = rng.randrange(256)
            cells[number] = rng.choice([bytes(cell), cells[number][: rng.randrange(len(cell))], b"", None])
    _rewritten(part, _without_bounds, {"i_bloomfilter_1": pa.array(cells, pa.binary())})
    for where in ("i = 3", "i IN (3, 4)"):
        found, problems = _selected(part.parent, where)
        assert f"{TABLE}/3" in found
        for number, cell in enumerate(cells):
            try:
                known = cell is not None and bool(bloom.CellLayout(cell))
            except ValueError:
                known = False
            if not known:
                assert f"{TABLE}/{number}" in found
        assert len(problems) <= 7


def test_filters_of_the_second_version_are_looked_into(part):
    shape = bloom.Shape(2, 5, 7, 640)
    one = bloom.cell_of(bloom.Shape(1, 5, 0, 640), bytes(80))
    head, body = one[: one.index(b"z\x00") if b"z\x00" in one else one.index(b"xpw") + 2], bytearray(80)
    for bit in shape.positions(3):
        body[(bit >> 6 << 3) + 7 - ((bit & 63) >> 3)] |= 1 << (bit & 7)
    head = head.replace(
        b"\x00\x2corg.apache.spark.util.sketch.BloomFilterImpl",
        b"\x00\x2eorg.apache.spark.util.sketch.BloomFilterImplV2",
    )
    data = b"".join(n.to_bytes(4, "big") for n in (2, 5, 7, 10)) + bytes(body)
    cell = head + b"w" + bytes([len(data)]) + data + b"x"
    _rewritten(part, _without_bounds, {"i_bloomfilter_1": pa.array([cell] * 6, pa.binary())})
    assert len(_selected(part.parent, "i = 3")[0]) == 6
    assert _selected(part.parent, "i = 4") == (set(), [])


@pytest.mark.parametrize("seed", range(10))
def test_changed_footers_of_metadata_are_read_or_refused(part, seed):
    rng = random.Random(seed)
    good = part.read_bytes()
    footer = int.from_bytes(good[-8:-4], "little")
    for _ in range(30):
        data = bytearray(good)
        for _ in range(rng.choice([1, 3, 20])):
            data[rng.randrange(len(data) - footer - 8, len(data))] = rng.randrange(256)
        part.write_bytes(bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])]))
        try:
            store = MetadataStore.open(part.parent)
            for where in QUERIES:
                store.select(where, LISTING)
            store.describe()
        except KartosqlError:
            continue


@pytest.mark.parametrize("seed", range(10))
def test_changed_footers_of_data_are_read_or_refused(tmp_path, seed):
    rng = random.Random(seed)
    table = pa.table({"i": [1, 2], "s": ["a", "b"], "n": [{"a": 1}, {"a": 2}]})
    pq.write_table(table, tmp_path / "a.parquet")
    good = (tmp_path / "a.parquet").read_bytes()
    length = int.from_bytes(good[-8:-4], "little")
    footer = good[-8 - length : -8]
    assert bounds_of(footer, "i", pa.int64()) == (1, 2)
    for _ in range(200):
        data = bytearray(footer)
        for _ in range(rng.choice([1, 2, 10])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            bounds_of(bytes(data), "i", pa.int64())
        except DAMAGE:
            continue


def test_footers_with_encrypted_columns_tell_nothing_of_them(tmp_path):
    pe = pytest.importorskip("pyarrow.parquet.encryption")
    from kartosql.formats.xskipper import segment

    made, connection = segment.encryption_factory({"f": b"1" * 16, "c": b"2" * 16})
    wanted = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["b"]}, plaintext_footer=True)
    secret = made.file_encryption_properties(connection, wanted)
    table = pa.table({"a": [1, 2], "b": [3, 4]})
    with pq.ParquetWriter(tmp_path / "x.parquet", table.schema, encryption_properties=secret) as writer:
        writer.write_table(table)
    path = tmp_path / "x.parquet"
    assert bounds_of(path, "a", pa.int64()) == (1, 2)
    assert bounds_of(path, "b", pa.int64()) is None
