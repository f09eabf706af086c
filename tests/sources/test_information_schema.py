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


def test_names_may_be_written_with_the_catalog_and_the_schema_that_it_tells(con):
    assert con.sql("SELECT main.c.d FROM main.c WHERE main.c.a = 1").rows() == con.sql("SELECT d FROM c").rows()
    assert con.sql('SELECT * FROM "kartosql"."main"."v" AS x').rows() == con.sql("SELECT * FROM v").rows()
    assert con.sql("SELECT count(*) FROM kartosql.c.seed JOIN main.mine ON true").rows() == [(1,)]
    assert con.sql("WITH c AS (SELECT 2 AS a) SELECT b.a, c.a FROM main.c b, c").rows() == [(1, 2)]
    assert con.sql("DESCRIBE main.v").rows() == con.sql("DESCRIBE v").rows()
    assert con.sql("SELECT count(*) FROM kartosql.information_schema.tables").rows() == [(4,)]
    con.sql("DELETE FROM main.c WHERE a = 1")
    assert con.sql("SELECT count(*) FROM c").rows() == [(0,)]


def test_a_table_with_the_name_of_the_schema_comes_first(con):
    con.sql("CREATE CUBE main DIMENSIONS (a) PARTITION BY (p) AS SELECT 7 AS a, 'x' AS p")
    assert con.sql("SELECT a FROM main.seed").rows() == [(7,)]
    with pytest.raises(KartosqlError, match="The cube 'main' has no dataset 'c'"):
        con.sql("SELECT * FROM main.c")


def test_another_name_in_it_is_an_unknown_table(con):
    with pytest.raises(KartosqlError) as caught:
        con.sql("SELECT * FROM information_schema.routines")
    assert caught.value.code == "unknown-table"
