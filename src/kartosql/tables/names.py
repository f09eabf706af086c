"""Which table a name means: cubes and datasets of Kartothek, registered data, and what is attached."""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Protocol, cast

from kartosql.errors import Span, SqlError, closest
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import (
    CubeMember,
    CubeState,
    cube_from_documents,
    cube_state,
    has_cube_flags,
    is_visible,
)
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.sql.tree import Past, is_plain_name
from kartosql.tables.table import Overlay, Part, Table, by_case, exposed, file_table
from kartosql.text.constants import literal, quote

Name = tuple[str, ...]
CATALOG, MAIN = "kartosql", "main"  # where information_schema has names of one part; of two, the first is the schema
_FILES = re.compile(r"(?P<csv>.*\.[ct]sv(\.(gz|zst))?)|.*\.parquet|.*/.*", re.IGNORECASE | re.DOTALL)


class Attached(Protocol):
    """What ATTACH gave a name: a table, or a store whose tables have names below it."""

    def find(self, rest: Name, as_of: str | int | None = None) -> Table | None:
        """Return the table with the rest of a name, now, at a time or as a version, or None.

        Raises ``no-versions`` where the past is not known.
        """


class OnDemand(Protocol):
    """What becomes a table when it is first named, as long as nothing else has its name."""

    def find(self, name: str) -> tuple[str, Attached] | None:
        """Return what has a name, by case or not, with its own name."""

    def tables(self) -> Sequence[tuple[Name, str]]:
        """Return names and kinds of all of them."""


