"""Aggregates and conditions over every type, against DuckDB over the same rows in memory.

A reference that reads the same files would take the same bounds of their footers for values.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import builders
import kartosql
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube, write_dataset

NAN, INF = math.nan, math.inf
DAY, UTC = dt.datetime(2020, 2, 29, 12, 30, 0, 5), dt.timezone.utc
ERA = dt.datetime(1850, 1, 1, tzinfo=UTC)
LONG = "é" * 100  # longer than what writers keep of a text in a footer
PLAIN = {
    "double": (pa.float64(), [0.5, -1.5, 3.0, 2.0, 7.25, 1.0]),
    "float": (pa.float32(), [0.5, -1.5, 3.0, 2.0, 7.25, 1.0]),
    "zero": (pa.float64(), [0.0, 1.0, 2.0, 1.0, 3.0, 0.0]),
    "minus_zero": (pa.float32(), [-0.0, -1.0, -2.0, -0.0, -1.0, -3.0]),
    "same": (pa.float64(), [0.0] * 6),
    "nan": (pa.float64(), [1.0, NAN, 2.0, 0.5, NAN, 3.0]),
    "only_nan": (pa.float32(), [NAN] * 6),
    "inf": (pa.float64(), [1.0, INF, 2.0, -INF, 3.0, 4.0]),
    "all": (pa.float64(), [1.0, NAN, None, -INF, INF, 2.5]),
    "gaps": (pa.float64(), [None, 1.0, None, 2.0, None, 3.0]),
    "null": (pa.float64(), [None] * 6),
    "bool": (pa.bool_(), [True, False, None, True, True, False]),
    "tiny": (pa.int8(), [-128, 127, 0, None, 5, 5]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1, 0, 1, None, 3]),
    "big": (pa.int64(), [-(2**63), 2**63 - 1, 0, 1, 2, None]),
    "ubig": (pa.uint64(), [2**64 - 1, 0, 2**63, 1, 2, 3]),
    "dec4": (pa.decimal128(4, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("99.99"), None, Decimal("1.25"), None]),
    "dec38": (pa.decimal128(38, 3), [Decimal(10**34), Decimal(-(10**34)), None, Decimal("0.001"), None, Decimal(1)]),
    "text": (pa.string(), [LONG + "b", LONG + "a", "", None, "a", "Z"]),
    "blob": (pa.binary(), [b"\xff" * 90 + b"a", b"\xff" * 90, b"", None, b"a", b"\x00"]),
    "date": (pa.date32(), [dt.date(1850, 3, 1), dt.date(2400, 1, 1), None, DAY.date(), dt.date(1970, 1, 1), None]),
    "time": (pa.time64("us"), [DAY.time(), dt.time(0), dt.time(23, 59, 59), None, dt.time(1), dt.time(2)]),
    "us": (pa.timestamp("us"), [DAY, None, dt.datetime(1850, 1, 1), dt.datetime(2400, 1, 1), DAY, DAY]),
    "ns": (pa.timestamp("ns"), [DAY, None, dt.datetime(1850, 1, 1), dt.datetime(2200, 1, 1), DAY, None]),
    "zone": (pa.timestamp("us", "UTC"), [DAY.replace(tzinfo=UTC), None, ERA, None, None, ERA]),
    "list": (pa.list_(pa.float64()), [[1.0, NAN], [], None, [2.0], [-INF], [1.0]]),
    "struct": (
        pa.struct({"f": pa.float64(), "s": pa.string()}),
        [{"f": 1.0, "s": "a"}, {"f": 3.0, "s": None}, {"f": 2.5, "s": "b"}, *[{"f": 1.0, "s": "c"}] * 3],
    ),
    "map": (pa.map_(pa.string(), pa.float64()), [[("a", 1.0)], [("b", NAN)], [], None, [("a", 2.0)], [("c", 0.5)]]),
}  # fmt: skip
FLOATS = ["double", "float", "zero", "minus_zero", "same", "nan", "inf", "gaps"]  # whose footers hold bounds
ODD = ["only_nan", "all", "null", "list", "struct", "map"]
EXPRESSIONS = ['"struct".f', '-"double"', 'CAST("float" AS DOUBLE)', 'CAST("tiny" AS BIGINT)', '"double" + "zero"']
SPECIAL = ["double", "zero", "minus_zero", "nan", "inf", "all", "only_nan"]
# Drawn by lot, one of several values that occur as often, an inner state, or only for tables in memory.
LEFT_OUT = {"reservoir_quantile", "mode", "approx_top_k", "combine_aggr", "variant_group_object", "bitstring_agg"}
BY_ORDER = {"any_value", "arbitrary", "first", "last", "list", "array_agg", "string_agg", "group_concat", "listagg"}
STORED, ATTACHED = ("one", "groups", "two", "parts", "cube"), ("arrow", "grouped", "copied")
ROWS = 6


def rows() -> pa.Table:
    made = {name: pa.array(values, type_) for name, (type_, values) in PLAIN.items()}
    ids = {"id": pa.array(range(ROWS), pa.int64()), "p": pa.array(["a", "a", "a", "b", "b", "c"])}
    return pa.table({**ids, **made})


def plain(table: pa.Table) -> Any:
    """Return DuckDB that holds the rows in memory, and in another order in the table ``other``."""
    made = duckdb.connect(":memory:", config={"threads": "1"})
    made.execute("SET TimeZone = 'UTC'")
    made.register("given", table)
    made.execute("CREATE TABLE t AS FROM given")
    made.execute("CREATE TABLE other AS FROM given ORDER BY id DESC")
    made.unregister("given")
    return made


def comparable(value: Any) -> Any:
    """Return a value of which equal ones have the same text; sums of floats depend on their order."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return {str(k): comparable(v) for k, v in value.items()}
    return [comparable(v) for v in value] if isinstance(value, list | tuple) else value


