"""The commands of the shell, each declared once: help, completion and documentation are made of this."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kartosql.errors import UsageError

if TYPE_CHECKING:
    from kartosql.cli.repl.shell import Shell

GROUPS = ("Look around", "Results", "Statements", "Plans", "Cubes, as with kartothek_cube", "Session")
Run = Callable[["Shell", str], None]


@dataclass(frozen=True)
class Command:
    """A command ``.name``: its aliases, its arguments as they are shown, and what they are, for completion.

    ``takes`` has one word per argument, of which the last stands for all that follow: table,
    cube, column, file, folder, format, setting, option, engine, theme, command, saved, onoff, sql.
    """

    name: str
    aliases: tuple[str, ...]
    usage: str
    about: str
    group: str
    takes: tuple[str, ...]
    run: Run

    @property
    def synopsis(self) -> str:
        """The command as it is typed."""
        return f".{self.name} {self.usage}".rstrip()


COMMANDS: dict[str, Command] = {}
_BY_WORD: dict[str, Command] = {}


def command(
    name: str, *aliases: str, usage: str = "", about: str, group: str, takes: tuple[str, ...] = ()
) -> Callable[[Run], Run]:
    """Declare a function as command; aliases are written as they are typed, with their backslash."""

    def declared(run: Run) -> Run:
        found = Command(name, aliases, usage, about, group, takes, run)
        assert group in GROUPS, group
        for word in (f".{name}", *aliases):
            assert word not in _BY_WORD, word
            _BY_WORD[word] = found
        COMMANDS[name] = found
        return run

    return declared


def sql_command(
    name: str, *aliases: str, sql: Callable[[Shell, str], str], quiet: bool = False, **declaration: Any
) -> None:
    """Declare a command that runs a statement, the text of which ``sql`` makes of its arguments.

    ``quiet`` leaves the last result as it is.
    """
    command(name, *aliases, **declaration)(lambda shell, text: shell.run_sql(sql(shell, text), quiet=quiet))


def option_command(name: str, *aliases: str, **declaration: Any) -> None:
    """Declare a command that sets the option of its name, if a value is given, and tells it."""

    def run(shell: Shell, text: str) -> None:
        if text:
            shell.set_option(name, text)
        shell.screen.say(f"{name}: {shell.options[name]}", "note")

    command(name, *aliases, **declaration)(run)


def load() -> None:
    """Import the modules that declare the commands."""
    from kartosql.cli.repl import commands

    assert commands


def words() -> list[str]:
    """Return every word that is a command, aliases included."""
    return sorted(_BY_WORD)


def find(word: str) -> Command:
    """Return the command that a word means: exactly, or as the beginning of one only; raises ``unknown-command``."""
    found = _BY_WORD.get(word) or _BY_WORD.get(word.lower())
    if found is not None:
        return found
    begun = {c.name: c for w, c in _BY_WORD.items() if word.startswith(".") and w.startswith(word.lower())}
    if len(begun) == 1 and len(word) > 2:
        return next(iter(begun.values()))
    name = "." + word.lstrip(".\\").lower()
    close = sorted(f".{n}" for n in begun) or difflib.get_close_matches(name, _BY_WORD, 1, 0.6)
    raise UsageError(
        f"There is no command {word!r}.",
        code="unknown-command",
        hint=f"Did you mean {' or '.join(close)}?" if close else ".help lists the commands.",
    )


def arguments(text: str, most: int | None = None) -> list[str]:
    """Return the words of a command's arguments, as a POSIX shell splits them; raises ``invalid-argument``."""
    try:
        found = shlex.split(text)
    except ValueError as e:
        raise UsageError(f"{text!r}: {str(e).lower()}.", hint="Close the quote.") from None
    if most is not None and len(found) > most:
        raise UsageError(f"Unexpected {found[most]!r}.")
    return found
