"""Schemas in footers, compared as bytes."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.formats.footer import footer_of, schema_bytes

TABLE = pa.table(
    {
        "i": [1, 2],
        "s": ["a", "b"],
        "l": [[1], [2, 3]],
        "d": pa.array([1, 2], pa.timestamp("ns", "UTC")),
        "n": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
        "c": pa.array([1, 2]).cast(pa.decimal128(30, 2)),
    }
)


def _file(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def _schema(data: bytes) -> bytes:
    footer = footer_of(data)
    assert footer is not None
    found = schema_bytes(footer)
    assert found is not None
    return found


def test_files_of_one_schema_begin_alike_whatever_their_rows():
    prefix = _schema(_file(TABLE))
    for rows in (TABLE.slice(0, 0), TABLE.slice(1), pa.concat_tables([TABLE] * 500)):
        footer = footer_of(_file(rows, row_group_size=100))
        assert footer is not None
        assert footer.startswith(prefix)


@pytest.mark.parametrize(
    "other",
    [
        TABLE.rename_columns(["j", "s", "l", "d", "n", "c"]),
        TABLE.drop_columns(["c"]),
        TABLE.append_column("z", pa.array([1, 2])),
        TABLE.set_column(0, "i", pa.array([1, 2], pa.int32())),
        TABLE.set_column(0, "i", pa.array([1, 2], pa.uint64())),
        TABLE.set_column(3, "d", pa.array([1, 2], pa.timestamp("us", "UTC"))),
        TABLE.set_column(3, "d", pa.array([1, 2], pa.timestamp("ns"))),
        TABLE.set_column(5, "c", pa.array([1, 2]).cast(pa.decimal128(30, 3))),
        TABLE.select(["s", "i", "l", "d", "n", "c"]),
    ],
)
def test_files_of_another_schema_begin_in_another_way(other):
    footer = footer_of(_file(other))
    assert footer is not None
    assert not footer.startswith(_schema(_file(TABLE)))
    assert _schema(_file(other)) != _schema(_file(TABLE))


def test_schemas_of_many_columns_and_long_names_are_read_to_their_end():
    table = pa.table({f"column {i} " + "x" * 200: [i] for i in range(300)})
    assert _schema(_file(table)).count(b"column ") == 300


def test_no_footer_is_found_in_what_does_not_hold_it():
    data = _file(TABLE)
    assert footer_of(b"") is None
    assert footer_of(data[:-1]) is None
    assert footer_of(data[-20:]) is None
    assert footer_of(data[:-4] + b"PARE") is None


def test_a_damaged_footer_has_no_schema():
    footer = footer_of(_file(TABLE))
    assert footer is not None
    end = len(_schema(_file(TABLE)))
    assert all(schema_bytes(footer[:cut]) is None for cut in range(end))
    for at in range(end):
        for bit in range(8):
            changed = bytearray(footer)
            changed[at] ^= 1 << bit
            found = schema_bytes(bytes(changed))
            assert found is None or bytes(changed).startswith(found)
    assert schema_bytes(b"\x1c" * 100_000) is None
