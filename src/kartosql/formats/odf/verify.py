"""Everything of a dataset that a hash tells: blocks, files as bytes, and files as records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.failures import reraise
from kartosql.formats.odf import hashes
from kartosql.formats.odf.chain import Chain, Slice, check_data
from kartosql.formats.odf.logical import NotCheckable, logical_hash_of


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
        yield HashCheck(number, link.block.event["kind"], f"blocks/{link.hash}", "block hash", "ok")
        found = slices.get(link.hash)
        if found is not None:
            yield from _data(number, found, read, where)


def _data(number: int, slice_: Slice, read: Callable[[str], bytes], where: str) -> Iterator[HashCheck]:
    def made(check: str, result: str, note: str | None = None) -> HashCheck:
        return HashCheck(number, "data", slice_.key, check, result, note)

    try:
        data = read(slice_.key)
    except KeyError:
        yield made("physical hash", "missing", "the file is not there")
        yield made("logical hash", "not checkable", "the file is not there")
        return
    try:
        check_data(data, slice_, where)
        yield made("physical hash", "ok")
    except FormatError as e:
        yield made("physical hash", "mismatch", e.message)
    yield made("logical hash", *_logical(data, slice_))


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
