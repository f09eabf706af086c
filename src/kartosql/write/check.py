"""Looking for what is wrong with datasets: files, schemas, partition values, indices, lost commits."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import FormatError, KartosqlError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable, InvertedIndex, parse_partitions
from kartosql.formats.kartothek.history import plain
from kartosql.formats.kartothek.metadata import merge_types, normalise
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.kartothek.versions import Entry, entries_and_torn, read_entries
from kartosql.parquet import footer_of, read_footer
from kartosql.store import Store
from kartosql.text.types import type_names
from kartosql.write import indexing, removal
from kartosql.write.change import GRACE, LONG_AGO, Change, read_schemas
from kartosql.write.commit import commit
from kartosql.write.datasets import ORIGINALS_REFUSE, checked_history
from kartosql.write.document import Head, Identity, read_garbage, read_raw
from kartosql.write.files import opened_parquet, pairs_of_files
from kartosql.write.footer_statistics import FooterStatistics
from kartosql.write.history import KEPT, needed_keys
from kartosql.write.indexing import StoredIndex
from kartosql.write.recovery import complete_schemas, read_head
from kartosql.write.removal import collect

BATCH_FILES = 64
ROWS_ARE_READ = {"duplicate-cells", "statistics"}  # errors of files whose rows are known all the same


@dataclass(frozen=True)
class Finding:
    """Something to know about a dataset; ``severity`` is error, warning or info, ``key`` the file it is about.

    ``repaired`` says that a repair has mended it, ``detail`` holds what the repair goes by.
    """

    dataset: str
    check: str
    severity: str
    key: str | None
    message: str
    repairable: bool = False
    repaired: bool = False
    detail: Any = None


def check(store: Store, uuids: Iterable[str], cube: Cube | None, grace: dt.timedelta, *, full: bool) -> list[Finding]:
    """Return what is wrong with datasets, and what there is to know about them; nothing is changed.

    Of the datasets of a ``cube`` the cells are looked at as well. With ``full`` all pages of all
    files are read and their checksums verified. Raises ``store-failed`` and ``access-denied``
    only: what is wrong with a dataset is a finding.
    """
    return [finding for uuid in uuids for finding in _Dataset(store, uuid, cube, grace, full).findings()]


@dataclass(frozen=True)
class _Look:
    """What one look into a data file found: the values of indexed columns, and the cells if they are asked for."""

    problems: tuple[Finding, ...] = ()
    uniques: Mapping[str, pa.Array] | None = None
    cells: pa.Table | None = None
    with_null: frozenset[str] = frozenset()


@dataclass
class _Dataset:
    """The checks of one dataset, one after the other."""

    store: Store
    uuid: str
    cube: Cube | None
    grace: dt.timedelta
    full: bool

    def _finding(self, check_: str, severity: str, key: str | None, message: str, **more: Any) -> Finding:
        split = naming.split_member(self.uuid)
        return Finding(split[1] if split is not None else self.uuid, check_, severity, key, message, **more)

    def _of(self, error: KartosqlError, check_: str, key: str | None, **more: Any) -> Finding:
        return self._finding(check_, "error", key, error.message, **more)

    def findings(self) -> Iterator[Finding]:
        # Before the document, or what is committed in between would be in the one and not in the other.
        entries, torn = entries_and_torn(self.store, self.uuid)
        try:
            head = read_raw(self.store, self.uuid)
        except FormatError as e:
            yield self._of(e, "metadata", None)
            return
        if head is None:
            yield from self._no_document()
        else:
            yield from self._marks(head)
        try:
            yield from self._orphans(head)
        except FormatError as e:
            yield self._of(e, "orphans", None)
        if head is None or head.is_absent:
            return
        yield from self._commits(head, entries)
        for key in torn:
            yield self._finding("versions", "warning", key, "it cannot be read: versions that it tells of may be gone")
        try:
            dataset = Snapshot(self.store).dataset(self.uuid)
            tables = dataset.tables
        except FormatError as e:
            yield self._of(e, "schema", None)
            return
        yield from self._schemas(head)
        below = self.store.list_below(f"{self.uuid}/")
        values: dict[str, list[pa.Table]] = {}
        is_whole = True
        for table in tables.values():
            problems = list(self._table(table, below, values))
            is_whole = is_whole and not any(f.severity == "error" and f.check not in ROWS_ARE_READ for f in problems)
            yield from problems
        yield from self._indices(dataset, values, is_whole)
        if self.full:
            yield from self._earlier(head, entries, below)

    # -- the document ----------------------------------------------------------------------------

    def _no_document(self) -> Iterator[Finding]:
        """Tell of files without a document, unless a cleanup knows them already."""
        with contextlib.suppress(FormatError):
            if removal.is_known(self.store, self.uuid):
                return
        message = f"{self.uuid!r} has no metadata document: its write never finished, or it was deleted in part"
        yield self._finding(
            "metadata", "warning", None, f"{message}; REPAIR leaves its files to CLEANUP", repairable=True
        )

    def _marks(self, head: Head) -> Iterator[Finding]:
        if head.intent is not None or head.unfinished:
            yield self._finding(
                "transaction",
                "warning",
                head.key,
                "a change of several datasets is under way, or its writer has ended",
                repairable=True,
            )
        if head.pending_schemas:
            yield self._finding(
                "transaction", "warning", head.key, "its schema files are not in their place yet", repairable=True
            )

    def _schemas(self, head: Head) -> Iterator[Finding]:
        """Look at what readers of a sealed history need not read: all of it, and the schema files.

        They belong to this document, which is not the one that readers see while a change of several datasets is
        under way.
        """
        document = head.document
        try:
            checked_history(document)
        except FormatError as e:
            yield self._finding("history", "warning", head.key, e.message)
            return
        told = document.sealed_schemas
        if told is None or head.pending_schemas:
            return
        try:
            stored = read_schemas(self.store, document)
        except FormatError as e:
            yield self._of(e, "schema", None)
            return
        for name, schema in stored.items():
            if name in told and not plain(schema).equals(plain(told[name])):
                key = naming.schema_key(self.uuid, name)
                yield self._finding("schema", "error", key, "it is not the schema that the document says")

    def _commits(self, head: Head, entries: Sequence[Entry]) -> Iterator[Finding]:
        identity = head.identity
        if head.is_foreign or (identity is None and entries):
            since = f" after {identity.operation} {identity.id} of {identity.time}" if identity is not None else ""
            yield self._finding(
                "foreign-write", "warning", head.key, f"another program wrote the dataset{since}", repairable=True
            )
        for entry in entries:
            if identity is not None and entry.id == identity.id and entry.time != identity.time:
                message = f"it says that its commit was at {identity.time}, and the history at {entry.time}"
                yield self._finding("versions", "error", head.key, message)
        for one in lost(entries, identity, head.document.labels or ()):
            reason = one.reason or _missing(self.store, one)
            yield self._finding(
                "lost-commit",
                "error",
                one.entry.key(self.uuid),
                f"{one.entry.operation} {one.entry.id} of {one.entry.time} was dropped by another program: "
                f"{len(one.added)} partitions are missing, {len(one.removed)} are back"
                + (f"; it cannot be brought back, as {reason}" if reason else ""),
                repairable=not reason,
                detail=one,
            )

    def _orphans(self, head: Head | None) -> Iterator[Finding]:
        below = self.store.details(f"{self.uuid}/")
        marks = read_garbage(self.store, self.uuid)
        past = needed_keys(self.store, self.uuid, KEPT, self.store.now())
        found = removal.unreferenced(self.store, self.uuid, head, below, marks, self.store.now(), self.grace, past)
        if found:
            size = sum(g.bytes for g in found)
            yield self._finding(
                "orphans", "info", None, f"{len(found)} files of {size:,} bytes belong to nothing; CLEANUP removes them"
            )

    # -- files -----------------------------------------------------------------------------------

    def _table(
        self, table: DatasetTable, below: Mapping[str, int | None], values: dict[str, list[pa.Table]]
    ) -> Iterator[Finding]:
        there = []
        for at, key in enumerate(table.files):
            if key not in below:
                yield self._finding("missing-file", "error", key, f"the file of {table.labels[at]!r} is missing")
            else:
                there.append(at)
        cell, groups = self._cells(table, there)
        yield from self._partitions(table)
        indexed = [column for column in table.indices if column in table.schema.names]
        found: dict[str, list[tuple[str, pa.Array]]] = {column: [] for column in indexed}
        overlaid = 0
        with_null: set[str] = set()
        look = partial(self._look, table, indexed, cell)
        for batch in _batches(groups):
            files = [at for group in batch for at in group]
            looks = dict(zip(files, self.store.map(look, [table.files[at] for at in files]), strict=True))
            for at in files:
                yield from looks[at].problems
                for column, array in (looks[at].uniques or {}).items():
                    found[column].append((table.labels[at], array))
                with_null |= looks[at].with_null
            for group in batch if cell else ():
                cells = [looks[at].cells for at in group]
                known = [c for c in cells if c is not None]
                overlaid += sum(_count([one]) for one in known) - _count(known)
        if overlaid:
            message = f"{overlaid:,} rows were overwritten by later files; COMPACT drops them"
            yield self._finding("overlays", "info", None, message)
        for column in sorted(with_null) if self.cube is not None else ():
            message = f"the indexed column {column!r} holds NULL, which its index leaves out. {ORIGINALS_REFUSE}"
            yield self._finding("null-in-index", "info", None, message)
        for column, pairs in found.items():
            type_ = normalise(table.schema.field(column).type)
            made = indexing.pairs_of(type_, [label for label, _ in pairs], [array for _, array in pairs])
            values.setdefault(column, []).append(made)

    def _cells(self, table: DatasetTable, there: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Return the columns that distinguish cells within a partition, and the files to be looked at together."""
        if self.cube is not None and table.table == naming.DEFAULT_TABLE:
            shared = [name for name in table.partition_keys if name in self.cube.partition_columns]
            names = set(table.schema.names) - set(table.partition_keys)
            cell = [c for c in self.cube.dimension_columns if c in names]
            with contextlib.suppress(FormatError):
                places = [table.partition_keys.index(name) for name in shared]
                by_values: dict[Any, list[int]] = {}
                for at in there:
                    by_values.setdefault(table.partitions.comparable(at, places), []).append(at)
                return cell, list(by_values.values())
        return [], [[at] for at in there]

    def _earlier(self, head: Head, entries: Sequence[Entry], below: Collection[str]) -> Iterator[Finding]:
        """Read all pages of files that only earlier versions have; those that a cleanup took are no loss."""
        document = head.document
        indices = (key for key in document.indices.values() if isinstance(key, str))
        now = {*indices, *chain.from_iterable(document.files.values())}
        keys = sorted({key for entry in entries for key in entry.named_keys()}.difference(now).intersection(below))
        for key, message in zip(keys, self.store.map(self._unreadable, keys), strict=True):
            if message is not None:
                message = f"a file of earlier versions cannot be read: {message.removeprefix(f'{key}: ')}"
                yield self._finding("versions", "error", key, message)

    def _unreadable(self, key: str) -> str | None:
        """Return what is wrong with the pages or the footer of a file, None for nothing, or if it is gone."""
        try:
            with opened_parquet(self.store, key, page_checksum_verification=True) as file:
                statistics = self._statistics(key)
                for group in range(file.num_row_groups):
                    rows = file.read_row_group(group)
                    if said := next(statistics.misstatements(group, rows), None):
                        return _misstated(said)
        except FormatError as e:
            return None if e.code == "missing-file" else e.message
        return None

    def _statistics(self, key: str) -> FooterStatistics:
        size = self.store.size(key)
        footer = footer_of(self.store.read(key)) if size is None else read_footer(self.store, key, size)
        return FooterStatistics(footer or b"")

    def _partitions(self, table: DatasetTable) -> Iterator[Finding]:
        try:
            _ = table.partitions
            return
        except FormatError:
            types = [table.schema.field(name).type for name in table.partition_keys]
        for key in table.files:
            try:
                parse_partitions([key], table.uuid, table.table, table.partition_keys, types)
            except FormatError as e:
                yield self._of(e, "partition-value", key)

    def _look(self, table: DatasetTable, indexed: Sequence[str], cell: Sequence[str], key: str) -> _Look:
        try:
            with opened_parquet(self.store, key, page_checksum_verification=self.full) as file:
                problems = tuple(self._schema(table, file.schema_arrow, key))
                if problems:
                    return _Look(problems)
                statistics = self._statistics(key) if self.full else None
                uniques: dict[str, list[pa.Array]] = {column: [] for column in indexed}
                cells, with_null, said = [], set(), list[str]()
                for group in range(file.num_row_groups):
                    wanted = None if self.full else list(dict.fromkeys([*indexed, *cell]))
                    if wanted == []:
                        break
                    rows = file.read_row_group(group, wanted)
                    if statistics is not None:
                        said += statistics.misstatements(group, rows)
                    for column in table.may_lack.difference(rows.column_names).intersection(indexed):
                        type_ = table.schema.field(column).type
                        rows = rows.append_column(column, pa.nulls(rows.num_rows, type_))
                    for column in indexed:
                        type_ = normalise(table.schema.field(column).type)
                        uniques[column].append(indexing.unique_values(rows[column], type_))
                    with_null |= {column for column in indexed if rows[column].null_count}
                    cells.append(rows.select(list(cell)))
        except FormatError as e:
            is_missing = e.code == "missing-file"
            message = "is missing" if is_missing else f"cannot be read: {e.message.removeprefix(f'{key}: ')}"
            return _Look((self._finding(str(e.code), "error", key, f"the file {message}"),))
        found = {
            column: pc.unique(pa.chunked_array(arrays, normalise(table.schema.field(column).type)))
            for column, arrays in uniques.items()
        }
        problems = tuple(self._finding("statistics", "error", key, _misstated(one)) for one in said[:1])
        if not cell or not cells:
            return _Look(problems, found, with_null=frozenset(with_null))
        joined = pa.concat_tables(cells, promote_options="permissive")
        typed = pa.table([joined[c].cast(normalise(table.schema.field(c).type)) for c in cell], names=list(cell))
        twice = typed.num_rows - _count([typed])
        message = f"{twice:,} rows hold a cell that another row of the file holds too"
        problems += (self._finding("duplicate-cells", "error", key, message),) if twice else ()
        return _Look(problems, found, typed, frozenset(with_null))

    def _schema(self, table: DatasetTable, schema: pa.Schema, key: str) -> Iterator[Finding]:
        for field in table.schema:
            if field.name in table.partition_keys:
                continue
            if field.name not in schema.names:
                if field.name in table.may_lack:
                    continue
                yield self._finding("schema", "error", key, f"the column {field.name!r} is missing")
                continue
            type_ = schema.field(field.name).type
            if not _fits(normalise(type_), field.type):
                found, known = type_names(type_, field.type)
                message = f"the column {field.name!r} is {found}, but {known} in the schema of its table"
                yield self._finding("schema", "error", key, message)

    # -- indices ---------------------------------------------------------------------------------

    def _indices(self, dataset: Dataset, values: Mapping[str, list[pa.Table]], is_whole: bool) -> Iterator[Finding]:
        for column in dataset.document.indices:
            index = next((t.indices[column] for t in dataset.tables.values() if column in t.indices), None)
            if index is None or index.key is None:
                continue
            try:
                yield from self._index(index, values.get(column, []), is_whole)
            except FormatError as e:
                yield self._of(e, "index", index.key, repairable=is_whole, detail=column)

    def _index(self, index: InvertedIndex, values: list[pa.Table], is_whole: bool) -> Iterator[Finding]:
        assert index.key is not None
        type_ = normalise(index.type)
        stored = indexing.flat(StoredIndex(self.store, index.key, index.column).read(), index.column, type_)
        if not is_whole:
            return  # of files that cannot be read nobody knows the values
        missing, wrong = _differences([stored], values)
        message: str | None = None
        if missing or wrong:
            message = f"the index of {index.column!r} lacks {missing:,} pairs of value and partition"
            message += f", and has {wrong:,} that no file holds"
        elif self.full:
            message = self._unreadable(index.key)
        if message is not None:
            yield self._finding("index", "error", index.key, message, repairable=True, detail=index.column)