def answers(arrow: pa.Table) -> str:
    return repr([[comparable(v) for v in column.to_pylist()] for column in arrow.columns])


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kartosql.Connection]:
    """The rows in files of all kinds; STORED and ATTACHED are their names."""
    root = tmp_path_factory.mktemp("places")
    table, store = rows(), Store(str(root / "store"), create=True)
    storable = table.drop_columns(["map"])
    write_dataset(store, "one", storable)
    write_dataset(store, "groups", storable, row_group_rows=2)
    write_dataset(store, "two", storable.slice(0, 2))
    builders.append(store, "two", storable.slice(2))
    write_dataset(store, "parts", storable, partition_on="p")
    members = {"seed": storable, "extra": table.select(["id", "p"]).append_column("e", table["double"])}
    build_cube(store, Cube("cube", ["id"], ["p"]), members)
    for name in ATTACHED:
        (root / name).mkdir()
    pq.write_table(table, root / "arrow" / "f.parquet")
    pq.write_table(table, root / "grouped" / "f.parquet", row_group_size=2)
    reference = plain(table)
    reference.execute(f"COPY t TO '{root / 'copied' / 'f.parquet'}'")
    reference.close()
    with kartosql.connect(str(root / "store"), TimeZone="UTC") as found:
        for name in ATTACHED:
            found.attach(str(root / name), name)
        yield found


def held(connection: kartosql.Connection, name: str) -> tuple[pa.Table, Any]:
    """Return the rows of a table in the types that it has, and DuckDB that holds them in memory."""
    table = connection.sql(
        f"SELECT * EXCLUDE (e) FROM {name} ORDER BY id" if name == "cube" else f"FROM {name} ORDER BY id"
    ).arrow()
    return table, plain(table)


def groups(table: pa.Table) -> list[list[str]]:
    """Return columns and expressions in groups that DuckDB may answer from footers as a whole, or not at all."""
    others = [c for c in table.column_names if c in PLAIN and c not in FLOATS + ODD]
    odd = [c for c in ODD if c in table.column_names]
    return [*([f'"{c}"' for c in names] for names in (FLOATS, others, odd)), EXPRESSIONS]


def determined(reference: Any, found: list[str]) -> list[str]:
    """Return the calls that the reference accepts, and answers alike whatever the order of its rows."""
    try:
        one, other = (reference.sql(f"SELECT {', '.join(found)} FROM {t}").to_arrow_table() for t in ("t", "other"))
    except duckdb.Error:
        return [c for call in found for c in determined(reference, [call])] if len(found) > 1 else []
    return [c for i, c in enumerate(found) if answers(one.select([i])) == answers(other.select([i]))]


