"""Optimizers of DuckDB that do not run for a statement: joins of many cubes become no cross products by one."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import kartosql
from kartosql.engines.duckdb.statement import DuckStatement
from kartosql.errors import ExecutionError

# Like query 18 of TPC-DS: of cubes, DuckDB 2.0.0 joins the two occurrences of demo without a condition.
JOINED = """
SELECT count(*), sum(s_n), sum(s_v), sum(c_year), sum(d1.d_n), count(i_id)
FROM sales, demo d1, demo d2, cust, addr, item
WHERE s_item = i AND s_demo = d1.d AND s_cust = c AND d1.d_g = 1 AND d1.d_e = 3 AND c_demo = d2.d AND c_addr = a
    AND c_month IN (1, 6, 8, 9, 11, 2) AND a_state IN (1, 2, 3, 4, 5, 6, 7)"""


def tables(rows: int) -> dict[str, pa.Table]:
    random = np.random.default_rng(0)
    sizes = {"sales": rows, "demo": rows, "cust": rows // 15, "addr": rows // 15, "item": rows // 80}
    below = {
        "sales": {"s_day": 100, "s_item": rows // 80, "s_demo": rows, "s_cust": rows // 15, "s_n": 100, "s_v": 9},
        "demo": {"d_g": 2, "d_e": 7, "d_n": 5},
        "cust": {"c_demo": rows, "c_addr": rows // 15, "c_month": 12, "c_year": 60},
        "addr": {"a_state": 50, "a_land": 2},
        "item": {"i_id": rows, "i_v": 9},
    }
    return {
        name: pa.table(
            {name[0]: np.arange(size), "p": np.zeros(size, "int64")}
            | {column: random.integers(0, most, size) for column, most in below[name].items()}
        )
        for name, size in sizes.items()
    }


def store(folder: Path, rows: int, parts: int) -> dict[str, pa.Table]:
    """Store each table as a cube, whose columns are in ``parts`` datasets."""
    made = tables(rows)
    with kartosql.connect(str(folder), read_only=False) as con:
        for name, table in made.items():
            keys, others = table.column_names[:2], table.column_names[2:]
            datasets = {f"part{n}": table.select(keys + others[n::parts]) for n in range(parts)}
            con.build_cube(kartosql.Cube(name, keys[0], "p", seed_dataset="part0"), datasets)
    return made


def answer(tables: dict[str, pa.Table], sql: str) -> list[tuple[int, ...]]:
    """What DuckDB answers over the tables themselves."""
    with duckdb.connect() as plain:
        for name, table in tables.items():
            plain.register(name, table)
        return plain.sql(sql).fetchall()


@pytest.fixture
def switched_off(monkeypatch) -> list[set[str]]:
    """The optimizers that were switched off: for each plan that was looked at, and for each run."""
    found, switch_off = list[set[str]](), DuckStatement._switch_off

    def watched(self: DuckStatement, names: set[str]) -> None:
        switch_off(self, names)
        found.append(set(names))

    monkeypatch.setattr(DuckStatement, "_switch_off", watched)
    return found


def test_of_joins_of_many_cubes_the_plan_with_fewer_cross_products_is_run(tmp_path, switched_off):
    expected = answer(store(tmp_path, 40_000, parts=2), JOINED)
    assert expected[0][0] > 10
    with kartosql.connect(str(tmp_path)) as con:
        assert con.sql(JOINED).rows() == expected
        pulled, kept, run = switched_off
        assert kept == run == pulled | {"projection_pullup"}


def test_where_no_plan_is_made_without_it_projections_are_pulled_out(tmp_path, switched_off, monkeypatch):
    made = store(tmp_path, 40_000, parts=2)
    crosses = DuckStatement._cross_products

    def failing(self: DuckStatement, query: object, names: set[str]) -> int:
        if "projection_pullup" in names:
            raise ExecutionError("Projection map references a missing child column")
        return crosses(self, query, names)

    monkeypatch.setattr(DuckStatement, "_cross_products", failing)
    with kartosql.connect(str(tmp_path), timeout=120) as con:
        few = JOINED.replace("d1.d_e = 3", "d1.d_e = 3 AND d1.d_n = 1")
        assert con.sql(few).rows() == answer(made, few)
    assert "projection_pullup" not in switched_off[-1]


@pytest.mark.parametrize(
    ("rows", "parts", "sql"),
    [
        (40_000, 1, JOINED),  # nothing is joined but what the statement joins
        (200, 2, JOINED),  # however it is joined, that takes no time
        (40_000, 2, "SELECT count(*) FROM sales, demo d1 WHERE s_demo = d1.d AND d_g = 1"),
        (40_000, 2, f"PIVOT ({JOINED.replace('count(*)', 'count(*) AS n')}) ON n USING count(*)"),
    ],
)
def test_plans_are_compared_only_where_that_may_pay(tmp_path, switched_off, rows, parts, sql):
    store(tmp_path, rows, parts)
    with kartosql.connect(str(tmp_path), timeout=120) as con:
        con.sql(sql).rows()
    assert [names & {"projection_pullup"} for names in switched_off] == [set()] * len(switched_off)
    assert len(switched_off) == 1