class Tables:
    """Finds the table that a name means: of a snapshot, registered, attached, or attached on demand."""

    def __init__(
        self,
        snapshot: Snapshot,
        registered: Mapping[str, Table],
        attached: Mapping[str, Attached] | None = None,
        more: Callable[[Snapshot], OnDemand] | None = None,
        system: Callable[[Tables, str], Table] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.registered = registered
        self._attached = dict(attached or {})
        self._more = more
        self._system = system  # the tables of information_schema
        # What is attached, as it was when the statement first named it.
        self._found: dict[tuple[Name, str | int | None], Table] = {}
        self._now = dt.datetime.now(dt.UTC)

    def __repr__(self) -> str:
        return f"<tables {', '.join(self.names())}>"

    def names(self) -> list[str]:
        """Return every one-part name, for suggestions and listings."""
        cubes = [p for p in self.snapshot.members if self.snapshot.is_cube(p)]
        more = (name[0] for name, _ in self.on_demand())
        return sorted({*self.registered, *self._attached, *cubes, *self.snapshot.keys, *self.snapshot.views, *more})

    def on_demand(self) -> Sequence[tuple[Name, str]]:
        """Return names and kinds of what is attached on demand, but for names that are taken."""
        found = () if self._more is None else self._more(self.snapshot).tables()
        return [(name, kind) for name, kind in found if not self.is_taken(name[0])]

    def view_name(self, name: str) -> str | None:
        """Return the view that a one-part name means, None if it means none."""
        return None if self._is_table(name) else by_case(name, self.snapshot.views)

    def is_taken(self, name: str) -> bool:
        """Return whether a one-part name means something, by case or not."""
        return self._is_table(name) or by_case(name, self.snapshot.views) is not None

    def without_schema(self, name: Name) -> Name:
        """Return a name without the catalog and the schema that information_schema tells, unless they are tables."""
        for outer in (CATALOG, MAIN):
            if len(name) > 1 and name[0].lower() == outer and outer not in map(str.lower, self.names()):
                name = name[1:]
        return name

    def _is_table(self, name: str) -> bool:
        lower = name.lower()
        known = (*self.registered, *self._attached, *self.snapshot.keys, *self.snapshot.members)
        return any(lower == n.lower() for n in known)

    def find(self, name: Name, span: Span | None = None, sql: str | None = None, *, as_of: Past | None = None) -> Table:
        """Return the table ``name``, as of a time if one is given, or as the version of a number.

        Raises ``unknown-table``, ``ambiguous-name``, ``no-versions`` or what is wrong with it.
        """
        name = self.without_schema(name)
        try:
            if as_of is not None:
                return self._past(name, self._moment(as_of) if isinstance(as_of, dt.timedelta) else as_of)
            if len(name) == 1:
                return self._one(name[0])
            first = by_case(name[0], self._attached)
            if first is not None and name[0] not in self.registered:
                return self._attachment(first, name[1:])
            if len(name) == 2:
                if name[0].lower() == "information_schema" and self._system and not self.is_taken(name[0]):
                    return self._system(self, name[1].lower())
                return self._two(*name)
        except SqlError as e:
            e.span, e.sql = span, sql
            if e.code == "unknown-table" and (hint := _hint_for_file(".".join(name))) is not None:
                e.hint = hint
            raise
        raise SqlError(f"There is no table {'.'.join(name)!r}.", code="unknown-table", span=span, sql=sql)

    def _moment(self, step: dt.timedelta) -> str:
        try:
            return str(self._now + step)
        except OverflowError:
            raise SqlError("There is no such time.", code="invalid-value") from None

    def _past(self, name: Name, as_of: str | int | tuple[str, int, int | None]) -> Table:
        """Return a table as it was; raises ``no-versions`` where only the present is known."""
        from kartosql.formats.kartothek import versions  # not at the top: most statements ask for the present

        snapshot = self.snapshot
        if isinstance(as_of, tuple):
            from kartosql.tables.changes import changes_table

            source = self.find(tuple(as_of[0].split(".")))
            if source.is_attached or len(source.parts) != 1:
                names = " or ".join(
                    f"changes('{source.name}.{part.name}', ...)" for part in source.parts if source.cube
                )
                own = "changes() works for datasets of the connection's own store."
                raise no_versions(as_of[0], f"A cube is asked dataset by dataset: {names}." if names else own)
            return changes_table(source, versions.read(snapshot, source.parts[0].table.uuid), *as_of[1:])
        kind, found = self._match(name[0])
        if kind == "attached":
            return self._attachment(found, name[1:], as_of)
        if kind == "cube" and len(name) == 1:
            if isinstance(as_of, int):
                raise no_versions(name[0], "A cube is asked for at a time, its datasets have versions.")
            return cube_table(_past_cube(snapshot, found, versions.cube_at(snapshot, found, as_of)))
        parts = self.find(name).parts
        part = parts[0].table if parts else None
        if not isinstance(part, DatasetTable):
            raise no_versions(".".join(name))
        dataset = versions.read(snapshot, part.uuid).at(as_of)
        split = naming.split_member(part.uuid)
        if split and snapshot.is_cube(split[0]):
            seed = snapshot.cube(split[0]).cube.seed_dataset
            members = {seed: snapshot.dataset(f"{split[0]}{naming.CUBE_SEPARATOR}{seed}"), split[1]: dataset}
            return member_table(_past_cube(snapshot, split[0], members), split[1])
        if part.table not in dataset.tables:
            raise versions.gone(part.uuid, as_of, f"it had no table {part.table!r}")
        return dataset_table(dataset.tables[part.table], qualified=len(name) > 1)

    def _attachment(self, first: str, rest: Name, as_of: str | int | None = None) -> Table:
        """Return what is attached as ``first``, the same one for the whole statement."""
        key = ((first, *rest), as_of)
        if key not in self._found:
            found = self._attached[first].find(rest, as_of)
            if found is None:
                message, hint = f"There is no table {'.'.join(key[0])!r}.", "SHOW TABLES lists what is attached."
                raise SqlError(message, code="unknown-table", hint=hint)
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
        view = None if found else self.view_name(name)
        if not found and view is None and self._more is not None and (other := self._more(snapshot).find(name)):
            self._attached[other[0]] = other[1]
            return "attached", other[0]
        if found:
            listed = ", ".join(sorted(repr(n) for _, n in found))
            raise SqlError(
                f"{name!r} may be {listed}.", code="ambiguous-name", hint="Write the name exactly, in quotes."
            )
        if view is not None:
            message = f"{view!r} is a view, and here a table is needed."
            raise SqlError(message, code="unknown-table", hint="Views are read by SELECT ... FROM, and described.")
        raise SqlError(f"There is no table {name!r}.", code="unknown-table", hint=self._suggest(name))

    def _suggest(self, name: str) -> str:
        known = self.names()
        if close := similar(name, known):
            return f"Did you mean {close}?"
        if _is_variable(name):
            return f"con.register({name!r}, {name}) makes a table of the variable."
        if known:
            return "SHOW TABLES lists what the store holds."
        store = self.snapshot.store
        is_there = not store.is_local or os.path.isdir(store.root or "/")
        return (
            "The store holds no datasets." if is_there else f"There is no {store.root!r} yet; the first write makes it."
        )

    def _two(self, first: str, second: str) -> Table:
        kind, found = self._match(first)
        if kind == "cube":
            state = self.snapshot.cube(found)
            name = by_case(second, state.members)
            if name is not None:
                return member_table(state, name)
            message, known = f"The cube {found!r} has no dataset {second!r}.", sorted(state.members)
        elif kind != "dataset":
            raise SqlError(f"{first!r} holds no tables.", code="unknown-table")
        if found in self.snapshot.keys:
            tables = self.snapshot.dataset(found).tables
            name = by_case(second, tables)
            if name is not None:
                return dataset_table(tables[name], qualified=True)
            message, known = f"The dataset {found!r} has no table {second!r}.", sorted(tables)
        raise SqlError(message, code="unknown-table", hint=f"It has {', '.join(known)}.")


def _hint_for_file(name: str) -> str | None:
    """Return how a file is made a table, if a name looks like one of a file or folder."""
    match = _FILES.fullmatch(name)
    if match is None:
        return None
    type_ = "csv" if match["csv"] else "parquet"
    attach = f"ATTACH {literal(name)} AS x (TYPE {type_})"
    return f"SHOW TABLES lists the tables. Files become one by {attach}, then SELECT * FROM x."


def _is_variable(name: str) -> bool:
    """Return whether a variable of the code that called kartosql has data of a kind that can be registered."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("kartosql", "contextlib"):
        frame = frame.f_back
    value = None if frame is None else frame.f_locals.get(name, frame.f_globals.get(name))
    return isinstance(value, list | dict) or hasattr(type(value), "__arrow_c_stream__")


def no_versions(name: str, hint: str = "AT (...) works for datasets, cubes and ODF datasets.") -> SqlError:
    """Return the error about a table of which only the present is known."""
    return SqlError(f"{name!r} has no earlier versions.", code="no-versions", hint=hint)


def _past_cube(snapshot: Snapshot, prefix: str, datasets: Mapping[str, Dataset]) -> CubeState:
    """Return a cube made of datasets as they were, the same one for the same datasets."""

    def make() -> CubeState:
        cube = cube_from_documents(prefix, {name: d.document for name, d in datasets.items()})
        if cube is None:
            raise SqlError(f"{prefix!r} was no cube at that time.", code="no-such-version")
        return cube_state(cube, datasets)

    uuid = next(iter(datasets.values())).uuid if datasets else ""
    return snapshot.cached(f"past {prefix}", uuid, list(datasets.values()), make)


def listed(snapshot: Snapshot) -> list[tuple[Name, str]]:
    """Return names and kinds of the tables of a store: cubes, their datasets, and plain datasets."""
    cubes = snapshot.cubes()
    found: list[tuple[Name, str]] = [((cube,), "cube") for cube in cubes]
    found += [((cube, d), "dataset of a cube") for cube in cubes for d in snapshot.names(cube)]
    members = {f"{cube}{naming.CUBE_SEPARATOR}{d}" for cube in cubes for d in snapshot.members[cube]}
    found += [((uuid,), "dataset") for uuid in snapshot.uuids() if uuid not in members]
    return [*found, *(((name,), "view") for name in sorted(snapshot.views))]


def similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a name is most like, as it must be written in SQL; None if none is like it."""
    close = closest(name, known)
    return None if close is None else quote_if_needed(close)


def quote_if_needed(name: str) -> str:
    """Return ``name`` as it must be written in SQL."""
    return name if is_plain_name(name) else quote(name)


def _cached(owner: CubeState | DatasetTable, name: str, make: Callable[[], Table]) -> Table:
    """Return the table made of some metadata, the same one as long as the metadata are the same."""
    kept = vars(owner)
    if name not in kept:
        kept[name] = make()
    return cast(Table, kept[name])


def cube_table(state: CubeState) -> Table:
    """Return the table that a cube is."""
    return _cached(state, "_cube_table", lambda: _cube_table(state))


def _cube_table(state: CubeState) -> Table:
    types = state.types
    seed = state.seed
    owner = dict.fromkeys(seed.join_key, seed.name)
    owner |= {column: name for column, name in state.owner.items() if column in types}
    others = [m for name, m in sorted(state.members.items()) if name != state.cube.seed_dataset]
    # Partition keys of an enrichment that are no cube columns belong to it like its payload.
    parts = [_part(state, m, [c for c, name in owner.items() if name == m.name]) for m in (seed, *others)]
    columns = {c: t for c, t in types.items() if c in owner}
    return Table(state.cube.uuid_prefix, columns, tuple(parts), owner, cube=state.cube, exposed=exposed(columns))


def member_table(state: CubeState, name: str) -> Table:
    """Return one dataset of a cube as a table of its own, overlays resolved."""
    return _cached(state, f"_table_{name}", lambda: _member_table(state, name))


def _member_table(state: CubeState, name: str) -> Table:
    member = state.members[name]
    types = {c: member.table.types[c] for c in sorted(member.table.schema.names) if is_visible(c)}
    part = _part(state, member, list(types))
    owner = dict.fromkeys(types, name)
    return Table(f"{state.cube.uuid_prefix}.{name}", types, (part,), owner, cube=state.cube, exposed=exposed(types))


def _part(state: CubeState, member: CubeMember, columns: Sequence[str]) -> Part:
    # A write to a cube is refused if a dimension holds NULL, or an indexed column NaN. Other index columns
    # may have been NULL before they were indexed.
    checked = state.cube.dimension_columns if has_cube_flags(member.table.metadata) else ()
    return Part(member.name, member.table, tuple(columns), Overlay(member.join_key, frozenset(checked)))


def dataset_table(table: DatasetTable, *, qualified: bool) -> Table:
    """Return a table of a plain dataset; its columns follow ``_common_metadata``."""
    name = f"{table.uuid}.{table.table}" if qualified else table.uuid
    return _cached(table, f"_table_{qualified}", lambda: file_table(name, table, table.table))
