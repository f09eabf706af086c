from __future__ import annotations

import datetime as dt
import math
import uuid
from dataclasses import dataclass

import pyarrow as pa
import pytest

import builders
from kartosql.errors import UsageError
from kartosql.formats.kartothek.naming import write_id
from kartosql.store import Store
from kartosql.write.inputs import open_rows
from kartosql.write.layout import Layout, run_starts
from written import write_rows


def layout(partition_on=("p",), cell=("p", "x"), index=(), **changes):
    return Layout("c++seed", "seed", partition_on, cell, index, tuple({*partition_on, *cell, *index}), **changes)


@dataclass
class Made:
    """What the files of some rows hold, in the order of their labels."""

    labels: tuple[str, ...]
    files: list[pa.Table]


def split(table, layout):
    store = Store(f"memory://{uuid.uuid4().hex}")
    written = write_rows(store, open_rows(table, "seed"), layout)
    return Made(written.labels, [builders.read_parquet(store, key) for key in written.keys])


def rows_of(made):
    folders = [label.rpartition("/")[0] for label in made.labels]
    return dict(zip(folders, (rows.to_pylist() for rows in made.files), strict=True))


def test_rows_are_sorted_and_partition_columns_leave_the_files():
    made = split(pa.table({"v": [1, 2, 3], "x": [2, 1, 1], "p": ["b", "a", "b"]}), layout())
    assert rows_of(made) == {"p=a": [{"v": 2, "x": 1}], "p=b": [{"v": 3, "x": 1}, {"v": 1, "x": 2}]}


def test_text_is_sorted_by_code_point():
    words = ["ä", "z", "a", "B", "\U0001f600", "\uffff", ""]
    made = split(pa.table({"x": words, "p": [1] * len(words)}), layout())
    assert made.files[0]["x"].to_pylist() == sorted(words)


def test_partition_columns_of_its_own_split_first_and_cells_stay_in_order():
    table = pa.table({"x": [3, 1, 2, 4], "r": ["v", "u", "v", "u"], "p": [1, 1, 1, 1]})
    made = split(table, layout(partition_on=("r", "p")))
    assert rows_of(made) == {"r=u/p=1": [{"x": 1}, {"x": 4}], "r=v/p=1": [{"x": 2}, {"x": 3}]}


def test_without_cells_rows_keep_their_order_and_may_repeat():
    table = pa.table({"x": [2, 1, 2], "p": ["b", "a", "b"]})
    assert rows_of(split(table, layout(cell=()))) == {"p=a": [{"x": 1}], "p=b": [{"x": 2}, {"x": 2}]}


def test_all_files_of_one_write_share_an_id_and_writes_do_not():
    table = pa.table({"x": [1, 2], "p": ["a", "b"]})
    first, second = split(table, layout()), split(table, layout())
    ids = {write_id(f"{label}.parquet") for label in first.labels + second.labels}
    assert len(ids) == 2
    assert None not in ids


@pytest.mark.parametrize(
    ("values", "folders"),
    [
        (pa.array(["a/b", "ä ö%", "x=y", ""]), ["p=", "p=a%2Fb", "p=x%3Dy", "p=%C3%A4%20%C3%B6%25"]),
        (pa.array([-1, 7], pa.int8()), ["p=-1", "p=7"]),
        (pa.array([0.5, 1e22, math.inf]), ["p=0.5", "p=1e%2B22", "p=inf"]),
        (pa.array([0.1], pa.float32()), ["p=0.10000000149011612"]),
        (pa.array([True, False]), ["p=False", "p=True"]),
        (pa.array([dt.date(2026, 1, 31)]), ["p=2026-01-31"]),
        (
            pa.array([dt.datetime(2020, 1, 1, 1), dt.datetime(2020, 1, 1, 1, 0, 0, 5)]),
            ["p=2020-01-01%2001%3A00%3A00", "p=2020-01-01%2001%3A00%3A00.000005"],
        ),
        (
            pa.array([dt.datetime(2020, 6, 1, tzinfo=dt.timezone.utc)], pa.timestamp("us", "Europe/Berlin")),
            ["p=2020-06-01%2000%3A00%3A00%2B00%3A00"],
        ),
    ],
    ids=lambda v: str(v.type) if isinstance(v, pa.Array) else "",
)
def test_text_of_partition_values(values, folders):
    made = split(pa.table({"x": range(len(values)), "p": values}), layout())
    assert list(rows_of(made)) == folders


