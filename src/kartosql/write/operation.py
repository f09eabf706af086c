"""One call that writes: its data files, and the commit that makes them visible."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from kartosql import stopping
from kartosql.errors import CommitUnknown, ConcurrentCommit, FormatError, KartosqlError, UsageError, quoted
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.kartothek.naming import FOLLOWED, POINTER
from kartosql.formats.kartothek.snapshot import MetadataCache, Snapshot, Wanted
from kartosql.memo import memoized
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed, key_problem
from kartosql.write import indexing
from kartosql.write.change import GRACE, Change, common_schema, schema_bytes
from kartosql.write.commit import Committed, commit, commit_all, utc_now
from kartosql.write.document import Head, discard, is_there
from kartosql.write.files import WriteOptions, Written, joined, write_rows
from kartosql.write.inputs import Rows, invalid_data
from kartosql.write.layout import Layout, ordered
from kartosql.write.recovery import read_head

if TYPE_CHECKING:
    from kartosql.typing import WriteReport

ATTEMPTS = 5  # of what has to read the present state again if others commit meanwhile
_T = TypeVar("_T")
_LONGEST_TIME = f"0000-00-00T00:00:00.000000-{'0' * 32}"


class Operation:
    """A call that writes to ``store``; ``name`` is what other writers read if they lose against it.

    Files that nothing refers to are left alone by cleanups for the time ``grace``; who commits late looks whether
    his are there.
    Upkeep is work for the executors of the session ``spark``, if there is one, or of the rows'. ``publish`` is called
    with the uuid of each dataset that was committed, and that published tables follow; it raises nothing.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        cache: MetadataCache | None = None,
        options: WriteOptions | None = None,
        single_writer: bool = False,
        grace: dt.timedelta = GRACE,
        repartition: bool | str = True,
        spark: Any = None,
        publish: Callable[[str], None] | None = None,
    ) -> None:
        if repartition not in (True, False, "range"):
            raise UsageError(f"repartition: {quoted(repartition)} is none of True, False and 'range'.")
        self.store = store
        self.name = name
        self._cache = cache
        self.options = options or WriteOptions()
        # At once, as what a crash left is carried out or taken back before anything else.
        store.single_writer = store.single_writer or single_writer
        self._heads: dict[str, Head | FormatError | None] = {}
        self._grace = grace
        self._repartition = repartition
        self.spark = spark
        self._publish = publish
        self.started = utc_now()

    @memoized
    def snapshot(self) -> Snapshot:
        """What the store held when the operation began."""
        return Snapshot(self.store, self._cache)

    def begin_at(self, uuids: Iterable[str]) -> None:
        """Read the current heads: later commits of others are rivals.

        To be called before anything is concluded from the snapshot about these datasets. What
        crashed changes left in them is carried out or taken back. Raises what is wrong with them.
        """
        for uuid in self.existing(uuids):
            self._head(uuid)

    def existing(self, uuids: Iterable[str]) -> list[str]:
        """Begin at some datasets and return those that exist, also if they cannot be read."""
        uuids = list(dict.fromkeys(uuids))
        new = [uuid for uuid in uuids if uuid not in self._heads]
        self._heads.update(zip(new, self.store.map(self._read_head, new), strict=True))
        if any(self._heads[uuid] is None for uuid in new):
            self.__dict__.pop("snapshot", None)  # whose listing has seen what was no dataset
        return [uuid for uuid in uuids if self._heads[uuid] is not None]

    def _read_head(self, uuid: str) -> Head | FormatError | None:
        try:
            return read_head(self.store, uuid)
        except FormatError as e:
            return e

    def _head(self, uuid: str) -> Head | None:
        head = self._heads[uuid]
        if isinstance(head, FormatError):
            raise head
        return head

    def document(self, uuid: str) -> DatasetDocument | None:
        """Return the document of a dataset that the operation began at, None if it does not exist."""
        head = self._head(uuid)
        return None if head is None else head.document

    # -- files -----------------------------------------------------------------------------------

    def write(
        self, rows: Mapping[str, Rows], layouts: Mapping[str, Layout], *, may_be_empty: bool = False
    ) -> dict[str, Written]:
        """Write the data files of some tables; if one of them fails, none stays.

        Data without rows are ``invalid-data``, unless they ``may_be_empty``.
        """
        for name, layout in layouts.items():
            check_index_keys(layout)
            if rows[name].num_rows == 0 and not may_be_empty:
                raise no_rows(name)
        written: dict[str, Written] = {}
        try:
            for name, layout in layouts.items():
                written[name] = self.write_table(rows[name], layout)
                if not written[name].rows and not may_be_empty:
                    raise no_rows(name)
        except BaseException:
            self.discard(written.values())
            raise
        return written

    def write_table(self, rows: Rows, layout: Layout) -> Written:
        """Write the data files of one table of a dataset, on executors where the rows are those of Spark."""
        if type(rows) is Rows:
            return write_rows(self.store, rows, layout, self.options)
        from kartosql.write.spark.rows import SparkRows, write_frames

        assert isinstance(rows, SparkRows)
        self.spark = self.spark or rows.frames[0].sparkSession
        return write_frames(self.store, rows, layout, self.options, self._repartition)

    def ordered(self, rows: Rows, layout: Layout) -> Generator[pa.Table]:
        """Yield rows, checked and in the order of ``layout``, within the memory of the operation."""
        return ordered(rows, layout, self.options.sorter, self.options.memory)

    def discard(self, written: Iterable[Written]) -> None:
        """Delete files that nothing refers to; what cannot be deleted now is found by a cleanup."""
        for one in written:
            discard(self.store, one.keys)

    def adding(self, written: Sequence[Written], place: str | None = None, **more: Any) -> Change:
        """Return the change that adds what was written of the tables of a dataset, if need be at the place of a label.

        ``more`` are other fields of it.
        """
        layout = written[0].layout
        added, pairs = joined(self.store, written)
        return Change(
            layout.uuid,
            self.name,
            added=added,
            pairs=pairs,
            schemas={w.layout.table: common_schema(w.schema, layout.partition_on) for w in written},
            partition_keys=layout.partition_on,
            metadata=layout.metadata,
            rows=sum(w.rows for w in written),
            positions={} if place is None else dict.fromkeys(added, place),
            **more,
        )

    # -- commit ----------------------------------------------------------------------------------

    def commit(
        self, changes: Sequence[Change], written: Iterable[Written] = (), primary: str | None = None
    ) -> dict[str, Committed]:
        """Make all changes visible at once and return what was committed, by uuid.

        ``primary`` is the uuid of the cube's seed, which several changes need. The files
        ``written`` are deleted if the changes are refused.
        """
        stopping.check()
        with stopping.shielded():
            # What is to be new must not stand there, whoever made it meanwhile.
            self._heads.update({c.uuid: None for c in changes if c.create})
            self.begin_at([c.uuid for c in changes])
            changes = [replace(c, started=c.started or self.started) for c in changes]
            try:
                done = self._commit(changes, primary)
            except CommitUnknown:
                raise
            except KartosqlError:
                self.discard(written)
                raise
            for one in done:
                document = one.document
                if self._cache is not None and document is not None and document.content is not None:
                    self._cache.keep(Wanted(one.uuid, document.key, bytes), document)
            for change in changes:
                if change.starts_anew:
                    with contextlib.suppress(KartosqlError):  # the commit stands
                        self._check_schemas(change)
            self._keep_up(changes, done)
            for one in done:
                known = one.document.metadata if one.document is not None else ()
                if self._publish is not None and any(key.startswith(FOLLOWED) for key in known):
                    self._publish(one.uuid)
        return {c.uuid: c for c in done}

    def _commit(self, changes: Sequence[Change], primary: str | None) -> list[Committed]:
        if len(changes) == 1:
            return [commit(self.store, changes[0], base=self._head(changes[0].uuid), grace=self._grace)]
        assert primary is not None
        self.begin_at([primary])
        bases = {uuid: self._head(uuid) for uuid in [*(c.uuid for c in changes), primary]}
        return commit_all(self.store, primary, changes, bases=bases, grace=self._grace)

    def _keep_up(self, changes: Sequence[Change], done: Sequence[Committed]) -> None:
        """Index new files of datasets that have data-skipping metadata, and forget those that are gone."""
        removing = {c.uuid for c in done if c.labels_removed}
        followed = [c.uuid for c in changes if (c.added or c.uuid in removing) and not (c.starts_anew or c.drop)]
        heads = [self._heads.get(uuid) for uuid in followed]
        if any(isinstance(head, Head) and POINTER in head.document.metadata for head in heads):
            from kartosql.write.skipping import keep_up

            keep_up(self.store, followed, Snapshot(self.store, self._cache), self.spark)

    def _check_schemas(self, change: Change) -> None:
        """Put back the schema of a new dataset if it was deleted with an older dataset of the name."""
        for table, schema in change.schemas.items():
            key = naming.schema_key(change.uuid, table)
            if not is_there(self.store, key):
                with contextlib.suppress(PreconditionFailed, OutcomeUnknown):
                    self.store.put_if(key, schema_bytes(schema), None)


