"""Rules that keep files where the original, or another engine, may mean something else."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.formats.xskipper.domain import ColumnType
from kartosql.formats.xskipper.kinds import Session
from kartosql.formats.xskipper.segment import ROW_METADATA
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.predicate.from_sql import predicate_of

Write = Callable[..., MetadataStore]
PATH = "/lake/t/part-0.snappy.parquet"


def _index(kind: str, spark: str, cells: pa.Array) -> tuple[str, Any, pa.Array]:
    if kind == "minmax":
        members = [{"name": n, "type": spark, "nullable": True, "metadata": {}} for n in ("min", "max")]
        return kind, {"type": "struct", "fields": members}, cells
    return kind, {"type": "array", "elementType": spark, "containsNull": True}, cells


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return what writes metadata of one file, as the original would, over a column x."""

    def made(*indexes: tuple[str, Any, pa.Array], path: str = PATH, spark: str = "4.0.0") -> MetadataStore:
        fields = [{"name": "obj_name", "type": "string", "nullable": True, "metadata": {"version": 4}}]
        columns = {"obj_name": pa.array([f"{path}#1"])}
        for kind, type_, cells in indexes:
            name = f"x_{kind}_1"
            meta = {"index": {"cols": ["x"], "name": kind}}
            fields.append({"name": name, "type": type_, "nullable": True, "metadata": meta})
            columns[name] = cells
        table = pa.table(columns)
        about = {ROW_METADATA: json.dumps({"type": "struct", "fields": fields}), "org.apache.spark.version": spark}
        with pq.ParquetWriter(tmp_path / "part-0.parquet", table.schema, store_schema=False) as writer:
            writer.add_key_value_metadata(about)
            writer.write_table(table)
        return MetadataStore.open(tmp_path)

    return made


def _skips(store: MetadataStore, where: str, path: str = PATH, session: Session | None = None) -> bool:
    found = store.select_files([predicate_of(where)], [(path, 1)], session)
    assert store.problems == []
    return found.kept == []


def _bounds(low: Any, high: Any, type_: pa.DataType) -> pa.Array:
    return pa.array([{"min": low, "max": high}], pa.struct([("min", type_), ("max", type_)]))


@pytest.mark.parametrize(
    ("low", "high", "below", "above"),
    [
        ("a", "b", True, True),
        ("\U0001f600", "b", False, True),
        ("a", "\uffff", True, False),
        ("a", "\U0001f600", True, True),
        ("a\ue000", "b\ue000", True, False),
    ],
)
def test_bounds_in_the_order_of_utf_16_are_used_where_utf_8_agrees(write, low, high, below, above):
    if low > high:
        low, high = low, high + "\U0001f601"
    store = write(_index("minmax", "string", _bounds(low, high, pa.string())))
    assert _skips(store, "x < ''") == below
    assert _skips(store, "x > '\U0010ffff'") == above


@pytest.mark.parametrize("type_", ["float", "double"])
def test_bounds_that_may_come_from_footers_are_not_used_for_floating_point_numbers(write, type_):
    arrow = pa.float32() if type_ == "float" else pa.float64()
    alone = _index("minmax", type_, _bounds(1.0, 2.0, arrow))
    assert not _skips(write(alone), "x > 5")
    assert not _skips(write(alone), "x < 0")
    # Of files that are no Parquet, and beside other indexes, rows were read.
    for name in ("/lake/t/a.csv", "/lake/t/a.json.gz", "/lake/t/part-0.snappy.orc"):
        assert _skips(write(alone, path=name), "x > 5", name)
    beside = _index("valuelist", type_, pa.array([[1.0, 2.0]], pa.list_(arrow)))
    assert _skips(write(alone, beside), "x > 5")
    whole = _index("minmax", "long", _bounds(1, 2, pa.int64()))
    assert _skips(write(whole), "x > 5")


@pytest.mark.parametrize("spark", ["2.4.5", "", "3.0.1"])
def test_old_dates_of_old_programs_are_not_certain(write, spark):
    days = [(dt.date(d, 1, 1) - dt.date(1970, 1, 1)).days for d in (1500, 1600)]
    old = _index("minmax", "date", _bounds(*days, pa.date32()))
    assert _skips(write(old, spark=spark), "x > DATE '1700-01-01'") == (spark == "3.0.1")
    listed = _index("valuelist", "date", pa.array([days], pa.list_(pa.date32())))
    assert _skips(write(listed, spark=spark), "x = DATE '1700-01-01'") == (spark == "3.0.1")
    new = _index("minmax", "date", _bounds(1000, 2000, pa.date32()))
    assert _skips(write(new, spark=spark), "x > DATE '2100-01-01'")


