"""The indexes of CREATE SKIPPING INDEX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from kartosql.sql.write_statements import Skip

if TYPE_CHECKING:
    from kartosql.sql.write_parse import _WriteCursor

KINDS = {"MINMAX": (), "VALUELIST": (), "BLOOMFILTER": ("FPP", "NDV"), "REGEXVALUELIST": ("PATTERN",)}


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
        if kind == "REGEXVALUELIST" and not parameters:
            raise cursor.fail("Expected WITH (pattern = '...'), once or several times.")
        found += [Skip(kind, name.parts, parameters) for name in names]
    cursor.expect(")")
    return tuple(found)


def _parameters(cursor: _WriteCursor, kind: str) -> tuple[tuple[str, int | float | str], ...]:
    cursor.expect("(")
    found: list[tuple[str, int | float | str]] = []
    while not found or cursor.take(","):
        name = cursor.keyword()
        if name not in KINDS[kind] or (name in dict(found) and name != "PATTERN"):
            known = ", ".join(KINDS[kind]).lower() or "none"
            raise cursor.fail(f"Expected a parameter of {kind}, each once.", f"There are: {known}.")
        cursor.at += 1
        cursor.expect("=")
        found.append((name, _text(cursor) if name == "PATTERN" else cursor.number()))
    cursor.expect(")")
    return tuple(found)


def _text(cursor: _WriteCursor) -> str:
    if cursor.at >= len(cursor.tokens) or cursor.tokens[cursor.at].token_type != TokenType.STRING:
        raise cursor.fail("Expected a pattern in single quotes.")
    cursor.at += 1
    return cursor.tokens[cursor.at - 1].text
