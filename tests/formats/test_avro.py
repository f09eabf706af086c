"""Files of Avro that are damaged: errors, and never a byte beside them."""

from __future__ import annotations

import base64
import contextlib
import io
import struct
import tracemalloc
import uuid
from decimal import Decimal
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as t
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record

import kartosql
from kartosql.errors import FormatError
from kartosql.formats.iceberg import avro, metadata
from kartosql.formats.iceberg.avro import BOUNDS, COUNTS, _Decoder, _Walk
from kartosql.formats.iceberg.metadata import entries_of, manifests_of
from kartosql.formats.roaring import numbers_of


class Named:
    manifest_list = manifest_path = "m.avro"
    partition_spec_id = content = 0
    sequence_number = 1


# What let pyiceberg's fast decoder read outside of the file; found by fuzzing.
WILD = base64.b64decode("b5aW15aWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWZ5aWlpaWAAAAAAAAAACWlpaWlpaWlpaWlpYBAHkgbw==")


@pytest.mark.parametrize("read", [manifests_of, entries_of])
@pytest.mark.parametrize("data", [WILD, b"", b"Obj\x01", b"Obj\x01\x02" + b"\xff" * 9, b"Obj\x01\x02" + b"\xff" * 40])
def test_lengths_that_lead_out_of_a_file_are_errors(read, data):
    with pytest.raises(FormatError) as caught:
        read(Named(), lambda path: data)
    assert caught.value.code == "iceberg-invalid-metadata"


@pytest.fixture
def listed(tmp_path):
    with kartosql.connect(str(tmp_path), cache="off") as con:
        con.create_dataset("t", pa.table({"a": [1, 2, 3]}))
        con.publish("t", str(tmp_path / "t"), "iceberg")
    (path,) = (tmp_path / "t" / "metadata").glob("snap-*.avro")
    return path.read_bytes()


def test_a_file_that_ends_anywhere_but_behind_a_block_is_torn(listed):
    assert len(list(metadata._MANIFESTS(listed))) == 1
    for size in (len(listed) - 1, len(listed) - 16, len(listed) - 17, len(listed) - 40):
        with pytest.raises((EOFError, ValueError)):
            list(metadata._MANIFESTS(listed[:size]))


def test_numbers_of_a_bitmap_that_no_64_bits_hold():
    container = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 5)
    with pytest.raises(ValueError, match="too large"):
        numbers_of(struct.pack("<QI", 1, 0xFFFF_FFF7) + container)


# -- manifests with all transforms, against pyiceberg's own readers ---------------------------------

# Its fast decoder has doubles with the precision of floats, so this one needs no more.
VALUES: list[tuple[Any, Any]] = [
    *((t.BooleanType(), True), (t.IntegerType(), -5), (t.LongType(), 1 << 62), (t.FloatType(), 1.5)),
    *((t.DoubleType(), -0.5), (t.DateType(), 19_000), (t.TimeType(), 86_399_999_999)),
    *((t.TimestampType(), 1_600_000_000_000_000), (t.TimestamptzType(), -1), (t.StringType(), "ä" * 40)),
    *((t.UUIDType(), uuid.UUID(int=7)), (t.FixedType(5), b"12345"), (t.BinaryType(), b"b" * 70)),
    *((t.DecimalType(9, 2), Decimal("-1.25")), (t.DecimalType(38, 3), Decimal("123456789.125"))),
]
TABLE = Schema(*(t.NestedField(n, f"c{n}", type_) for n, (type_, _) in enumerate(VALUES, 1)))
TRANSFORMED = [
    *((8, YearTransform(), 50), (8, MonthTransform(), 600), (8, DayTransform(), 18_518)),
    *(
        (9, HourTransform(), -1),
        (10, BucketTransform(16), 3),
        (10, TruncateTransform(3), "äää"),
        (2, VoidTransform(), None),
    ),
]
PARTS = [*((n, IdentityTransform(), value) for n, (_, value) in enumerate(VALUES, 1)), *TRANSFORMED]
SPEC = PartitionSpec(
    *(PartitionField(source, 1000 + n, transform, f"p{n}") for n, (source, transform, _) in enumerate(PARTS))
)


