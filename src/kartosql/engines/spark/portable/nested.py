"""Lists, structs and maps on Spark as DuckDB has them."""

from __future__ import annotations

from kartosql.engines.spark.portable.functions import Call, rule
from kartosql.engines.spark.portable.literals import text_literal
from kartosql.engines.spark.portable.types import identifier


def _struct_extract(call: Call) -> str:
    name = call.constant(1)
    names = [n for n, _ in call.args[0].type.parts]
    found = [n for n in names if n == name] or [n for n in names if n.lower() == str(name).lower()]
    if len(found) != 1 or len({n.lower() for n in names}) < len(names):
        raise call.refused(" for such a field")
    return f"{call.args[0].sql}.{identifier(found[0])}"


def _struct_pack(call: Call) -> str:
    names = [n for n, _ in call.type.parts]
    fields = ", ".join(f"{text_literal(n)}, {a.sql}" for n, a in zip(names, call.args, strict=True))
    return f"named_struct({fields})"


def _item(call: Call) -> str:
    at = call.constant(1)
    if at is None or not 1 <= at < 2**31:
        raise call.refused(" for such a place")
    return f"get({call.args[0].sql}, {at - 1})"


def _list(call: Call) -> str:
    return f"array({', '.join(a.sql for a in call.args)})" if call.args else "array()"


def _contains(call: Call) -> str:
    """Return whether a list holds a value; NULL in the list makes neither engine's answer NULL here."""
    values, value = call.args[0].sql, call.args[1].sql
    known = f"CASE WHEN {values} IS NULL OR {value} IS NULL THEN NULL ELSE false END"
    return f"coalesce(array_contains({values}, {value}), {known})"


rule("struct_extract array_extract", "Ss", _struct_extract)
rule("struct_pack row", ".*", _struct_pack)
rule("array_extract list_extract list_element", "li", _item)
rule("list_value", ".*", _list)
rule("len length array_length", "l", "size({0})")
rule("list_contains array_contains list_has contains", "l[iuhmsbDTZfd]", _contains, exact=True)
