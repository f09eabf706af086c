"""Writing through a connection: conditions, inputs, progress, and what later statements see."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql import C, Cube
from kartosql.errors import KartosqlError, UsageError

CUBE = Cube("c", "x", ["p", "q"])
SEED = pa.table({"x": [1, 2, 3, 4], "p": ["a", "a", "b", "b"], "q": [1, 2, 1, 2], "v": [1, 2, 3, 4]})
EN = pa.table({"x": [1, 2, 3], "p": ["a", "a", "b"], "w": [1.0, 2.0, 3.0]})


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path) as con:
        yield con


@pytest.fixture
def cube(con):
    con.build_cube(CUBE, {"seed": SEED, "en": EN}, partition_on={"en": "p"})
    return con


def left(con, table="c", column="x"):
    return [r[0] for r in con.sql(f"SELECT {column} FROM {table} ORDER BY ALL").rows()]


@pytest.mark.parametrize(
    ("conditions", "seed", "en"),
    [
        ([("p", "==", "a")], [3, 4], [3]),
        ("p == a", [3, 4], [3]),
        (C("p") != "a", [1, 2], [1, 2]),
        (C("q") >= 2, [1, 3], [1, 2, 3]),
        ((C("p") == "a") & (C("q") == 2), [1, 3, 4], [3]),
        ([("p", "in", ["a", "zz"])], [3, 4], [3]),
        ([("p", "in", [])], [1, 2, 3, 4], [1, 2, 3]),
        (C("q").in_interval(1, 2), [2, 4], [1, 2, 3]),
        ([], [], []),
        (None, [], []),
    ],
)
def test_conditions_say_which_partitions_go(cube, conditions, seed, en):
    cube.remove_partitions(CUBE, conditions)
    assert left(cube) == seed
    assert left(cube, "c.en") == en


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        ([("x", "==", 1)], "invalid-condition"),
        ([("v", "==", 1)], "invalid-condition"),
        ([("zz", "==", 1)], "unknown-column"),
        ([("q", "==", "1")], "invalid-condition"),
        ([("q", "==", None)], "invalid-condition"),
        ([("q", "like", 1)], "invalid-condition"),
        (3, "invalid-condition"),
        (C("q").in_interval(), "invalid-condition"),
    ],
)
def test_conditions_that_make_no_sense_remove_nothing(cube, conditions, code):
    for call in (
        lambda: cube.remove_partitions("c", conditions),
        lambda: cube.delete_from_dataset("c.seed", conditions),
        lambda: cube.update_cube("c", {"seed": SEED}, remove_conditions=conditions),
    ):
        with pytest.raises(KartosqlError) as e:
            call()
        assert e.value.code == code
    assert left(cube) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("values", "value"),
    [
        (pa.array([1.5, 2.5]), 2.5),
        (pa.array([True, False]), False),
        (pa.array([dt.date(2026, 1, 1), dt.date(2026, 1, 2)]), dt.date(2026, 1, 2)),
        (pa.array([dt.date(2026, 1, 1), dt.date(2026, 1, 2)]), "2026-01-02"),
        (pa.array([dt.datetime(1960, 1, 1), dt.datetime(2026, 1, 2, 3, 4, 5, 6)]), dt.datetime(2026, 1, 2, 3, 4, 5, 6)),
        (pa.array([1, 2**63], pa.uint64()), 2**63),
        (pa.array(["A", "a"]), "a"),
        (pa.array(["a", "a/b=%"]), "a/b=%"),
    ],
    ids=lambda v: str(getattr(v, "type", type(v).__name__)),
)
def test_conditions_compare_values_of_any_type(con, values, value):
    con.create_dataset("d", pa.table({"p": values, "x": [1, 2]}), partition_on="p")
    con.sql("SET default_collation = 'NOCASE'")
    assert con.delete_from_dataset("d", [("p", "==", value)])["removed"] == 1
    assert left(con, "d") == [1]


_HOLDS = {
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    ">=": lambda one, other: one >= other,
    "in": lambda one, some: one in some,
}
_MOMENT = dt.datetime(2020, 1, 1, 1, 2, 3, 456789)


@pytest.mark.parametrize("op", _HOLDS)
@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ([-0.0, 0.0, 1.5, -1.5, float("inf"), float("-inf"), 5e-324], [0.0, -0.0, 1.5, float("inf"), 5e-324]),
        ([-(2**63), -1, 0, 1, 2**63 - 1], [-(2**63), 0, 2**63 - 1]),
        (["", "'", "a", "A", "\u00e9", "e\u0301", "\U0001f600", "Z", "z", "None"], ["", "'", "a", "Z", "e\u0301"]),
        ([False, True], [False, True]),
        ([_MOMENT, dt.datetime(1969, 12, 31), dt.datetime(2261, 1, 1)], [_MOMENT, dt.datetime(1969, 12, 31)]),
    ],
)
def test_conditions_of_calls_and_of_statements_remove_the_partitions_that_python_finds(con, values, asked, op):
    keys = ["part", "k0", "A b", 'q"']
    table = pa.table({**dict.fromkeys(keys, values), "x": range(len(values))})
    sql = {"==": "=", "!=": "<>"}.get(op, op)
    for at, value in enumerate([[], asked[:1], asked] if op == "in" else asked):
        wanted = [x for x, one in enumerate(values) if not _HOLDS[op](one, value)]
        key = keys[at % len(keys)]
        con.create_dataset("called", table, partition_on=keys, overwrite=True)
        con.delete_from_dataset("called", [(key, op, value)])
        con.create_dataset("said", table, partition_on=keys, overwrite=True)
        con.sql('DELETE FROM said WHERE "{}" {} $v'.format(key.replace('"', '""'), sql), {"v": value})
        assert left(con, "called") == left(con, "said") == wanted


def test_lists_of_dates_may_hold_dates_and_texts(con):
    table = pa.table({"p": [dt.date(2020, 1, 1), dt.date(1999, 5, 5), dt.date(12, 1, 1)], "x": [1, 2, 3]})
    for values in (
        ["2020-01-01", "0012-01-01"],
        [dt.date(2020, 1, 1), "0012-01-01"],
        [b"2020-01-01", dt.date(12, 1, 1)],
    ):
        con.create_dataset("d", table, partition_on="p", overwrite=True)
        con.delete_from_dataset("d", [("p", "in", values)])
        assert left(con, "d") == [2]


def test_an_update_without_conditions_removes_nothing(cube):
    new = pa.table({"x": [5], "p": ["a"], "q": [1], "v": [5]})
    cube.update_cube("c", {"seed": new})
    assert left(cube) == [1, 2, 3, 4, 5]
    cube.update_cube("c", {"seed": new}, remove_conditions=[("q", "==", 1)])
    assert left(cube) == [2, 4, 5]
    assert left(cube, "c.en") == [1, 2, 3]


def test_whole_lives_of_a_cube_in_one_connection(cube):
    cube.extend_cube("c", {"more": pa.table({"x": [1, 2], "m": ["k", "l"]})}, partition_on={"more": []})
    cube.append_to_cube("c", {"seed": pa.table({"x": [9], "p": ["z"], "q": [9], "v": [9]})})
    cube.replace_partitions("c.seed", pa.table({"x": [8], "p": ["z"], "q": [9], "v": [8]}))
    cube.create_index("c.more", "m")
    assert left(cube) == [1, 2, 3, 4, 8]
    assert cube.sql("SELECT x, m FROM c WHERE m = 'l'").rows() == [(2, "l")]
    cube.drop_index("c.more", "m")
    cube.delete_dataset("c.more")
    assert cube.datasets() == ["c++en", "c++seed"]
    cube.delete_cube("c")
    assert cube.cubes() == {}


def test_whole_lives_of_a_dataset_in_one_connection(con):
    con.create_dataset("d", SEED, partition_on="p", index_columns="x", metadata={"a": 1})
    con.append_to_dataset("d", SEED)
    con.replace_partitions("d", SEED.slice(0, 1))
    assert left(con, "d") == [1, 3, 3, 4, 4]
    con.delete_dataset("d")
    assert con.datasets() == []


class TestInputs:
    def test_results_of_queries(self, cube):
        cube.create_dataset("d", cube.sql("SELECT x, v FROM c WHERE x > $1", [2]))
        assert left(cube, "d") == [3, 4]

    def test_a_dataset_may_be_rewritten_from_itself(self, con):
        con.create_dataset("d", SEED, partition_on="p")
        con.create_dataset("d", con.sql("SELECT * FROM d WHERE x > 2"), partition_on="q", overwrite=True)
        assert left(con, "d") == [3, 4]

    def test_files_and_streams(self, con, tmp_path):
        paths = [tmp_path / f"{n}.parquet" for n in "ab"]
        for path in paths:
            pq.write_table(SEED, path)
        con.create_dataset("files", paths)
        con.create_dataset("batches", iter(SEED.to_batches()))
        con.create_dataset("reader", SEED.to_reader())
        assert left(con, "files") == [1, 1, 2, 2, 3, 3, 4, 4]
        assert left(con, "batches") == left(con, "reader") == [1, 2, 3, 4]

    def test_frames(self, con):
        pandas = pytest.importorskip("pandas")
        frame = SEED.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        con.build_cube(CUBE, frame)
        con.append_to_cube(CUBE, [{"seed": frame}, {"seed": frame.assign(x=frame.x + 10)}])
        assert left(con) == [1, 2, 3, 4, 11, 12, 13, 14]


def test_progress_tells_rows_files_and_bytes(con):
    told = []
    done = con.build_cube(CUBE, {"seed": SEED}, progress=told.append)["seed"]
    assert (told[-1].dataset, told[-1].rows, told[-1].files, told[-1].bytes) == ("seed", 4, 4, done["bytes"])


WRITES = {
    "build_cube": (CUBE, {"seed": SEED}),
    "extend_cube": ("c", {"k": SEED}),
    "append_to_cube": ("c", {"seed": SEED}),
    "update_cube": ("c", {"seed": SEED}),
    "remove_partitions": ("c", []),
    "delete_cube": ("c",),
    "create_dataset": ("d", SEED),
    "append_to_dataset": ("c.en", EN),
    "replace_partitions": ("c.en", EN),
    "delete_from_dataset": ("c.en", []),
    "delete_dataset": ("c.en",),
    "create_index": ("c.en", "w"),
    "drop_index": ("c.en", "w"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_read_only_connection_writes_nothing(cube, tmp_path, name):
    with kartosql.connect(tmp_path, read_only=True) as con:
        with pytest.raises(UsageError) as e:
            getattr(con, name)(*WRITES[name])
        assert e.value.code == "read-only"
    con = kartosql.connect(tmp_path)
    con.close()
    with pytest.raises(UsageError) as e:
        getattr(con, name)(*WRITES[name])
    assert e.value.code == "connection-closed"


def test_a_new_cube_has_to_be_specified(con):
    with pytest.raises(UsageError, match="'c' is no Cube"):
        con.build_cube("c", SEED)


def test_rows_larger_than_the_memory_for_writing_are_sorted_as_well(tmp_path):
    count = 300_000
    rows = pa.table({"x": range(count, 0, -1), "p": [n % 3 for n in range(count)], "v": ["text"] * count})
    with kartosql.connect(tmp_path, write_memory="1MB") as con:
        con.build_cube(Cube("c", "x", "p", suppress_index_on="x"), rows)
        assert con.sql("SELECT count(*), sum(x), count(DISTINCT x) FROM c").rows() == [
            (count, count * (count + 1) // 2, count)
        ]
        for key in con._session.snapshot().cube("c").seed.table.files:
            x = pq.read_table(pa.BufferReader(con.store.read(key)))["x"].to_pylist()
            assert x == sorted(x)
