"""Datasets of Open Data Fabric as tables: the state, and the log of all records."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from kartosql.errors import FormatError, SqlError, missing_file
from kartosql.formats.folder import ParquetSchemas
from kartosql.formats.odf import chain as chains
from kartosql.formats.odf import times
from kartosql.formats.odf.chain import HEAD, Chain, Columns, HashCheck, Slice, read_chain
from kartosql.formats.partition_table import PartitionTable
from kartosql.sources.attachments import AttachLocation, Attachment, AttachOptions
from kartosql.sources.folder_table import FolderTable, shapes_of
from kartosql.store import Store
from kartosql.store.listing import ListedFile
from kartosql.tables.names import Attached, Name
from kartosql.tables.table import Changelog, Part, Table, exposed, file_table

LOG = "$log"
# Data that are checked when a dataset is attached; others are when they are read.
EAGER_FILES, EAGER_BYTES = 1_000, 16 << 20
MAX_BLOCK = 64 << 20
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


class OdfDataset(Attachment):
    """A dataset that each statement reads as of its head; blocks are read once, as they never change."""

    def __init__(self, location: AttachLocation, options: AttachOptions) -> None:
        self._location = location
        self._as_of = options.moment("as_of")
        self.checks = options.truth("check_hashes")
        self.store = Store(location.url, location.storage_options)
        self._schemas = ParquetSchemas(self.store)
        self._blocks: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._head = b""
        self._chain: Chain | None = None
        self._made: dict[tuple[str, int | None], tuple[Table, Table]] = {}
        self._slices: dict[str, Slice] = {}
        self._admitted: set[str] = set()
        self._prefix = location.mounts.mount(self.store, self._admit)
        chain = self.chain()
        self.sources(chain, None)
        if len(chain.slices) <= EAGER_FILES and sum(s.size for s in chain.slices) <= EAGER_BYTES:
            self._admit([s.key for s in chain.slices])  # so that what is damaged is refused at once

    def now(self) -> Mapping[str, Attached]:
        """Return the state and the log, as one statement sees them."""
        name, chain = self._location.name, cache(self.chain)
        return {name: _View(self, chain, 0), name + LOG: _View(self, chain, 1)}

    def tables(self) -> Sequence[tuple[Name, str]]:
        """Return the names of the dataset and of its log."""
        name = self._location.name
        return [((name,), "ODF dataset"), ((name + LOG,), "log of an ODF dataset")]

    def verify(self) -> list[HashCheck]:
        """Check blocks, files and records by their hashes; raises what ``read_chain`` raises."""
        self._blocks.clear()
        return list(chains.verify(read_chain(self._read, self.store.url), self.store.read, self.store.url))

    # -- blocks --------------------------------------------------------------------------------

    def chain(self) -> Chain:
        """Return the checked chain up to the head as it is now; raises what ``read_chain`` raises."""
        with self._lock:
            try:
                head = self._read(HEAD)
            except KeyError:
                head = b""  # which the walk refuses
            if self._chain is None or head != self._head:
                self._chain, self._head = read_chain(self._read, self.store.url), head
            return self._chain

    def _read(self, key: str) -> bytes:
        known = self._blocks.get(key)
        if known is None:
            known = self.store.read(key, start=0, end=MAX_BLOCK + 1)
            if len(known) > MAX_BLOCK:
                raise FormatError(f"{self.store.url}/{key}: it is larger than {MAX_BLOCK:,} bytes", code="too-large")
            if key != HEAD:
                self._blocks[key] = known
        return known

    # -- tables --------------------------------------------------------------------------------

    def sources(self, chain: Chain, moment: int | None) -> tuple[Table, Table]:
        """Return state and log of a dataset as of a moment in nanoseconds, the same ones for the same chain."""
        moment = self._as_of if moment is None else moment
        with self._lock:
            key = (chain.head, moment)
            if key not in self._made:
                if any(head != chain.head for head, _ in self._made):
                    self._made.clear()
                self._made[key] = self._tables(chain, moment)
            return self._made[key]

    def _tables(self, chain: Chain, moment: int | None) -> tuple[Table, Table]:
        if moment is not None:
            found = chain.until(moment)
            if found is None:
                first = chain.links[0].block.system_time
                raise SqlError(
                    f"{self._location.name!r} did not exist at that time: its first block is of "
                    f"{_EPOCH + dt.timedelta(microseconds=first // 1000)}.",
                    code="no-such-version",
                )
            chain = found
        table, columns = self._table(chain)
        name = self._location.name
        log = file_table(name + LOG, table, name + LOG, chain=chain, is_attached=True)
        visible = {c: table.types[c] for c in columns.compared}
        key = tuple(chain.primary_key or ())
        missing = [c for c in key if c not in visible]
        if missing and not table.files:
            key = ()  # there are no records yet, and perhaps no schema
        elif missing:
            raise FormatError(
                f"{self.store.url}: the column {missing[0]!r} of the primary key is in no schema",
                code="schema-conflict",
            )
        changelog = Changelog(columns.offset, columns.op, key, columns.compared)
        part = Part(name, table, tuple(visible), changelog)
        owner = dict.fromkeys(visible, name)
        state = Table(name, visible, (part,), owner, exposed=exposed(visible), is_attached=True, chain=chain)
        return state, log

    def _table(self, chain: Chain) -> tuple[FolderTable, Columns]:
        listed = [ListedFile(s.key, s.size, s.system_time // 1_000_000, s.physical_hash) for s in chain.slices]
        self._slices.update((s.key, s) for s in chain.slices)
        try:
            schemas = self._schemas.read(listed)
        except FormatError as e:
            # The hash in its block says more about a file than its footer does.
            for file in listed if e.code == "corrupt-file" else ():
                if file.name in e.message:
                    self._check(file.name)
            raise
        columns = chains.columns_of(chain, schemas, [s.key for s in chain.slices], self.store.url)
        count = len(listed)
        table = FolderTable(
            uuid=self._location.name,
            schema=pa.schema(list(columns.types.items())),
            labels=tuple(f.name for f in listed),
            files=tuple(self._prefix + f.name for f in listed),
            partitions=PartitionTable((), (), (), min(1, count), (0,) * count),
            shapes=tuple(shapes_of(schemas)),
            has_footers=True,
            keeper=self,
        )
        return table, columns

    # -- hashes --------------------------------------------------------------------------------

    def _admit(self, keys: Sequence[str]) -> None:
        """Check the hashes of files that are about to be read, once each; raises ``odf-hash-mismatch``."""
        wanted = [k for k in dict.fromkeys(keys) if k in self._slices and k not in self._admitted]
        if self.checks:
            list(self.store.map(self._check, wanted))
        self._admitted.update(wanted)

    def _check(self, key: str) -> None:
        try:
            data = self.store.read(key)
        except KeyError:
            hint = "Copy it again from where the dataset comes from."
            raise missing_file(f"{self.store.url}/{key}", hint) from None
        chains.check_data(data, self._slices[key], self.store.url)


@dataclass(frozen=True)
class _View:
    """The state (0) or the log (1) of a dataset in one statement, which has one chain for both."""

    dataset: OdfDataset
    chain: Callable[[], Chain]
    which: int

    def find(self, rest: Name, as_of: str | int | None = None) -> Table | None:
        if rest:
            return None
        return self.dataset.sources(self.chain(), None if as_of is None else times.statement_time(str(as_of)))[
            self.which
        ]
