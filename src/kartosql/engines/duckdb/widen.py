"""Values of files in the wider types of their table."""

from __future__ import annotations

import pyarrow as pa

from kartosql.engines.duckdb.types import literal, quote, sql_type


def converted(value: str, given: pa.DataType, wanted: pa.DataType, depth: int = 0) -> str:
    """Return the SQL for a value of type ``given`` as one of a type to which it widens."""
    if given.equals(wanted):
        return value
    t = pa.types
    if t.is_struct(given) and t.is_struct(wanted):
        members = []
        known = {f.name: f.type for f in given}
        for field in wanted:
            if field.name in known:
                member = converted(
                    f"struct_extract({value}, {literal(field.name)})", known[field.name], field.type, depth
                )
            else:
                member = f"CAST(NULL AS {sql_type(field.type)})"
            members.append(f"{quote(field.name)} := {member}")
        return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({', '.join(members)}) END"
    if t.is_list(given) and t.is_list(wanted):
        name = f"kartosql_item_{depth}"
        item = converted(name, given.value_type, wanted.value_type, depth + 1)
        return f"list_transform({value}, lambda {name}: {item})"
    return f"CAST({value} AS {sql_type(wanted)})"
