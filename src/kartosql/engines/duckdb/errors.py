"""DuckDB's errors as ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence

import duckdb

from kartosql.engines.base import corrupt_file
from kartosql.errors import (
    ExecutionError,
    FormatError,
    KartosqlError,
    LimitError,
    Span,
    SqlError,
    StoreError,
    failure_of,
)
from kartosql.sql.dialects import in_duckdb
from kartosql.sql.tree import Edit, edited, original_span

_UNKNOWN_COLUMN = re.compile(r'Referenced column "([^"]+)" (?:was )?not found|does not have a column named "([^"]+)"')
_UNKNOWN_TABLE = re.compile(r'(?:Table with name|Referenced table) "?([^"\s]+)"? (?:does not exist|not found)')
_UNKNOWN_FUNCTION = re.compile(r"[Ff]unction with name \"?([^\"\s]+)\"? does not exist")
_UNREADABLE = re.compile(r": Columns of type .+ cannot be queried$")  # of our views, see relations.py
_LINE = re.compile(r"\n+LINE \d+: .*\Z", re.DOTALL)
_PLACE = re.compile(r"^LINE (\d+): (.*)\n( *)(\^+)", re.MULTILINE)
_PIVOT_PARAMETERS = ("for a statement that expands into several", "cannot have parameters in their source")
_SIGNATURE = re.compile(r"^\t(\w+)\((.*)\)(?: -> .*)?$", re.MULTILINE)
_CALL = re.compile(r"""['"]\w+\((.*)\)['"]""")
_PARAMETER = re.compile(r'(?:"[^"]*"|\w+) (.+)')
_BITS = {"8": "TINYINT", "16": "SMALLINT", "32": "INTEGER", "64": "BIGINT", "128": "HUGEINT"}
_INTEGERS = {f"{sign}INT{bits}": f"{sign}{name}" for bits, name in _BITS.items() for sign in ("", "U")}
_PHYSICAL = re.compile(r"'[^']*'|\bU?INT\d+\b")  # how DuckDB's casts name integers; a value in quotes stays
MAX_SIGNATURES = 4
_CONSTANT = re.compile(r"['$?]|:(?!:)")  # what a text or a parameter begins with, not the :: of a cast
_NO_NUMBER = re.compile(
    r"string .* to (\w*INT\w*|DECIMAL\S*|DOUBLE|FLOAT)(?: when casting from source column (.+))?", re.DOTALL
)
_CASTS = [
    (re.compile(pattern), hint)
    for pattern, hint in (
        (r"INT\w* -> (?:DATE|TIME)", "Dates and times are texts in quotes: DATE '2024-01-31'."),
        (r"expected format is \(YYYY", "strptime(text, '%d.%m.%Y') reads dates and times of another form."),
        (r"destination type .*\[\]$", "list_contains(l, x) tells whether a list holds a value; lists are ['a', 'b']."),
        ("", "TRY_CAST gives NULL where a value does not fit."),
    )
]
_SCHEMA = re.compile(r'"?__kartosql_\d*"?\.')


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Raise errors of DuckDB also where Python cannot read their text, which has bytes of a damaged file."""
    try:
        yield
    except UnicodeDecodeError as e:
        raise duckdb.InvalidInputException(e.object.decode(errors="replace")) from None


def translate(
    error: Exception, sql: str, key_in: Callable[[str], str | None], edits: Sequence[Edit] = ()
) -> KartosqlError:
    """Return the error of ours that an error of DuckDB means.

    ``key_in`` finds the storage key of a file that a message names, ``edits`` made the text that
    was run of the user's ``sql``.
    """
    raw = str(error)
    message = _SCHEMA.sub("", _LINE.sub("", raw)).strip()
    message = re.sub(r"^[A-Z][A-Za-z ]+ Error: ", "", message).split("\n")[0].strip()
    hint = next((line for line in raw.splitlines() if line.startswith(("Did you mean", "Candidate"))), None)
    hint = hint and re.sub(r'^Did you mean "([^"]+)"\??$', r"Did you mean \1?", hint)
    if isinstance(error, duckdb.InterruptException):
        return _stopped(raw)
    if "Max expression depth limit" in raw:
        hint = "Compute parts of it in WITH, or split the statement."
        return SqlError("Expressions are nested too deeply.", code="statement-too-deep", hint=hint, sql=sql)
    if any(text in raw for text in _PIVOT_PARAMETERS):
        return SqlError(
            "A PIVOT that finds its values itself takes no parameters.",
            code="not-supported",
            hint="Name the values, as in PIVOT t ON x IN ('a', 'b'), or write the constants.",
            sql=sql,
        )
    if isinstance(error, duckdb.ParserException):
        from kartosql.sql.diagnosis import diagnosed  # not at the top: most statements are right

        return diagnosed(sql, message, hint, _place(raw, sql, edits))
    key = key_in(raw)
    failure = failure_of(error, f"Cannot read {key!r}" if key is not None else None)
    if failure is not None:
        return failure
    if isinstance(error, duckdb.PermissionException) or "disabled by configuration" in raw:
        return SqlError(
            "The statement may read nothing but the tables of the connection.",
            code="not-allowed",
            hint="Functions that read files, ATTACH and settings of the engine are switched off.",
            sql=sql,
        )
    if isinstance(error, (duckdb.BinderException, duckdb.CatalogException, duckdb.NotImplementedException)):
        return _bind_error(message, raw, hint, sql, edits)
    if "Traceback (most recent call last)" in raw:
        # What our own filesystem raised while DuckDB read through it.
        reason = raw.strip().splitlines()[-1]
        return StoreError(f"Cannot read the data: {reason}")
    if _UNREADABLE.search(message):
        return FormatError(message, code="unsupported-type", hint="Leave the column out of the statement.", sql=sql)
    if key is not None:
        error_of_file = corrupt_file(f"{key}: {message}")
        if "failed to cast column" in raw:
            error_of_file.code = "schema-mismatch"
        return error_of_file
    if isinstance(error, (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException)):
        message, span = _PHYSICAL.sub(lambda name: _INTEGERS.get(name[0], name[0]), message), _place(raw, sql, edits)
        if isinstance(error, duckdb.ConversionException) and hint is None:
            hint = _compared(message, sql, span) or next(h for what, h in _CASTS if what.search(message))
        return ExecutionError(message, code="invalid-value", hint=hint, sql=sql, span=span)
    return ExecutionError(message or type(error).__name__, hint=hint)


def _compared(message: str, sql: str, span: Span | None) -> str | None:
    """Return what to write where texts are compared with numbers: the place is that of a column or of a text."""
    match, shown = _NO_NUMBER.search(message), "" if span is None else sql[slice(*span)]
    if match is not None and match[2] is None and _CONSTANT.match(shown):
        return f"{shown} is no number, where {match[1]} is needed: write one, or CAST the other side AS VARCHAR."
    if match is None or match[2] is None or shown.rpartition(".")[2].strip('"').lower() != match[2].lower():
        return None
    return f"{shown} holds text: write the number in quotes, as in {shown} = '1', or TRY_CAST({shown} AS {match[1]})."


def _stopped(raw: str) -> KartosqlError:
    if "timeout" in raw.lower() or "execution time" in raw.lower():
        return LimitError("The statement ran longer than its timeout.", code="timeout", hint="Raise timeout.")
    return ExecutionError("The statement was interrupted.", code="interrupted")


def _place(raw: str, sql: str, edits: Sequence[Edit] = ()) -> Span | None:
    """Return the place in ``sql`` that the caret of a message points at, if its line is the user's."""
    match = _PLACE.search(raw)
    run = edited(sql, edits)
    lines = run.split("\n")
    if match is None or int(match[1]) > len(lines):
        return None
    number, shown = int(match[1]) - 1, match[2]
    column = len(match[3]) - len(f"LINE {match[1]}: ")
    cut = shown.removeprefix("...").removesuffix("...")
    # Long lines are shown in part.
    at = lines[number].find(cut)
    if at < 0 or column < 0:
        return None
    start = sum(len(line) + 1 for line in lines[:number]) + at + column - (3 if shown.startswith("...") else 0)
    if not 0 <= start <= len(run):
        return None
    first, last = (original_span(sql, edits, at) for at in (start, start + len(match[4]) - 1))
    return first[0], max(first[1], last[1])


