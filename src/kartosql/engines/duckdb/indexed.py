"""What is known of one inverted index, and what it takes to use it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kartosql.formats.kartothek.dataset import InvertedIndex

if TYPE_CHECKING:
    from kartosql.engines.duckdb.held import Ascending, Portions

# Seconds that one core takes, per index, value, and pair of value and file: to hold an index, to read its
# file, and to look into a held one. Roughly, as they depend on types and on the machine.
HOLD_SECONDS, HOLD_VALUE, HOLD_PAIR = 0.004, 5e-8, 2e-8
READ_VALUE, READ_PAIR = 1.5e-8, 3.5e-8
SCAN_VALUE, SCAN_PAIR = 2e-9, 6e-9
TOUCH = 0.15  # the share of a row group's time that it takes to find nothing but one value in it
VALUE_PAIRS = 4  # a value takes as much memory as this many pairs
SLOW = 4  # times that, if DuckDB has to make a text of each label

FREE_USES = 2  # of an index file, before a table is made of it
HOLD_SHARE = 0.5  # of what the last use saved is spent on that
BRIEF_SECONDS = 0.01
PORTION_SECONDS = 0.02  # less is not worth beginning
FACTOR = 2  # where nothing is saved, a table is made once this multiple of its time was spent on reading


@dataclass
class Index:
    """The relations of one inverted index.

    ``name`` is the view (v, file, part), ``values`` the view (v, labels) over the index file and
    ``held`` the table (v, files) that replaces it, once it is made. ``rows`` are the values,
    ``pairs`` those of value and file, in ``groups`` row groups; ``saved`` are the seconds that
    the files take that the last use left out.
    """

    name: str
    column: str
    index: InvertedIndex
    size: int
    held: str | None = None
    rows: int = 0
    pairs: int = 0
    groups: int = 1
    uses: int = 0
    seconds: float = 0.0
    saved: float = 0.0
    may_be_held: bool = True
    sampled: str | None = None
    ranges: int = 0  # lookups that the extremes of each file answer
    extremes: str | None = None
    repeats: bool | None = None  # whether a value stands in several rows, once that is known
    plain: bool = False  # read by Arrow, which takes a fraction of the time
    ascending: Ascending | None = None  # a held index once more, where there is room for it
    coming: Portions | None = None  # what the table that is being made does not have yet

    @property
    def values(self) -> str:
        """The view over the index as it is stored."""
        return f"{self.name}_values"

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Note the time spent on reading the index where it lies."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started

    @property
    def hold_seconds(self) -> float:
        """What it takes to make a table of the index."""
        return (HOLD_SECONDS + HOLD_VALUE * self.rows + HOLD_PAIR * self.pairs) * (1 if self.plain else SLOW)

    @property
    def read_seconds(self) -> float:
        """What it takes to read the files of all values."""
        if self.held is not None:
            return SCAN_VALUE * self.rows + SCAN_PAIR * self.pairs
        return READ_VALUE * self.rows + READ_PAIR * self.pairs

    @property
    def touch_seconds(self) -> float:
        """What it takes at least to look up a value."""
        return SCAN_VALUE * self.rows if self.held is not None else TOUCH * self.read_seconds / self.groups

    @property
    def count_seconds(self) -> float:
        """What it takes to count the values that match in an index file."""
        return READ_VALUE * self.rows

    @property
    def group_seconds(self) -> float:
        """What it takes to read a row group of an index file."""
        return self.read_seconds / self.groups

    @property
    def weight(self) -> int:
        """What a held index takes of MAX_PAIRS."""
        return self.pairs + VALUE_PAIRS * self.rows

    @property
    def allowance(self) -> float:
        """Seconds that may be spent now on making a table of the index."""
        if self.held is not None or not self.may_be_held or self.uses < FREE_USES:
            return 0.0
        cost = self.hold_seconds
        if self.seconds > (cost if cost < BRIEF_SECONDS else FACTOR * cost):
            return cost
        share = HOLD_SHARE * self.saved
        return share if share >= min(cost, PORTION_SECONDS) else 0.0
