"""Folders: pruned, unpruned and DuckDB's own reader give the same rows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql

NULL = "__HIVE_DEFAULT_PARTITION__"
PARTITIONS = [["1", "2", "10", "-3", NULL], ["a b", "a/b", "A", "%", NULL, "é"], ["2020-01-01", "2021-06-30", NULL]]
INTEGERS = [None, -5, 0, 1, 2, 3, 7, 2**40]
FLOATS = [None, -0.0, 0.0, 1.5, float("nan"), float("inf"), -2.5]  # in CSV the last ones are text
TEXTS = [None, "", "a", "B", "é", "a\0b", "\U0001f600", "\uffff"]


def _folder(chance: random.Random, root: Path, kind: str) -> None:
    for number in range(chance.randint(1, 12)):
        parts = [f"p{i}={quote(chance.choice(v), safe=' é')}" for i, v in enumerate(PARTITIONS)]
        path = root.joinpath(*parts, f"{number}.{kind}")
        path.parent.mkdir(parents=True, exist_ok=True)
        count = chance.randint(0 if kind == "parquet" else 1, 6)
        columns = {
            "i": pa.array([chance.choice(INTEGERS[:-1]) for _ in range(count)], pa.int32()),
            "f": pa.array([chance.choice(FLOATS[: 7 if kind == "parquet" else 4]) for _ in range(count)], pa.float64()),
            "s": pa.array([chance.choice(TEXTS) for _ in range(count)], pa.string()),
        }
        if chance.random() < 0.5:
            columns["i"] = pa.array([chance.choice(INTEGERS) for _ in range(count)], pa.int64())
        if chance.random() < 0.3:
            del columns[chance.choice(["f", "s"])]
        columns = dict(chance.sample(sorted(columns.items()), len(columns)))
        table = pa.table({"k": pa.array(range(count), pa.int64()), **columns})
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=chance.choice([1, 3, 100]))
        else:
            duckdb.from_arrow(table).write_csv(str(path), header=True)


def _condition(chance: random.Random, columns: dict[str, list[str]], depth: int = 0) -> str:
    if depth < 2 and chance.random() < 0.4:
        left, right = (_condition(chance, columns, depth + 1) for _ in range(2))
        text = f"({left} {chance.choice(['AND', 'OR'])} {right})"
        return f"NOT {text}" if chance.random() < 0.2 else text
    column = chance.choice(sorted(columns))
    value = chance.choice(columns[column])
    if chance.random() < 0.2:
        return f"{column} IS {chance.choice(['', 'NOT '])}NULL"
    if chance.random() < 0.2:
        return f"{column} {chance.choice(['IN', 'NOT IN'])} ({value}, {chance.choice(columns[column])})"
    return f"{column} {chance.choice(['=', '<>', '<', '<=', '>', '>=', 'IS DISTINCT FROM'])} {value}"


LITERALS = {
    "p0": ["1", "2", "-3", "5", "1.5"],
    "p1": ["'a b'", "'a/b'", "'A'", "'%'", "'é'", "'zz'"],
    "p2": ["DATE '2020-01-01'", "DATE '2020-12-31'"],
    "i": ["0", "2", "-5", "1099511627776", "1.5"],
    "f": ["0.0", "-0.0", "1.5", "'nan'::DOUBLE", "'inf'::DOUBLE"],
    "s": ["''", "'a'", "'B'", "'é'", "'\U0001f600'"],
    "k": ["0", "3"],
}


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("seed", range(3))
def test_pruned_unpruned_and_duckdb_agree(kind, seed, tmp_path, monkeypatch):
    monkeypatch.setattr("kartosql.indexes.index.MIN_FOR_STATISTICS", 1)
    chance = random.Random(f"{kind} {seed}")
    (tmp_path / "store").mkdir()
    _folder(chance, tmp_path / "f", kind)
    own = duckdb.connect()
    read = f"read_{kind}('{tmp_path}/f/**/*.{kind}', union_by_name = true, hive_partitioning = true"
    own.sql(f"CREATE TABLE given AS FROM {read}, hive_types_autocast = false)")
    columns = {c for c, *_ in own.sql("DESCRIBE given").fetchall()}
    types = {"p0": "BIGINT", "p2": "DATE"}
    replaced = ", ".join(f"CAST({c} AS {t}) AS {c}" for c, t in types.items())
    own.sql(f"CREATE TABLE t AS SELECT * REPLACE ({replaced}) FROM given")
    pruned = 0
    with kartosql.connect(tmp_path / "store") as con:
        con.attach(tmp_path / "f", "t", type=kind)
        known = {c: v for c, v in LITERALS.items() if c in columns}
        shown = ", ".join(sorted(known))
        for number in range(30):
            where = _condition(chance, known)
            sql = f"SELECT {shown} FROM t WHERE {where}"
            wanted = Counter(map(repr, own.sql(sql).fetchall()))
            got = con.sql(sql)
            assert Counter(map(repr, got.rows())) == wanted, (where, str(got.report))
            # Behind a function of nothing that is planned, all files are read.
            whole = con.sql(f"SELECT {shown} FROM t WHERE CASE WHEN random() >= 0 THEN {where} END")
            assert Counter(map(repr, whole.rows())) == wanted, where
            assert con.sql(f"SELECT count(*) FROM t WHERE {where}").rows() == [(wanted.total(),)], where
            pruned += got.report.files_selected < got.report.files_total
    assert pruned > 3 or seed  # one of them at least is known to prune
