"""What footers say of rows, as several writers say it of values of each type."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.write.footer_statistics import misstatements

VALUES = {
    "int8": pa.array([-3, 1, None], pa.int8()),
    "uint64": pa.array([1, 2**64 - 1, None], pa.uint64()),
    "double": pa.array([-0.5, 7.25, None]),
    "bool": pa.array([False, True, None]),
    "string": pa.array(["a", "é", None]),
    "binary": pa.array([b"a", b"\xff", None]),
    "fixed": pa.array([b"ab", b"\xff\x00", None], pa.binary(2)),
    "date32": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "timestamp": pa.array([-(10**15), 10**15, None], pa.timestamp("us")),
    "seconds": pa.array([-1, 1, None], pa.timestamp("s")),
    "nanoseconds": pa.array([1, 2**62, None], pa.timestamp("ns")),
    "zoned": pa.array([-(10**15), 10**15, None], pa.timestamp("us", "Europe/Berlin")),
    "time": pa.array([1, 2, None], pa.time64("us")),
    "time32": pa.array([1, 2, None], pa.time32("s")),
    "decimal": pa.array([Decimal("-5.00"), Decimal("1.23"), None], pa.decimal128(5, 2)),
    "decimal38": pa.array([Decimal("-5.00"), Decimal("1.23"), None], pa.decimal128(38, 2)),
    "dictionary": pa.array(["a", "b", None]).dictionary_encode(),
}


def _file(table, writer):
    if writer == "duckdb":
        con = duckdb.connect()
        con.register("given", table)
        path = f"{writer}.parquet"
        con.execute(f"COPY given TO '{path}' (FORMAT parquet)")
        return pq.ParquetFile(path)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return pq.ParquetFile(sink)


@pytest.mark.parametrize("writer", ["arrow", "duckdb"])
@pytest.mark.parametrize("name", VALUES)
def test_bounds_and_counts_are_those_of_the_rows(name, writer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = _file(pa.table({"a": VALUES[name]}), writer)
    group, rows = file.metadata.row_group(0), file.read()
    assert list(misstatements(group, rows)) == []
    assert list(misstatements(group, rows.slice(0, 2))) == ["3 rows in place of 2", "1 NULLs in 'a' in place of 0"]
    for at in (0, 1):  # of one value alone
        values = VALUES[name].take(pa.array([at, at, 2]))
        if name == "dictionary":  # whose values all count for Arrow
            values = values.dictionary_decode().dictionary_encode()
        narrower = _file(pa.table({"a": values}), writer)
        said = list(misstatements(narrower.metadata.row_group(0), rows))
        assert said == ["bounds of 'a' that leave out some of its values"]
        assert list(misstatements(group, narrower.read())) == []  # wider ones are none


def test_what_cannot_be_compared_is_nothing_that_is_wrong():
    table = pa.table(
        {
            "nan": [float("nan"), float("nan")],
            "null": pa.nulls(2),
            "list": [[1], [2]],
            "struct": [{"a": 1}, {"a": 2}],
            "half": pa.array([1.5, 2], pa.float16()),
            "zero": [0.0, -0.0],
        }
    )
    file = _file(table, "arrow")
    assert list(misstatements(file.metadata.row_group(0), file.read())) == []
