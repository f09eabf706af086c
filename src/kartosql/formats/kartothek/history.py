"""The schema history of a dataset: blocks of Open Data Fabric inside of its metadata document.

For each table a chain: a Seed, then a SetDataSchema with the raw Arrow schema for each schema that
the table had. It is in the map ``metadata``, which other programs keep and copy, and which
goes away with the dataset. A seal says which partitions the newest schema covers; as long as it
fits, nobody else wrote since, and ``_common_metadata`` need not be read.
"""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.formats.kartothek.metadata import HISTORY, DatasetDocument, checked_schema, partitions_digest
from kartosql.formats.kartothek.stored_partitions import digest_of
from kartosql.formats.odf import data_schema, hashes
from kartosql.formats.odf.blocks import VERSION, Block, read_block, write_block
from kartosql.memo import memoized

if TYPE_CHECKING:
    from kartosql.formats.kartothek.dataset import DatasetTable
    from kartosql.formats.odf.chain import Chain

DAMAGED = "kartosql_schema_history_damaged"  # where a broken history goes when a new one begins
FORMAT = 1
CHUNK_BYTES = 1 << 20  # of blocks that are packed together, and again with each new one
MAX_CHUNK_BYTES = 16 << 20
MAX_BYTES = 256 << 20  # of all blocks of a table
_SEAL_OF_ALL = 64  # characters of the digest in a seal that is of labels and files
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 2, "pb": 2, "dict_size": 1 << 22}]


@dataclass(frozen=True, eq=False)
class TableHistory:
    """The chain of one table as it is stored: packed blocks, in order, and the hash of the last one."""

    where: str
    head: str
    chunks: tuple[str, ...]

    @memoized
    def newest(self) -> pa.Schema:
        """The schema of the last block, of which the hash is checked; raises FormatError."""
        return _newest(self.head, self.chunks[-1], self.where)

    @memoized
    def chain(self) -> Chain:
        """The whole chain, checked; raises FormatError."""
        from kartosql.formats.odf.chain import read_chain  # not at the top: most statements need the newest only

        blocks = self.blocks
        files = {f"blocks/{text}": data for text, data in blocks.items()}
        chain = read_chain(files.__getitem__, self.where, head=self.head)
        if len(chain.links) != len(blocks):
            raise _broken(self.where, "it holds blocks that do not belong to the chain")
        return chain

    @property
    def blocks(self) -> dict[str, bytes]:
        """The blocks by the text of their hash, as they are stored; raises FormatError."""
        found: dict[str, bytes] = {}
        size = 0
        for chunk in self.chunks:
            for data in _unpack(chunk, self.where):
                found[hashes.to_text(hashes.hash_of(data))] = data
                size += len(data)
            if size > MAX_BYTES:
                raise _broken(self.where, f"it has more than {MAX_BYTES} bytes")
        return found


@lru_cache(maxsize=16)  # each commit makes a document with the same history, most often
def _newest(head: str, chunk: str, where: str) -> pa.Schema:
    blocks = _unpack(chunk, where)
    if hashes.to_text(hashes.hash_of(blocks[-1])) != head:
        raise _broken(where, "the last block does not match the hash of the head")
    block = read_block(blocks[-1], f"{where}, block {head}")
    if block.event.get("rawArrowSchema") is None:
        raise _broken(where, "the last block holds no raw schema")
    return checked_schema(data_schema.from_bytes(block.event["rawArrowSchema"], where), where)


@dataclass(frozen=True, eq=False)
class SchemaHistory:
    """The histories of the tables of a dataset, and the seal on them (None after another program wrote)."""

    tables: Mapping[str, TableHistory]
    seal: str | None


def history_of(dataset: DatasetDocument | DatasetTable) -> SchemaHistory | None:
    """Return the schema history in the metadata of a dataset, or None.

    Raises ``broken-schema-history`` for what cannot be one; chains are checked when they are used.
    """
    text = dataset.metadata.get(HISTORY)
    return None if text is None else _parse(text, dataset.uuid)


def _parse(text: Any, uuid: str) -> SchemaHistory:
    where = f"Dataset {uuid!r}: its schema history"
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise _broken(where, f"it is of format {str(found['format'])[:20]}, and {FORMAT} is known")
        seal, tables = found.get("seal"), found["tables"]
        made = {}
        for name, one in tables.items():
            head, chunks = one["head"], one["chunks"]
            if not isinstance(chunks, list) or not chunks or not all(isinstance(v, str) for v in (head, *chunks)):
                raise TypeError
            made[name] = TableHistory(f"{where} of table {name!r}"[:200], head, tuple(chunks))
        if (seal is not None and not isinstance(seal, str)) or not made:
            raise TypeError
        return SchemaHistory(made, seal)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _broken(where, "it is damaged") from None