def check_index_keys(layout: Layout) -> None:
    """Raise ``invalid-data`` for index columns whose names give no file names."""
    for column in layout.index_columns:
        problem = key_problem(indexing.index_key(layout.uuid, column, _LONGEST_TIME))
        if problem:
            raise invalid_data(layout.name, f"the index of {column[:40]!r} gets no usable file name: {problem}")


def no_rows(name: str) -> UsageError:
    """Return the error about data without rows."""
    return invalid_data(name, "it has no rows", "Leave the dataset out.")


def repeated(attempt: Callable[[], _T], turn: Callable[[], contextlib.AbstractContextManager[object]]) -> _T:
    """Return what an attempt returns, which is made again if others committed meanwhile; raises ``concurrent-commit``.

    Who was too late once has a ``turn``, and lets nobody of this machine in between.
    """
    for left in reversed(range(ATTEMPTS)):
        try:
            with contextlib.nullcontext() if left == ATTEMPTS - 1 else turn():
                return attempt()
        except ConcurrentCommit:
            if not left:
                raise
    raise AssertionError


def report(written: Sequence[Written], committed: Committed | None) -> WriteReport:
    """Return what was done to one dataset, for the user."""
    return {
        "files": sum(len(w.keys) for w in written),
        "rows": sum(w.rows for w in written),
        "bytes": sum(w.bytes for w in written),
        "removed": len(committed.labels_removed) if committed else 0,
        "sequence": committed.sequence if committed else None,
        "id": committed.id if committed else None,
    }
