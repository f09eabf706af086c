"""The rows that hold after records of which each adds, retracts or corrects one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from kartosql.engines.duckdb.types import quote
from kartosql.tables.table import Changelog

# Columns of records that say what each of them does.
OFFSET, OP = "__kartosql_offset", "__kartosql_op"
# What a record adds to the number of rows like it; without a value, as in files that are older than the column, one.
_COUNT = (
    f"CASE WHEN coalesce({OP}, 0) IN (0, 3) THEN 1 WHEN {OP} IN (1, 2) THEN -1 "
    f"ELSE CAST(error('A record has the operation ' || CAST({OP} AS VARCHAR)) AS INTEGER) END"
)


def record_names(
    log: Changelog, columns: Sequence[str], shown: Mapping[str, str], every: Sequence[str]
) -> dict[str, str]:
    """Return the columns that records need so that ``columns`` of their state can be told, and their names."""
    needed = {*columns, *(log.key or log.compared)}
    return {c: shown.get(c, c) for c in every if c in needed} | {log.offset: OFFSET, log.op: OP}


def state(
    log: Changelog,
    columns: Sequence[str],
    names: Mapping[str, str],
    types: Mapping[str, pa.DataType],
    records: str,
    *,
    collated: bool,
) -> str:
    """Return the query over the rows that hold after the ``records``, a query whose columns have the ``names``.

    Records are told apart by their values, whatever a collation says of them.
    """
    outer = [quote(names[c]) for c in columns]
    texts = {c for c in log.key or log.compared if collated and pa.types.is_string(types[c])}
    if log.key:
        cell = ", ".join(quote(names[c]) + ' COLLATE "binary"' * (c in texts) for c in log.key)
        return (
            f"SELECT {', '.join(outer) or 'NULL AS nothing'} FROM ({records}) QUALIFY row_number() OVER "
            f"(PARTITION BY {cell} ORDER BY {OFFSET} DESC) = 1 AND {_COUNT} > 0"
        )
    groups = ", ".join(f"encode({quote(names[c])})" if c in texts else quote(names[c]) for c in log.compared)
    given = [f"any_value({quote(names[c])}) AS {quote(names[c])}" if c in texts else quote(names[c]) for c in columns]
    sums = f"SELECT {', '.join([*given, f'sum({_COUNT}) AS {OP}'])} FROM ({records}) GROUP BY {groups}"
    repeated = f"unnest(range(CAST({OP} AS BIGINT)))"
    return (
        f"SELECT {', '.join(outer) or 'NULL AS nothing'} FROM "
        f"(SELECT {', '.join([*outer, repeated])} FROM ({sums}) WHERE {OP} > 0)"
    )
