"""Queries of TPC-H over cubes are answered alike on both engines: decimals exactly, floats but for the last digits."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

import kartosql
from engines.spark import tpc
from sparks import Both, same

# Each is several jobs; these stand for all others, which ``tpc`` asks at any scale.
NUMBERS = (1, 2, 4, 7, 9, 11, 13, 15, 16, 18, 21, 22)


@pytest.fixture(scope="module")
def both(spark, tmp_path_factory):
    """The tables as cubes."""
    if not tpc.TPCH_GENERATOR.exists():
        pytest.skip("tpchgen-cli is not installed: pip install 'kartosql[benchmarks]'")
    rows, _ = tpc.generated("h", tmp_path_factory.mktemp("tpch"), 0.01)
    store = str(tmp_path_factory.mktemp("store"))
    with kartosql.connect(store) as con:
        for file in sorted(rows.glob("*.parquet")):
            tpc.store(con, file.stem, pq.read_table(file), is_cube=True)
    with Both(store) as found:
        yield found


@pytest.mark.parametrize("number", NUMBERS)
def test_both_engines_answer_alike(both, number):
    sql = tpc.tpch.QUERIES[number - 1]
    wanted, found = both.on_duckdb(sql), both.on_spark(sql)
    assert len(found) == len(wanted)
    different = [(a, b) for a, b in zip(wanted, found, strict=True) if not same(a, b, tolerance=1e-9)]
    assert not different
