"""What an engine did for a statement: its operators as a tree, each with what it took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from kartosql.text.report import Branch, Page, human_bytes, milliseconds


class TableFiles(NamedTuple):
    """A table that files belong to: its name, and how many files it has."""

    name: str
    files: int


@dataclass(frozen=True)
class Operator:
    """One operator in words, with those whose rows it takes; None is what nobody measured.

    ``seconds`` are those of all threads; ``rows`` and ``bytes`` are what it passed on.
    """

    name: str
    seconds: float | None = None
    rows: int | None = None
    bytes: int | None = None
    children: tuple[Operator, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able dictionary."""
        return asdict(self)

    @property
    def numbers(self) -> list[str]:
        """The texts of what it took."""
        seconds = "" if self.seconds is None else milliseconds(self.seconds)
        rows = "" if self.rows is None else f"{self.rows:,}"
        return [seconds, rows, "" if self.bytes is None else human_bytes(self.bytes)]


def tree(operators: Sequence[Operator], page: Page) -> list[str]:
    """Return the lines of a tree: an operator takes rows from the one below it, or from its branches."""
    deepest = 1000 if page.columns is None else page.columns // 3
    rows = [[cell, *numbers] for top in operators for cell, numbers in _rows(top, "", "", deepest)]
    return page.grid(("operator", "time", "rows", "bytes"), rows, right=(1, 2, 3))


def _rows(top: Operator, first: str, then: str, deepest: int) -> Iterator[tuple[Branch, list[str]]]:
    yield Branch(top.name, first, then + ("│ " if len(top.children) > 1 else "  ")), top.numbers
    *others, last = top.children or (None,)
    if last is None:
        return
    branches = [(child, "├─ ", "│  ") for child in others]
    branches.append((last, "└─ ", "   ") if others else (last, "", ""))
    if len(then) >= deepest:  # there is no more place to the right
        branches = [(child, "", "") for child, _, _ in branches]
    for child, before, below in branches:
        yield from _rows(child, then + before, then + below, deepest)
