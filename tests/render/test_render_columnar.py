"""Rows written by Arrow's kernels are those written value by value."""

from __future__ import annotations

import decimal
import io
import math
import random

import pyarrow as pa
import pytest

from kartosql.render import columnar, formats
from kartosql.render.formats import write_stream

INT64 = 2**63
TEXTS = ["", "a", "ä€😀", ",", "\t", '"', "a\rb", "a\nb", "\x00\x1f\x7f", "\\", "null", " x ", "\u2028", "x" * 300]
FLOATS = [0.0, -0.0, 1.0, 1e-4, 9.9e-5, 1e12, 999_999_999_999.9, 1e15, 1e16, 1e22, 5e-324, 1.7e308, math.nan, math.inf]
FLOATS += [-x for x in FLOATS]
TICKS = [
    0,
    1,
    -1,
    10**6,
    -(10**6),
    123_456_789,
    -123_456_789,
    1_700_000_000_000_000,
    INT64 - 1,
    1 - INT64,
    -62_135_596_800_000_001,
]


_FINE = pa.decimal128(38, 10)
_RECORDS = pa.list_(pa.struct([("t", pa.timestamp("us")), ("a b", pa.string())]))
_MAP = pa.map_(pa.time64("us"), pa.list_(pa.int8()))


def arrays() -> dict[str, pa.Array]:
    """A column of each kind, with NULLs, cut out of a longer one."""
    odd = random.Random(7)
    floats = FLOATS + [odd.uniform(-1, 1) * 10 ** odd.randint(-8, 18) for _ in range(2_000)]
    floats += [float(odd.randint(-(10**13), 10**13)) for _ in range(300)] + [
        round(odd.uniform(0, 1e5), 2) for _ in range(300)
    ]
    found = {
        "bool": pa.array([True, False, None]),
        "text": pa.array([*TEXTS, None]),
        "large": pa.array([*TEXTS, None], pa.large_string()),
        "view": pa.array([*TEXTS, None], pa.string_view()),
        "coded": pa.array([*TEXTS, None, *TEXTS]).dictionary_encode(),
        "null": pa.nulls(3),
        "no text": pa.nulls(3, pa.string()),
        "binary": pa.array([b"", b"\x00\xff", None, b'"']),
        "float16": pa.array([1.5, None, math.nan, 65504.0], pa.float32()).cast(pa.float16()),
        "float32": pa.array([*floats, None], pa.float64()).cast(pa.float32(), safe=False),
        "float64": pa.array([*floats, None], pa.float64()),
        "time": pa.array([0, 1, 86_399_999_999, None], pa.int64()).cast(pa.time64("us")),
        "late time": pa.array([0, 86_400_000_000, None], pa.int64()).cast(pa.time64("us")),
        "time ms": pa.array([1, 86_399_999, 60_000, None], pa.int32()).cast(pa.time32("ms")),
        "time s": pa.array([1, 86_399, None], pa.int32()).cast(pa.time32("s")),
        "time ns": pa.array([1, 1_000, 0, None], pa.int64()).cast(pa.time64("ns")),
        "large binary": pa.array([b"\0", None, b""], pa.large_binary()),
        "lists of lists": pa.array([[[1.5], None, []], [], None, [[math.nan, None, 1e300]]]),
        "large list": pa.array([["a"], None, []], pa.large_list(pa.string())),
        "fixed list": pa.array([[1, 2], None, [None, 4]], pa.list_(pa.int64(), 2)),
        "records": pa.array([[{"t": 5, "a b": 'x"\n\\'}, None], None, [{"t": None, "a b": ""}]], _RECORDS),
        "blobs": pa.array([[b"\xff"], [None, b""], None]),
        "times by time": pa.array([[(1, [2])], None, [], [(3, None), (4, [])]], _MAP),
        "no fields": pa.array([{}, None], pa.struct([])),
        "twins": pa.StructArray.from_arrays([pa.array([1, None]), pa.array(["x", "é"])], ["a", "a"]),
        "decimals": pa.array(list(map(decimal.Decimal, ["0.0000010", "0.0000009", "-0.000001", "1e20", "0"])), _FINE),
        "duration": pa.array([0, -1, 10**12, None], pa.duration("us")),
        "interval": pa.array([pa.MonthDayNano([1, 2, 3]), None, pa.MonthDayNano([0, 0, 0])]),
        "list": pa.array([[1, None], [], None, ["x"] and [3]]),
        "struct": pa.array([{"a": 'q"', "b": None}, None]),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "uuid": pa.array([b"0123456789abcdef", None], pa.binary(16)),
        "days": pa.array([0, -1, 19_000, -719_162, 2_932_895, None], pa.int32()).cast(pa.date32()),
        "odd days": pa.array([2**31 - 1, 1 - 2**31, -800_000, 3_000_000, None, 0], pa.int32()).cast(pa.date32()),
        "date64": pa.array([0, 86_400_000, None], pa.int64()).cast(pa.date64()),
    }
    for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        low = 0 if pa.types.is_unsigned_integer(type_) else -(2 ** (type_.bit_width - 1))
        found[str(type_)] = pa.array([0, 1, low, low + 2**type_.bit_width - 1, None], type_)
    for scale in (0, 2, 6, 7, 12, 38):
        values = [decimal.Decimal(n).scaleb(-scale) for n in (0, 1, -1, 123_456, -99)]
        found[f"decimal {scale}"] = pa.array([*values, None], pa.decimal128(38, scale))
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC", "Europe/Berlin", "+05:30"):
            found[f"{unit} {zone}"] = pa.array([*TICKS, None], pa.int64()).cast(pa.timestamp(unit, zone))
            near = [
                n * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
                for n in (0, -1, 86_399, -86_401, 1_700_000_000)
            ]
            found[f"whole {unit} {zone}"] = pa.array([*near, None], pa.int64()).cast(pa.timestamp(unit, zone))
            found[f"part {unit} {zone}"] = pa.array([n + 1 for n in near], pa.int64()).cast(pa.timestamp(unit, zone))
    return found