def sealed_schemas(document: DatasetDocument) -> Mapping[str, pa.Schema] | None:
    """Return the schema of each table if the history covers all partitions, else None.

    Raises FormatError if the history is broken.
    """
    history = history_of(document)
    if history is None or not is_sealed(history, document):
        return None
    # A dataset without partitions has all the tables that it ever had.
    return {name: history.tables[name].newest for name in document.tables or history.tables}


def is_sealed(history: SchemaHistory, document: DatasetDocument) -> bool:
    """Return whether nobody else wrote partitions since the last schema was recorded."""
    if history.seal is None or document.labels is None or not set(document.tables) <= history.tables.keys():
        return False
    return history.seal == _seal_of(document, history.seal)


def _seal_of(document: DatasetDocument, like: str = "") -> str:
    """Return the seal of the partitions of a document: their number, and a digest of them, or of their labels alone.

    It has the form of another one; else it is what takes less time.
    """
    labels = document.labels or ()
    is_of_all = len(like.partition("-")[2]) == _SEAL_OF_ALL if like else document.stored is not None
    return f"{len(labels)}-{partitions_digest(document) if is_of_all else digest_of(labels)}"


# -- writing -----------------------------------------------------------------------------------------


def recorded(before: Any, known: Mapping[str, pa.Schema], document: DatasetDocument, moment: int) -> str:
    """Return the text of a history after ``document`` is written with the schemas ``known``.

    ``before`` is the former text, or None. Schemas that are new are added, with the
    time ``moment`` in nanoseconds since 1970. Raises FormatError if the history is broken.
    """
    old = _parse(before, document.uuid).tables if before is not None else {}
    tables = dict(old)
    for name, schema in known.items():
        tables[name] = _extended(old.get(name), plain(schema), moment)
    made = {name: {"head": t.head, "chunks": list(t.chunks)} for name, t in tables.items()}
    return json.dumps({"format": FORMAT, "seal": _seal_of(document), "tables": made}, separators=(",", ":"))


def plain(schema: pa.Schema) -> pa.Schema:
    """Return what of a schema is recorded: names and types, without what libraries note for themselves."""
    return pa.schema([pa.field(f.name, f.type) for f in schema])


def _extended(old: TableHistory | None, schema: pa.Schema, moment: int) -> TableHistory:
    if old is not None and old.newest.equals(schema):
        return old
    event = {"kind": "SetDataSchema", "rawArrowSchema": data_schema.to_bytes(schema)}
    chunks: tuple[str, ...] = ()
    if old is None:
        seed = {"kind": "Seed", "datasetId": hashes.new_dataset_id(), "datasetKind": "Root"}
        blocks = [write_block(Block(VERSION, moment, None, 0, seed))]
        number = 1
    else:
        last = old.chain.links[-1].block
        blocks, chunks = _unpack(old.chunks[-1], old.where), old.chunks[:-1]
        if sum(map(len, blocks)) >= CHUNK_BYTES:
            blocks, chunks = [], old.chunks
        number, moment = last.sequence_number + 1, max(moment, last.system_time)
    prev = hashes.from_text(old.head) if old is not None else hashes.hash_of(blocks[0])
    blocks.append(write_block(Block(VERSION, moment, prev, number, event)))
    head = hashes.to_text(hashes.hash_of(blocks[-1]))
    return TableHistory(old.where if old is not None else "", head, (*chunks, _pack(blocks)))


# -- packing -----------------------------------------------------------------------------------------


def _pack(blocks: list[bytes]) -> str:
    """Return blocks as text: each behind its length, compressed, in base85."""
    stored = b"".join(len(b).to_bytes(4, "little") + b + bytes(-len(b) % 4) for b in blocks)
    return base64.b85encode(lzma.compress(stored, format=lzma.FORMAT_RAW, filters=_FILTERS)).decode()


def _unpack(text: str, where: str) -> list[bytes]:
    try:
        packed = base64.b85decode(text)
        decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=_FILTERS)
        stored = decompressor.decompress(packed, max_length=MAX_CHUNK_BYTES)
    except (ValueError, lzma.LZMAError, EOFError):
        raise _broken(where, "its blocks cannot be unpacked") from None
    blocks, at = [], 0
    while at < len(stored):
        length = int.from_bytes(stored[at : at + 4], "little")
        at += 4
        if not length or at + length > len(stored):
            raise _broken(where, "its blocks are cut off")
        blocks.append(stored[at : at + length])
        at += length + -length % 4
    if not blocks or not decompressor.eof:
        raise _broken(where, "its blocks are cut off")
    return blocks


def _broken(where: str, problem: str) -> FormatError:
    hint = "RECORD SCHEMA FOR the table begins a new one and keeps what is left of the old one."
    return FormatError(f"{where} is broken: {problem}", code="broken-schema-history", hint=hint)
