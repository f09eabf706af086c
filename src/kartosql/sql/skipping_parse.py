"""The indexes of CREATE SKIPPING INDEX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

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


def _parameters(cursor: _WriteCursor, kind: str) -> tuple[tuple[str, str], ...]:
    cursor.expect("(")
    found: dict[str, str] = {}
    while not found or cursor.take(","):
        name = cursor.keyword()
        if name not in KINDS[kind] or name in found:
            known = ", ".join(KINDS[kind]).lower() or "none"
            raise cursor.fail(f"Expected a parameter of {kind}, each once.", f"There are: {known}.")
        cursor.at += 1
        cursor.expect("=")
        if cursor.at >= len(cursor.tokens) or cursor.tokens[cursor.at].token_type != TokenType.NUMBER:
            raise cursor.fail("Expected a number.")
        found[name] = cursor.tokens[cursor.at].text
        cursor.at += 1
    cursor.expect(")")
    return tuple(found.items())
