"""The chain of blocks of a dataset: walked from its head, every hash and every rule of order checked.

Beside it the checks of hashes, and the columns of its records by the names of its vocabulary. Whoever
reads hands over a function from keys to bytes. Nothing is listed, so the same works on a folder, in an object
store and over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import pyarrow as pa

from kartosql.errors import FormatError, LimitError, reraise
from kartosql.formats.odf import hashes, times
from kartosql.formats.odf.blocks import TABLES, Block, Event, read_block
from kartosql.formats.odf.data_schema import event_schema
from kartosql.formats.odf.logical import NotCheckable, logical_hash_of
from kartosql.formats.type_promotion import plain, united
from kartosql.memo import memoized
from kartosql.text.types import type_name

HEAD = "refs/head"
MAX_BLOCKS = 1_000_000
DATA_EVENTS = ("AddData", "ExecuteTransform")

Read = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Link:
    """A block of a chain, and the text of its hash."""

    hash: str
    block: Block

    def __str__(self) -> str:
        return f"block {self.block.sequence_number} ({self.hash})"


class Vocab(NamedTuple):
    """The names of the columns that the format adds to the data, in the order of the fields of SetVocab."""

    offset_column: str = "offset"
    operation_type_column: str = "op"
    system_time_column: str = "system_time"
    event_time_column: str = "event_time"


@dataclass(frozen=True)
class SchemaVersion:
    """One SetDataSchema event: which one it is, from 1, and where and when it was set."""

    number: int
    link: Link

    @property
    def event(self) -> Event:
        """The event  in the block."""
        return self.link.block.event

    @property
    def form(self) -> str:
        """``rawArrowSchema`` (RFC-010) or ``schema`` (RFC-016)."""
        return "schema" if self.event.get("schema") is not None else "rawArrowSchema"

    @memoized
    def arrow(self) -> pa.Schema:
        """The Arrow schema; raises ``odf-invalid-schema``."""
        return event_schema(self.event, str(self.link))


@dataclass(frozen=True, slots=True)
class Slice:
    """A data file: what it holds, its hashes, and which schema it was written with."""

    link: Link
    physical_hash: str
    logical_hash: str
    start: int
    end: int  # the last offset, which belongs to the slice
    size: int
    schema_number: int

    @property
    def key(self) -> str:
        """Where the file lies in its dataset."""
        return f"data/{self.physical_hash}"

    @property
    def rows(self) -> int:
        """How many records it holds."""
        return self.end - self.start + 1

    @property
    def system_time(self) -> int:
        """When the block of the slice was written, in nanoseconds since 1970."""
        return self.link.block.system_time


@dataclass(frozen=True)
class Chain:
    """What the blocks of a dataset say, up to its head.

    ``watermark`` is in nanoseconds since 1970. ``primary_key`` is that of the newest source, None
    if there is none. ``links`` are all blocks, the oldest first.
    """

    head: str
    id: str
    kind: str
    links: tuple[Link, ...]
    vocab: Vocab
    primary_key: tuple[str, ...] | None
    schemas: tuple[SchemaVersion, ...]
    slices: tuple[Slice, ...]
    watermark: int | None

    @property
    def schema(self) -> SchemaVersion | None:
        """The newest schema."""
        return self.schemas[-1] if self.schemas else None

    def until(self, moment: int) -> Chain | None:
        """Return the chain as it was at a moment (system time, in nanoseconds), None before its first block."""
        links = [link for link in self.links if link.block.system_time <= moment]
        return build_chain(links) if links else None


def read_chain(read: Read, where: str = "the dataset", *, head: str | None = None) -> Chain:
    """Return the chain of a dataset, checked.

    ``read`` gives the bytes of a key such as ``refs/head`` and ``blocks/f1620...``, and raises
    KeyError where there is none. ``where`` names the dataset in errors: ``odf-no-dataset``,
    ``odf-too-old``, ``odf-missing-block``, ``odf-hash-mismatch``, ``odf-invalid-chain``, and those of
    blocks. ``head`` is the hash of the last block, else ``refs/head`` names it.
    """
    return build_chain(walk(read, _read_head(read, where) if head is None else head, where), where)


def _read_head(read: Read, where: str) -> str:
    try:
        data = read(HEAD)
    except KeyError:
        raise FormatError(
            f"{where}: there is no {HEAD}, so this is no ODF dataset",
            code="odf-no-dataset",
            hint="Name the folder that holds refs, blocks and data.",
        ) from None
    text = data[:1024].decode("utf-8", "replace").strip()
    if text.startswith("z"):
        raise FormatError(
            f"{where}: {HEAD} is written in base58, as before 2024; such blocks number their events differently",
            code="odf-too-old",
            hint="Tools of that time said the same version number, so nothing in them can be trusted to be read right.",
        )
    try:
        return hashes.to_text(hashes.check(hashes.from_text(text, "head"), "head", code=hashes.SHA3_256))
    except FormatError as e:
        raise FormatError(f"{where}: {HEAD}: {e.message}", code=e.code, hint=e.hint) from None


def walk(read: Read, head: str, where: str = "the dataset") -> list[Link]:
    """Return the blocks from the first to the head; raises as ``read_chain`` does."""
    links: list[Link] = []
    wanted: str | None = head
    while wanted is not None:
        link = Link(wanted, _read_block(read, wanted, where, links[-1] if links else None))
        number = link.block.sequence_number
        if links and number != links[-1].block.sequence_number - 1:
            _refuse(where, links[-1], f"its number has to be one more than {number}, that of the block before it")
        if number >= MAX_BLOCKS:
            raise LimitError(
                f"{where}: {link}: the chain is longer than the {MAX_BLOCKS} blocks that are read",
                code="odf-chain-too-long",
            )
        prev = link.block.prev_block_hash
        if (prev is None) != (number == 0):
            problem = "the first block names a block before it" if prev else "it names no block before it"
            _refuse(where, link, problem)
        links.append(link)
        wanted = None if prev is None else hashes.to_text(prev)
    return links[::-1]


def _read_block(read: Read, text: str, where: str, after: Link | None) -> Block:
    try:
        data = read(f"blocks/{text}")
    except KeyError:
        named = f"which {after} names as the one before it" if after else f"which {HEAD} names"
        raise FormatError(
            f"{where}: a block is missing: {text}, {named}",
            code="odf-missing-block",
            hint="Copy the block again from where the dataset comes from.",
        ) from None
    found = hashes.to_text(hashes.hash_of(data))
    if found != text:
        raise FormatError(
            f"{where}: a block does not match its hash: {text} holds bytes of the hash {found}",
            code="odf-hash-mismatch",
            hint="The block was changed or damaged; copy it again from where the dataset comes from.",
        )
    return read_block(data, f"{where}: block {text}")


def build_chain(links: Iterable[Link], where: str = "the dataset") -> Chain:
    """Return the chain that blocks form, the oldest first; raises ``odf-invalid-chain``."""
    links = tuple(links)
    if not links:
        raise FormatError(f"{where}: it has no blocks", code="odf-invalid-chain")
    vocab, primary_key = Vocab(), None
    schemas: list[SchemaVersion] = []
    slices: list[Slice] = []
    data: Event | None = None  # the last event with data
    for before, link in zip((None, *links), links, strict=False):
        event, kind = link.block.event, link.block.kind
        if (kind == "Seed") != (before is None):
            _refuse(where, link, "the first block, and no other, has to be a Seed")
        if before is not None and link.block.system_time < before.block.system_time:
            times_of = [times.to_text(one.block.system_time) for one in (link, before)]
            _refuse(where, link, f"its system time {times_of[0]} lies before {times_of[1]}")
        if kind in DATA_EVENTS:
            _check_data_event(where, link, data, slices[-1].end if slices else None)
            if event.get("newData") is not None:
                if not schemas:
                    _refuse(where, link, "it adds data before a SetDataSchema")
                slices.append(_slice(where, link, len(schemas)))
            data = event
        elif kind == "SetDataSchema":
            schemas.append(SchemaVersion(len(schemas) + 1, link))
        elif kind == "SetVocab":
            given = [event.get(field.name) for field in TABLES["SetVocab"].fields]
            vocab = Vocab(*(own if name is None else name for name, own in zip(given, Vocab(), strict=True)))
        elif kind in ("SetPollingSource", "AddPushSource"):
            primary_key = tuple(event["merge"].get("primaryKey") or ()) or None
    seed, watermark = links[0].block.event, (data or {}).get("newWatermark")
    head, dataset = links[-1].hash, hashes.did_to_text(seed["datasetId"])
    return Chain(
        head, dataset, seed["datasetKind"], links, vocab, primary_key, tuple(schemas), tuple(slices), watermark
    )


def _check_data_event(where: str, link: Link, last: Event | None, end: int | None) -> None:
    """Check offsets, watermark and checkpoint against the last event with data, and that something changes."""
    event, before = link.block.event, last or {}
    if event.get("prevOffset") != end:
        given = event.get("prevOffset")
        _refuse(where, link, f"prevOffset does not continue the chain: it is {given}, not {end}")
    old, new = before.get("newWatermark"), event.get("newWatermark")
    if old is not None and (new is None or new < old):
        _refuse(where, link, "its watermark is missing or lies before the one that was reached")
    checkpoint = (before.get("newCheckpoint") or {}).get("physicalHash")
    if event.get("prevCheckpoint") != checkpoint:
        _refuse(where, link, "prevCheckpoint is not the checkpoint of the event before")
    same_checkpoint = (event.get("newCheckpoint") or {}).get("physicalHash") == checkpoint
    moved = any(i.get("newBlockHash") is not None for i in event.get("queryInputs") or ())
    same_source = event.get("newSourceState") == before.get("newSourceState")
    if event.get("newData") is None:
        if same_checkpoint and new == old and same_source and not moved:
            _refuse(where, link, "it changes nothing")
        return
    start, stop = event["newData"]["offsetInterval"]["start"], event["newData"]["offsetInterval"]["end"]
    expected = 0 if end is None else end + 1
    if start != expected or stop < start:
        _refuse(where, link, f"the slice of offsets {start} to {stop} has to begin at {expected}")


def _slice(where: str, link: Link, schema_number: int) -> Slice:
    new = link.block.event["newData"]
    try:
        file_hash = hashes.to_text(hashes.check(new["physicalHash"], "physical hash", code=hashes.SHA3_256))
    except FormatError as e:
        _refuse(where, link, e.message)
    logical_hash, offsets = hashes.to_text(new["logicalHash"]), new["offsetInterval"]
    return Slice(link, file_hash, logical_hash, offsets["start"], offsets["end"], new["size"], schema_number)


def check_data(data: bytes | memoryview, slice_: Slice, where: str = "the dataset") -> None:
    """Raise ``odf-hash-mismatch`` if a data file is not what its block says: its size, and its physical hash."""
    found = hashes.to_text(hashes.hash_of(bytes(data)))
    if found != slice_.physical_hash or len(data) != slice_.size:
        raise FormatError(
            f"{where}: a data file does not match its physical hash: {slice_.key} of {slice_.link} "
            f"holds {len(data)} bytes of the hash {found}",
            code="odf-hash-mismatch",
            hint="The file was changed or damaged; copy it again from where the dataset comes from.",
        )


def _refuse(where: str, link: Link, problem: str) -> NoReturn:
    hint = "No tool of Open Data Fabric accepts such a block; the chain was made by something else."
    raise FormatError(f"{where}: {link}: {problem}", code="odf-invalid-chain", hint=hint)


@dataclass(frozen=True)
class HashCheck:
    """What was checked, and how that went: ok, mismatch, missing or not checkable."""

    number: int
    kind: str
    name: str
    check: str
    result: str
    note: str | None = None


def verify(chain: Chain, read: Callable[[str], bytes], where: str) -> Iterator[HashCheck]:
    """Yield the checks of a chain, whose blocks and order were checked when it was read, and of its data."""
    slices = {s.link.hash: s for s in chain.slices}
    for link in chain.links:
        number = link.block.sequence_number
        yield HashCheck(number, link.block.kind, f"blocks/{link.hash}", "block hash", "ok")
        found = slices.get(link.hash)
        if found is not None:
            yield from _data(number, found, read, where)


def _data(number: int, slice_: Slice, read: Callable[[str], bytes], where: str) -> Iterator[HashCheck]:
    def hash_check(check: str, result: str, note: str | None = None) -> HashCheck:
        return HashCheck(number, "data", slice_.key, check, result, note)

    try:
        data = read(slice_.key)
    except KeyError:
        yield hash_check("physical hash", "missing", "the file is not there")
        yield hash_check("logical hash", "not checkable", "the file is not there")
        return
    try:
        check_data(data, slice_, where)
        yield hash_check("physical hash", "ok")
    except FormatError as e:
        yield hash_check("physical hash", "mismatch", e.message)
    yield hash_check("logical hash", *_logical(data, slice_))


def _logical(data: bytes, slice_: Slice) -> tuple[str, str | None]:
    import pyarrow.parquet as pq

    try:
        expected = hashes.from_text(slice_.logical_hash, "logical hash")
        if hashes.logical_hash(expected[-32:]) != expected:
            return "not checkable", f"{slice_.logical_hash} is of a kind that is not known"
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            found = logical_hash_of(file.schema_arrow, file.iter_batches())
            rows = file.metadata.num_rows
    except NotCheckable as e:
        return "not checkable", str(e)
    except (pa.ArrowException, OSError, ValueError) as e:
        reraise(e)
        return "mismatch", f"the file cannot be read: {str(e).splitlines()[0]}"
    if rows != slice_.rows:
        return "mismatch", f"the file holds {rows} records, its block says {slice_.rows}"
    if found != expected:
        return "mismatch", f"the records have the hash {hashes.to_text(found)}, not {slice_.logical_hash}"
    return "ok", None


_MOMENT = pa.timestamp("ms", "UTC")


@dataclass(frozen=True)
class Columns:
    """The columns of all records, and those that say what each record is."""

    types: dict[str, pa.DataType]
    offset: str
    op: str
    system_time: str
    event_time: str

    @property
    def system(self) -> tuple[str, str, str]:
        """The columns that a correction does not repeat."""
        return self.offset, self.op, self.system_time

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns that a retraction repeats from the record that it retracts."""
        return tuple(c for c in self.types if c not in self.system)


