"""Every kind of value into every stored type: what is accepted reads back as it was, by SQL and from Python alike."""

from __future__ import annotations

import uuid
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError, UsageError
from kartosql.write.change import common_schema, widen
from kartosql.write.inputs import converted, may_become, open_rows

# The stored types, as columns of one dataset.
TARGETS = {
    "bool": "BOOLEAN",
    "int": "BIGINT",
    "uint": "UBIGINT",
    "double": "DOUBLE",
    "money": "DECIMAL(9,2)",
    "exact": "DECIMAL(38,10)",
    "text": "VARCHAR",
    "bytes": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "stamp": "TIMESTAMP",
    "moment": "TIMESTAMPTZ",
    "list": "BIGINT[]",
}
_WHOLE = "int uint double money exact"
_SIGNED = "int double money exact"
# Kinds of values, and the stored types that hold them as they are.
SOURCES = {
    "NULL": "bool int uint double money exact text bytes date time stamp moment list",
    "true": "bool",
    "false": "bool",
    "1::TINYINT": _WHOLE,
    "(-128)::TINYINT": _SIGNED,
    "255::UTINYINT": _WHOLE,
    "(-32768)::SMALLINT": _SIGNED,
    "65535::USMALLINT": _WHOLE,
    "(-2147483648)::INTEGER": "int double exact",
    "9999999::INTEGER": _WHOLE,
    "10000000::INTEGER": "int uint double exact",
    "4294967295::UINTEGER": "int uint double exact",
    "0::BIGINT": _WHOLE,
    "9007199254740992::BIGINT": "int uint double exact",
    "9007199254740993::BIGINT": "int uint exact",
    "1152921504606846976::BIGINT": "int uint double exact",
    "9223372036854775807::BIGINT": "int uint exact",
    "(-9223372036854775808)::BIGINT": "int double exact",
    "18446744073709551615::UBIGINT": "uint exact",
    "9223372036854775808::UBIGINT": "uint double exact",
    "7::HUGEINT": _WHOLE,
    "9007199254740993::HUGEINT": "int uint exact",
    "18446744073709551616::HUGEINT": "double exact",
    "(-99999999999999999999999999999999999999)::HUGEINT": "",
    "0.0::FLOAT": _WHOLE,
    "'-0'::FLOAT": "double",
    "0.1::FLOAT": "double money exact",
    "0.125::FLOAT": "double exact",
    "123456792::FLOAT": "int uint double exact",
    "'nan'::FLOAT": "double",
    "'inf'::FLOAT": "double",
    "3.4e38::FLOAT": "double",
    "0.0::DOUBLE": _WHOLE,
    "'-0'::DOUBLE": "double",
    "1e0": _WHOLE,
    "-2.5e0": "double money exact",
    "0.1::DOUBLE": "double money exact",
    "0.001::DOUBLE": "double exact",
    "0.125::DOUBLE": "double exact",
    "1e-11": "double",
    "5e-324": "double",
    "9007199254740993e0": "int uint double exact",
    "9223372036854775808e0": "uint double exact",
    "18446744073709551616e0": "double exact",
    "1e22": "double exact",
    "1e300": "double",
    "'nan'::DOUBLE": "double",
    "'inf'::DOUBLE": "double",
    "'-inf'::DOUBLE": "double",
    "1.00::DECIMAL(3,2)": _WHOLE,
    "(-0.01)::DECIMAL(9,2)": "double money exact",
    "19.7::DECIMAL(3,1)": "double money exact",
    "0.125::DECIMAL(4,3)": "double exact",
    "9999999.99::DECIMAL(9,2)": "double money exact",
    "10000000.00::DECIMAL(10,2)": "int uint double exact",
    "0.123456789012345678::DECIMAL(18,18)": "",
    "123456789.123456789::DECIMAL(18,9)": "exact",
    "'text'": "text",
    "''": "text",
    "'7'": "text",
    "'1.5'": "text",
    "'2020-02-29'": "text date stamp",
    "'2020-02-30'": "text",
    "'2020-02-29 23:59:59.999999'": "text stamp",
    "'2020-02-29 23:59:59.9999999'": "text",
    "'2020-02-29 12:00:00+02'": "text",
    "'infinity'": "text",
    "'a'::ENUM('a', 'b')": "text",
    "'{\"a\": 1}'::JSON": "text",
    "'0b0f4c1e-0000-4000-8000-000000000001'::UUID": "text",
    "'\\x00\\xFF'::BLOB": "bytes",
    "DATE '2020-02-29'": "date stamp",
    "DATE '0001-01-01'": "date stamp",
    "DATE 'infinity'": "date",
    "TIME '23:59:59.999999'": "time",
    "TIMESTAMP '2020-02-29 00:00:00'": "date stamp",
    "TIMESTAMP '2020-02-29 23:59:59'": "stamp",
    "TIMESTAMP '2020-03-29 02:30:00'": "stamp",
    "TIMESTAMP 'infinity'": "stamp",
    "TIMESTAMP_S '2020-02-29 00:00:01'": "stamp",
    "TIMESTAMP_MS '2020-02-29 00:00:00'": "date stamp",
    "TIMESTAMP_NS '2020-02-29 00:00:00.000001'": "stamp",
    "TIMESTAMP_NS '2020-02-29 00:00:00.000000001'": "",
    "TIME_NS '00:00:00.000000001'": "",
    "TIMESTAMPTZ '2020-10-25 00:30:00+00'": "moment",
    "TIMESTAMPTZ '2020-10-25 01:30:00+00'": "moment",
    "TIMESTAMPTZ 'infinity'": "moment",
    "[1, 2]": "list",
    "[1.5]::DOUBLE[]": "",
    "{'a': 1}": "",
    "INTERVAL 1 DAY": "",
}
# Values that are others in Arrow, or would be: refused by the name of their type.
CHANGING = {
    "'101'::BIT": "BIT",
    "['1'::BIT]": "BIT",
    "{'a': 1::VARIANT}": "VARIANT",
    "1::VARIANT": "VARIANT",
    "5::BIGNUM": "BIGNUM",
    "'10:00:00+02'::TIMETZ": "TIME WITH TIME ZONE",
    "340282366920938463463374607431768211455::UHUGEINT": "UHUGEINT",
}
ZONES = ("Europe/Berlin", "America/Sao_Paulo")


