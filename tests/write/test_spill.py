from __future__ import annotations

import datetime as dt
import decimal
import errno
import os
import random

import pyarrow as pa
import pytest

from kartosql.errors import StoreError
from kartosql.write import layout
from kartosql.write.layout import SpillingSorter

MEMORY = 64_000_000


@pytest.fixture(params=[False, True], ids=["one run", "many runs"], autouse=True)
def runs(request, monkeypatch):
    """Let each sort be of one run in memory's size, and of many with few rows in a batch."""
    if request.param:
        monkeypatch.setattr(layout, "MAX_RUN_BYTES", 30_000)
        monkeypatch.setattr(layout, "BATCH_BYTES", 1_000)
    return request.param


def pieces(table: pa.Table, rows: int = 1000):
    return (table.slice(at, rows) for at in range(0, table.num_rows, rows))


def sort(table, columns, memory=MEMORY, **options) -> pa.Table:
    found = SpillingSorter(**options).sort(pieces(table), table.schema, columns, memory)
    return pa.concat_tables([table.schema.empty_table(), *found])


@pytest.mark.parametrize(
    "values",
    [
        ["ä", "z", "a", "B", "\U0001f600", "\uffff", "", "a\0", "a"],
        [3, -1, 2**62, -(2**62), 0],
        pa.array([2**64 - 1, 0, 2**63], pa.uint64()),
        pa.array([127, -128], pa.int8()),
        [0.5, -1.5, float("inf"), float("-inf")],
        pa.array([1.5, 0.1], pa.float32()),
        [True, False, True],
        [b"\xff", b"", b"\0a"],
        [dt.date(2020, 1, 1), dt.date(1960, 1, 1), dt.date(9999, 12, 31)],
        [dt.datetime(2020, 1, 1, 0, 0, 0, 5), dt.datetime(1960, 1, 1)],
        pa.array([dt.datetime(2020, 6, 1), dt.datetime(1960, 1, 1)], pa.timestamp("us", "Europe/Berlin")),
        [dt.time(12), dt.time(0, 0, 0, 1)],
        [decimal.Decimal("1.50"), decimal.Decimal("-2.25")],
    ],
    ids=lambda v: str(pa.array(v).type if isinstance(v, list) else v.type),
)
def test_every_type_of_key_is_sorted_as_arrow_does_it(values):
    table = pa.table({"k": values, "n": range(len(values))})
    found = sort(table, ["k"])
    assert found.schema == table.schema
    assert found.equals(table.sort_by("k"))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([None, "a"]),
        pa.nulls(2),
        pa.array([[1, None], None]),
        pa.array([["a"], []], pa.list_(pa.string())),
        pa.array([{"a": 1, "B": None}, None]),
        pa.array([float("nan"), -0.0]),
        pa.array([decimal.Decimal(10) ** 50, None], pa.decimal256(60, 2)),
        pa.array([None, dt.datetime(2020, 6, 1)], pa.timestamp("us", "America/New_York")),
    ],
    ids=lambda v: str(v.type),
)
def test_payload_of_every_type_comes_along_unchanged(values):
    table = pa.table({"k": [2, 1], "v": values})
    found = sort(table, ["k"])
    assert found.schema == table.schema
    assert repr(found["v"].to_pylist()) == repr(table["v"].to_pylist()[::-1])


def test_equal_rows_stay_in_the_order_given_and_names_may_be_anything():
    rng = random.Random(2)
    table = pa.table(
        {"V": [rng.randrange(5) for _ in range(20_000)], "v": range(20_000), 'a "b.': [1] * 20_000, "row": [2] * 20_000}
    )
    assert sort(table, ["V"]).equals(table.sort_by("V"))


@pytest.mark.parametrize("keys", [["k"], ["p", "k"], ["s", "p", "k"]], ids=", ".join)
@pytest.mark.parametrize("kind", ["random", "sorted", "reversed", "few values", "one value"])
def test_any_order_is_sorted_and_stable(runs, keys, kind):
    rng = random.Random(7)
    count = 20_000
    values = {
        "random": lambda: [rng.randrange(count) for _ in range(count)],
        "sorted": lambda: list(range(count)),
        "reversed": lambda: list(range(count, 0, -1)),
        "few values": lambda: [rng.choice([1, 1, 1, 2, 3]) for _ in range(count)],
        "one value": lambda: [5] * count,
    }[kind]
    table = pa.table({"k": values(), "p": values(), "s": [str(v) for v in values()], "n": range(count)})
    assert sort(table, keys).equals(table.sort_by([(k, "ascending") for k in [*keys, "n"]]))


def test_pieces_stay_small_however_many_rows_there_are(monkeypatch, runs):
    rng = random.Random(3)
    order = list(range(100_000))
    rng.shuffle(order)
    table = pa.table({"k": order, "v": [f"{k:030d}" for k in order]})
    for keys in (order, sorted(order), [k % 3 for k in order]):
        table = table.set_column(0, "k", pa.array(keys))
        found = list(SpillingSorter().sort(pieces(table), table.schema, ["k"], 400_000))
        assert pa.concat_tables(found)["k"].to_pylist() == sorted(keys)
        limit = 30_000 if runs else 100_000
        assert max(piece.nbytes for piece in found) < 3 * limit + (0 if runs else layout.BATCH_BYTES * 40)


def test_files_stand_in_the_folder_asked_for_and_go(tmp_path):
    table = pa.table({"k": list(range(300_000, 0, -1))})
    found = SpillingSorter(str(tmp_path)).sort(pieces(table), table.schema, ["k"], 600_000)
    next(found)
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) > 3
    assert pa.concat_tables(found).num_rows > 0
    assert os.listdir(tmp_path) == []


def test_a_sort_that_is_given_up_leaves_no_folder(tmp_path):
    table = pa.table({"k": range(300_000)})
    found = SpillingSorter(str(tmp_path)).sort(pieces(table), table.schema, ["k"], MEMORY)
    next(found)
    found.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [StoreError("gone"), ValueError("foreign"), KeyboardInterrupt()])
def test_errors_of_the_source_pass(error):
    def source():
        yield pa.table({"k": [1]})
        raise error

    with pytest.raises(type(error)):
        list(SpillingSorter().sort(source(), pa.schema({"k": pa.int64()}), ["k"], MEMORY))


def test_no_rows_give_no_pieces():
    assert list(SpillingSorter().sort(iter(()), pa.schema({"k": pa.int64()}), ["k"], MEMORY)) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="temporary folder") as e:
        sort(pa.table({"k": [2, 1]}), ["k"], temp_directory=str(tmp_path / "file"))
    assert e.value.code == "store-failed"


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(layout.pa, "OSFile", full)
    with pytest.raises(StoreError) as e:
        sort(pa.table({"k": [2, 1]}), ["k"], temp_directory=str(tmp_path))
    assert e.value.code == "disk-full"
    assert os.listdir(tmp_path) == []
