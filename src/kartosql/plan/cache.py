"""Plans of statements that are repeated while nothing they depend on changed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kartosql.errors import KartosqlError
from kartosql.plan.bind import BoundQuery, Parameters, bind, rebind
from kartosql.plan.scan import Scan
from kartosql.sql.statements import Select
from kartosql.tables.names import Tables

MAX_STATEMENTS = 64
MAX_SCANS = 8  # of one statement, for different parameters and settings
MAX_FILES = 20_000  # of all scans of one statement
# Times that a statement is planned before its scan is kept: what is asked for repeatedly is
# remembered of footers and indices, and later plans are better for it.
LEARNED = 4

Planner = Callable[..., Scan]
_SIMPLE = (bool, int, float, str, bytes, type(None))


@dataclass
class _Entry:
    select: Select  # kept, as it is known by its identity
    bound: BoundQuery
    scans: OrderedDict[Hashable, Scan] = field(default_factory=OrderedDict)
    planned: int = 0


class PlanCache:
    """Remembers bound queries and scans of one connection.

    They are used again for the same statement over the same metadata: tables are the same
    objects then. Files never change once they belong to a dataset.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def bind(self, select: Select, tables: Tables, parameters: Parameters) -> BoundQuery:
        """Return a bound query; raises what ``plan.bind`` raises."""
        with self._lock:
            entry = self._entries.get(id(select))
            like = self._entries.get(id(select.like)) if entry is None and select.like is not None else None
        if entry is not None and _has_same_tables(entry, tables):
            return rebind(entry.bound, parameters)
        if like is not None and _has_same_tables(like, tables):
            bound = rebind(like.bound.alike(select), parameters)
        else:
            bound, like = bind(select, tables, parameters), None
        if select.like is not None and like is None:
            like = _Entry(select.like, bound.alike(select.like))
        with self._lock:
            for new in filter(None, (like, _Entry(select, bound))):
                self._entries[id(new.select)] = new
                self._entries.move_to_end(id(new.select))
            while len(self._entries) > MAX_STATEMENTS:
                self._entries.popitem(last=False)
        return bound

    def correct(self, bound: BoundQuery) -> None:
        """Replace what a statement, and the one that it is like, were bound to, and forget the scans made of that."""
        with self._lock:
            for select in (bound.select, bound.select.like):
                entry = self._entries.get(id(select))
                if entry is not None and entry.bound.walked is bound.walked:
                    self._entries[id(select)] = _Entry(entry.select, bound.alike(entry.select))

    def scan(self, bound: BoundQuery, planner: Planner, settings: Mapping[str, Any]) -> Scan | None:
        """Return the scan that ``planner`` made of a bound query and that was kept."""
        entry, key = self._entries.get(id(bound.select)), _key(bound, planner, settings)
        if entry is None or key is None or entry.bound.occurrences is not bound.occurrences:
            return None
        return entry.scans.get(key)

    def is_kept(self, scan: Scan) -> bool:
        """Return whether a scan is kept, so that it may be asked for again."""
        with self._lock:
            return any(k.occurrences is scan.occurrences for e in self._entries.values() for k in e.scans.values())

    def keep(self, bound: BoundQuery, planner: Planner, settings: Mapping[str, Any], scan: Scan) -> None:
        """Keep the scan of a bound query."""
        entry, key = self._entries.get(id(bound.select)), _key(bound, planner, settings)
        if entry is None or key is None or entry.bound.occurrences is not bound.occurrences or _size(scan) > MAX_FILES:
            return
        with self._lock:
            entry.planned += 1
            if entry.planned < LEARNED:
                return
            entry.scans[key] = scan
            while len(entry.scans) > MAX_SCANS or sum(map(_size, entry.scans.values())) > MAX_FILES:
                entry.scans.popitem(last=False)


def _has_same_tables(entry: _Entry, tables: Tables) -> bool:
    """Return whether all names of a statement still mean the same tables."""
    try:
        return all(
            tables.find(o.name, o.span, entry.select.text, as_of=o.as_of) is o.source for o in entry.bound.occurrences
        )
    except KartosqlError:
        return False  # binding will tell


def _key(bound: BoundQuery, planner: Planner, settings: Mapping[str, Any]) -> Hashable | None:
    """Return what a scan depends on besides statement and tables, None if that cannot be told."""
    given = bound.parameters if isinstance(bound.parameters, dict) else {}
    if not all(isinstance(v, _SIMPLE) for v in given.values()):
        return None
    # 1, 1.0 and True are equal in Python, and so are the two zeros.
    values = tuple((n, type(v), repr(v)) for n, v in sorted(given.items()))
    return planner, values, tuple(sorted(settings.items()))


def _size(scan: Scan) -> int:
    return sum(len(p.files) for o in scan.occurrences for p in o.parts)