def _misstated(said: str) -> str:
    return f"the footer says {said}, so conditions may leave out rows; the rows themselves can be read"


def _fits(type_: pa.DataType, known: pa.DataType) -> bool:
    """Return whether a column of a file can be read as what the table says; decimals may be narrower there."""
    if pa.types.is_decimal(type_) and pa.types.is_decimal(known):
        return bool(type_.scale <= known.scale and type_.precision - type_.scale <= known.precision - known.scale)
    if pa.types.is_list(type_) and pa.types.is_list(known):
        return _fits(type_.value_type, known.value_type)
    return merge_types(known, type_) is not None


def _batches(groups: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Yield groups of files so that enough of them are read at a time, and not too many."""
    batch: list[list[int]] = []
    for group in groups:
        batch.append(group)
        if sum(map(len, batch)) >= BATCH_FILES:
            yield batch
            batch = []
    yield batch


def _count(tables: Sequence[pa.Table]) -> int:
    """Return how many different rows there are."""
    if not tables:
        return 0
    joined = pa.concat_tables(tables)
    names = [f"c{i}" for i in range(joined.num_columns)]
    # Of floats two zeros are one value, as in queries.
    columns = [pc.add(c, pa.scalar(0.0, c.type)) if pa.types.is_floating(c.type) else c for c in joined.itercolumns()]
    return int(pa.table(columns, names=names).group_by(names).aggregate([]).num_rows)


def _differences(stored: Sequence[pa.Table], real: Sequence[pa.Table]) -> tuple[int, int]:
    """Return how many pairs only the data have, and how many only the index has."""
    sides = []
    for side, tables in ((1, real), (2, stored)):
        for table in tables:
            plain = pa.table({"value": table["value"], "label": table["label"].cast(pa.string())})
            plain = plain.group_by(["value", "label"]).aggregate([])
            sides.append(plain.append_column("side", pa.repeat(pa.scalar(side, pa.int64()), plain.num_rows)))
    found = pa.concat_tables(sides).group_by(["value", "label", "side"]).aggregate([])
    counts = found.group_by(["value", "label"]).aggregate([("side", "sum")])["side_sum"]
    return pc.sum(pc.equal(counts, 1)).as_py() or 0, pc.sum(pc.equal(counts, 2)).as_py() or 0


# -- commits that the document does not know -----------------------------------------------------------


@dataclass(frozen=True)
class Lost:
    """A commit that another program dropped: of it ``added`` and ``removed`` are missing in the document.

    ``later`` are the labels that commits added which came after it; ``reason`` says why it cannot be brought back.
    """

    entry: Entry
    added: Mapping[str, Mapping[str, str]]
    removed: tuple[str, ...]
    later: frozenset[str]
    reason: str | None = None


def lost(entries: Sequence[Entry], identity: Identity | None, labels: Iterable[str]) -> list[Lost]:
    """Return the commits that the document with this identity and these labels has lost, in their order.

    Each says what is missing of it in the end: nothing that was removed later on is. Without
    an identity nothing is known, as the other program may have seen everything.
    """
    return net(dropped(entries, identity, labels))


def dropped(entries: Sequence[Entry], identity: Identity | None, labels: Iterable[str]) -> list[Lost]:
    """Return the commits that a document has lost, each with what it did when the others before it are back."""
    if identity is None:
        return []
    by_id = {e.id: e for e in entries if e.origin == identity.origin}
    known = _ancestors(by_id, identity)
    oldest = min([by_id[i].sequence for i in known if i in by_id] or [identity.sequence])
    repaired = {i for k in known if k in by_id for i in by_id[k].repaired}
    state = set(labels)
    found = []
    for entry in sorted(by_id.values(), key=lambda e: e.order):
        if entry.id in known or entry.id in repaired or entry.sequence < oldest:
            continue
        one = _lost(entry, by_id, known, identity.recent, state)
        if one.added or one.removed:
            found.append(one)
            if one.reason is None:
                state = (state - set(one.removed)) | set(one.added)
    return found


def net(found: Sequence[Lost]) -> list[Lost]:
    """Leave out what one lost commit added and a later one took away again."""
    sound = [one for one in found if one.reason is None]
    both = {label for one in sound for label in one.added} & {label for one in sound for label in one.removed}
    left = []
    for one in found:
        if one.reason is None and both:
            added = {label: files for label, files in one.added.items() if label not in both}
            one = replace(one, added=added, removed=tuple(label for label in one.removed if label not in both))
        if one.added or one.removed:
            left.append(one)
    return left


def _ancestors(by_id: Mapping[str, Entry], identity: Identity) -> set[str]:
    known = {identity.id, *identity.recent}
    pending = list(known)
    while pending:
        entry = by_id.get(pending.pop())
        if entry is not None and entry.parent is not None and entry.parent not in known:
            known.add(entry.parent)
            pending.append(entry.parent)
    return known


def _lost(
    entry: Entry, by_id: Mapping[str, Entry], known: Collection[str], recent: Sequence[str], state: Collection[str]
) -> Lost:
    at: str | None = entry.parent
    while at is not None and at not in known and at in by_id:
        at = by_id[at].parent
    later_ids: Collection[str] | None = None
    if at is not None and at in recent:
        later_ids = recent[recent.index(at) + 1 :]
    elif at is not None and at in known and at in by_id:
        later_ids = [i for i in known if i in by_id and by_id[i].sequence > by_id[at].sequence]
    after = [by_id[i] for i in (by_id if later_ids is None else later_ids) if i in by_id]
    gone = {label for e in after for label in e.removed}
    added = {label: files for label, files in entry.added.items() if label not in state and label not in gone}
    if later_ids is None:
        return Lost(entry, added, (), frozenset(), "its place among the other commits is not known")
    removed = tuple(label for label in entry.removed if label in state)
    later = frozenset(label for e in after for label in e.added)
    reason = None
    if added and len(removed) < len(entry.removed):
        # It took the place of rows that another commit took away, too.
        reason = "what it replaced was removed or replaced by a later commit"
    return Lost(entry, added, removed, later, reason)


# -- repairing ------------------------------------------------------------------------------------------

OPERATION = "repair"


def repair(store: Store, uuid: str, findings: Sequence[Finding], grace: dt.timedelta = GRACE) -> list[Finding]:
    """Mend what can be mended of the ``findings`` about one dataset, and return them with what was done.

    Changes of several datasets are carried out or taken back, wrong indices are built again, commits that another
    program dropped are brought back, and what it wrote itself becomes part of the history. Files without a document are
    marked for a cleanup. Raises what commits raise.
    """
    done: set[str] = set()
    wanted = {f.check for f in findings if f.repairable}
    if "transaction" in wanted:
        read_head(store, uuid)
        complete_schemas(store, uuid)
        after = read_raw(store, uuid)
        if after is None or (after.intent is None and not after.unfinished):
            done.add("transaction")
    if "metadata" in wanted:
        collect(store, [uuid], grace)
        done.add("metadata")
    steps: tuple[tuple[str, Callable[[Head], Change | None]], ...] = (
        ("index", lambda head: _indices(store, head, {f.detail for f in findings if f.check == "index"})),
        ("lost-commit", lambda head: lost_change(store, head, entries)),
        ("foreign-write", lambda head: Change(uuid, OPERATION) if head.identity is None or head.is_foreign else None),
    )
    entries = read_entries(store, uuid) if "lost-commit" in wanted else []  # before the document, as in findings
    for check_, planned in steps:
        if check_ not in wanted:
            continue
        head = read_head(store, uuid)
        change = planned(head) if head is not None else None
        if change is not None:
            commit(store, change, base=head)
        done.add(check_)
    return [
        replace(f, repaired=True, repairable=False, message=f"{f.message} (repaired)")
        if f.repairable and f.check in done
        else f
        for f in findings
    ]


def _indices(store: Store, head: Head, columns: set[str]) -> Change | None:
    dataset = Snapshot(store).dataset(head.uuid)
    pairs = {}
    for column in sorted(columns.intersection(head.document.indices)):
        tables = [t for t in dataset.tables.values() if column in t.schema.names]
        pairs[column] = pa.concat_tables([pairs_of_files(store, t, t.labels, column) for t in tables])
    indexed = frozenset(dataset.document.labels or ())
    return Change(head.uuid, OPERATION, indices=pairs, indexed=indexed) if pairs else None


def lost_change(store: Store, head: Head, entries: Sequence[Entry]) -> Change | None:
    """Return the change that brings the lost ones of some commits of a dataset back, in their order; None for none.

    What they added comes before what was committed after them, so that newer rows stay the newer ones.
    """
    labels = head.document.labels or ()
    all_ = dropped(entries, head.identity, labels)
    missing = [one for one in net(all_) if one.reason is None]
    found = [one for one in missing if _missing(store, one) is None]
    left = {one.entry.id for one in missing} - {one.entry.id for one in found}
    added: dict[str, Mapping[str, str]] = {}
    removed: set[str] = set()
    positions: dict[str, str] = {}
    for one in found:
        place = next((label for label in labels if label in one.later), None)
        removed.update(one.removed)
        for label, files in one.added.items():
            added[label] = files
            taken = one.entry.positions.get(label, "")
            if taken in removed or place is not None:
                positions[label] = taken if taken in removed else str(place)
    if not added and not removed:
        return None
    return Change(
        head.uuid,
        OPERATION,
        added=added,
        removed=frozenset(removed),
        positions=positions,
        started=LONG_AGO,
        repaired=tuple(one.entry.id for one in all_ if one.reason is None and one.entry.id not in left),
    )


def _missing(store: Store, one: Lost) -> str | None:
    """Return why a lost commit cannot be brought back, if a file of it is gone."""
    try:
        store.sizes([key for files in one.added.values() for key in files.values()])
    except KeyError as e:
        return f"the file {e.args[0]} is gone"
    return None
