"""Values of every type of DuckDB, as they come out of a result: as they are, or as text."""

from __future__ import annotations

import uuid

import duckdb
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.store import Store

VALUES = {
    "UHUGEINT": ["340282366920938463463374607431768211455", "170141183460469231731687303715884105728", "7"],
    "HUGEINT": ["-" + "9" * 38, "9" * 38],  # DuckDB fails at more digits when it reads them from Arrow
    "BIGNUM": ["1" * 60, "-" + "9" * 40],
    "BIT": ["10101", "0000000001"],
    "VARIANT": ["1", "a"],
    "TIME WITH TIME ZONE": ["12:00:00+05", "23:59:59.999999-15:59"],
    "TIME": ["12:00:00.000001"],
    "TIME_NS": ["12:00:00.123456789"],
    "DATE": ["2020-02-29", "infinity", "-infinity", "5877642-06-25 (BC)"],
    "TIMESTAMP": ["2020-02-29 12:00:00.000001", "infinity", "-infinity", "290308-12-22 (BC) 00:00:00"],
    "TIMESTAMP_S": ["2020-02-29 12:00:00", "infinity", "-infinity"],
    "TIMESTAMP_MS": ["2020-02-29 12:00:00.001", "infinity"],
    "TIMESTAMP_NS": ["2020-02-29 12:00:00.000000001", "-infinity"],
    "TIMESTAMP WITH TIME ZONE": ["2020-02-29 12:00:00.000001+00", "infinity"],
    "TIMESTAMPTZ_NS": ["2020-02-29 12:00:00.000000001+00"],
    "INTERVAL": ["1 month 2 days 00:00:00.000003", "-13 months -1 day"],
    "UUID": ["6d3d2541-d9c3-4ecb-9a0d-2f1a2f0b6f4e"],
    "BLOB": ["\\x00\\xFFa"],
    "VARCHAR": ["", "é", "it's"],
    "BOOLEAN": ["true"],
    "DOUBLE": ["nan", "-inf", "-0.0", "1e-300"],
    "FLOAT": ["nan", "inf", "-0.0"],
    "DECIMAL(38,5)": ["-123456789012345678901234567890123.12345"],
    "DECIMAL(4,2)": ["-0.01"],
    "ENUM('a', 'BIT')": ["a", "BIT"],
    **{t: ["1"] for t in ("TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER")},
    "BIGINT": ["-9223372036854775808"],
    "UBIGINT": ["18446744073709551615"],
}
# NULL has no value, TYPE and TUPLE are none of columns, GEOMETRY needs an extension, the others hold values of others.
OTHERS = {"NULL", "TYPE", "TUPLE", "GEOMETRY", "LIST", "STRUCT", "MAP", "UNION", "ARRAY"}
INSIDE = (
    "{v}",
    "[{v}, NULL]",
    "{{'BIT': {v}, 'b': [{v}]}}",
    "MAP {{'k': {v}}}",
    "array_value({v}, {v})",
    "union_value(a := {v})",
)


@pytest.fixture(scope="module")
def connection():
    with kartosql.connect(Store(f"memory://{uuid.uuid4().hex}").url, TimeZone="UTC") as made:
        yield made


@pytest.fixture(scope="module")
def plain():
    made = duckdb.connect()
    made.execute("SET TimeZone = 'UTC'")
    return made


def queries() -> list[str]:
    made = []
    for type_, texts in VALUES.items():
        for text in texts:
            value = f"CAST('{text.replace(chr(39), chr(39) * 2)}' AS {type_})"
            # DuckDB reads dictionaries inside of arrays and unions back as their numbers.
            around = INSIDE[:4] if type_.startswith("ENUM") else INSIDE
            made += [f"SELECT {inside.format(v=value)} AS v, 1 AS v" for inside in around]
    return made


def test_every_type_is_tried(plain):
    listed = plain.sql("SELECT DISTINCT logical_type FROM duckdb_types()").fetchall()
    known = {t.split("(")[0] for t in VALUES} | OTHERS
    assert {name for (name,) in listed} - known == set()


def test_values_of_every_type_come_out_as_they_are_or_as_text(connection, plain):
    wrong = []
    for sql in queries():
        query = connection.sql(sql)
        schema, table = query.schema, query.arrow()
        plain.register("given", table.select([0]).rename_columns(["v"]))
        ((found,),) = plain.sql("SELECT CAST(v AS VARCHAR) FROM given").fetchall()
        ((wanted,),) = plain.sql(f"SELECT CAST(v AS VARCHAR) FROM ({sql}) t(v, w)").fetchall()
        if found != wanted or schema != table.schema:
            wrong.append((sql, found, wanted, schema, table.schema))
        query.rows()
    assert wrong == []


@pytest.mark.parametrize("type_", ["UHUGEINT", "TIME WITH TIME ZONE", "BIT", "BIGNUM", "VARIANT"])
def test_what_arrow_cannot_hold_is_text_in_rows_and_files(connection, tmp_path, type_):
    text = VALUES[type_][0]
    query = connection.sql(f"SELECT CAST('{text}' AS {type_}) AS v")
    assert query.types is None
    assert query.rows() == [(int(text) if type_ == "UHUGEINT" else text,)]
    assert query.types == [type_]
    query.write(tmp_path / "v.csv")
    query.write(tmp_path / "v.parquet")
    assert (tmp_path / "v.csv").read_text().splitlines() == ["v", text]
    assert pq.read_table(tmp_path / "v.parquet").to_pydict() == {"v": [text]}


def test_the_largest_integers_come_out_as_numbers(connection):
    values = [-(2**127), 2**127 - 1, 10**38]
    rows = connection.sql(f"SELECT {', '.join(f'CAST({str(v)!r} AS HUGEINT)' for v in values)}").rows()
    assert rows == [tuple(values)]


def test_values_of_enums_come_out_of_arrays_and_unions(connection):
    value = "CAST('BIT' AS ENUM('a', 'BIT'))"
    assert connection.sql(f"SELECT array_value({value}), union_value(a := {value})").rows() == [(["BIT"], "BIT")]
