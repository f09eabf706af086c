"""Values as Spark literals."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

from kartosql.engines.spark.portable.duckdb_types import INTEGERS, UNSIGNED, Type
from kartosql.engines.spark.types import text_literal
from kartosql.errors import NotPortable

MAX_INTEGER = 10**38 - 1
_EPOCH = dt.datetime(1970, 1, 1)


def literal(value: Any, type_: Type) -> str:
    """Return a Python value as a Spark literal of a type; raises ``not-portable``."""
    spark = type_.spark()
    if value is None:
        return f"CAST(NULL AS {spark})"
    name = type_.name
    if name == "BOOLEAN":
        return "true" if value else "false"
    if name == "INTEGER":
        return f"{value}" if value > -(2**31) else f"CAST({value} AS INT)"
    if name == "HUGEINT" and abs(int(value)) > MAX_INTEGER:
        raise NotPortable("Spark has no integers of more than 38 digits.")
    if name in INTEGERS or name in UNSIGNED or name == "HUGEINT":
        return f"CAST('{int(value)}' AS {spark})"
    if name == "DECIMAL":
        return f"CAST('{decimal.Decimal(value):f}' AS {spark})"
    if name in ("DOUBLE", "FLOAT"):
        return f"CAST('{_float(float(value))}' AS {spark})"
    if name == "VARCHAR":
        return text_literal(value)
    if name == "BLOB":
        return f"X'{value.hex()}'"
    if name == "DATE":
        return f"date_from_unix_date({(value - dt.date(1970, 1, 1)).days})"
    if getattr(value, "nanosecond", 0):
        raise NotPortable("Spark has no nanoseconds.")
    if name in ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"):
        return f"CAST('{value.isoformat(sep=' ', timespec='microseconds')}' AS TIMESTAMP_NTZ)"
    if name == "TIMESTAMP WITH TIME ZONE":
        micros = (value.astimezone(dt.timezone.utc).replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)
        return f"timestamp_micros({micros})"
    if name == "LIST":
        items = ", ".join(literal(v, type_.element) for v in value)
        return f"array({items})" if value else f"CAST(array() AS {spark})"
    if name == "STRUCT":
        fields = ", ".join(f"{text_literal(n)}, {literal(value[n], part)}" for n, part in type_.parts)
        return f"named_struct({fields})"
    raise NotPortable(f"Spark cannot be given a constant of the type {type_.sql()}.")


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)