def accepted(source: str) -> list[str]:
    return SOURCES[source].split()


@pytest.fixture
def con():
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as con:
        columns = ", ".join(f"NULL::{type_} AS {name}" for name, type_ in TARGETS.items())
        con.sql(f"CREATE DATASET t AS SELECT -1 AS k, '' AS way, {columns}")
        yield con


def columns_of(con: kartosql.Connection) -> dict[str, pa.ChunkedArray]:
    query = ", ".join(f"{source} AS c{at}" for at, source in enumerate(SOURCES))
    return dict(zip(SOURCES, con.sql(f"SELECT {query}").arrow().columns, strict=True))


def test_each_value_is_taken_by_exactly_those_types_that_hold_it(con):
    stored = con.sql("SELECT * FROM t").schema
    wrong = []
    for zone in ZONES:
        con.sql(f"SET TimeZone = '{zone}'")
        for source, values in columns_of(con).items():
            for target in TARGETS:
                table = pa.schema([stored.field(target)])
                try:
                    rows = open_rows(pa.table({target: values}), "t").typed(table, convert=True)
                    widen(table, common_schema(rows.schema, ()))
                    list(rows.pieces())
                    code = None
                except UsageError as e:
                    code = e.code
                if code not in ([None] if target in accepted(source) else ["incompatible-schema", "invalid-data"]):
                    wrong.append((zone, source, target, code))
    assert wrong == []