def calls(reference: Any, table: pa.Table) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each aggregate, and for each way to call it what it answers over the columns of a group."""
    listed = (
        "SELECT function_name, list_sort(list(DISTINCT len(parameters))) FROM duckdb_functions() "
        "WHERE function_type = 'aggregate' AND alias_of IS NULL GROUP BY ALL ORDER BY ALL"
    )
    for name, arities in reference.sql(listed).fetchall():
        if name in LEFT_OUT:
            continue
        ways = ["{f}({x} ORDER BY id)" if name in BY_ORDER else "{f}({x})"] if 1 in arities else []
        ways += ["{f}({x}, id)", "{f}(id, {x})"] if 2 in arities else []
        for call in [*ways, "{f}({x}, 0.5)"] if "quantile" in name else ways:
            for group in groups(table):
                found = determined(reference, [call.format(f=name, x=x) for x in group])
                if found:
                    yield name, found


def same(connection: kartosql.Connection, reference: Any, names: Sequence[str], sql: str) -> list[str]:
    """Return how a query over tables differs from the same over the rows in memory; ``{t}`` stands for the table."""
    wanted = answers(reference.sql(sql.format(t="t")).to_arrow_table())
    given = {name: answers(connection.sql(sql.format(t=name)).arrow()) for name in names}
    return [f"{sql.format(t=n)}: {found} instead of {wanted}" for n, found in given.items() if found != wanted]


@pytest.mark.parametrize("names", [STORED, ATTACHED], ids=["stored", "attached"])
def test_every_aggregate_over_every_type_is_that_of_the_rows_in_memory(connection, names):
    table, reference = held(connection, names[0])
    by_name: dict[str, list[str]] = {}
    wrong = []
    for name, group in calls(reference, table):
        by_name.setdefault(name, []).extend(group)
        wrong += same(connection, reference, names[:1], f"SELECT {', '.join(group)} FROM {{t}}")
    for group in by_name.values():
        wrong += same(connection, reference, names[1:], f"SELECT {', '.join(group)} FROM {{t}}")
    assert len(by_name) > 40
    assert wrong == []


@pytest.mark.parametrize("names", [("one", "parts", "cube"), ("arrow", "copied")], ids=["stored", "attached"])
def test_extremes_of_one_column_are_values_of_its_rows(connection, names):
    table, reference = held(connection, names[0])
    wrong = []
    for x in (x for group in groups(table) for x in group):
        wrong += same(connection, reference, names, f"SELECT max({x}), min({x}), count(*) FROM {{t}} WHERE p <> 'c'")
    for x in FLOATS:
        wrong += same(connection, reference, names, f"SELECT max({x}) AS m FROM {{t}} WHERE id >= 0")
        wrong += same(connection, reference, names, f"SELECT min({x}) AS m FROM {{t}}")
    assert wrong == []


WHOLE = (
    "SELECT count(*) FROM {t} WHERE x = (SELECT max(x) FROM {t})",
    "SELECT max(x) - min(x), greatest(max(x), 0), isnan(max(x)), 1 / min(x), 1 / max(x) FROM {t}",
    "SELECT max(DISTINCT x) FROM {t}",
    "SELECT count(*) FROM {t} WHERE x >= ALL (SELECT x FROM {t})",
    "SELECT count(*) FROM {t} WHERE x < ANY (SELECT x FROM {t})",
    "SELECT count(*) FROM {t} a WHERE x > SOME (SELECT -x FROM {t})",
    "SELECT m FROM (SELECT max(x) AS m FROM {t}) JOIN (SELECT min(x) AS n FROM {t}) ON m >= n",
    "SELECT x FROM {t} QUALIFY row_number() OVER (ORDER BY x DESC) = 1",
    "SELECT x FROM {t} ORDER BY x DESC NULLS LAST LIMIT 1",
    "SELECT x FROM {t} ORDER BY x NULLS LAST LIMIT 2 OFFSET 3",
    "SELECT p, max(x) FROM {t} GROUP BY p ORDER BY p",
    "SELECT max(x) FROM {t} GROUP BY ALL HAVING max(x) > 0",
    "SELECT max(x) FROM (SELECT x FROM {t} UNION ALL SELECT x FROM {t})",
    "SELECT max(m) FROM (SELECT max(x) AS m FROM {t} GROUP BY id)",
    "WITH c AS MATERIALIZED (FROM {t}) SELECT max(x), (SELECT min(x) FROM c) FROM c",
    "SELECT max(COLUMNS('^x$')) FROM {t}",
    "SELECT max, min FROM (SUMMARIZE SELECT x FROM {t})",
)


@pytest.mark.parametrize("names", [("one", "parts", "cube"), ("arrow", "copied")], ids=["stored", "attached"])
def test_extremes_inside_of_statements_are_values_of_rows(connection, names):
    _, reference = held(connection, names[0])
    wrong = []
    for column in SPECIAL:
        for sql in WHOLE:
            text = sql.replace("{t}", f'(SELECT id, p, "{column}" AS x FROM {{t}})')
            wrong += same(connection, reference, names, text)
    assert wrong == []


@pytest.mark.parametrize("names", [("one", "parts"), ("grouped", "copied")], ids=["stored", "attached"])
def test_conditions_find_nan_and_zeros_whatever_the_footers_say(connection, names):
    _, reference = held(connection, names[0])
    values = ("'nan'::DOUBLE", "'inf'::DOUBLE", "-0.0::DOUBLE", "1e300")
    conditions = [f"x {op} {v}" for v in values for op in ("=", "<>", "<=", ">", ">=")]
    conditions += ["isnan(x)", "NOT x <= 3", "x BETWEEN 100 AND 'nan'", "x IN ('nan', 7)", "x + 1 > 1e300"]
    wrong = []
    for column in SPECIAL:
        for condition in conditions:
            text = f'SELECT id FROM (SELECT id, "{column}" AS x FROM {{t}}) WHERE {condition} ORDER BY id'
            wrong += same(connection, reference, names, text)
    assert wrong == []
