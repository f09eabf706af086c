"""Commands as they are declared: help, completion and documentation are made of this; and what of a text is one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kartosql.errors import UsageError, did_you_mean
from kartosql.sql.incremental_lexer import is_blank, statement_end

if TYPE_CHECKING:
    from kartosql.cli.repl.shell import Shell

GROUPS = ("Look around", "Results", "Statements", "Plans", "Cubes, as with kartothek_cube", "Session")
Run = Callable[["Shell", str], str | None]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command ``.name``: its aliases, its arguments as they are shown, and what they are, for completion.

    ``takes`` has one word per argument, of which the last stands for all that follow: table, cube, column, file,
    store, option and its value, engine, command, saved, sql and others, or an option, whose values it may be.
    ``run`` may return a statement, which is run then; if ``quiet``, the last result stays as it is.
    """

    name: str
    aliases: tuple[str, ...]
    about: str
    group: str
    run: Run
    usage: str = ""
    takes: tuple[str, ...] = ()
    quiet: bool = False

    @property
    def synopsis(self) -> str:
        """The command as it is typed."""
        return f".{self.name} {self.usage}".rstrip()


COMMANDS: dict[str, Command] = {}
_BY_WORD: dict[str, Command] = {}


def command(name: str, *aliases: str, **declaration: Any) -> Callable[[Run], Run]:
    """Declare a function as command; aliases are written as they are typed, with their backslash."""

    def declared(run: Run) -> Run:
        found = Command(name=name, aliases=aliases, run=run, **declaration)
        for word in (f".{name}", *aliases):
            assert word not in _BY_WORD, word
            _BY_WORD[word] = found
        COMMANDS[name] = found
        return run

    return declared


def load() -> None:
    """Import the module that declares the commands."""
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
    hint = did_you_mean(name, _BY_WORD, ".help lists the commands.")
    if begun:
        hint = f"Did you mean {' or '.join(sorted(f'.{n}' for n in begun))}?"
    raise UsageError(f"There is no command {word!r}.", code="unknown-command", hint=hint)


def arguments(text: str, most: int | None = None, *, least: int = 0, missing: str = "", hint: str = "") -> list[str]:
    """Return the words of a command's arguments, as a POSIX shell splits them; raises ``invalid-argument``."""
    try:
        found = shlex.split(text)
    except ValueError as e:
        raise UsageError(f"{text!r}: {str(e).lower()}.", hint="Close the quote.") from None
    if most is not None and len(found) > most:
        raise UsageError(f"Unexpected {found[most]!r}.")
    if len(found) < least:
        raise UsageError(missing, hint=hint)
    return found


# -- what somebody typed or pasted -------------------------------------------------------------------

_COMMAND = re.compile(r"^\s*[.\\](?=[A-Za-z?!])", re.MULTILINE)
# Words that people type to leave or to get help, whatever shell they come from.
BARE = {"exit": ".quit", "quit": ".quit", "help": ".help", "?": ".help"}
_LINE = re.compile(r"\S[^\n]*")


@dataclass(frozen=True)
class Unit:
    """A command, a statement with its semicolon, or the rest of a text, which is not complete."""

    kind: Literal["command", "statement", "rest"]
    text: str


def units(text: str) -> Iterator[Unit]:
    """Yield the commands and statements of a text in order; a command is one line at the beginning of a statement."""
    at = 0
    while found := _LINE.search(text, at):
        at, line = found.start(), found[0].strip()
        bare = BARE.get(line.rstrip("; ").lower())
        if _COMMAND.match(line) or bare:
            yield Unit("command", bare or line)
            at = found.end()
            continue
        end = statement_end(text, at)
        if end is None:
            if not is_blank(text[at:]):
                yield Unit("rest", text[at:])
            return
        if not is_blank(text[at : end - 1]):
            yield Unit("statement", text[at:end])
        at = end


def is_ready(text: str) -> bool:
    """Return whether Enter runs a text: all of it is commands and whole statements."""
    kinds = [unit.kind for unit in units(text)]
    return bool(kinds) and kinds[-1] != "rest"


def has_commands(text: str) -> bool:
    """Return whether commands stand in a text beside its statements."""
    return _COMMAND.search(text) is not None and any(unit.kind == "command" for unit in units(text))
