"""The kinds of values that random stores hold and random statements compare with."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

NAN = float("nan")
UTC = dt.timezone.utc
TENTH = 0.10000000149011612  # 0.1 as a 32 bit float

VALUES: dict[str, list[Any]] = {
    "int": [-7, -1, 0, 1, 2, 3, 4, 5, 9, 10, 2**53 + 1],
    "small": [-7, -1, 0, 1, 2, 3, 4, 5, 9, 10],
    "big": [0, 1, 2, 3, 2**63 - 1, 2**63, 2**64 - 1],
    "float": [-1.5, -0.0, 0.0, 1.0, 2.0, 2.5, 3.0, 1e300, float("inf"), -float("inf")],
    "single": [-1.5, -0.0, 0.0, 1.0, 2.0, TENTH, float("inf")],
    "dec": [Decimal(v) for v in ("-1.50", "0.00", "1.00", "2.00", "2.50", "10.00")],
    "text": ["", "a", "A", "b", "é", "日本", "it's", 'quo"te', "a/b", "a%b", "a b", "x=1", "10", "9", "null"],
    "digits": ["0", "1", "01", "2", "3", "9", "10", "-1"],
    "date": [dt.date(1850, 3, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2020, 2, 29), dt.date(2021, 1, 1),
             dt.date(2400, 1, 1)],
    "time": [dt.datetime(1969, 12, 31, 23, 59, 59, 5), dt.datetime(1970, 1, 1), dt.datetime(2020, 2, 29),
             dt.datetime(2020, 2, 29, 12, 30), dt.datetime(2400, 1, 1)],
    "zone": [dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(2020, 2, 28, 23, tzinfo=UTC),
             dt.datetime(2020, 2, 29, tzinfo=UTC), dt.datetime(2020, 3, 29, 1, 30, tzinfo=UTC),
             dt.datetime(2400, 1, 1, tzinfo=UTC)],
    "bytes": [b"", b"a", b"ab", b"b", b"\xff\xfe"],
    "bool": [True, False],
}  # fmt: skip
ARROW = {
    "int": pa.int64(), "small": pa.int32(), "big": pa.uint64(), "float": pa.float64(), "single": pa.float32(),
    "dec": pa.decimal128(9, 2), "text": pa.string(), "digits": pa.string(), "date": pa.date32(),
    "time": pa.timestamp("us"), "zone": pa.timestamp("us", "UTC"), "bytes": pa.binary(), "bool": pa.bool_(),
}  # fmt: skip
SQL = {
    "int": "BIGINT", "small": "INTEGER", "big": "UBIGINT", "float": "DOUBLE", "single": "FLOAT", "dec": "DECIMAL(9,2)",
    "text": "VARCHAR", "digits": "VARCHAR", "date": "DATE", "time": "TIMESTAMP", "zone": "TIMESTAMPTZ",
    "bytes": "BLOB", "bool": "BOOLEAN", "huge": "HUGEINT",
}  # fmt: skip
# Kinds that are compared, joined and united with each other without an error.
FAMILIES = [["int", "small", "big", "float", "single", "dec", "huge"], ["text", "digits"], ["date", "time", "zone"],
            ["bytes"], ["bool"]]  # fmt: skip
FAMILY = {kind: number for number, kinds in enumerate(FAMILIES) for kind in kinds}
FLOATS = ("float", "single")


def related(one: str, other: str) -> bool:
    """Return whether values of two kinds may be compared; numbers also with texts of digits."""
    if "digits" in (one, other) and one != other:
        other = other if one == "digits" else one
        return other == "text" or (FAMILY[other] == 0 and other not in ("dec", "big"))
    return FAMILY[one] == FAMILY[other]


def united(one: str, other: str) -> str:
    """Return the kind of a column that a set operation makes of two related ones."""
    if one == other:
        return one
    for kind in ("text", "digits", "float", "single", "dec", "huge", "zone", "time"):
        if kind in (one, other):
            return "text" if kind == "digits" else kind
    return "huge" if "big" in (one, other) else "int"


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{b:02X}" for b in value) + "'::BLOB"
    if isinstance(value, float):
        return f"'{value!r}'::DOUBLE" if math.isinf(value) or math.isnan(value) or value == 0 else repr(value)
    if isinstance(value, dt.datetime):
        return f"TIMESTAMPTZ '{value}'" if value.tzinfo else f"TIMESTAMP '{value}'"
    return f"DATE '{value}'" if isinstance(value, dt.date) else str(value)


def pools(rng: random.Random) -> dict[str, list[Any]]:
    """Return the few values of each kind that a store is made of."""
    made = {kind: rng.sample(values, min(len(values), 5)) for kind, values in VALUES.items()}
    # Numbers of all types meet in joins.
    for kind in ("int", "small", "big", "float", "dec", "digits"):
        made[kind] = [*dict.fromkeys([*made[kind][:3], *map(VALUES[kind][0].__class__, (1, 2))])]
    return made


def column(rng: random.Random, kind: str, pool: list[Any], size: int, *, nulls: bool) -> pa.Array:
    extra = [None, NAN] if kind in FLOATS else [None]
    pool = [*pool, *extra] if nulls else pool
    return pa.array([rng.choice(pool) for _ in range(size)], ARROW[kind], from_pandas=False)