def written(folder, version=2, codec="null", size=40, seed=0):
    """Return the bytes of a manifest with entries of all kinds."""
    choose, path = Random(seed), str(folder / f"{uuid.uuid4()}.avro")
    with write_manifest(version, SPEC, TABLE, PyArrowFileIO().new_output(path), 1 << 61, codec) as writer:
        for n in range(size):

            def maybe(value, often=0.7):
                return value if choose.random() < often else None

            told = choose.sample(range(1, len(VALUES) + 1), choose.randrange(len(VALUES) + 1))
            counts = [maybe({i: choose.randrange(1 << choose.randrange(1, 63)) for i in told}) for _ in range(4)]
            bounds = [maybe({i: to_bytes(VALUES[i - 1][0], VALUES[i - 1][1]) for i in told}) for _ in range(2)]
            parts = Record(*(maybe(value) for _, _, value in PARTS))
            content = DataFileContent(choose.randrange(3) if version > 1 else 0)
            ends = [maybe(b"k"), maybe([4, 1 << 40]), maybe([1, 2]), maybe(n)]
            head = [content, f"s3://b/{'x' * choose.randrange(200)}/{n}", FileFormat.PARQUET, parts, n, n << 20]
            file = DataFile(*head, *counts, *bounds, *ends)
            file.spec_id = 0
            status = ManifestEntryStatus(choose.randrange(3))
            writer.add_entry(ManifestEntry(status, 1 << 61, n, n, file))
    return (folder / path).read_bytes()


def pyicebergs(data):
    """Return what pyiceberg reads with its own decoder."""
    file: Any = SimpleNamespace(open=lambda: io.BytesIO(data))
    schema, types, enums = metadata._ENTRIES._wanted
    with AvroFile[ManifestEntry](file, schema, types, enums) as found:
        return [*map(plain, found)]


def plain(value):
    """Return a record as lists and dictionaries."""
    if isinstance(value, Record):
        return [type(value).__name__, *map(plain, value._data)]
    return dict(value) if hasattr(value, "keys") else value


# Fields of entries and of the files in them, by their places there.
ENTRY, FILE = {0: 0, 1: 1, 3: 2}, {134: 0, 100: 1, 101: 2, 102: 3, 103: 4, 104: 5, 110: 8, 125: 10, 128: 11, 135: 14}
MAPS = {110: COUNTS, 125: BOUNDS, 128: BOUNDS}


def by_field(record):
    """Return those fields of a record, as lists, that are read as columns."""
    return [*(record[1 + at] for at in ENTRY.values()), *(plain(record[5])[1 + at] for at in FILE.values())]


