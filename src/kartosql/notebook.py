"""``%ksql`` and ``%%ksql`` in IPython and Jupyter: ``%load_ext kartosql``."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError as MagicError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class

from kartosql.connection import Connection
from kartosql.errors import KartosqlError, UsageError
from kartosql.opening import connect_as_owner
from kartosql.plan.scan import ScanReport
from kartosql.result import Query
from kartosql.sql import Select, parse, split_statements
from kartosql.sql.tree import placeholders

USAGE = """\
%ksql --connect URL [--write]     open a store
%ksql [options] STATEMENT         run a statement
%%ksql [options]                  run the statements of the cell

options: --to NAME     keep the result in a variable
         --explain     show what would be read, and why, instead of running it
Variables of the notebook are parameters: WHERE x = $x
"""
HINT = "%ksql without anything shows what can be asked."


class _MagicParser(argparse.ArgumentParser):
    def __init__(self) -> None:
        super().__init__(prog="%ksql", add_help=False, allow_abbrev=False)
        self.add_argument("--connect", metavar="URL")
        self.add_argument("--write", action="store_true")
        self.add_argument("--to", metavar="NAME")
        self.add_argument("--explain", action="store_true")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%ksql: {message}", hint=HINT)


@magics_class
class KartosqlMagics(Magics):
    """The magics of one notebook, and the connection that they use."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._names: dict[str, Any] = shell.user_ns
        self.connection: Connection | None = None

    @line_cell_magic
    def ksql(self, line: str, cell: str | None = None) -> Query | ScanReport | None:
        """Run SQL of kartosql; ``%ksql`` by itself shows how."""
        try:
            return self._run(line, cell)
        except KartosqlError as e:
            # IPython shows it as a message, without a traceback of what the user did not write.
            raise MagicError(f"{e}\n({e.code})") from None

    def _run(self, line: str, cell: str | None) -> Query | ScanReport | None:
        words, text = _options(line)
        options = _MagicParser().parse_args(words)
        if options.connect is not None:
            if self.connection is not None:
                self.connection.close()
            self.connection = connect_as_owner(options.connect, write=options.write)
        text = (text + "\n" + cell if cell is not None else text).strip()
        if not text:
            if options.connect is None:
                print(USAGE)
            return None
        if self.connection is None:
            raise UsageError("There is no connection yet.", code="no-connection", hint="%ksql --connect URL opens one.")
        result: Query | ScanReport | None = None
        run = self.connection.explain if options.explain else self.connection.sql
        for statement in split_statements(text):
            result = run(statement, self._parameters(statement))
        if options.to is not None:
            self._names[options.to] = result
            return None
        return result

    def _parameters(self, statement: str) -> dict[str, Any] | None:
        """Return the variables of the notebook that a statement names as parameters."""
        parsed = parse(statement)
        select = getattr(parsed, "query", parsed)
        if not isinstance(select, Select) or select.tree is None:
            return None
        names = [name for name, _ in placeholders(select.tree)]
        return {name: self._names[name] for name in names if name is not None and name in self._names} or None


def _options(line: str) -> tuple[list[str], str]:
    """Return the words of a line that are options, and the rest unchanged."""
    words, rest = [], line.lstrip()
    while rest.startswith("--") and not rest.startswith("-- "):
        taken = 2 if rest.startswith(("--connect ", "--to ")) else 1
        for _ in range(taken):
            word, _, rest = rest.partition(" ")
            rest = rest.lstrip()
            words += shlex.split(word)
    return words, rest


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Make the magics known to a running IPython."""
    shell.register_magics(KartosqlMagics)
