"""The indexes of CREATE SKIPPING INDEX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kartosql.sql.write_statements import Skip

if TYPE_CHECKING:
    from kartosql.sql.write_parse import _WriteCursor

KINDS = {"MINMAX": (), "VALUELIST": (), "BLOOMFILTER": ("FPP", "NDV")}


def skips(cursor: _WriteCursor) -> tuple[Skip, ...]:
    """Read ``(MINMAX(a), VALUELIST(b.c), BLOOMFILTER(d) WITH (fpp = 0.01))``."""
    cursor.expect("(")
    found: list[Skip] = []
    while not found or cursor.take(","):
        kind = cursor.keyword()
        if kind not in KINDS:
            raise cursor.fail("Expected a kind of skipping index.", f"There are {', '.join(KINDS)}.")
        cursor.at += 1
        cursor.expect("(")
        names = [cursor.named()]
        while cursor.take(","):
            names.append(cursor.named())
        cursor.expect(")")
        parameters = _parameters(cursor, kind) if cursor.phrase("WITH") else ()
        found += [Skip(kind, name.parts, parameters) for name in names]
    cursor.expect(")")
    return tuple(found)


def _parameters(cursor: _WriteCursor, kind: str) -> tuple[tuple[str, int | float], ...]:
    cursor.expect("(")
    found: dict[str, int | float] = {}
    while not found or cursor.take(","):
        name = cursor.keyword()
        if name not in KINDS[kind] or name in found:
            known = ", ".join(KINDS[kind]).lower() or "none"
            raise cursor.fail(f"Expected a parameter of {kind}, each once.", f"There are: {known}.")
        cursor.at += 1
        cursor.expect("=")
        found[name] = cursor.number()
    cursor.expect(")")
    return tuple(found.items())
