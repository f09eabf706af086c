"""Datasets of a cube joined by position: the same rows as by their cells, whatever the files hold."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.engines.duckdb import alignment, relations

pytestmark = pytest.mark.filterwarnings("error")
KEYS = ("k", "t")
CUBE = kartosql.Cube("c", KEYS, ["p"])
STATEMENTS = (
    "SELECT * FROM c",
    "SELECT k, t, p, v, a, b FROM c WHERE p <> 'p1'",
    "SELECT p, count(*), count(a), count(b), sum(v), max(b) FROM c GROUP BY p",
    "SELECT a, b FROM c WHERE v % 3 = 0",
    "SELECT v, b FROM c WHERE a > 2",
    "SELECT v, a FROM c WHERE b IS NULL",
    "SELECT v, a, b FROM c WHERE k = 3",
    "SELECT v, p, a FROM c WHERE p = 'p0' AND t >= 'b'",
    "SELECT v, a, b, k, t, p FROM c ORDER BY b DESC, v, k, t, p, a LIMIT 7",
    "SELECT count(*) FROM (SELECT a FROM c LIMIT 5)",
    "SELECT x.v, y.b FROM c x JOIN c y ON x.a = y.a AND x.p = y.p",
    "SELECT count(*) FROM c WHERE a IN (SELECT v FROM c)",
)


@pytest.fixture
def anything(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what lets files join by position whatever their size and age is, or none."""

    def let(by_position: bool, *, settled: bool = True) -> None:
        monkeypatch.setattr(alignment, "POSITION_BYTES", 0 if by_position else 1 << 60)
        monkeypatch.setattr(alignment, "SETTLED_NS", -(10**18) if settled else 10**18)
        monkeypatch.setattr(relations, "MIN_SLICE", 1)

    let(by_position=True)
    return let


def _rows(seed: int, rows: int = 60, parts: int = 4, names: str = "vab") -> dict[str, pa.Table]:
    rng = random.Random(f"rows {seed}")
    cells = sorted({(rng.randrange(rows), rng.choice("abcdé\U0001f600")) for _ in range(rows)})
    own = {"k": [k for k, _ in cells], "t": [t for _, t in cells], "p": [f"p{rng.randrange(parts)}" for _ in cells]}
    made = {}
    for name, column in zip(("seed", "one", "two"), names, strict=True):
        values = [rng.choice([None, *range(9)]) for _ in cells]
        made[name] = pa.table({**own, column: pa.array(values, pa.int64())})
    return made


def _built(folder: Any, data: dict[str, pa.Table]) -> str:
    with kartosql.connect(str(folder)) as con:
        con.build_cube(CUBE, data)
    return str(folder)


def _files(root: str, dataset: str) -> list[str]:
    found = [os.path.join(at, n) for at, _, names in os.walk(os.path.join(root, f"c++{dataset}")) for n in names]
    return sorted(f for f in found if f.endswith(".parquet") and os.sep + "table" + os.sep in f)


def _answers(root: str, statements: Any = STATEMENTS, **settings: Any) -> list[list[str]]:
    with kartosql.connect(root, read_only=True, **settings) as con:
        return [sorted(map(repr, con.sql(sql).rows())) for sql in statements for _ in range(2)]


def _told(con: Any, sql: str = "SELECT v, a, b FROM c") -> str | None:
    found: str | None = con.explain(sql).to_dict()["scans"][0]["by_position"]
    return found


