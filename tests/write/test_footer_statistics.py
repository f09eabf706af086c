"""What footers say of rows, as several writers say it of values of each type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.parquet import footer_of
from kartosql.write.footer_statistics import FooterStatistics

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
    "decimal38": pa.array([Decimal(f"-{'7' * 35}1.00"), Decimal(f"{'7' * 35}1.01"), None], pa.decimal128(38, 2)),
    "dictionary": pa.array(["a", "b", None]).dictionary_encode(),
}


def _file(table, writer):
    """Return the statistics of a file of a table, and its rows."""
    path = f"{writer}.parquet"
    if writer == "duckdb":
        con = duckdb.connect()
        con.register("given", table)
        con.execute(f"COPY given TO '{path}' (FORMAT parquet)")
    else:
        pq.write_table(table, path)
    return FooterStatistics(footer_of(Path(path).read_bytes())), pq.read_table(path)


@pytest.mark.parametrize("writer", ["arrow", "duckdb"])
@pytest.mark.parametrize("name", VALUES)
def test_bounds_and_counts_are_those_of_the_rows(name, writer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    statistics, rows = _file(pa.table({"a": VALUES[name]}), writer)
    assert list(statistics.misstatements(0, rows)) == []
    assert list(statistics.misstatements(0, rows.slice(0, 2))) == [
        "another number of rows",
        "1 NULLs in place of 0 of 'a'",
    ]
    for at, said in enumerate(("a greatest value below one of 'a'", "a least value above one of 'a'")):
        values = VALUES[name].take(pa.array([at, at, 2]))  # one value alone
        if name == "dictionary":  # whose values all count for Arrow
            values = values.dictionary_decode().dictionary_encode()
        narrower, some = _file(pa.table({"a": values}), writer)
        assert set(narrower.misstatements(0, rows)) == {said}
        assert list(statistics.misstatements(0, some)) == []  # wider ones are none


def test_what_cannot_be_compared_is_nothing_that_is_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = pa.table(
        {
            "nan": [float("nan"), float("nan")],
            "null": pa.nulls(2),
            "list": [[1], [2]],
            "struct": [{"a": 1}, {"a": 2}],
            "half": pa.array([1.5, 2], pa.float16()),
            "zero": [0.0, -0.0],
            "elapsed": pa.array([1, 2], pa.duration("s")),
        }
    )
    statistics, rows = _file(table, "arrow")
    assert list(statistics.misstatements(0, rows)) == []


@pytest.mark.parametrize("field", [5, 6])
def test_a_bound_that_stands_alone_counts(field, tmp_path, monkeypatch):
    """As of two that each have a number of a field, one may take the number of the other."""
    monkeypatch.chdir(tmp_path)
    statistics, rows = _file(pa.table({"a": ["a", "b", "c"]}), "arrow")
    told = statistics._found[4][0][1][0][3][12]
    told[field] = told[11 - field]
    del told[11 - field]
    assert len(list(statistics.misstatements(0, rows))) == 1


def test_a_footer_that_others_may_read_in_some_way_is_told():
    assert list(FooterStatistics(b"\x15").misstatements(0, pa.table({"a": [1]}))) == ["what cannot be read"]
