"""Commands about what a statement reads, and why."""

from __future__ import annotations

from kartosql.cli.repl.registry import arguments, sql_command
from kartosql.cli.repl.shell import Shell
from kartosql.engines.duckdb.types import literal
from kartosql.errors import UsageError


def _query(shell: Shell, text: str) -> str:
    """Return the SELECT of a command: the one given, else the last one."""
    found = text or shell.statement
    if not found:
        raise UsageError("There is no statement yet.", hint=".explain SELECT ...")
    return found


def _declare(name: str, *aliases: str, about: str, words: str) -> None:
    """Declare a command that puts words before a SELECT."""

    def sql(shell: Shell, text: str) -> str:
        return f"{words} {_query(shell, text)}"

    sql_command(name, *aliases, sql=sql, quiet=True, usage="[SQL]", about=about, group="Plans", takes=("sql",))


_declare("explain", r"\x", about="what a SELECT, or the last one, reads and why", words="EXPLAIN")
_declare("analyze", about="run a SELECT, or the last one, and tell what it really read", words="EXPLAIN ANALYZE")
_declare("cost", about="what a SELECT, or the last one, would cost", words="EXPLAIN COST")
_declare("advise", about="why a SELECT, or the last one, is slow, and what helps", words="ADVISE")


def _why(shell: Shell, text: str) -> str:
    found = arguments(text, 1)
    if not found:
        raise UsageError("Name a file.", hint=".files lists them; the end of a name will do.")
    return f"EXPLAIN WHY {literal(found[0])} {_query(shell, '')}"


def _coverage(shell: Shell, text: str) -> str:
    found = text.split()
    by = f" BY {', '.join(found[1:])}" if len(found) > 1 else ""
    return f"SHOW COVERAGE OF {shell.one_table(found[0] if found else '', cube=True)}{by}"


sql_command(
    "why",
    usage="FILE",
    about="why the last SELECT reads a file or does not",
    group="Plans",
    takes=("data file",),
    sql=_why,
    quiet=True,
)
_declare("verify", about="answer a SELECT, or the last one, in several ways", words="VERIFY")
sql_command(
    "coverage",
    usage="[CUBE [COLUMN [COLUMN]]]",
    about="which cells of a cube there are, as a map",
    group="Look around",
    takes=("cube", "column"),
    sql=_coverage,
)
