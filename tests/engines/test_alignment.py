"""Datasets of a cube joined by position: the same rows as by their cells, whatever the files hold."""

from __future__ import annotations

import os
import random
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
