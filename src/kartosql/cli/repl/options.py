"""Every option of the shell, declared once: ``.config`` shows and sets them, the config file holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kartosql.cli.options import FORMATS
from kartosql.errors import UsageError, did_you_mean

ON_OFF = ("on", "off")
_SWITCHED = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
SCREEN_FORMATS = tuple(f for f in FORMATS if f not in ("parquet", "arrow"))


@dataclass(frozen=True)
class ShellOption:
    """The declaration of one option, whose type is that of its default; ``choices`` are its values if they are few."""

    name: str
    default: Any
    about: str
    choices: tuple[str, ...] = ()
    expected: str = ""

    def parsed(self, value: Any) -> Any:
        """Return the value that is meant; raises ValueError, TypeError and OverflowError."""
        text = str(value).lower()
        found: Any = None
        if isinstance(self.default, bool):
            found = _SWITCHED.get(text)
        elif isinstance(self.default, int):
            found = int(value) if not isinstance(value, bool) and 0 <= int(value) <= 1_000_000 else None
        elif self.choices:
            found = text if text in self.choices else None
        elif isinstance(value, str) and "\0" not in value and len(value) <= 4096:
            found = value
        if found is None:
            raise ValueError(value)
        return found


OPTIONS: Mapping[str, ShellOption] = {
    o.name: o
    for o in (
        ShellOption("mode", "box", "format of results", SCREEN_FORMATS),
        ShellOption("rows", 40, "rows of a result that are shown, 0 for all", (), "a whole number"),
        ShellOption("types", True, "types under the names of columns", ON_OFF),
        ShellOption("grouping", True, "digits of numbers in groups of three", ON_OFF),
        ShellOption("nullvalue", "", "what is shown for NULL, by default what the format has for it", (), "a text"),
        ShellOption("wide", "elided", "what a box that is too wide becomes", ("elided", "vertical", "box")),
        ShellOption("timing", True, "the line below each result: rows, time, files and bytes", ON_OFF),
        ShellOption("progress", True, "progress of statements that take longer than 0.3 s", ON_OFF),
        ShellOption(
            "pager", "auto", "pager for long results (auto), for all that is long (on), never", ("auto", *ON_OFF)
        ),
        ShellOption("theme", "auto", "colours", ("auto", "dark", "light", "none")),
        ShellOption("keys", "emacs", "keys of the prompt", ("emacs", "vi")),
        ShellOption("suggest", True, "suggestions from the history behind the cursor", ON_OFF),
        ShellOption("completion", True, "the menu of completions while typing; Tab opens it anyway", ON_OFF),
        ShellOption("editor", "", "editor of .edit, by default that of VISUAL or EDITOR", (), "a command"),
        ShellOption("profile", "", "profile that is opened when no store is given", (), "a name"),
    )
}


class ShellOptions:
    """The values of a session."""

    def __init__(self) -> None:
        self._values = {o.name: o.default for o in OPTIONS.values()}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def set(self, name: str, value: Any) -> None:
        """Set an option; raises ``invalid-setting`` and ``unknown-setting``."""
        option = find(name)
        try:
            self._values[option.name] = option.parsed(value)
        except (ValueError, TypeError, OverflowError):
            expected = option.expected or f"one of {', '.join(option.choices)}"
            raise UsageError(
                f"{value!r} is no value for {option.name}.",
                code="invalid-setting",
                hint=f"{option.name}: {option.about}; expected {expected}.",
            ) from None

    def text_of(self, name: str) -> str:
        """Return the value of an option as it is written."""
        value = self._values[name]
        return ("on" if value else "off") if isinstance(value, bool) else str(value)


def find(name: str) -> ShellOption:
    """Return the declaration of an option or raise ``unknown-setting``."""
    option = OPTIONS.get(name.lower())
    if option is None:
        hint = did_you_mean(name, OPTIONS, f"Options: {', '.join(OPTIONS)}.")
        raise UsageError(f"There is no option {name!r}.", code="unknown-setting", hint=hint)
    return option