def test_names_of_partition_columns_are_quoted():
    made = split(pa.table({"x": [1], "a/b =": ["v"]}), layout(("a/b =",), ("a/b =", "x")))
    assert list(rows_of(made)) == ["a%2Fb%20%3D=v"]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("p", ["a", None], "partition column 'p' holds NULL, first in row 1"),
        ("x", [None, None], "dimension column 'x' holds NULL, first in row 0"),
        ("x", pa.nulls(2), "dimension column 'x' holds NULL, first in row 0"),
        ("i", [None, "u"], "index column 'i' holds NULL, first in row 0"),
        ("x", [1.0, math.nan], "dimension column 'x' holds NaN, first in row 1"),
        ("i", [math.nan, 1.0], "index column 'i' holds NaN"),
    ],
)
def test_null_and_nan_in_keys_are_refused(column, values, message):
    table = pa.table({"p": ["a", "a"], "x": [1, 2], "i": ["u", "v"]} | {column: values})
    with pytest.raises(UsageError, match=message) as e:
        split(table, layout(index=("i",)))
    assert e.value.code == "null-in-key"


def test_payload_may_hold_null_and_nan():
    made = split(pa.table({"p": ["a", "a"], "x": [1, 2], "v": [None, math.nan]}), layout())
    assert made.files[0]["v"].null_count == 1


@pytest.mark.parametrize(
    "xs",
    [
        [1, 2, 1],
        [0.0, 5.0, -0.0],
        ["a", "b", "a"],
        [b"", b"b", b""],
        [dt.date(2020, 1, 1), dt.date(2021, 1, 1), dt.date(2020, 1, 1)],
    ],
)
def test_repeated_cells_are_refused(xs):
    with pytest.raises(UsageError, match="a cell occurs again in 1 row, first at p = a, x = ") as e:
        split(pa.table({"p": ["a"] * 3, "x": xs}), layout())
    assert e.value.code == "duplicate-cells"


def test_the_same_dimensions_in_another_partition_are_another_cell():
    assert len(split(pa.table({"p": ["a", "b"], "x": [1, 1]}), layout()).labels) == 2


def test_cells_repeat_across_partitions_of_its_own():
    with pytest.raises(UsageError) as e:
        split(pa.table({"p": [1, 1], "x": [1, 1], "r": ["u", "v"]}), layout(("p", "r")))
    assert e.value.code == "duplicate-cells"


def test_zero_and_minus_zero_are_one_partition():
    made = split(pa.table({"p": [0.0, 1.0, -0.0], "x": [1, 2, 3]}), layout())
    assert list(rows_of(made).values()) == [[{"x": 1}, {"x": 3}], [{"x": 2}]]


LIST = pa.array([[1], [2]])
DECIMAL = pa.array([1, 2]).cast(pa.decimal128(21, 2))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("p", DECIMAL, "'p' is DECIMAL.* cannot serve as partition column"),
        ("p", [b"a", b"b"], "'p' is BLOB, which cannot serve as partition column"),
        ("x", LIST, r"'x' is .*\[\], which cannot serve as dimension column"),
        ("i", DECIMAL, "'i' is DECIMAL.* cannot serve as index column"),
        ("i", LIST, r"'i' is .*\[\]"),
    ],
)
def test_types_that_cannot_play_a_role_are_refused(column, values, message):
    table = pa.table({"p": ["a", "b"], "x": [1, 2], "i": ["u", "v"]} | {column: values})
    with pytest.raises(UsageError, match=message) as e:
        split(table, layout(index=("i",)))
    assert e.value.code == "invalid-data"


def test_a_decimal_dimension_of_the_seed_asks_for_suppress_index_on():
    with pytest.raises(UsageError) as e:
        split(pa.table({"p": ["a", "b"], "x": DECIMAL}), layout(index=("x",)))
    assert "suppress_index_on" in e.value.hint


@pytest.mark.parametrize(
    ("table", "made", "message"),
    [
        (pa.table({"x": [1]}), layout(), "partition column 'p' is missing"),
        (pa.table({"p": [1], "x": [1], "partition": [1]}), layout(index=("partition",)), "'partition' cannot be"),
        (pa.table({"p": [1], "x": [1]}), layout(("p", "x")), "all its columns are partition columns"),
        (pa.table({"p": ["a" * 300], "x": [1]}), layout(), "no usable file name"),
        (pa.table({"p": pa.array([2**40], pa.int64()).cast(pa.timestamp("s")), "x": [1]}), layout(), "text form"),
    ],
    ids=["missing", "named partition", "empty files", "long value", "year"],
)
def test_what_has_no_place_on_disk_is_refused(table, made, message):
    with pytest.raises(UsageError, match=message) as e:
        split(table, made)
    assert e.value.code == "invalid-data"


def test_run_starts():
    table = pa.table({"a": [1, 1, 2, 2], "b": [1, 1, 1, 2]})
    assert run_starts(table, ("a", "b")) == [0, 2, 3]
    assert run_starts(table, ()) == [0]
    assert run_starts(table.slice(0, 1), ("a",)) == [0]
    assert run_starts(table.slice(0, 0), ("a",)) == []
