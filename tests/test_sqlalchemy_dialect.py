"""The dialect of SQLAlchemy: its own names, statements made by it, and pandas over it."""

from __future__ import annotations

import datetime as dt

import pandas as pd
import pytest
import sqlalchemy as sa

import kartosql
from kartosql.sqlalchemy_dialect import _type_of


@pytest.fixture
def engine(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.sql("CREATE CUBE c DIMENSIONS (a) PARTITION BY (p) AS SELECT i a, i % 2 p, i * 1.5 d FROM range(10) r(i)")
        con.sql("CREATE DATASET t AS SELECT 1 AS k, DATE '2020-01-01' AS day, 'x%' AS s")
        con.sql("CREATE VIEW v AS SELECT a + 1 AS b FROM c")
    engine = sa.create_engine(f"kartosql:///{tmp_path}?memory_limit=1GB")
    yield engine
    engine.dispose()


def test_tables_views_and_columns_are_inspected(engine):
    found = sa.inspect(engine)
    assert (found.get_table_names(), found.get_view_names()) == (["c", "t"], ["v"])
    assert (found.get_schema_names(), found.get_table_names("c")) == (["c", "main"], ["seed"])
    assert {c["name"]: str(c["type"]) for c in found.get_columns("t")} == {"day": "DATE", "k": "BIGINT", "s": "VARCHAR"}
    assert (found.has_table("v"), found.has_table("nope")) == (True, False)
    with pytest.raises(sa.exc.NoSuchTableError):
        sa.Table("nope", sa.MetaData(), autoload_with=engine)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("DECIMAL(9,2)", "NUMERIC(9, 2)"), ("UBIGINT", "NUMERIC(39, 0)"), ("TIMESTAMP WITH TIME ZONE", "DATETIME")],
)
def test_types_of_sql_become_those_of_sqlalchemy(name, wanted):
    assert str(_type_of(name)) == wanted
    assert isinstance(_type_of(f"{name}[]"), sa.ARRAY)


def test_expressions_are_answered_over_reflected_tables(engine):
    known = sa.MetaData()
    cube, seed = sa.Table("c", known, autoload_with=engine), sa.Table("seed", known, schema="c", autoload_with=engine)
    t = sa.Table("t", known, autoload_with=engine)
    total = sa.func.sum(cube.c.d).label("total")
    query = (
        sa.select(cube.c.a, total).where(cube.c.p == 1, cube.c.a.in_([3, 5, 6])).group_by(cube.c.a).order_by(cube.c.a)
    )
    with engine.connect() as con:
        assert [(a, float(d)) for a, d in con.execute(query.limit(1).offset(1))] == [(5, 7.5)]
        assert con.execute(sa.select(sa.func.count()).select_from(seed.join(cube, seed.c.a == cube.c.a))).scalar() == 10
        qualified = sa.Table("t", known, schema="main", autoload_with=engine)
        assert con.execute(sa.select(qualified.c.k).where(qualified.c.s == "x%")).scalar() == 1
        assert con.execute(sa.select(t.c.s).where(t.c.s.startswith("x%", autoescape=True))).scalar() == "x%"
        assert con.execute(sa.text("SELECT count(*) FROM c WHERE a > :n"), {"n": 3}).scalar() == 6


def test_rows_are_inserted_updated_and_deleted(engine):
    t = sa.Table("t", sa.MetaData(), autoload_with=engine)
    with engine.begin() as con:
        con.execute(sa.insert(t), [{"k": 2, "day": dt.date(2021, 1, 1), "s": "b"}, {"k": 3, "day": None, "s": None}])
        assert con.execute(sa.update(t).where(t.c.k == 2).values(k=7)).rowcount == 1
        assert con.execute(sa.delete(t).where(t.c.k == 1)).rowcount == 1
        found = con.execute(sa.select(t.c.k, t.c.day).order_by(t.c.k)).fetchall()
    assert found == [(3, None), (7, dt.date(2021, 1, 1))]


def test_pandas_reads_statements_and_tables(engine):
    assert pd.read_sql("SELECT a FROM c WHERE a < 3 ORDER BY a", engine)["a"].tolist() == [0, 1, 2]
    assert pd.read_sql_table("t", engine)["k"].tolist() == [1]


def test_tables_are_made_and_filled_by_metadata_and_pandas(engine, tmp_path):
    made = sa.Table("made", sa.MetaData(), sa.Column("k", sa.Integer, primary_key=True), sa.Column("s", sa.String(9)))
    made.metadata.create_all(engine)
    with engine.begin() as con:
        con.execute(sa.insert(made), [{"k": k, "s": f"{k}"} for k in range(50)])
        con.execute(sa.update(made).values(s="all"))
        assert con.execute(sa.select(sa.func.count(made.c.s.distinct()), sa.func.count())).fetchall() == [(1, 50)]
        assert con.execute(sa.select(made.c.k // 2, made.c.k / 2).where(made.c.k == 3)).fetchall() == [(1, 1.5)]
        con.execute(sa.delete(made))
    with kartosql.connect(tmp_path) as con:
        assert len(con.sql("SHOW HISTORY FROM made").rows()) == 4  # one commit for all rows, and each of the others
    made.metadata.drop_all(engine)
    assert not sa.inspect(engine).has_table("made")
    pd.DataFrame({"a": [1, 2], "b": ["x", None]}).to_sql("frame", engine, index=False)
    assert sorted(pd.read_sql("SELECT a, b FROM frame", engine)["a"]) == [1, 2]


def test_errors_are_those_of_sqlalchemy_and_keep_their_code(engine):
    with engine.connect() as con, pytest.raises(sa.exc.ProgrammingError) as caught:
        con.execute(sa.text("SELECT nope FROM c"))
    assert caught.value.orig.code == "unknown-column"


def test_options_of_the_url_are_those_of_connect(tmp_path, engine):
    read_only = sa.create_engine(f"kartosql:///{tmp_path}?read_only=true")
    with read_only.connect() as con, pytest.raises(sa.exc.DBAPIError) as caught:
        con.execute(sa.text("DROP DATASET t"))
    assert caught.value.orig.code == "read-only"
    read_only.dispose()


@pytest.mark.parametrize("url", ["kartosql://", "kartosql://host/path"])
def test_a_url_without_a_store_or_with_a_host_is_refused(url):
    with pytest.raises(sa.exc.ArgumentError, match="kartosql:///folder"):
        sa.create_engine(url).connect()
