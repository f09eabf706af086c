from __future__ import annotations

import datetime as dt
import hashlib
import random
from collections.abc import Callable
from decimal import Decimal
from struct import pack
from typing import Any

import pyarrow as pa
import pytest

from kartosql.formats.odf.hashes import logical_hash
from kartosql.formats.odf.logical import NotCheckable, RecordDigest, logical_hash_of

COLUMNS: dict[str, tuple[pa.DataType, bytes, list[Any], Callable[[Any], bytes]]] = {
    "i": (pa.int16(), pack("<HBQ", 1, 1, 16), [0, -1, 7], lambda v: pack("<h", v)),
    "u": (pa.uint64(), pack("<HBQ", 1, 0, 64), [0, 2**64 - 1], lambda v: pack("<Q", v)),
    "f": (pa.float32(), pack("<HQ", 2, 32), [0.0, -0.0, 1.5], lambda v: pack("<f", v)),
    "b": (pa.bool_(), pack("<H", 5), [True, False], lambda v: bytes((v + 1,))),
    "t": (pa.string(), pack("<H", 4), ["", "a", "ü" * 9], lambda v: pack("<Q", len(v.encode())) + v.encode()),
    "y": (pa.binary(3), pack("<H", 3), [b"abc", b"\0\0\0"], lambda v: pack("<Q", 3) + v),
    "d": (pa.date32(), pack("<HQH", 7, 32, 0), [dt.date(1970, 1, 3)], lambda v: pack("<i", 2)),
    "m": (
        pa.decimal128(9, -2),
        pack("<HQQQ", 6, 128, 9, 2**64 - 2),
        [Decimal(-100), Decimal(500)],
        lambda v: int(v / 100).to_bytes(16, "little", signed=True),
    ),
    "z": (
        pa.timestamp("ms", "UTC"),
        pack("<HHQ", 9, 1, 3) + b"UTC",
        [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.timezone.utc)],
        lambda v: pack("<q", 1000),
    ),
    "n": (pa.timestamp("us"), pack("<HHB", 9, 2, 0), [dt.datetime(1970, 1, 2)], lambda v: pack("<q", 86_400_000_000)),
    "c": (pa.time64("ns"), pack("<HQH", 8, 64, 3), [dt.time(0, 0, 2)], lambda v: pack("<q", 2_000_000_000)),
    "l": (
        pa.list_(pa.string()),
        pack("<HH", 11, 4),
        [[], ["a"], ["", None, "bc"]],
        lambda v: pack("<Q", len(v)) + b"".join(b"\0" if i is None else pack("<Q", len(i)) + i.encode() for i in v),
    ),
    "k": (
        pa.list_(pa.list_(pa.int8())),
        pack("<HHHBQ", 11, 11, 1, 1, 8),
        [[[1], None, [2, 3]], []],
        lambda v: pack("<Q", len(v)) + b"".join(b"\0" if i is None else pack("<Q", len(i)) + bytes(i) for i in v),
    ),
    "x": (pa.list_(pa.int8(), 2), pack("<HHBQ", 11, 1, 1, 8), [[1, 2], [3, 4]], lambda v: pack("<Q", 2) + bytes(v)),
}


def expected(columns: dict[str, list[Any]]) -> bytes:
    """Return the hash by the description, value by value."""
    head, tails = hashlib.sha3_256(), b""
    for name, values in columns.items():
        _, tag, _, encode = COLUMNS[name]
        head.update(pack("<Q", len(name)) + name.encode() + pack("<Q", 0))
        tails += hashlib.sha3_256(tag + b"".join(b"\0" if v is None else encode(v) for v in values)).digest()
    head.update(tails)
    return logical_hash(head.digest())


@pytest.mark.parametrize("with_nulls", [False, True])
def test_hashes_are_those_of_the_description_whatever_the_batches(with_nulls: bool) -> None:
    pick = random.Random(with_nulls)
    for size in (0, 1, 50):
        columns = {
            name: [None if with_nulls and pick.random() < 0.3 else pick.choice(v[2]) for _ in range(size)]
            for name, v in COLUMNS.items()
        }
        table = pa.table({name: pa.array(values, COLUMNS[name][0]) for name, values in columns.items()})
        want = expected(columns)
        assert logical_hash_of(table.schema, table.to_batches()) == want
        assert logical_hash_of(table.schema, table.to_batches(max_chunksize=7)) == want


def test_layouts_do_not_count_and_order_does() -> None:
    table = pa.table({"a": ["x", None, "y"]})
    other = table.cast(pa.schema([("a", pa.large_string())]))
    view = pa.table({"a": pa.array(["x", None, "y"], pa.string_view())})
    found = {logical_hash_of(t.schema, t.to_batches()) for t in (table, other, view)}
    assert len(found) == 1
    turned = table.take([2, 1, 0])
    assert logical_hash_of(turned.schema, turned.to_batches()) not in found


def test_many_rows_are_hashed_in_parts() -> None:
    values = [None if i % 7 == 0 else i % 100 - 50 for i in range(40_000)]
    table = pa.table({"i": pa.array(values, pa.int16())})
    assert logical_hash_of(table.schema, table.to_batches()) == expected({"i": values})


@pytest.mark.parametrize(
    "type_",
    [
        *(pa.null(), pa.duration("s"), pa.month_day_nano_interval(), pa.dictionary(pa.int8(), pa.string())),
        *(pa.map_(pa.string(), pa.int8()), pa.list_view(pa.int8()), pa.run_end_encoded(pa.int32(), pa.int8())),
        *(pa.list_(pa.struct([("a", pa.int8())])), pa.uuid(), pa.decimal32(4, 1)),
    ],
    ids=str,
)
def test_types_without_a_hash_are_told(type_: pa.DataType) -> None:
    with pytest.raises(NotCheckable, match="no logical hash"):
        RecordDigest(pa.schema([("a", type_)]))


def test_members_that_the_original_hashes_at_random_are_not_checkable() -> None:
    type_ = pa.struct([("a", pa.int32())])
    good = pa.table({"s": pa.array([{"a": 1}, None, {"a": 2}], type_)})
    plain = pa.table({"s": pa.array([{"a": 1}, {"a": None}], type_)})
    bad = pa.table({"s": pa.array([{"a": 1}, None, {"a": None}], type_)})
    assert logical_hash_of(good.schema, good.to_batches()) != logical_hash_of(plain.schema, plain.to_batches())
    for size in (1, 3):
        with pytest.raises(NotCheckable, match="member of a struct"):
            logical_hash_of(bad.schema, bad.to_batches(max_chunksize=size))
