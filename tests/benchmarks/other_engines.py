"""Other engines that answer SQL over the same Parquet files; those that are not installed are left out."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.lineitem import MONTH, Data, month_of

Ask = Callable[[str], pa.Table]


class Peer(Protocol):
    """An engine that opens a dataset; asked with ``keep=False``, it opens it anew for each statement."""

    def __call__(self, dataset: str, *, keep: bool) -> AbstractContextManager[Ask]:
        """Return what runs a statement with ``{0}`` for the dataset."""
        ...


def installed(data: Data) -> dict[str, Peer]:
    """Return the engines that are there by the names of the table."""
    found: dict[str, Peer] = {"DuckDB, glob": _peer(lambda dataset: _duckdb(data.glob(dataset)))}
    for package, name, opening in (
        ("deltalake", "delta-rs", _delta_rs),
        ("polars", "Polars", _polars),
        ("datafusion", "DataFusion", _datafusion),
        ("pyiceberg", "PyIceberg", _pyiceberg),
    ):
        if importlib.util.find_spec(package) and (package != "polars" or importlib.util.find_spec("deltalake")):
            found[name] = _peer(lambda dataset, opening=opening: opening(data, dataset))
    return found


def _peer(opening: Callable[[str], Ask]) -> Peer:
    @contextlib.contextmanager
    def peer(dataset: str, *, keep: bool) -> Iterator[Ask]:
        yield opening(dataset) if keep else lambda sql: opening(dataset)(sql)

    return peer


def _duckdb(glob: str) -> Ask:
    con = duckdb.connect(":memory:")
    con.execute("SET parquet_metadata_cache = true")
    return lambda sql: con.sql(sql.format(f"read_parquet('{glob}', hive_partitioning = true)")).to_arrow_table()


def _delta_rs(data: Data, dataset: str) -> Ask:
    from deltalake import DeltaTable, QueryBuilder

    builder = QueryBuilder().register("t", DeltaTable(delta_table(data, dataset)))
    return lambda sql: pa.table(builder.execute(sql.format("t")).read_all())


def _polars(data: Data, dataset: str) -> Ask:
    import polars as pl

    context = pl.SQLContext(t=pl.scan_delta(delta_table(data, dataset)))
    return lambda sql: context.execute(sql.format("t"), eager=True).to_arrow()


def _datafusion(data: Data, dataset: str) -> Ask:
    from datafusion import SessionContext

    context = SessionContext()
    folder = os.path.join(data.root, dataset, "table")
    context.register_parquet("t", folder, table_partition_cols=[(MONTH, pa.string())])
    return lambda sql: context.sql(sql.format("t")).to_arrow_table()


def _pyiceberg(data: Data, dataset: str) -> Ask:
    """PyIceberg reads rows and filters them; DuckDB does the rest, as its documentation shows."""
    import sqlglot
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(iceberg_table(data, dataset))

    def ask(sql: str) -> pa.Table:
        parsed = sqlglot.parse_one(sql.format("t"), dialect="duckdb")
        where = parsed.args.get("where")
        columns = sorted(
            {c.name for c in parsed.find_all(sqlglot.exp.Column)} & {f.name for f in table.schema().fields}
        )
        text = where.this.sql("spark").replace("CAST('", "'").replace("' AS DATE)", "'") if where else AlwaysTrue()
        rows = table.scan(row_filter=text, selected_fields=tuple(columns))
        with duckdb.connect(":memory:") as con:
            con.register("t", rows.to_arrow())
            return con.sql(sql.format("t")).to_arrow_table()

    return ask


def delta_table(data: Data, dataset: str) -> str:
    """Return the folder of a Delta table over links to the files of a dataset, with statistics of numbers and dates."""
    folder = os.path.join(data.root, "delta", dataset)
    log = os.path.join(folder, "_delta_log")
    if os.path.exists(os.path.join(log, "_last_checkpoint")):
        return folder
    from deltalake import DeltaTable, Schema

    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(log)
    adds = []
    for path in data.files[dataset]:
        month, size = month_of(path), os.path.getsize(path)
        name = f"{MONTH}={month}/{os.path.basename(path)}"
        os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)
        os.link(path, os.path.join(folder, name))
        stats = json.dumps(_statistics(path))
        add = {"path": name, "partitionValues": {MONTH: month}, "size": size, "modificationTime": 0, "dataChange": True}
        adds.append({"add": add | {"stats": stats}})
    schema = pq.read_schema(data.files[dataset][0]).remove_metadata().append(pa.field(MONTH, pa.string()))
    meta = {
        "id": dataset,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(schema).to_json(),
        "partitionColumns": [MONTH],
        "configuration": {},
        "createdTime": 0,
    }
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": meta}, *adds]
    with open(os.path.join(log, f"{0:020}.json"), "w") as f:
        f.writelines(json.dumps(action) + "\n" for action in actions)
    DeltaTable(folder).create_checkpoint()
    return folder


def _statistics(path: str) -> dict[str, Any]:
    footer = pq.read_metadata(path)
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for group in range(footer.num_row_groups):
        for at in range(footer.num_columns):
            column = footer.row_group(group).column(at)
            found = column.statistics
            if found is not None and found.has_min_max and isinstance(found.min, int | float | dt.date | Decimal):
                name = column.path_in_schema
                low[name] = min(low.get(name, found.min), found.min)
                high[name] = max(high.get(name, found.max), found.max)
    plain = {"minValues": low, "maxValues": high}
    return {"numRecords": footer.num_rows} | {
        key: {
            n: str(v) if isinstance(v, dt.date) else float(v) if isinstance(v, Decimal) else v
            for n, v in values.items()
        }
        for key, values in plain.items()
    }


def iceberg_table(data: Data, dataset: str) -> str:
    """Return the metadata file of an Iceberg table over the files of a dataset."""
    folder = os.path.join(data.root, "iceberg", dataset)
    done = os.path.join(folder, "metadata.txt")
    if not os.path.exists(done):
        from pyiceberg.catalog.sql import SqlCatalog

        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        catalog.create_namespace("n")
        schema = pq.read_schema(data.files[dataset][0]).remove_metadata()
        table = catalog.create_table("n.t", schema=schema)
        table.add_files(list(data.files[dataset]))
        with open(done, "w") as f:
            f.write(table.metadata_location)
    with open(done) as f:
        return f.read()


def commands(data: Data, dataset: str, sql: str) -> Mapping[str, list[str]]:
    """Return the commands of whole processes that ask one statement."""
    glob = f"read_parquet('{data.glob(dataset)}', hive_partitioning = true)"
    found = {"DuckDB, glob": f"import duckdb; print(duckdb.sql({sql.format(glob)!r}).fetchall())"}
    if importlib.util.find_spec("deltalake"):
        table = delta_table(data, dataset)
        found["delta-rs"] = (
            f"from deltalake import DeltaTable, QueryBuilder; t = DeltaTable({table!r}); "
            f"print(QueryBuilder().register('t', t).execute({sql.format('t')!r}).read_all().num_rows)"
        )
    return {name: [sys.executable, "-c", code] for name, code in found.items()}