def written(table: pa.Table, format_: str, large: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(formats, "LARGE", large)
    out = io.BytesIO()
    assert write_stream(table.to_reader(), format_, out) == table.num_rows
    return out.getvalue()


@pytest.mark.parametrize("format_", ["csv", "tsv", "json", "jsonl"])
def test_large_batches_are_written_as_small_ones(format_, monkeypatch):
    for name, array in arrays().items():
        pieces = [array, array.slice(1), array.slice(len(array)), pa.concat_arrays([array.slice(0, 40)] * 3)]
        pieces.append(pa.concat_arrays([array] * 3).slice(1, len(array)))
        for piece in pieces:
            table = pa.table({"x": piece, 'a "name", too': piece, "x ": piece})
            wanted, found = (written(table, format_, large, monkeypatch) for large in (1 << 62, 0))
            assert found == wanted, name


@pytest.mark.parametrize("format_", ["csv", "tsv", "json", "jsonl"])
def test_batches_follow_each_other_whatever_wrote_them(format_, monkeypatch):
    whole = pa.record_batch({"n": range(40_000), "t": ["x"] * 40_000})
    batches = [whole.slice(0, n) for n in (3, 0, 40_000, 2, 30_000)]
    table = pa.Table.from_batches(batches)
    wanted = written(table, format_, 1 << 62, monkeypatch)
    monkeypatch.setattr(formats, "LARGEST", 60_000)
    assert written(table, format_, 50_000, monkeypatch) == wanted


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_more_text_than_offsets_of_32_bits_can_tell_is_written_by_value(format_, monkeypatch):
    def refuse(*_: object) -> None:
        raise pa.ArrowInvalid("offset overflow")

    table = pa.table({"x": [1, 2, None]})
    wanted = written(table, format_, 1 << 62, monkeypatch)
    monkeypatch.setattr(columnar, "_joined", refuse)
    assert written(table, format_, 0, monkeypatch) == wanted
