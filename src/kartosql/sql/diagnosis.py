"""What is probably wrong where a parser stopped: open quotes and brackets, misspelt keywords, missing commas."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span, SqlError, closest
from kartosql.sql.dialects import in_duckdb
from kartosql.sql.incremental_lexer import hidden, open_mark
from kartosql.sql.tree import tokens_of

_BRACKETS = {"(": ")", "[": "]", "{": "}"}
# The clauses of a query in the order in which they stand.
_CLAUSES = ("FROM", "WHERE", "GROUP", "HAVING", "QUALIFY", "ORDER", "LIMIT")
_KEYWORDS = (
    *_CLAUSES,
    *("SELECT", "DISTINCT", "JOIN", "INNER", "LEFT", "RIGHT", "OUTER", "CROSS", "UNION", "EXCEPT", "INTERSECT"),
    *("BETWEEN", "VALUES", "WINDOW", "CASE", "WHEN", "THEN", "ELSE", "LIKE", "ILIKE", "EXISTS", "USING", "OFFSET"),
    *("PARTITION", "OVER", "NULL", "AND", "NOT"),
)
_OPERANDS = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER)
_CUTOFF = 0.74  # FORM is as close to FROM


def unreadable(text: str, error: TokenError) -> SqlError:
    """Return the error about a text that has no tokens, with the place where something is not closed."""
    mark = open_mark(text)
    if mark is None:
        first = str(error).strip().splitlines()[0][:200]
        return SqlError(f"Cannot read the statement: {first}", code="syntax-error", sql=text)
    at = hidden(text)[-1].start
    what = {"'": "text", '"': "name in double quotes", "/*": "comment"}.get(mark, "text")
    end = {"/*": "*/", "e'": "'"}.get(mark.lower(), mark)
    return SqlError(
        f"The {what} that begins at {place(text, at)} is not closed.",
        code="syntax-error",
        hint=f"Write {end} where it ends" + (f"; {end} within it is written {end * 2}." if end in "'\"" else "."),
        span=(at, at + len(mark)),
        sql=text,
    )


def place(text: str, at: int) -> str:
    """Format a position in a text: the column, with the line if there are several."""
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return f"line {line}, column {column}" if "\n" in text.strip() else f"column {column}"


def diagnosed(text: str, message: str, hint: str | None, span: Span | None) -> SqlError:
    """Return the error of a parser that stopped at ``span`` of a statement, with what is probably the cause."""
    error = SqlError(message, code="syntax-error", hint=hint, span=span, sql=text)
    try:
        tokens = tokens_of(text)
    except TokenError as e:
        return unreadable(text, e)
    at = next((i for i, t in enumerate(tokens) if span is not None and t.end >= span[0]), None)
    if _names_bracket(error, tokens) or at is None or hint is not None:
        return error
    if not (_names_keyword(error, tokens, at) or _names_clause(error, tokens, at)):
        error.hint = in_duckdb(text) or _gap(tokens, at)
    return error


def _names_bracket(error: SqlError, tokens: Sequence[Token]) -> bool:
    """Tell a bracket that is not closed, or closes nothing."""
    text, opened = error.sql or "", list[Token]()
    for token in tokens:
        if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            continue
        if token.text in _BRACKETS:
            opened.append(token)
        elif token.text in _BRACKETS.values():
            if not opened:
                message = f"The bracket {token.text} at {place(text, token.start)} closes nothing."
                return _point(error, token, message, "Leave it out, or open it before.")
            if _BRACKETS[opened[-1].text] != token.text:
                break
            opened.pop()
    if opened:
        token = opened[-1]
        message = f"The bracket {token.text} at {place(text, token.start)} is not closed."
        return _point(error, token, message, f"Write {_BRACKETS[token.text]} where it ends.")
    return False


def _point(error: SqlError, token: Token, message: str, hint: str) -> bool:
    error.message, error.hint, error.span = message, hint, (token.start, token.end + 1)
    error.args = (message,)
    return True


def _names_keyword(error: SqlError, tokens: Sequence[Token], at: int) -> bool:
    """Tell a word near the place that looks like a keyword."""
    for distance, token in enumerate(reversed(tokens[max(0, at - 4) : at + 1])):
        word = token.text.upper()
        if token.token_type != TokenType.VAR or word in _KEYWORDS:
            continue
        close = closest(word, _KEYWORDS, _CUTOFF if distance <= 2 else 0.8)
        if close:
            hint = f"Did you mean {close} instead of {token.text}?"
            return _point(error, token, f'syntax error at or near "{token.text}"', hint)
    return False


def _first_word(token: Token) -> str:
    return token.text.upper().partition(" ")[0]


def _names_clause(error: SqlError, tokens: Sequence[Token], at: int) -> bool:
    """Report a clause behind a later one, GROUP and ORDER without BY, and a statement that ends too early."""
    token, before = tokens[at], tokens[at - 1] if at else None
    word = _first_word(token)
    if before is not None and before.text.upper() in ("GROUP", "ORDER", "PARTITION") and word != "BY":
        error.hint = f"Did you mean {before.text.upper()} BY?"
        return True
    later = _CLAUSES[_CLAUSES.index(word) + 1 :] if word in _CLAUSES else ()
    found = [_first_word(t) for t in _same_level(tokens, at)]
    behind = next((clause for clause in later if clause in found), None)
    if behind is not None:
        error.hint = f"{word} stands before {behind}."
        return True
    if at == len(tokens) - 1 and token.token_type not in _OPERANDS and token.text not in _BRACKETS.values():
        error.hint = f"The statement ends behind {token.text}, where something has to follow."
        return True
    return False


def _same_level(tokens: Sequence[Token], at: int) -> list[Token]:
    found, depth = [], 0
    for token in reversed(tokens[:at]):
        depth += (token.text in _BRACKETS.values()) - (token.text in _BRACKETS)
        if depth < 0 or (depth == 0 and token.text.upper() in ("SELECT", "UNION", "EXCEPT", "INTERSECT")):
            break
        if depth == 0 and token.token_type not in _OPERANDS:
            found.append(token)
    return found


def _gap(tokens: Sequence[Token], at: int) -> str | None:
    """Return that a comma may be missing between two operands, None where there are no two."""
    token, before = tokens[at], tokens[at - 1] if at else None
    ends = before is not None and (before.token_type in _OPERANDS or before.text == ")")
    if not ends or token.token_type not in _OPERANDS:
        return None
    return f"A comma or an operator may be missing in front of {token.text}."