def test_times_beyond_the_nanoseconds_of_64_bits_are_right(write):
    moments = [dt.datetime(1500, 1, 1), dt.datetime(2300, 1, 1)]
    table = pa.table({"obj_name": [f"{PATH}#1"], "x": _bounds(*moments, pa.timestamp("us"))})
    assert not _skips(write(_index("minmax", "timestamp", table["x"].chunk(0))), "x < TIMESTAMP '1501-01-01 00:00:00'")
    assert _skips(write(_index("minmax", "timestamp", table["x"].chunk(0))), "x < TIMESTAMP '1499-12-31 00:00:00'")


def test_binary_bounds_are_used_only_if_there_is_one_value(write):
    store = write(_index("minmax", "binary", _bounds(b"\x01", b"\x01", pa.binary())))
    assert _skips(store, "x = X'02'")
    assert not _skips(store, "x = X'01'")
    store = write(_index("minmax", "binary", _bounds(b"\x01", b"\xff", pa.binary())))
    assert not _skips(store, "x = X'00'")


@pytest.mark.parametrize(
    ("known", "skips"),
    [
        ({("x",): ColumnType("integer")}, True),
        ({("x",): ColumnType("double")}, False),
        ({("x",): ColumnType("string")}, False),
        ({("y",): ColumnType("integer")}, False),
        ({}, False),
        (None, True),
    ],
)
def test_an_index_has_to_agree_on_the_type_of_its_column(write, known, skips):
    store = write(
        _index("minmax", "long", _bounds(1, 2, pa.int64())),
        _index("valuelist", "long", pa.array([[1, 2]], pa.list_(pa.int64()))),
    )
    assert _skips(store, "x = 5", session=Session(types=known)) == skips
    one = Session(types={("x",): ColumnType("integer")}, kinds=("bloomfilter",))
    assert not _skips(store, "x = 5", session=one)


def test_decimals_have_to_agree_on_their_digits(write):
    from decimal import Decimal

    store = write(_index("minmax", "decimal(5,2)", _bounds(Decimal("1.00"), Decimal("2.00"), pa.decimal128(5, 2))))
    assert _skips(store, "x > 2.001", session=Session(types={("x",): ColumnType("decimal", 5, 2)}))
    assert not _skips(store, "x > 2.001", session=Session(types={("x",): ColumnType("decimal", 7, 2)}))


def test_columns_are_found_by_members_and_never_by_dots_in_names(write):
    store = write(_index("minmax", "long", _bounds(1, 2, pa.int64())))
    assert _skips(store, "X > 5")
    for where in ('"x.y" > 5', "x.y > 5", "y.x > 5", "x['y'] > 5"):
        assert not _skips(store, where)


def test_decimals_of_all_digits_are_compared_exactly(write):
    from decimal import Decimal

    digits = "9" * 28 + "." + "9" * 10
    type_, most, least = pa.decimal128(38, 10), Decimal(digits), Decimal("-" + digits)
    store = write(
        _index("minmax", "decimal(38,10)", _bounds(least, most, type_)),
        _index("valuelist", "decimal(38,10)", pa.array([[least, most]], pa.list_(type_))),
    )
    assert not _skips(store, f"x = {most}")
    assert not _skips(store, f"x = -{most}")
    assert _skips(store, f"x < -{most}")
    assert _skips(store, f"x NOT IN ({most}, -{most})")


def test_numbers_of_32_bits_are_compared_as_they_are(write):
    store = write(
        _index("minmax", "float", _bounds(1.1, float("nan"), pa.float32())),
        _index("valuelist", "string", pa.array([["a"]])),
    )
    assert _skips(store, "x < CAST(1.1 AS FLOAT)")
    assert not _skips(store, "x <= CAST(1.1 AS FLOAT)")
    assert not _skips(store, "x >= CAST('NaN' AS FLOAT)")