def by_columns(data):
    """Return the same, read column by column, and the maps key by key."""
    found = metadata._ENTRIES.columns(data)[1]
    columns = []
    for id_ in (*ENTRY, *FILE):
        reader, pieces = found[id_]
        if id_ in MAPS:
            assert avro.alike(reader, pieces, MAPS[id_]) is pieces
            whole = [MAPS[id_].read(_Decoder(piece)) for piece in pieces]
            for key in {key for one in whole for key in one or ()} | {99}:
                assert avro.of_key(MAPS[id_], pieces, key) == [(one or {}).get(key) for one in whole]
            columns.append([one and dict(one) for one in whole])
        else:
            columns.append([*map(plain, avro.values(reader, pieces))])
    return [list(row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard"])
@pytest.mark.parametrize("version", [1, 2])
def test_manifests_are_read_as_pyiceberg_reads_them(tmp_path, version, codec):
    data = written(tmp_path, version, codec, 200, seed=version)
    theirs = pyicebergs(data)
    assert [*map(plain, metadata._ENTRIES(data))] == theirs
    assert by_columns(data) == [*map(by_field, theirs)]
    assert len(theirs) == 200


def test_maps_of_many_items_and_of_long_values(tmp_path):
    choose = Random(4)
    path, sizes = str(tmp_path / "m.avro"), [*range(1, 70), 1023, 1024, 3000]
    with write_manifest(2, PartitionSpec(), TABLE, PyArrowFileIO().new_output(path), 1, "null") as writer:
        for size in sizes:
            counts = {i: choose.randrange(1 << 63) for i in range(size)}
            bounds = {i: choose.randbytes(choose.choice((i % 36, 32, 33, 64, 9000))) for i in range(size)}
            file = DataFile(0, "f", FileFormat.PARQUET, Record(), 1, 1, counts, None, None, None, bounds, *[None] * 5)
            writer.add_entry(ManifestEntry(ManifestEntryStatus.ADDED, 1, 1, 1, file))
    data = (tmp_path / "m.avro").read_bytes()
    theirs = pyicebergs(data)
    assert [*map(plain, metadata._ENTRIES(data))] == theirs
    assert by_columns(data) == [*map(by_field, theirs)]


def damaged(choose, data):
    """Return bytes with some of them others, cut, or put elsewhere."""
    found = bytearray(data)
    for _ in range(choose.choice((1, 1, 2, 5))):
        at = choose.randrange(len(found))
        what = choose.randrange(5)
        if what == 0:
            found[at] ^= 1 << choose.randrange(8)
        elif what == 1:
            found[at] = choose.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        elif what == 2:
            found[at : at + choose.randrange(12)] = choose.randbytes(choose.randrange(12))
        elif what == 3:
            found[at:at] = b"\xff" * choose.randrange(1, 9) + b"\x7f"
        else:
            del found[max(1, at) :]
    return bytes(found)


def test_damaged_blocks_are_read_as_a_careful_decoder_reads_them_or_not_at_all(tmp_path):
    """What patterns take, readers of pyiceberg's take over a decoder that looks at each length."""
    data, choose = written(tmp_path, size=6), Random(18)
    reader = resolve_reader(_header(data).get_schema(), *metadata._ENTRIES._wanted)
    walk, taken = _Walk(reader, metadata._ENTRIES._wanted[0].as_struct()), 0
    block = _records(data)
    assert len(walk(block, 6)[0]) == 6
    walk._left = 10**6
    for _ in range(1000):
        changed = choose.randbytes(choose.randrange(200)) if choose.random() < 0.05 else damaged(choose, block)
        try:
            rows, stops = walk(changed, 6)
        except Exception:  # noqa: BLE001 - decoders raise anything
            continue
        careful, ends = _Decoder(changed), [0]
        try:
            for _ in rows:
                reader.read(careful)
                ends.append(careful.tell())
        except ValueError:
            continue  # of a number that is none of those there are, or of what is no text
        taken += 1
        assert ends == stops
    assert taken > 100


def test_damaged_manifests_are_errors_of_ours_and_take_little_memory(tmp_path):
    data, choose = written(tmp_path, size=6), Random(19)
    tracemalloc.start()
    try:
        begin = tracemalloc.get_traced_memory()[0]
        for _ in range(400):
            changed = damaged(choose, data)
            with contextlib.suppress(FormatError):
                for entry in entries_of(Named(), lambda path, found=changed: found):
                    plain(entry)
        assert tracemalloc.get_traced_memory()[1] - begin < 100 << 20
    finally:
        tracemalloc.stop()


def _header(data):
    file: Any = SimpleNamespace(open=lambda: io.BytesIO(data))
    with AvroFile[ManifestEntry](file, MANIFEST_ENTRY_SCHEMAS[3]) as found:
        return found.header


def _records(data):
    """Return the bytes of the records of all blocks."""
    decoder, found = _Decoder(data), []
    decoder.skip(data.index(_header(data).sync) + 16)
    while decoder.tell() < len(data):
        decoder.read_int()
        found.append(decoder.read_bytes())
        decoder.skip(16)
    return b"".join(found)
