"""Files that the command reads: those of users, and pages, examples and scripts that the package carries along."""

from __future__ import annotations

import contextlib
import os
import re
import sys

from kartosql.errors import UsageError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CHECKOUT = os.path.dirname(os.path.dirname(_PACKAGE))
_HEADING = re.compile(r"^## `?([a-z-]+)`?$", re.MULTILINE)


def script(place: str | None, what: str, most: int | None = None) -> str:
    """Return the text of a file of statements, of stdin for None; raises ``invalid-argument`` with ``what`` it is."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if place is None else open(place, "rb") as file:
            data = file.read() if most is None else file.read(most + 1)
        if most is not None and len(data) > most:
            raise UsageError(f"{place!r} has more than {most:,} bytes.")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as e:
        reason = "it is not UTF-8" if isinstance(e, UnicodeDecodeError) else getattr(e, "strerror", None) or e
        raise UsageError(f"Cannot read {what}: {reason}.") from None


def completion(shell: str) -> str:
    """Return what a shell sources: it asks ``kartosql --complete WORD ...``, so it stays right when options change."""
    return text(os.path.join(_PACKAGE, "cli", "completion", f"kartosql.{shell}"))


def path(name: str) -> str:
    """Return the path of ``docs/errors.md`` or ``sql_examples``; in a checkout they are where they are written."""
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
