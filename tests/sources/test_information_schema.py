"""information_schema: what tools that list tables and columns ask for."""

from __future__ import annotations

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.sql("CREATE CUBE c DIMENSIONS (a) PARTITION BY (p) AS SELECT 1 AS a, 'x' AS p, 1.5::DECIMAL(9,2) AS d")
        con.sql("CREATE VIEW v AS SELECT a + 1 AS b FROM c")
        con.register("mine", pa.table({"n": pa.array([1], pa.int32())}))
        yield con


def test_tables_are_those_of_the_store_views_and_registered_data(con):
    found = con.sql("SELECT table_schema, table_name, table_type FROM information_schema.tables ORDER BY ALL").rows()
    assert found == [
        ("c", "seed", "BASE TABLE"),
        ("main", "c", "BASE TABLE"),
        ("main", "mine", "LOCAL TEMPORARY"),
        ("main", "v", "VIEW"),
    ]


def test_columns_have_the_types_of_sql(con):
    columns = "column_name, ordinal_position, data_type"
    sql = f"SELECT {columns} FROM INFORMATION_SCHEMA.columns WHERE table_name = ? ORDER BY 2"
    assert con.sql(sql, ["c"]).rows() == [("a", 1, "BIGINT"), ("d", 2, "DECIMAL(9,2)"), ("p", 3, "VARCHAR")]
    assert con.sql(sql, ["v"]).rows() == [("b", 1, "BIGINT")]
    assert con.sql(sql, ["mine"]).rows() == [("n", 1, "INTEGER")]


def test_a_broken_table_has_no_columns_and_others_have(con, tmp_path):
    con.sql("CREATE DATASET bad AS SELECT 1 AS a")
    (tmp_path / "bad.by-dataset-metadata.json").write_text("{")
    found = con.sql("SELECT DISTINCT table_name FROM information_schema.columns ORDER BY 1").rows()
    assert found == [("c",), ("mine",), ("seed",), ("v",)]


def test_another_name_in_it_is_an_unknown_table(con):
    with pytest.raises(KartosqlError) as caught:
        con.sql("SELECT * FROM information_schema.routines")
    assert caught.value.code == "unknown-table"
