"""Cubes and datasets of Kartothek as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from kartosql.formats.kartothek.cube import CubeMember, CubeState, has_cube_flags, is_visible
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.tables.table import Overlay, Part, Table, exposed, file_table


def _kept(owner: CubeState | DatasetTable, name: str, make: Callable[[], Table]) -> Table:
    """Return the table made of some metadata, the same one as long as the metadata are the same."""
    kept = vars(owner)
    found = kept.get(name)
    if found is None:
        found = kept[name] = make()
    return cast(Table, found)


def cube_table(state: CubeState) -> Table:
    """Return the table that a cube is."""
    return _kept(state, "_cube_table", lambda: _cube_table(state))


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
    return _kept(state, f"_table_{name}", lambda: _member_table(state, name))


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
    return _kept(table, f"_table_{qualified}", lambda: file_table(name, table, table.table))