def _bind_error(message: str, raw: str, hint: str | None, sql: str, edits: Sequence[Edit] = ()) -> SqlError:
    span = _place(raw, sql, edits)
    match = _UNKNOWN_COLUMN.search(raw)
    if match:
        name = match[1] or match[2]
        return SqlError(f"There is no column {name!r}.", code="unknown-column", hint=hint, sql=sql, span=span)
    match = _UNKNOWN_TABLE.search(raw)
    if match:
        return SqlError(f"There is no table {match[1]!r}.", code="unknown-table", hint=hint, sql=sql)
    code = "not-grouped" if "GROUP BY" in raw and "must appear" in raw else "invalid-query"
    match = _UNKNOWN_FUNCTION.search(raw)
    if match:
        message = f"There is no function {match[1]!r}."
        hint = (span and in_duckdb(sql[slice(*span)], match[1])) or hint
    elif code == "not-grouped" and hint is None:
        hint = "Add it to GROUP BY, write any_value(...) around it, or use GROUP BY ALL."
    elif "No function matches" in raw or "Could not choose a best candidate" in raw:
        message = message.replace(" You might need to add explicit type casts.", "")
        hint = _signatures(raw)
    elif "Cannot deduce template type" in message:
        hint = "The list holds values of another type than what is looked for in it."
    elif hint is None and "VARCHAR" in message and message.endswith("an explicit cast is required"):
        hint = "Write numbers that are compared with text in quotes, or cast one side."
    return SqlError(message, code=code, hint=hint, sql=sql, span=span)


def _signatures(raw: str) -> str:
    """Return how a function is called, by the candidates that a message lists, and whether a cast may help."""
    cast = "Write a cast to the type that is meant, such as CAST(x AS DOUBLE)."
    found = [
        (name, [_PARAMETER.sub(r"\1", p) for p in _split(parameters)]) for name, parameters in _SIGNATURE.findall(raw)
    ]
    if not found:
        return cast
    listed = [f"{name}({', '.join(types)})" for name, types in found[:MAX_SIGNATURES]]
    hint = f"It is called as {', '.join(listed)}{' and others' if len(found) > MAX_SIGNATURES else ''}."
    given = _CALL.search(raw)
    count = None if given is None else len(_split(given[1]))
    return f"{hint} {cast}" if count is None or any(len(types) == count for _, types in found) else hint


def _split(parameters: str) -> list[str]:
    """Return the parameters of a call; commas in brackets belong to types."""
    return [p for p in re.split(r",\s*(?![^()]*\))", parameters) if p and p != "/"]
