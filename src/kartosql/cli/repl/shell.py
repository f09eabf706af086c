"""The core of the shell: text in, results out. It needs no terminal."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from kartosql.cli.messages import BEHIND, described, is_debugging
from kartosql.cli.repl import registry
from kartosql.cli.repl.column_values import ColumnValues
from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.running import Cancelled, OutputTarget, Result, Running, footer, look_of
from kartosql.cli.repl.screen import Screen, chosen
from kartosql.cli.repl.units import is_ready, units
from kartosql.connection import Connection
from kartosql.errors import KartosqlError, KartosqlWarning, UsageError
from kartosql.failures import failure_of
from kartosql.render.tables import readable
from kartosql.result import Query
from kartosql.sql import Describe, Inspect, Reset, Select, Set, Show, parse
from kartosql.sql.statements import Write
from kartosql.text.escape import escaped, escaped_lines
from kartosql.text.sizes import counted

PEOPLES = ("box", "vertical", "markdown")  # formats of which some rows are shown, and the others counted


class Shell:
    """A session: a connection, options, the last result. ``feed`` takes lines, ``execute`` whole texts.

    ``execute`` raises nothing but what leaves the shell: SystemExit.
    """

    def __init__(
        self, connection: Connection, screen: Screen, options: ShellOptions, opener: Callable[[str], Connection]
    ) -> None:
        registry.load()
        self.connection = connection
        self.screen = screen
        self.options = options
        self.opener = opener
        self.target = OutputTarget()
        self.values = ColumnValues()
        self.parameters: dict[str, Any] = {}
        self.last: Result | None = None
        self.statement: str | None = None  # the last one that ran
        self.draft: str | None = None  # what the next prompt begins with
        self.tour_at = 0
        self.read_depth = 0  # of files that read files
        self.ask: Callable[[], str] = input
        self.on_change: Callable[[], None] = lambda: None  # called after what may have changed the catalog
        self._pending = ""
        connection.watch_progress()

    # -- input ---------------------------------------------------------------------------------------

    def feed(self, line: str) -> bool:
        """Take one line; return whether a statement goes on in the next one."""
        self._pending += line.rstrip("\n") + "\n"
        if not self._pending.strip():
            self._pending = ""
        elif is_ready(self._pending):
            text, self._pending = self._pending, ""
            self.execute(text)
        return bool(self._pending.strip())

    def forget_input(self) -> None:
        """Drop the lines of a statement that does not go on."""
        self._pending = ""

    def execute(self, text: str) -> bool:
        """Run the commands and statements of a text; return whether all went well. The first that fails ends it."""
        for unit in units(text):
            if not self._guarded(self.run_command if unit.kind == "command" else self.run_statement, unit.text):
                return False
        return True

    def _guarded(self, run: Callable[[str], None], text: str) -> bool:
        """Run something, and tell about its warnings and errors."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", KartosqlWarning)
                caught: list[str] = []
                warnings.showwarning = partial(_note, caught)
                try:
                    run(text)
                finally:
                    for warning in caught:
                        self.screen.say(f"warning: {warning}", "hint")
            return True
        except Cancelled:
            pass  # which was told
        except KartosqlError as e:
            self.tell(e)
        except KeyboardInterrupt:
            self.screen.say("Interrupted.", "hint")
        except BrokenPipeError:
            raise SystemExit(0) from None
        except Exception as e:  # noqa: BLE001
            if (found := failure_of(e)) is not None:
                self.tell(found)
                return False
            if is_debugging():
                self.screen.say("".join(traceback.format_exception(e)).rstrip())
            what = " ".join(f"{type(e).__name__}: {e}".split())
            self.screen.say(f"error[internal]: {what} (a bug of kartosql: please report it)", "error")
        return False

    def tell(self, error: KartosqlError) -> None:
        """Tell about an error."""
        if is_debugging():
            self.screen.say("".join(traceback.format_exception(error)).rstrip())
        first, *others = described(error)
        self.screen.say(first, "error")
        for line in others:
            self.screen.say(line, "hint" if line.startswith("hint: ") else "")

    # -- commands ------------------------------------------------------------------------------------

    def run_command(self, line: str) -> None:
        """Run a command; raises what it raises."""
        word, _, rest = line.strip().partition(" ")
        found = registry.find(word.rstrip(";"))
        takes_sql = found.takes[-1:] == ("sql",)
        found.run(self, rest.strip() if takes_sql else rest.strip().rstrip(";").strip())

    # -- statements ----------------------------------------------------------------------------------

    def run_statement(self, text: str) -> None:
        """Run a statement of the user's own, which commands such as ``.explain`` take up."""
        self.statement = text.strip()
        self.run_sql(text)

    def run_sql(self, text: str, *, parameters: dict[str, Any] | None = None, quiet: bool = False) -> None:
        """Run a statement and show its result; raises KartosqlError. ``quiet`` leaves ``.last`` as it is."""
        statement = parse(text)
        given = self.parameters if parameters is None else parameters
        values = None
        if isinstance(statement, Select | Inspect | Write) and given:
            from kartosql.cli.batch import parameters_of

            values = parameters_of(statement, given)
        self._run(statement, text, lambda: self.connection.sql(text, values), quiet)
        if not isinstance(statement, Select | Inspect | Set | Reset | Show | Describe):
            self.on_change()

    def run_query(self, make: Callable[[], Query], text: str) -> None:
        """Run what gives a result, and show that."""
        self._run(None, text, make, False)

    def confirm(self, question: str) -> bool:
        """Ask a question; only ``y`` or ``yes`` is a yes."""
        self.screen.write(escaped_lines(question))
        try:
            return self.ask().strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            self.screen.line()
            return False

    def _run(self, statement: Any, text: str, make: Callable[[], Query], quiet: bool) -> None:
        mode = self.options["mode"]
        out = self.target.take()
        stream = mode if out is None and mode not in PEOPLES else None
        running = Running(text.strip(), self.screen, out=out, stream=stream, interrupt=self.connection.interrupt)
        running.to_end(make, shows_progress=bool(self.options["progress"]))
        result = running.result
        if not quiet and out is None:
            self.last = result
        if isinstance(statement, Set | Reset):
            return
        if out is not None:
            self.screen.say(f"{counted(result.rows, 'row')} written to {out.path}", "note")
        elif stream is not None:
            pass  # it was written as it came
        elif running.lines and mode == "box":
            self.screen.show([escaped(line) for line in running.lines])
            return
        else:
            self.show(result)
        if self.options["timing"] and result.summary is not None:
            self.screen.say(str(result.summary), "note")

    def show(self, result: Result, *, every_row: bool = False, mode: str | None = None) -> None:
        """Show a result: some rows of it, or every row that is kept, through the pager."""
        most = 0 if every_row else self.options["rows"]
        table = result.table.slice(0, most) if most else result.table
        mode = mode or self.options["mode"]
        lines = readable(table, result.types, mode if mode in PEOPLES else "box", look_of(self.screen, self.options))
        below = footer(table.num_rows, result)
        self.screen.show(lines + ([self.screen.paint("hint", below)] if below else []), page=every_row)

    def set_option(self, name: str, value: object) -> None:
        """Set an option and let the screen follow it; raises ``invalid-setting``."""
        self.options.set(name, value)
        if name in ("pager", "theme"):
            self.screen.pager = self.options["pager"]
            self.screen.theme = chosen(self.options["theme"], is_terminal=self.screen.is_terminal)

    # -- stores --------------------------------------------------------------------------------------

    def open(self, place: str) -> None:
        """Open another store; the one that is open stays if that fails."""
        connection = self.opener(place)
        self.connection.close()
        self.connection = connection
        connection.watch_progress()
        self.last = None
        self.on_change()

    def one_table(self, given: str, *, cube: bool = False) -> str:
        """Return the table of a command's argument, or the only cube of the store; raises ``invalid-argument``."""
        if given:
            return given
        from kartosql.tables.names import quote_if_needed

        found = list(self.connection.cubes())
        if len(found) == 1:
            return quote_if_needed(found[0])
        what = "cube" if cube else "table"
        raise UsageError(f"Name a {what}.", hint=f".{'cubes' if cube else 'tables'} lists what the store holds.")


def _note(caught: list[str], message: Warning | str, *_: Any, **__: Any) -> None:
    if threading.current_thread().name != BEHIND:
        caught.append(" ".join(str(message).split()))
