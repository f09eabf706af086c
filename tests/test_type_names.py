"""Types as people read them: by the names of SQL in every message and report, never by those of Arrow."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import kartosql
from kartosql.cli.output import described
from kartosql.text.types import in_sql_names, type_name, type_names

ARROW = re.compile(
    r"\b(u?int(8|16|32|64)|large_(string|utf8)|utf8|string\b(?! ')|(string|binary)_view|halffloat|float(16|32|64)|"
    r"(date|time)(32|64)|(timestamp|duration)\[|decimal(32|64|128|256)|dictionary<|(large_)?(list|struct|map)<|extension<|DataType)"
)
ROWS = {
    "i": [1, 2],
    "s": pa.array(["a", "b"], pa.large_string()),
    "d": pa.array([1, 2], pa.date32()),
    "t": pa.array([1, 2], pa.timestamp("us")),
    "z": pa.array([1, 2], pa.timestamp("us", "UTC")),
    "n": pa.array([Decimal("1.5"), None], pa.decimal128(9, 2)),
    "l": [["a"], []],
    "e": pa.nulls(2),
}
COLUMNS = [*ROWS, "p"]


@pytest.fixture(scope="module")
def con(tmp_path_factory):
    with kartosql.connect(str(tmp_path_factory.mktemp("store"))) as con:
        con.create_dataset("d", pa.table(ROWS | {"p": [1, 2]}), partition_on=["p"])
        seed = pa.table({"x": [1, 2], "p": ["a", "b"], "v": [1.5, 2.5]})
        con.build_cube(kartosql.Cube("c", ["x"], ["p"], index_columns=["v"]), {"seed": seed})
        con.register("r", pa.table(ROWS | {"u": pa.array(["a", None]).dictionary_encode()}))
        con.sql("CREATE VIEW w AS SELECT * FROM d")
        yield con


def text_of(con: kartosql.Connection, statement: str) -> str:
    """Return all that a statement says, be it an error or a result."""
    try:
        query = con.sql(statement)
        return "\n".join([repr(query), query._repr_html_(), *(str(row) for row in query.rows())])
    except kartosql.KartosqlError as e:
        return "\n".join([str(e), repr(e), *described(e), str(e.to_dict())])


# Of each one what it has to say, if that names types.
STATEMENTS = {
    "DESCRIBE d": "TIMESTAMP WITH TIME ZONE",
    "DESCRIBE c": "BIGINT",
    "DESCRIBE r": "DECIMAL(9,2)",
    "DESCRIBE w": "VARCHAR[]",
    "DESCRIBE SELECT *, {'a': i} AS m FROM d": "STRUCT(a BIGINT)",
    "DESCRIBE d VERSION 1": "NULL",
    "SHOW COLUMNS FROM d": "TIMESTAMP",
    "SHOW INDEXES FROM c": "BIGINT",
    "SHOW SCHEMA HISTORY FROM d": "",
    "SHOW STATS FROM c": "",
    "SHOW FILES FROM d": "",
    "SHOW COVERAGE OF c BY p": "",
    "SELECT * FROM d": "TIMESTAMP WITH TIME ZONE",
    "SELECT * FROM r": "DATE",
    "SELECT column_name, data_type FROM information_schema.columns": "DECIMAL(9,2)",
    "EXPLAIN SELECT * FROM d WHERE t > '2026-01-01' AND i = 1": "",
    "EXPLAIN (FORMAT JSON) SELECT * FROM c WHERE v > 1": "",
    "EXPLAIN ANALYZE SELECT * FROM d WHERE t > '2026-01-01'": "",
    "EXPLAIN COST SELECT * FROM c WHERE v > 1": "",
    "ADVISE SELECT * FROM d WHERE t > '2026-01-01'": "",
    "VERIFY SELECT * FROM d WHERE i = 1": "",
    "SELECT i + s FROM d": "VARCHAR",
    "SELECT l + 1 FROM d": "VARCHAR[]",
    "SELECT s::INT FROM d": "to INTEGER",
    "SELECT date_trunc(i, t) FROM d": "BIGINT",
    "SELECT * FROM d WHERE l = 3": "VARCHAR[]",
    "INSERT INTO d SELECT * REPLACE ('a' AS i) FROM d": "'i' is BIGINT in the table, but VARCHAR in the new data",
    "INSERT INTO d SELECT * REPLACE (i AS t) FROM d": "TIMESTAMP",
    "INSERT INTO d SELECT * REPLACE (d AS z) FROM d": "TIMESTAMP WITH TIME ZONE",
    "INSERT INTO d SELECT * REPLACE ([1] AS l) FROM d": "is VARCHAR[] in the table, but BIGINT[]",
    "INSERT INTO d SELECT * REPLACE (1.5 AS p) FROM d": "BIGINT",
    "INSERT INTO d SELECT * REPLACE ({'a': 1} AS s) FROM d": "STRUCT(a INTEGER)",
    "INSERT INTO d SELECT * REPLACE (1e30 AS n) FROM d": "DECIMAL(9,2)",
    "INSERT OVERWRITE d PARTITION (p = 'x') SELECT * EXCLUDE p FROM d": "'x' is no BIGINT",
    "INSERT INTO c.seed SELECT 'a' AS x, 'a' AS p, 1.5::DOUBLE AS v": "BIGINT",
    "UPDATE d SET i = 'a' WHERE i = 1": "to BIGINT",
    "UPDATE d SET t = i WHERE i = 1": "",
    "DELETE FROM d WHERE l = 1": "",
    "ALTER DATASET d ADD COLUMN g INTERVAL": "",
    "ALTER DATASET d ADD COLUMN g GEOMETRY": "",
    "ALTER DATASET d ADD COLUMN g STRUCT(a UNION(x INT))": "",
    "CREATE INDEX ON d (l)": "'l' is VARCHAR[], which cannot be indexed",
    "CREATE INDEX ON d (n)": "DECIMAL(9,2)",
    "CREATE SKIPPING INDEX ON d (MINMAX(l))": "",
    "CREATE SKIPPING INDEX ON d (BLOOMFILTER(e))": "",
    "CREATE DATASET o PARTITION BY (l) AS SELECT * FROM d": "VARCHAR[], which cannot serve as partition column",
    "CREATE DATASET o AS SELECT INTERVAL 1 MONTH AS i": "INTERVAL",
    "CREATE DATASET o AS SELECT 1::UHUGEINT AS i": "UHUGEINT",
    "CREATE DATASET o AS SELECT 'a'::ENUM ('a') AS i": "",
    "CREATE CUBE o DIMENSIONS (l) PARTITION BY (p) AS SELECT l, p FROM d": "VARCHAR[]",
    "MERGE INTO d USING (SELECT 'a' AS i) s ON (i) WHEN MATCHED THEN DELETE": "",
    "RECORD SCHEMA d": "",
}


@pytest.mark.process
@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_name_types_as_sql_does(con, statement):
    found = text_of(con, statement)
    assert not ARROW.search(found), found
    assert STATEMENTS[statement] in found, found


CALLS: dict[str, Any] = {
    "type of a column": lambda con: con.append_to_dataset("d", pa.table(ROWS | {"p": [1, 2], "i": ["a", "b"]})),
    "zone": lambda con: con.append_to_dataset("d", pa.table(ROWS | {"p": [1, 2], "z": pa.array([1, 2], pa.int64())})),
    "not storable": lambda con: con.create_dataset("o", pa.table({"x": pa.array([1], pa.duration("s"))})),
    "value that changes": lambda con: con.create_dataset("o", pa.table({"x": pa.array([1], pa.timestamp("ns"))})),
    "union": lambda con: con.create_dataset("o", pa.table({"x": _union()})),
    "parts that differ": lambda con: con.create_dataset("o", iter([{"x": 1}, {"x": "a"}])),
    "datasets that differ": lambda con: con.build_cube(
        kartosql.Cube("k", ["x"], ["p"]),
        {"seed": pa.table({"x": [1], "p": [1]}), "other": pa.table({"x": ["a"], "p": [1], "w": [1]})},
    ),
    "condition": lambda con: con.query_cube("c", conditions=[("v", "==", "a")]),
    "condition of days": lambda con: con.query_cube("c", conditions=[("x", ">", dt.date(2026, 1, 1))]),
    "registered": lambda con: con.register("q", pa.schema([("x", pa.int64())])),
    "parquet": lambda con: con.sql("SELECT union_value(a := 1) AS u").write("u.parquet"),
    "published": lambda con: con.publish("d", "published", type="delta"),
}


def _union() -> pa.Array:
    return pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])


@pytest.mark.parametrize("name", CALLS)
def test_calls_name_types_as_sql_does(con, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kartosql.KartosqlError) as e:
        CALLS[name](con)
    found = "\n".join(described(e.value))
    assert not ARROW.search(found), found


@pytest.mark.parametrize(
    "type_",
    [
        *(pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary()),
        *(pa.date32(), pa.time64("us"), pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.duration("us")),
        *(pa.decimal128(9, 2), pa.list_(pa.struct([("a", pa.int8()), ("B c", pa.string())]))),
        *(pa.map_(pa.string(), pa.list_(pa.float64())), pa.string_view(), pa.large_list(pa.date32())),
    ],
    ids=str,
)
def test_names_are_those_of_duckdb(type_):
    con = duckdb.connect()
    rows = pa.table({"x": pa.nulls(1, type_)})
    assert type_name(type_) == str(con.from_arrow(rows).types[0])


def test_names_of_types_that_have_no_other_name():
    assert type_name(pa.null()) == "NULL"
    assert type_name(pa.dictionary(pa.int8(), pa.string())) == "ENUM"
    assert type_name(pa.binary(4)) == "BLOB"
    assert type_name(pa.opaque(pa.binary(), "HUGEINT", "DuckDB")) == "HUGEINT"
    assert type_name(pa.fixed_shape_tensor(pa.int8(), (2,))) == "TINYINT[]"
    assert type_name(pa.dense_union([pa.field("a", pa.int8())])) == "UNION(a TINYINT)"
    assert type_name(pa.run_end_encoded(pa.int16(), pa.string())) == "VARCHAR"


def test_types_of_one_name_are_told_apart():
    zoned = (pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin"))
    assert type_names(*zoned) == [f"TIMESTAMP WITH TIME ZONE (in {d})" for d in ("us, UTC", "ns, Europe/Berlin")]
    assert type_names(pa.float16(), pa.float32()) == ["FLOAT (16 bits)", "FLOAT (32 bits)"]
    assert type_names(pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)) == ["TINYINT[] (of 2)", "TINYINT[] (of 3)"]
    assert type_names(pa.int8(), pa.string()) == ["TINYINT", "VARCHAR"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "Failed to parse string: 'int64' as a scalar of type int64",
            "Failed to parse string: 'int64' as a scalar of type BIGINT",
        ),
        (
            "Unsupported cast from string to list<item: struct<a: int8>> using function cast_list",
            "Unsupported cast from VARCHAR to STRUCT(a TINYINT)[]",
        ),
        (
            "Casting from timestamp[us, tz=UTC] to date32[day] would lose data: 1",
            "Casting from TIMESTAMP WITH TIME ZONE to DATE would lose data: 1",
        ),
        ("from decimal128(3, 1) to map<string, double>", "from DECIMAL(3,1) to MAP(VARCHAR, DOUBLE)"),
        ("type dictionary<values=string, indices=int32, ordered=0>", "type ENUM"),
        ("Integer value 300 not in range: -128 to 127", "Integer value 300 not in range: -128 to 127"),
    ],
)
def test_errors_of_arrow_name_types_as_sql_does(text, wanted):
    assert in_sql_names(pa.ArrowInvalid(text)) == wanted
