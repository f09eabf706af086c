"""The options of an ATTACH, taken one by one and checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from kartosql.errors import UsageError, quoted
from kartosql.text.secrets import HIDDEN


class Options:
    """Options by lower-case name; those that nothing takes are errors."""

    def __init__(self, name: str, type_: str, given: Mapping[str, Any]) -> None:
        self._name = name
        self._type = type_
        self._given = {str(k).lower(): v for k, v in given.items() if str(k).lower() != "type"}
        self._known: list[str] = []

    def take(self, option: str, default: Any = None) -> Any:
        """Return the value of an option."""
        self._known.append(option)
        return self._given.pop(option, default)

    def truth(self, option: str, default: bool) -> bool:
        """Return the value of an option that is true or false; raises ``invalid-option``."""
        value = self.take(option, default)
        found = {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())
        if found is None:
            raise self.invalid(option, value, "true or false")
        return found

    def text(self, option: str) -> str | None:
        """Return the value of an option that is a text; raises ``invalid-option``."""
        value = self.take(option)
        if value is not None and (not isinstance(value, str) or not value or "\0" in value):
            raise self.invalid(option, value, "a text")
        return value

    def invalid(self, option: str, value: Any, expected: str) -> UsageError:
        """Return the error about the value of an option."""
        shown = HIDDEN if option == "metadata_keys" else quoted(value)
        return UsageError(
            f"{self._name}: {shown} is no value for the option {option.upper()}",
            code="invalid-option",
            hint=f"Expected {expected}.",
        )

    def check_all_taken(self) -> None:
        """Raise ``invalid-option`` for options that the type does not have."""
        for option in self._given:
            close = difflib.get_close_matches(option, self._known, 1)
            hint = f"Did you mean {close[0].upper()}?" if close else None
            if hint is None:
                hint = f"Options: {', '.join(o.upper() for o in sorted(self._known)) or 'none'}."
            raise UsageError(f"There is no option {option!r} for TYPE {self._type}.", code="invalid-option", hint=hint)
