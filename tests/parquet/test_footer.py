"""Schemas in footers, compared as bytes."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.parquet import column_sizes, footer_of, schema_bytes

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


@pytest.fixture
def encrypted() -> bytes:
    """A file whose footer can be read, but not its column ``b``."""
    pe = pytest.importorskip("pyarrow.parquet.encryption")
    from kartosql.formats.xskipper import segment

    made, connection = segment.encryption_factory({"f": b"1" * 16, "c": b"2" * 16})
    wanted = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["b"]}, plaintext_footer=True)
    secret = made.file_encryption_properties(connection, wanted)
    return _file(pa.table({"a": [1, 2], "b": [3, 4]}), encryption_properties=secret)


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


def _footer(table: pa.Table, **options: Any) -> bytes:
    found = footer_of(_file(table, **options))
    assert found is not None
    return found


def test_sizes_of_columns_are_those_that_arrow_tells():
    data = _file(pa.concat_tables([TABLE] * 50), row_group_size=40, compression="zstd")
    metadata = pq.read_metadata(io.BytesIO(data))
    told = [
        [(c.path_in_schema, c.total_compressed_size) for c in map(group.column, range(group.num_columns))]
        for group in map(metadata.row_group, range(metadata.num_row_groups))
    ]
    footer = footer_of(data)
    assert footer is not None
    assert column_sizes(footer) == told
    assert column_sizes(footer, metadata.schema) == told
    assert column_sizes(b"nonsense") is None


def test_sizes_of_encrypted_columns_are_not_told(encrypted: bytes):
    footer = footer_of(encrypted)
    assert footer is not None
    assert pq.read_metadata(io.BytesIO(encrypted)).num_rows == 2
    assert column_sizes(footer) is None


ASK = """
import sys, pyarrow as pa, pyarrow.parquet as pq
data, at = sys.stdin.buffer.read(), 0
while at < len(data):
    length = int.from_bytes(data[at : at + 4], "little")
    footer, at = data[at + 4 : at + 4 + length], at + 4 + length
    try:
        found = pq.read_metadata(pa.BufferReader(b"PAR1" + footer + length.to_bytes(4, "little") + b"PAR1"))
        groups = map(found.row_group, range(found.num_row_groups))
    except (pa.ArrowException, OSError, ValueError):
        continue
    for group in groups:
        for i in range(group.num_columns):
            column = group.column(i)
            (column.path_in_schema, column.total_compressed_size)
            if column.statistics is not None and column.statistics.has_min_max:
                try:
                    (column.statistics.min, column.statistics.max)
                except (ValueError, OverflowError, pa.ArrowException):
                    pass
"""


def test_arrow_survives_questions_about_columns_whose_sizes_are_told():
    rng = random.Random(1)
    footer = _footer(TABLE)
    told = bytearray()
    untold = 0
    for _ in range(4000):
        data = bytearray(footer)
        for _ in range(rng.choice([1, 2, 5, 20])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        whole = b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1"
        try:
            schema = pq.read_metadata(pa.BufferReader(whole)).schema
        except (pa.ArrowException, OSError, ValueError):
            continue
        if column_sizes(bytes(data), schema) is None:
            untold += 1
        else:
            told += len(data).to_bytes(4, "little") + data
    assert told
    assert untold
    run = subprocess.run([sys.executable, "-c", ASK], input=bytes(told), capture_output=True, check=False)
    assert run.returncode == 0, run.stderr[-500:]
