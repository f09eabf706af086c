"""The syntax of the statements that look at a query or a cube: EXPLAIN, ADVISE, VERIFY, SHOW COVERAGE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kartosql.errors import did_you_mean
from kartosql.sql.statements import FORMATS, Advise, Explain, Select, ShowCoverage, Verify, VerifyData

if TYPE_CHECKING:
    from kartosql.sql.cursor import TokenCursor

MAX_COVERAGE_COLUMNS = 2
# What may stand in brackets: words, and formats.
OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "EXPLAIN": (("ANALYZE", "COST"), FORMATS),
    "ADVISE": ((), FORMATS),
    "VERIFY": (("DUCKDB",), FORMATS),
    "COVERAGE": ((), (*FORMATS, "SVG")),
}


def explain(cursor: TokenCursor) -> Explain:
    """Parse the rest of EXPLAIN: ANALYZE, COST or WHY 'file', options in brackets, and the query."""
    kind, file = _kind(cursor)
    kinds, format_ = _options(cursor, "EXPLAIN")
    kinds |= {kind} if kind else set()
    if len(kinds) > 1:
        raise cursor.fail(f"EXPLAIN is one of {' and '.join(sorted(kinds))}, not both.")
    kind = kinds.pop().lower() if kinds else "scan"
    return Explain(cursor.text, _query(cursor, "EXPLAIN"), format_, kind, file)


def advise(cursor: TokenCursor) -> Advise:
    """Parse the rest of ADVISE."""
    _, format_ = _options(cursor, "ADVISE")
    return Advise(cursor.text, _query(cursor, "ADVISE"), format_)


def verify(cursor: TokenCursor) -> Verify | VerifyData:
    """Parse the rest of VERIFY: a query, or the name of a table."""
    if cursor.at < len(cursor.tokens) and not cursor.at_query():
        following = cursor.tokens[cursor.at + 1 :]
        is_erased = cursor.word() == "ERASED" and bool(following) and following[0].text != "."
        cursor.at += is_erased
        target, span = cursor.name()
        if not (is_erased and cursor.word() == "WHERE"):
            cursor.end()
        return VerifyData(cursor.text, target, span, cursor.text[cursor.token.start :] if cursor.token else "")
    flags, format_ = _options(cursor, "VERIFY")
    return Verify(cursor.text, _query(cursor, "VERIFY"), format_, "duckdb" if flags else None)


def coverage(cursor: TokenCursor) -> ShowCoverage:
    """Parse the rest of SHOW COVERAGE: options, OF and a table, BY and columns."""
    _, format_ = _options(cursor, "COVERAGE")
    if not cursor.take("OF", "FROM", "IN"):
        raise cursor.fail("SHOW COVERAGE needs OF and a cube.", "SHOW COVERAGE OF cube BY column, column")
    target, span = cursor.name()
    columns = [(name[-1], place) for name, place in cursor.separated(cursor.name)] if cursor.take("BY") else []
    if len(columns) > MAX_COVERAGE_COLUMNS:
        cursor.at -= 1
        raise cursor.fail(f"SHOW COVERAGE is BY one or two columns, not {len(columns)}.")
    cursor.end()
    return ShowCoverage(cursor.text, None, format_, target, span, tuple(columns))


def _kind(cursor: TokenCursor) -> tuple[str | None, str | None]:
    for word in ("ANALYZE", "COST"):
        if cursor.take(word):
            return word, None
    if not cursor.take("WHY"):
        return None, None
    return "WHY", cursor.string("EXPLAIN WHY needs a file in quotes.", "EXPLAIN WHY 'key or end of a key' SELECT ...")


def _options(cursor: TokenCursor, kind: str) -> tuple[set[str], str]:
    """Read options in brackets, if that is what the brackets hold; returns the flags and the format."""
    flags, formats = OPTIONS[kind]
    found: set[str] = set()
    format_ = "text"
    following = cursor.tokens[cursor.at + 1].text.upper() if cursor.at + 1 < len(cursor.tokens) else ""
    if cursor.word() != "(" or following not in ("FORMAT", *flags):
        return found, format_
    cursor.at += 1
    while not cursor.take(")"):
        option = cursor.word()
        cursor.at += 1
        if option in flags:
            found.add(option)
        elif option == "FORMAT" and cursor.word() in formats:
            format_ = cursor.word().lower()
            cursor.at += 1
        else:
            cursor.at -= 1
            listed = ", ".join([*flags, *(f"FORMAT {f}" for f in formats)])
            raise cursor.fail(f"The options are {listed}.")
        cursor.take(",")
    return found, format_


def _query(cursor: TokenCursor, word: str) -> Select:
    if not cursor.at_query():
        hint = did_you_mean(cursor.word(), ("ANALYZE", "COST", "WHY", "SELECT"))
        raise cursor.fail(f"{word} needs a SELECT.", hint)
    return cursor.select()
