from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.write.files import file_columns, parquet_bytes


def parquet(table, *args):
    return pq.ParquetFile(pa.BufferReader(parquet_bytes(table, *args)), page_checksum_verification=True)


def test_files_are_zstd_of_format_2_6_with_checksums_and_microseconds():
    table = pa.table({"x": [1, 2], "t": [dt.datetime(2026, 1, 1)] * 2, "l": [["a"], None]})
    file = parquet(table)
    column = file.metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert file.metadata.format_version == "2.6"
    assert '"timeUnit":"microseconds"' in file.schema.column(1).logical_type.to_json()
    assert file.schema.column(2).path == "l.list.item"
    assert file.read().equals(table)


def test_a_flipped_bit_is_found_by_the_page_checksum():
    data = bytearray(parquet_bytes(pa.table({"x": range(1000)})))
    data[4 + pq.read_metadata(pa.BufferReader(bytes(data))).row_group(0).column(0).total_compressed_size - 1] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(pa.BufferReader(bytes(data)), page_checksum_verification=True)


def test_row_groups_have_the_size_asked_for():
    file = parquet(pa.table({"x": range(25)}), 10)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [10, 10, 5]


def test_structs_come_last_and_partition_columns_not_at_all():
    schema = pa.schema({"s": pa.struct({"a": pa.int64()}), "b": pa.int64(), "p": pa.int64(), "a": pa.int64()})
    assert file_columns(schema, ("p",)) == ["b", "a", "s"]
