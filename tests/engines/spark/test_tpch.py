"""TPC-H's queries give the same answers on both engines: decimals exactly, floats but for the last digits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import tpch

import kartosql
from sparks import Both, same

# Each is several jobs; those that stand for all others are run wherever tests are, and all where a scale is given.
SCALE = os.environ.get("KARTOSQL_TPCH", "")
NUMBERS = range(1, 23) if SCALE else (1, 2, 4, 7, 9, 11, 13, 15, 16, 18, 21, 22)


@pytest.fixture(scope="module")
def both(spark, tmp_path_factory):
    """A cube of orders and lines, and the other tables as datasets, at the scale."""
    generator = os.path.join(os.path.dirname(sys.executable), "tpchgen-cli")
    if not os.path.exists(generator):
        pytest.skip("tpchgen-cli is not installed: pip install 'kartosql[benchmarks]'")
    data, store = tmp_path_factory.mktemp("tpch"), tmp_path_factory.mktemp("store")
    subprocess.run(
        [generator, "parquet", "-s", SCALE or "0.01", f"--output-dir={data}"], check=True, capture_output=True
    )
    with kartosql.connect(str(store)) as con:
        for name in tpch.TABLES:
            table = pq.read_table(Path(data) / f"{name}.parquet")
            if name == "lineitem":
                month = table.column("l_shipdate").cast("string")
                table = table.append_column("month", pc.utf8_slice_codeunits(month, 0, 7))
                cube = kartosql.Cube(name, ["l_orderkey", "l_linenumber"], ["month"])
                con.build_cube(cube, {"seed": table})
            else:
                con.create_dataset(name, table)
    with Both(str(store)) as found:
        yield found


@pytest.mark.parametrize("number", NUMBERS)
def test_both_engines_answer_alike(both, number):
    sql = tpch.QUERIES[number - 1]
    wanted, found = both.on_duckdb(sql), both.on_spark(sql)
    assert len(found) == len(wanted)
    different = [(a, b) for a, b in zip(wanted, found, strict=True) if not same(a, b, tolerance=1e-9)]
    assert not different
