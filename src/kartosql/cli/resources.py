"""Pages and examples that the installed package carries along; in a checkout they stand where they are written."""

from __future__ import annotations

import os
import re

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CHECKOUT = os.path.dirname(os.path.dirname(_PACKAGE))
_HEADING = re.compile(r"^## `?([a-z-]+)`?$", re.MULTILINE)


def path(name: str) -> str:
    """Return the path of ``docs/errors.md`` or ``sql_examples``."""
    shipped = os.path.join(_PACKAGE, "_shipped", name)
    return shipped if os.path.exists(shipped) else os.path.join(_CHECKOUT, name)


def text(name: str) -> str:
    """Return a shipped text; raises OSError."""
    with open(path(name), encoding="utf-8") as file:
        return file.read()


def names(folder: str) -> list[str]:
    """Return the names of a shipped folder, sorted; an empty list without it."""
    try:
        return sorted(os.listdir(path(folder)))
    except OSError:
        return []


def error_sections() -> dict[str, str]:
    """Return the sections of the page of errors by their codes; none where the page is not there."""
    try:
        pieces = _HEADING.split(text("docs/errors.md"))[1:]
    except OSError:
        return {}
    return {code: section.strip() for code, section in zip(pieces[::2], pieces[1::2], strict=True)}
