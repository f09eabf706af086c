"""Commands about what a statement reads, and why."""

from __future__ import annotations

from kartosql.cli.repl.registry import arguments, command
from kartosql.cli.repl.shell import Shell
from kartosql.errors import UsageError

_GROUP = "Plans"


def _query(shell: Shell, text: str) -> str:
    """Return the SELECT of a command: the one given, else the last one."""
    found = text or shell.statement
    if not found:
        raise UsageError("There is no statement yet.", hint=".explain SELECT ...")
    return found


@command(
    "explain", r"\x", usage="[SQL]", about="what a SELECT, or the last one, reads and why", group=_GROUP, takes=("sql",)
)
def _explain(shell: Shell, text: str) -> None:
    shell.run_sql(f"EXPLAIN {_query(shell, text)}", quiet=True)


@command(
    "analyze",
    usage="[SQL]",
    about="run a SELECT, or the last one, and tell what it really read",
    group=_GROUP,
    takes=("sql",),
)
def _analyze(shell: Shell, text: str) -> None:
    shell.run_sql(f"EXPLAIN ANALYZE {_query(shell, text)}", quiet=True)


@command("cost", usage="[SQL]", about="what a SELECT, or the last one, would cost", group=_GROUP, takes=("sql",))
def _cost(shell: Shell, text: str) -> None:
    shell.run_sql(f"EXPLAIN COST {_query(shell, text)}", quiet=True)


@command(
    "advise",
    usage="[SQL]",
    about="why a SELECT, or the last one, is slow, and what helps",
    group=_GROUP,
    takes=("sql",),
)
def _advise(shell: Shell, text: str) -> None:
    shell.run_sql(f"ADVISE {_query(shell, text)}", quiet=True)


@command("why", usage="FILE", about="why the last SELECT reads a file or does not", group=_GROUP, takes=("data file",))
def _why(shell: Shell, text: str) -> None:
    found = arguments(text, 1)
    if not found:
        raise UsageError("Name a file.", hint=".files lists them; the end of a name will do.")
    file = found[0].replace("'", "''")
    shell.run_sql(f"EXPLAIN WHY '{file}' {_query(shell, '')}", quiet=True)


@command(
    "verify",
    usage="[SQL]",
    about="answer a SELECT, or the last one, in several ways",
    group=_GROUP,
    takes=("sql",),
)
def _verify(shell: Shell, text: str) -> None:
    shell.run_sql(f"VERIFY {_query(shell, text)}", quiet=True)


@command(
    "coverage",
    usage="[CUBE [COLUMN [COLUMN]]]",
    about="which cells of a cube there are, as a map",
    group="Look around",
    takes=("cube", "column"),
)
def _coverage(shell: Shell, text: str) -> None:
    found = text.split()
    by = f" BY {', '.join(found[1:])}" if len(found) > 1 else ""
    shell.run_sql(f"SHOW COVERAGE OF {shell.one_table(found[0] if found else '', cube=True)}{by}")
