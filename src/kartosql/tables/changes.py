"""The rows that were added and removed between two versions of a dataset, as a table."""

from __future__ import annotations

import pyarrow as pa

from kartosql.errors import SqlError
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.versions import History, gone
from kartosql.tables.table import CHANGE, STEP, Changes, Part, Table, exposed

_TOLD = {CHANGE: pa.string(), "_version": pa.int64(), "_time": pa.timestamp("us", "UTC")}


def changes_table(source: Table, history: History, after: int, until: int | None) -> Table:
    """Return the rows that were added and removed after a version, up to another one, by default the present one.

    Raises ``no-such-version``, ``version-gone``, and ``incompatible-schema`` where columns were others in between.
    """
    part, until = source.parts[0], history.last if until is None else until
    if not after and getattr(history.entries[0].entry, "before", 0) is not None:
        raise gone(history.dataset.uuid, 0, "its history does not go back to the first version")
    wanted = [v for v in history.entries if after < v.version <= until]
    numbers = [*([after] if after else ()), *(v.version for v in wanted), until]
    *tables, last = (history.at(number).tables.get(part.table.table) for number in numbers)
    known = [t for t in tables if t is not None]
    if last is None or not all(map(last.extends, known)) or not _TOLD.keys().isdisjoint(map(str.lower, last.types)):
        raise SqlError(
            f"{source.name!r}: its columns were others in between, or have a name that changes() gives to its own.",
            code="incompatible-schema",
            hint=f"Ask for the changes after it was replaced; its own columns are {', '.join(_TOLD)}.",
        )
    every = tuple(dict.fromkeys(f for t in known for f in t.files))
    places = [at for at, key in enumerate(last.partition_keys) if key in part.join_key]
    # The last file with a cell wins, so other files of its partition hold the value it had before.
    groups = _only(last, every).partitions.codes(places) if part.join_key else range(len(every))
    group = dict(zip(every, groups, strict=True))
    entries: list[tuple[int, int, str]] = []
    before = tables.pop(0) if after else None
    for step, (version, now) in enumerate(zip(wanted, tables, strict=True)):
        sides = [(-1, before.files if before else ()), (1, now.files if now else ())]
        differ = {*sides[0][1]} ^ {*sides[1][1]} if version.operation != "compact" else ()
        touched = {group[file] for file in differ}
        entries += [(step, sign, file) for sign, files in sides for file in files if group[file] in touched]
        before = now
    steps, signs, files = zip(*entries, strict=True) if entries else ((), (), ())
    values = [[v.version for v in wanted], [v.time for v in wanted]]
    arrays = [pa.array(v, t) for v, t in zip(values, [*_TOLD.values()][1:], strict=True)]
    facts = pa.table([pa.array(range(len(wanted)), pa.int64()), *arrays], [STEP, *[*_TOLD][1:]])
    compared = tuple(c for c in source.columns if c in last.types)
    lacking = frozenset(c for t in known for c in (*t.may_lack, *{*last.schema.names}.difference(t.schema.names)))
    columns = {**{c: last.types[c] for c in compared}, **_TOLD}
    rule = Changes(STEP, STEP, part.join_key, compared, steps, signs, facts)
    read = Part(part.name, _only(last, files, lacking), tuple(columns), rule)
    owner = dict.fromkeys(columns, part.name)
    return Table(source.name, columns, (read,), owner, exposed=exposed(columns), is_attached=True)


def _only(table: DatasetTable, files: tuple[str, ...], may_lack: frozenset[str] = frozenset()) -> DatasetTable:
    """Return a table of some files of a table, without statistics and indexes."""
    keys = table.uuid, table.table, table.schema, table.partition_keys
    return DatasetTable(*keys, files, files, {}, {}, may_lack=may_lack)