def test_what_is_taken_reads_back_as_it_was(con):
    con.sql(f"SET TimeZone = '{ZONES[0]}'")
    given = columns_of(con)
    taken = {target: [source for source in SOURCES if target in accepted(source)] for target in TARGETS}
    for k in range(max(map(len, taken.values()))):
        # Each row holds another value in each column that has one left.
        row = {target: sources[k] for target, sources in taken.items() if k < len(sources)}
        con.sql(f"INSERT INTO t (k, way, {', '.join(row)}) SELECT {k}, 'sql', {', '.join(row.values())}")
        table = {t: given[row[t]] if t in row else [None] for t in TARGETS}
        con.append_to_dataset("t", pa.table({"k": [k], "way": ["call"], **table}))
    rows = con.sql("SELECT * FROM t WHERE k >= 0").arrow()
    # DuckDB casts back, by rules of its own.
    with duckdb.connect() as bare:
        bare.execute(f"SET TimeZone = '{ZONES[0]}'")
        bare.register("rows", rows)
        types = {s: bare.sql(f"SELECT {s}").types[0] if s != "NULL" else "VARCHAR" for s in SOURCES}
        for target, sources in taken.items():
            for k, source in enumerate(sources):
                back = f"CAST(CAST({target} AS {types[source]}) AS VARCHAR)"
                if source.startswith("'2020"):  # text writes one value in several ways
                    back = f"{back}[:{len(source) - 2}]"
                found = bare.sql(f"SELECT way, {back} FROM rows WHERE k = {k}").fetchall()
                text = bare.sql(f"SELECT CAST({source} AS VARCHAR)").fetchall()[0][0]
                assert sorted(found) == [("call", text), ("sql", text)], (source, target)


def test_what_is_refused_changes_nothing(con):
    refused = [(s, next(t for t in TARGETS if t not in accepted(s))) for s in SOURCES if s != "NULL"]
    for source, target in refused[::3]:
        with pytest.raises(KartosqlError) as e:
            con.sql(f"INSERT INTO t (k, {target}) SELECT 1, {source}")
        assert e.value.code in ("incompatible-schema", "invalid-data")
    assert con.sql("SELECT count(*) FROM t").rows() == [(1,)]


@pytest.mark.parametrize(("source", "type_"), CHANGING.items())
def test_values_that_are_others_in_arrow_are_refused_by_the_name_of_their_type(con, source, type_):
    with duckdb.connect() as bare:
        ways = [
            lambda: con.sql(f"CREATE DATASET new AS SELECT 1 AS k, {source} AS v"),
            lambda: con.create_dataset("new", con.sql(f"SELECT 1 AS k, {source} AS v")),
            lambda: con.create_dataset("new", bare.sql(f"SELECT 1 AS k, {source} AS v")),
        ]
        for way in ways:
            with pytest.raises(KartosqlError) as e:
                way()
            assert e.value.code == "invalid-data"
            assert type_ in str(e.value).upper()
    assert list(con.datasets()) == ["t"]
    con.sql(f"CREATE DATASET new AS SELECT CAST({source} AS VARCHAR) AS v")


def test_bits_do_not_become_bytes_on_the_way_into_a_table(con):
    with pytest.raises(UsageError, match="'bytes' is BLOB in the table, but VARCHAR in the new data"):
        con.sql("INSERT INTO t (k, bytes) SELECT 1, '101'::BIT")
    with pytest.raises(UsageError, match="'b' is BIT, which cannot be stored") as e:
        con.sql("CREATE DATASET bits AS SELECT '101'::BIT AS b")
    assert e.value.hint == "Cast BIT to another type, such as VARCHAR."


def test_members_that_are_called_like_a_type_are_none(con):
    con.sql("""CREATE DATASET new AS SELECT {'BIT': 1, 'a BIT': 'BIT'} AS v, 'BIT'::ENUM('BIT', 'VARIANT') AS e""")
    assert con.sql("SELECT * FROM new").rows() == [("BIT", {"BIT": 1, "a BIT": "BIT"})]


def test_the_first_value_that_would_change_is_named(con):
    table = pa.table({"money": [0.5] * 1000 + [0.001, 0.002]})
    with pytest.raises(UsageError, match=r"'money' does not fit into DECIMAL\(9,2\): .* first 0\.001"):
        con.append_to_dataset("t", _whole(con, table))
    with pytest.raises(UsageError, match=r"'int' does not fit into BIGINT: .* first -0"):
        con.append_to_dataset("t", _whole(con, pa.table({"int": [1.0, -0.0, 2.0]})))