def _rewrite(path: str, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    pq.write_table(change(pq.read_table(path, partitioning=None)), path, **options)


# What writers of other programs may leave in a file of a cube.
CHANGES: dict[str, Callable[[pa.Table, random.Random], pa.Table]] = {
    "nothing": lambda t, r: t,
    "another order": lambda t, r: t.take(r.sample(range(len(t)), len(t))),
    "backwards": lambda t, r: t.take(list(range(len(t)))[::-1]),
    "two rows swapped": lambda t, r: t.take([*range(len(t) - 2), len(t) - 1, len(t) - 2]) if len(t) > 1 else t,
    "a row less": lambda t, r: t.slice(1),
    "no row": lambda t, r: t.slice(0, 0),
    "the last row twice": lambda t, r: t.take([*range(len(t)), len(t) - 1]) if len(t) else t,
    "a row in place of another": lambda t, r: t.take([0, *range(len(t) - 1)]) if len(t) else t,
    "no cell": lambda t, r: _with(t, "k", [None if r.random() < 0.4 else v for v in t["k"].to_pylist()]),
    "another cell": lambda t, r: _with(t, "k", [*t["k"].to_pylist()[:-1], 10**6]) if len(t) else t,
    "another row group": lambda t, r: t,
}


def _with(table: pa.Table, column: str, values: list[Any]) -> pa.Table:
    at = table.schema.get_field_index(column)
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


@pytest.mark.parametrize("seed", range(12))
def test_the_rows_are_those_of_a_join_by_cells(tmp_path, anything, seed):
    rng = random.Random(seed)
    data = _rows(seed)
    for name in ("one", "two"):
        if rng.random() < 0.4:
            keep = [rng.random() < 0.9 for _ in range(len(data[name]))]
            data[name] = data[name].filter(pa.array(keep))
    root = _built(tmp_path, data)
    if rng.random() < 0.5:  # more files in each partition, with cells of their own, or those that are there
        more = _rows(seed + (100 if rng.random() < 0.5 else 0))
        shift = rng.choice([0, 1000])
        more = {
            n: _with(t, "k", [k + shift for k in t["k"].to_pylist()]) for n, t in more.items() if rng.random() < 0.9
        }
        with kartosql.connect(root) as con:
            con.append_to_cube(CUBE, more)
    for name in ("seed", "one", "two"):
        for path in _files(root, name):
            change = rng.choice([*CHANGES, *["nothing"] * 12])
            row_groups = {"row_group_size": rng.randint(1, 9)} if rng.random() < 0.5 else {}
            _rewrite(path, lambda t, change=change: CHANGES[change](t, rng), **row_groups)
    anything(by_position=False)
    expected = _answers(root)
    for settled in (True, False):
        for threads in (1, 3):
            anything(by_position=True, settled=settled)
            assert _answers(root, threads=threads) == expected


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dataset", ["seed", "one"])
def test_only_files_that_are_alike_stand_beside_each_other(tmp_path, anything, change, dataset):
    root = _built(tmp_path, _rows(1))
    path = _files(root, dataset)[1]
    _rewrite(path, lambda t: CHANGES[change](t, random.Random(3)), row_group_size=5 if "group" in change else None)
    with kartosql.connect(root, read_only=True) as con:
        assert _told(con) == "by cells (as far as is known) p=p0, p=p1, p=p2 and 1 more"
        con.sql("SELECT v, a, b FROM c").rows()
        told = _told(con)
    if change in ("nothing", "another row group"):
        assert told == "by position 4 of 4 files with one, two"
    elif dataset == "one":
        assert told == "by position 3 of 4 files with one, two; by position 1 of 4 files with two; by cells p=p1"
    else:
        assert told == "by position 3 of 4 files with one, two; by cells p=p1"


def test_a_file_that_was_written_anew_is_compared_anew(tmp_path, anything):
    root, sql = _built(tmp_path, _rows(2)), "SELECT k, t, v, a, b FROM c"
    with kartosql.connect(root, read_only=True) as con:
        before = [sorted(map(repr, con.sql(sql).rows())) for _ in range(3)]
        assert _told(con) == "by position 4 of 4 files with one, two"
        path = _files(root, "one")[0]
        for way in ("backwards", "backwards", "another order"):
            _rewrite(path, lambda t, way=way: CHANGES[way](t, random.Random(5)))
            if way == "another order":
                os.utime(path, ns=(1, 1))
            assert sorted(map(repr, con.sql(sql).rows())) == before[0]
        assert _told(con) == "by position 1 of 4 files with two; by position 3 of 4 files with one, two; by cells p=p0"


def test_what_was_found_is_not_used_again_of_files_that_may_change_unseen(tmp_path, anything):
    root, sql = _built(tmp_path, _rows(2)), "SELECT k, t, v, a, b FROM c"
    anything(by_position=True, settled=False)
    with kartosql.connect(root, read_only=True) as con:
        first = sorted(map(repr, con.sql(sql).rows()))
        assert "as far as is known" in (_told(con) or "")
        path = _files(root, "one")[0]
        about = os.stat(path)
        data = pq.read_table(path, partitioning=None)
        pq.write_table(CHANGES["backwards"](data, random.Random(0)), path)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        assert sorted(map(repr, con.sql(sql).rows())) == first


def test_later_processes_know_what_was_found(tmp_path, anything, monkeypatch):
    root, cache = _built(tmp_path, _rows(3)), str(tmp_path / "cache")
    compared: list[int] = []
    inner = alignment._compared
    monkeypatch.setattr(alignment, "_compared", lambda *a: compared.append(len(a[3])) or inner(*a))

    def told(root: str, **settings: Any) -> str | None:
        with kartosql.connect(root, read_only=True, **settings) as con:
            con.sql("SELECT v, a, b FROM c WHERE p <= 'p2'").rows()
            return _told(con)

    most = "by position 3 of 4 files with one, two; by cells (as far as is known) p=p3"
    assert told(root, cache=cache) == most
    monkeypatch.setattr("kartosql.session_pool.take", lambda store, modes: _fresh(store))
    number = len(compared)
    assert told(root, cache=cache) == most
    assert len(compared) == number
    assert told(root, cache="off") == most
    assert len(compared) > number
    _rewrite(_files(root, "one")[0], lambda t: CHANGES["backwards"](t, random.Random(0)))
    assert told(root, cache=cache) == (
        "by position 1 of 4 files with two; by position 2 of 4 files with one, two; "
        "by cells (as far as is known) p=p0, p=p3"
    )


def _fresh(store: Any) -> Any:
    from kartosql.session_pool import SessionState

    return SessionState(store)


def test_files_in_memory_are_known_as_long_as_their_metadata(anything):
    url = f"memory://{uuid.uuid4().hex}"
    with kartosql.connect(url) as con:
        con.build_cube(CUBE, _rows(4))
        anything(by_position=False)
        expected = sorted(map(repr, con.sql("SELECT * FROM c").rows()))
        anything(by_position=True)
        for _ in range(3):
            assert sorted(map(repr, con.sql("SELECT * FROM c").rows())) == expected
        assert _told(con) == "by position 4 of 4 files with one, two"
        con.append_to_cube(CUBE, {"one": _with(_rows(4)["one"], "a", [7] * len(_rows(4)["one"]))})
        assert {row[0] for row in con.sql("SELECT a FROM c").rows()} == {7}


def test_a_join_with_another_table_reads_the_cube_as_it_comes(tmp_path, anything):
    root = _built(tmp_path, _rows(5))
    with kartosql.connect(root, read_only=True) as con:
        con.register("small", pa.table({"x": pa.array([1, 2], pa.int64())}))
        sql = "SELECT v, b FROM c JOIN small ON a = x WHERE v > 0"
        found = sorted(map(repr, con.sql(sql).rows()))
    anything(by_position=False)
    with kartosql.connect(root, read_only=True) as con:
        con.register("small", pa.table({"x": pa.array([1, 2], pa.int64())}))
        assert sorted(map(repr, con.sql(sql).rows())) == found


def test_a_cell_that_stands_twice_in_files_that_are_alike_joins_by_cells(tmp_path, anything):
    root = _built(tmp_path, _rows(10))
    for path in (p for name in ("seed", "one", "two") for p in _files(root, name)):
        _rewrite(path, lambda t: CHANGES["the last row twice"](t, random.Random(0)))
    found = _answers(root)
    anything(by_position=False)
    assert _answers(root) == found


def test_several_files_of_one_write_join_by_cells(tmp_path, anything):
    data = _rows(9, parts=1)
    with kartosql.connect(str(tmp_path)) as con:
        con.build_cube(CUBE, data, rows_per_file=20)
        assert len(_files(str(tmp_path), "one")) > 1
        con.sql("SELECT v, a, b FROM c").rows()
        assert _told(con) is None
    # Cells that two of these files have in common, as others may write them: the planner takes them for different ones.
    for name in ("seed", "one", "two"):
        first, last = (_files(str(tmp_path), name)[at] for at in (0, -1))
        rows = pq.read_table(first, partitioning=None)
        _rewrite(last, lambda _, rows=rows: rows)
    found = _answers(str(tmp_path))
    anything(by_position=False)
    assert _answers(str(tmp_path)) == found


def test_a_condition_on_dimensions_joins_by_cells(tmp_path, anything):
    with kartosql.connect(_built(tmp_path, _rows(6)), read_only=True) as con:
        con.sql("SELECT v, a, b FROM c").rows()
        assert _told(con, "SELECT v, a FROM c WHERE k > 3") is None
        assert _told(con, "SELECT v, a FROM c WHERE v > 3") == "by position 4 of 4 files with one"


def test_rows_and_calls_of_query_cube_are_the_same(tmp_path, anything):
    root = _built(tmp_path, _rows(7))
    with kartosql.connect(root, read_only=True) as con:
        one = [q.arrow() for q in con.query_cube(CUBE, partition_by=["p"])]
    anything(by_position=False)
    with kartosql.connect(root, read_only=True) as con:
        other = [q.arrow() for q in con.query_cube(CUBE, partition_by=["p"])]
    assert len(one) == 4
    assert one == other


def test_spark_has_the_same_rows(tmp_path, anything, spark):
    root = _built(tmp_path, _rows(8))
    _rewrite(_files(root, "two")[0], lambda t: CHANGES["another order"](t, random.Random(1)))
    sql = "SELECT * FROM c"
    with kartosql.connect(root, read_only=True) as con:
        found = sorted(map(repr, con.sql(sql).rows()))
        assert sorted(map(repr, con.sql(sql, engine="spark").rows())) == found
