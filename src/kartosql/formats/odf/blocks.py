"""Metadata blocks: a manifest around a block around an event, versions 2 and 3."""

from __future__ import annotations

from typing import Any, NamedTuple

from kartosql.errors import FormatError
from kartosql.formats.odf import hashes
from kartosql.formats.odf.flatbuffers import invalid_block, read_root, write_root

MANIFEST_KIND = 0x400000
VERSION = 3  # what is written: times are aligned
OLDEST = 2
MAX_BLOCK = 64 << 20

Event = dict[str, Any]


class Block(NamedTuple):
    """One entry of a chain: an event, when it was written, and the hash of the block before.

    ``event`` is a dictionary with ``kind`` and the fields of the event in camel case: hashes, ids
    and schemas as bytes, times as nanoseconds since 1970 in UTC, as ``system_time`` is.
    """

    version: int
    system_time: int
    prev_block_hash: bytes | None
    sequence_number: int
    event: Event

    @property
    def kind(self) -> str:
        """The kind of the event, such as ``AddData``."""
        kind: str = self.event["kind"]
        return kind


def read_block(data: bytes, what: str = "the block") -> Block:
    """Return the block that bytes hold.

    ``what`` names it in errors: ``odf-invalid-block``, ``odf-unsupported-version`` and
    ``odf-unknown-event``. Its hash is that of the bytes as they are; writing a block again is no
    way to check it.
    """
    if len(data) > MAX_BLOCK:
        raise invalid_block(f"{what}: it has {len(data)} bytes, and {MAX_BLOCK} are the most that is read")
    manifest = read_root(data, "Manifest", what)
    if manifest["kind"] != MANIFEST_KIND:
        raise invalid_block(f"{what}: it is no metadata block, but of kind {manifest['kind']:#x}")
    version = check_version(manifest["version"], what)
    content = read_root(manifest["content"], "MetadataBlock", what)
    event = check_event(content["event"], what)
    prev = content.get("prevBlockHash")
    if prev is not None:
        try:
            hashes.check(prev, "hash of the block before", code=hashes.SHA3_256)
        except FormatError as e:
            raise invalid_block(f"{what}: {e.message}") from None
    return Block(version, content["systemTime"], prev, content["sequenceNumber"], event)


def write_block(block: Block) -> bytes:
    """Return the bytes of a block, the same wherever it is written."""
    content: dict[str, Any] = {
        "systemTime": block.system_time,
        "prevBlockHash": block.prev_block_hash,
        "sequenceNumber": block.sequence_number,
        "event": check_event(block.event, "the block"),
    }
    inner = write_root("MetadataBlock", content, time_alignment=4 if block.version >= 3 else 1)
    return write_root("Manifest", {"kind": MANIFEST_KIND, "version": block.version, "content": inner})


def check_version(version: int, what: str) -> int:
    """Return the version of a block; raises ``odf-unsupported-version`` if it is not read here."""
    if OLDEST <= version <= VERSION:
        return version
    age = "was written before 2022" if version == 1 else "may be newer than this kartosql"
    raise FormatError(
        f"{what}: metadata block version {version} is not supported",
        code="odf-unsupported-version",
        hint=f"It {age}; versions {OLDEST} and {VERSION} are read.",
    )


def check_event(event: Event, what: str) -> Event:
    """Return the event; raises ``odf-invalid-block`` for a schema in no form, or in both."""
    if event["kind"] == "SetDataSchema" and (event.get("rawArrowSchema") is None) == (event.get("schema") is None):
        raise invalid_block(
            f"{what}: its SetDataSchema has to hold either a raw Arrow schema or an ODF schema, not both or none"
        )
    return event
