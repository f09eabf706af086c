"""Every option of the shell, declared once: ``.config`` shows and sets them, the config file holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kartosql.cli.options import FORMATS
from kartosql.settings import Setting, Settings, where, whole

ON_OFF = ("on", "off")
_SWITCHED = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
SCREEN_FORMATS = tuple(f for f in FORMATS if f not in ("parquet", "arrow"))


@dataclass(frozen=True)
class ShellOption(Setting):
    """The declaration of one option; ``choices`` are its values if they are few, else ``expected`` says which."""

    choices: tuple[str, ...] = ()
    expected: str = ""


def _switch(name: str, about: str) -> ShellOption:
    read = where(lambda v: v is not None, "one of on, off", lambda v: _SWITCHED.get(str(v).lower()))
    return ShellOption(name, True, read, about, choices=ON_OFF)


def _choice(name: str, about: str, *choices: str) -> ShellOption:
    """Declare an option of which the first choice is the default."""
    read = where(lambda v: v in choices, f"one of {', '.join(choices)}", lambda v: str(v).lower())
    return ShellOption(name, choices[0], read, about, choices=choices)


def _text(name: str, about: str, expected: str) -> ShellOption:
    read = where(lambda v: isinstance(v, str) and "\0" not in v and len(v) <= 4096, expected)
    return ShellOption(name, "", read, about, expected=expected)


OPTIONS: Mapping[str, ShellOption] = {
    o.name: o
    for o in (
        _choice("mode", "format of results", *SCREEN_FORMATS),
        ShellOption("rows", 40, whole, "rows of a result that are shown, 0 for all", expected="a whole number"),
        _switch("types", "types under the names of columns"),
        _switch("grouping", "digits of numbers in groups of three"),
        _text("nullvalue", "what is shown for NULL, by default what the format has for it", "a text"),
        _choice("wide", "what a box that is too wide becomes", "elided", "vertical", "box"),
        _switch("timing", "the line below each result: rows, time, files and bytes"),
        _switch("progress", "progress of statements that take longer than 0.3 s"),
        _choice("pager", "pager for long results (auto), for all that is long (on), never", "auto", *ON_OFF),
        _choice("theme", "colours", "auto", "dark", "light", "none"),
        _choice("keys", "keys of the prompt", "emacs", "vi"),
        _switch("suggest", "suggestions from the history behind the cursor"),
        _switch("completion", "the menu of completions while typing; Tab opens it anyway"),
        _text("editor", "editor of .edit, by default that of VISUAL or EDITOR", "a command"),
        _text("profile", "profile that is opened when no store is given", "a name"),
    )
}


class ShellOptions(Settings):
    """The values of a session."""

    declared = OPTIONS
    noun = "option"

    def text_of(self, name: str) -> str:
        """Return the value of an option as it is written."""
        value = self[name]
        return ("on" if value else "off") if isinstance(value, bool) else str(value)
