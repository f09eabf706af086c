"""Which table a name means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from kartosql.errors import Span, SqlError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.sql.tree import is_plain_name
from kartosql.tables.kartothek import cube_table, dataset_table, member_table
from kartosql.tables.table import Table

Name = tuple[str, ...]
_FILES = re.compile(r"(?P<csv>.*\.[ct]sv(\.(gz|zst))?)|.*\.parquet|.*/.*", re.IGNORECASE | re.DOTALL)


class Attached(Protocol):
    """What ATTACH gave a name: a table, or a store whose tables have names below it."""

    def find(self, rest: Name, as_of: str | None = None) -> Table | None:
        """Return the table with the rest of a name, as it stands now or stood at a time; None if there is none.

        Raises ``no-versions`` where the past is not known.
        """


class Tables:
    """Finds the table that a name means: in a snapshot, the registered data, and what is attached."""

    def __init__(
        self,
        snapshot: Snapshot,
        registered: Mapping[str, Table],
        attached: Mapping[str, Attached] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.registered = registered
        self._attached = attached or {}
        self._found: dict[
            tuple[Name, str | None], Table
        ] = {}  # what is attached, as it was when the statement first named it

    def names(self) -> list[str]:
        """Return every one-part name, for suggestions and listings."""
        cubes = [p for p in self.snapshot.members if self.snapshot.is_cube(p)]
        return sorted({*self.registered, *self._attached, *cubes, *self.snapshot.keys})

    def is_taken(self, name: str) -> bool:
        """Return whether a one-part name means something, by case or not."""
        lower = name.lower()
        known = (*self.registered, *self._attached, *self.snapshot.keys, *self.snapshot.members)
        return any(lower == n.lower() for n in known)

    def find(self, name: Name, span: Span | None = None, sql: str | None = None, *, as_of: str | None = None) -> Table:
        """Return the table ``name``, as it stood at a time if one is given.

        Raises ``unknown-table``, ``ambiguous-name``, ``no-versions`` or what is wrong with it.
        """
        try:
            if as_of is not None:
                return self._past(name, as_of)
            if len(name) == 1:
                return self._one(name[0])
            found = self._below(name)
            if found is not None:
                return found
            if len(name) == 2:
                return self._two(*name)
        except SqlError as e:
            e.span, e.sql = span, sql
            if e.code == "unknown-table" and (hint := _hint_for_file(".".join(name))) is not None:
                e.hint = hint
            raise
        raise SqlError(f"There is no table {'.'.join(name)!r}.", code="unknown-table", span=span, sql=sql)

    def _below(self, name: Name) -> Table | None:
        """Return the table of an attached store that a name of several parts means."""
        first = by_case(name[0], self._attached)
        if first is None or name[0] in self.registered:
            return None
        return self._attachment(first, name[1:])

    def _past(self, name: Name, as_of: str) -> Table:
        """Return a table as it stood at a time."""
        kind, found = self._match(name[0])
        if kind != "attached":
            raise no_versions(".".join(name))
        return self._attachment(found, name[1:], as_of)

    def _attachment(self, first: str, rest: Name, as_of: str | None = None) -> Table:
        """Return what is attached as ``first``, the same one for the whole statement."""
        key = ((first, *rest), as_of)
        if key not in self._found:
            found = self._attached[first].find(rest, as_of)
            if found is None:
                shown = ".".join(key[0])
                raise SqlError(
                    f"There is no table {shown!r}.", code="unknown-table", hint="SHOW TABLES lists what is attached."
                )
            self._found[key] = found
        return self._found[key]

    def _one(self, name: str) -> Table:
        snapshot = self.snapshot
        kind, found = self._match(name)
        if kind == "attached":
            return self._attachment(found, ())
        if kind == "registered":
            return self.registered[found]
        if kind == "cube":
            return cube_table(snapshot.cube(found))
        split = naming.split_member(found)
        if split and snapshot.is_cube(split[0]):
            state = snapshot.cube(split[0])
            if split[1] in state.members:
                return member_table(state, split[1])
        tables = snapshot.dataset(found).tables
        if len(tables) == 1:
            return dataset_table(next(iter(tables.values())), qualified=False)
        listed = ", ".join(f'"{found}".{t}' for t in sorted(tables))
        raise SqlError(f"The dataset {found!r} has several tables.", code="unknown-table", hint=f"Use one of {listed}.")

    def _match(self, name: str) -> tuple[str, str]:
        """Return (kind, exact name) for a one-part name."""
        snapshot = self.snapshot
        if name in self.registered:
            return "registered", name
        if name in self._attached:
            return "attached", name
        if name in snapshot.members and snapshot.is_cube(name):
            return "cube", name
        if name in snapshot.keys:
            return "dataset", name
        lower = name.lower()
        found = [("registered", n) for n in self.registered if n.lower() == lower]
        found += [("attached", n) for n in self._attached if n.lower() == lower]
        found += [("cube", p) for p in snapshot.members if p.lower() == lower and snapshot.is_cube(p)]
        found += [("dataset", u) for u in snapshot.keys if u.lower() == lower]
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(sorted(repr(n) for _, n in found))
            raise SqlError(
                f"{name!r} may be {listed}.", code="ambiguous-name", hint="Write the name exactly, in quotes."
            )
        raise SqlError(f"There is no table {name!r}.", code="unknown-table", hint=self._suggest(name))

    def _suggest(self, name: str) -> str:
        known = self.names()
        by_lower = {n.lower(): n for n in known}
        close = difflib.get_close_matches(name.lower(), by_lower, 1, cutoff=0.6)
        if close:
            return f"Did you mean {quote_if_needed(by_lower[close[0]])}?"
        if not known:
            return "The store holds no datasets."
        return "SHOW TABLES lists what the store holds."

    def _two(self, first: str, second: str) -> Table:
        kind, found = self._match(first)
        if kind == "cube":
            state = self.snapshot.cube(found)
            name = by_case(second, state.members)
            if name is not None:
                return member_table(state, name)
            if found not in self.snapshot.keys:
                raise SqlError(
                    f"The cube {found!r} has no dataset {second!r}.",
                    code="unknown-table",
                    hint=f"It has {', '.join(sorted(state.members))}.",
                )
            kind = "dataset"
        if kind == "dataset":
            tables = self.snapshot.dataset(found).tables
            name = by_case(second, tables)
            if name is not None:
                return dataset_table(tables[name], qualified=True)
            raise SqlError(
                f"The dataset {found!r} has no table {second!r}.",
                code="unknown-table",
                hint=f"It has {', '.join(sorted(tables))}.",
            )
        raise SqlError(f"{first!r} holds no tables.", code="unknown-table")


def _hint_for_file(name: str) -> str | None:
    """Return how a file is made a table, if a name looks like one of a file or folder."""
    match = _FILES.fullmatch(name)
    if match is None:
        return None
    type_ = "csv" if match["csv"] else "parquet"
    place = name.replace("'", "''")
    return (
        f"SHOW TABLES lists the tables. Files become one by ATTACH '{place}' AS x (TYPE {type_}), then SELECT * FROM x."
    )


def no_versions(name: str) -> SqlError:
    """Return the error about a table of which only the present is known."""
    return SqlError(
        f"{name!r} has no earlier versions.",
        code="no-versions",
        hint="AT (TIMESTAMP => ...) works for ODF datasets, see ATTACH.",
    )


def by_case(name: str, known: Iterable[str]) -> str | None:
    """Return the name that is meant: the same one, else the only one that differs in case alone."""
    known = list(known)
    if name in known:
        return name
    found = [k for k in known if k.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


def quote_if_needed(name: str) -> str:
    """Return ``name`` as it must be written in SQL."""
    return name if is_plain_name(name) else quote_identifier(name)


def quote_identifier(name: str) -> str:
    """Return ``name`` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