def columns_of(chain: Chain, files: Sequence[pa.Schema], names: Sequence[str], source: str) -> Columns:
    """Return the columns of a dataset whose data ``files``, called ``names``, have these schemas.

    Columns are those of the newest schema, then what only older ones have. Types widen exactly,
    else ``schema-conflict`` names column, types and file. Offsets may be integers of any type and are BIGINT,
    operations INTEGER.
    """
    vocab = chain.vocab
    fixed = {vocab.offset_column: pa.int64(), vocab.operation_type_column: pa.int32()}
    if chain.primary_key:
        # Nothing else tells which record about a key is the last one.
        for schema, name in zip(files, names, strict=True):
            if schema.get_field_index(vocab.offset_column) < 0:
                raise FormatError(
                    f"{source}: {name} has no column {vocab.offset_column!r}",
                    code="schema-conflict",
                    hint="Records about one key count in the order of their offsets.",
                )
    reduced = {id(s): _without_fixed(s, fixed, source, n) for s, n in zip(files, names, strict=True)}
    declared = [pa.schema([pa.field(f.name, plain(f.type)) for f in v.arrow]) for v in chain.schemas]
    shown = [f"schema {v.number} ({v.link})" for v in chain.schemas]
    known = [_without_fixed(s, fixed, source, n) for s, n in zip(declared, shown, strict=True)]
    found = united([*(reduced[id(s)] for s in files), *known], [*names, *shown], source)
    default = [vocab.system_time_column, vocab.event_time_column]
    order = [*fixed, *default, *(declared[-1].names if declared else ()), *found]
    types = {**dict.fromkeys(default, _MOMENT), **found, **fixed}
    return Columns({name: types[name] for name in dict.fromkeys(order)}, *fixed, *default)


def _without_fixed(schema: pa.Schema, fixed: dict[str, pa.DataType], source: str, name: str) -> pa.Schema:
    """Return a schema without the columns whose type is known; raises ``schema-conflict`` for other types."""
    for column in fixed:
        at = schema.get_field_index(column)
        if at >= 0 and not pa.types.is_integer(type_ := schema.field(at).type):
            raise FormatError(
                f"{source}: the column {column!r} is {type_name(type_)} in {name}, but has to be an integer",
                code="schema-conflict",
                hint="It numbers the records or tells what each of them does.",
            )
    return pa.schema([f for f in schema if f.name not in fixed])