def _whole(con: kartosql.Connection, table: pa.Table) -> pa.Table:
    rest = [n for n in con.sql("FROM t").columns if n not in table.column_names]
    return pa.table({**{n: table[n] for n in table.column_names}, **{n: pa.nulls(table.num_rows) for n in rest}})


def test_decimals_become_the_nearest_double():
    texts = ["19.7", "0.1", "-19.700000000000000000", "0.000000000000000001", "123456789.12345679"]
    column = pa.chunked_array([[Decimal(t) for t in texts]], pa.decimal128(38, 18))
    assert converted(column, pa.float64()).to_pylist() == [float(t) for t in texts]


@pytest.mark.parametrize(
    ("narrow", "wide", "type_"),
    [(1.5, 0.1, pa.float32()), (1.5, 1e300, pa.float32()), (1, 300, pa.int8()), (0, 2**40, pa.timestamp("s"))],
)
def test_wider_values_in_later_pieces_are_not_rounded(narrow, wide, type_):
    later = {pa.float32(): pa.float64(), pa.int8(): pa.int64(), pa.timestamp("s"): pa.timestamp("ns")}[type_]
    for value, fits in ((narrow, True), (wide + (0 if type_ != pa.timestamp("s") else 1), False)):
        tables = [pa.table({"v": pa.array([narrow], type_)}), pa.table({"v": pa.array([value], later)})]
        rows = open_rows(iter(tables), "t")
        if fits:
            assert sum(piece.num_rows for piece in rows.pieces()) == 2
            continue
        with pytest.raises(UsageError, match="'v' does not fit into"):
            list(rows.pieces())


def test_dictionaries_are_compared_value_by_value():
    column = pa.chunked_array([pa.array([1.5, None, 1.5]).dictionary_encode()])
    assert converted(column, pa.float32()).to_pylist() == [1.5, None, 1.5]
    with pytest.raises(ValueError, match=r"0\.1"):
        converted(pa.chunked_array([pa.array([0.1]).dictionary_encode()]), pa.float32())


def test_constants_of_partition_keep_the_rule():
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as con:
        con.sql("CREATE DATASET d PARTITION BY (p) AS SELECT 1::BIGINT AS p, 1 AS v")
        for constant in ("1.5", "1e300", "9223372036854775808", "'x'"):
            with pytest.raises(KartosqlError) as e:
                con.sql(f"INSERT OVERWRITE d PARTITION (p = {constant}) SELECT 2 AS v")
            assert e.value.code == "invalid-data"
        con.sql("INSERT OVERWRITE d PARTITION (p = 1.0) SELECT 2 AS v")
        assert con.sql("SELECT p, v FROM d").rows() == [(1, 2)]


def test_calls_of_the_original_are_as_strict_as_it_is():
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as con:
        con.build_cube(kartosql.Cube("c", "x", "p"), pa.table({"x": [1], "p": [1], "v": [0.5]}))
        whole = pa.table({"x": [2], "p": [1], "v": [5]})
        with pytest.raises(UsageError) as e:
            con.append_to_cube("c", whole)
        assert e.value.code == "incompatible-schema"
        con.append_to_dataset("c.seed", whole)
        assert con.sql("SELECT v FROM c ORDER BY x").rows() == [(0.5,), (5.0,)]


@pytest.mark.parametrize(
    ("given", "stored", "expected"),
    [
        (pa.null(), pa.list_(pa.int64()), True),
        (pa.int64(), pa.null(), False),
        (pa.string(), pa.int64(), False),
        (pa.int64(), pa.string(), False),
        (pa.bool_(), pa.int64(), False),
        (pa.int64(), pa.date32(), False),
        (pa.string(), pa.timestamp("us", "UTC"), False),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC"), True),
        (pa.decimal128(38, 0), pa.int64(), True),
    ],
    ids=str,
)
def test_types_that_are_converted(given, stored, expected):
    assert may_become(given, stored) is expected
