"""The queries of TPC-H and TPC-DS on both engines and by plain DuckDB, with each table a dataset, then a cube.

    PYTHONPATH=src:tests python -m engines.spark.tpc [h | ds] [--scale 1] [--cubes] [--only 1,2,3] [--without-spark]

needs ``tpchgen-cli`` for the rows of TPC-H. For TPC-DS it makes an environment with ``duckdb-extension-tpcds``, which
generates the rows and holds the texts (the TPC's licence keeps them out of this repository). A cube has the primary key
as dimensions, some partitions, half of the other columns in its seed and half in a second dataset, so that each query
joins them. It prints what Spark refuses, with the reason, and where answers differ; it ends with exit code 1 if any do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlglot

import kartosql
from engines.spark import tpch
from kartosql.errors import KartosqlError
from sparks import Both, rows_of, same, unordered

TPCH_GENERATOR = Path(sys.executable).with_name("tpchgen-cli")
VERSION = "1.5.5"
GENERATE = """
import glob, json, os, sys
import duckdb, duckdb_extension_tpcds
folder, scale = sys.argv[1:]
con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
found = glob.glob(os.path.join(os.path.dirname(duckdb_extension_tpcds.__file__), "extensions/*/*.duckdb_extension"))
con.execute(f"LOAD '{found[0]}'")
con.execute(f"CALL dsdgen(sf={float(scale)})")
for (name,) in con.execute("SHOW TABLES").fetchall():
    con.execute(f"COPY {name} TO '{folder}/{name}.parquet'")
queries = dict(con.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall())
json.dump(queries, open(os.path.join(folder, "queries.json"), "w"))
"""
#: The primary key of each table that has another than its first column.
KEYS = {
    "lineitem": ("l_orderkey", "l_linenumber"),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "catalog_sales": ("cs_item_sk", "cs_order_number"),
    "catalog_returns": ("cr_item_sk", "cr_order_number"),
    "inventory": ("inv_date_sk", "inv_item_sk", "inv_warehouse_sk"),
    "store_sales": ("ss_item_sk", "ss_ticket_number"),
    "store_returns": ("sr_item_sk", "sr_ticket_number"),
    "web_sales": ("ws_item_sk", "ws_order_number"),
    "web_returns": ("wr_item_sk", "wr_order_number"),
}
Ask = Callable[[str], list[tuple[Any, ...]]]  # returns the rows of a query
PART = "kq_part"
MOST_PARTS, ROWS_OF_A_PART = 8, 10_000


def generated(suite: str, folder: Path, scale: float) -> tuple[Path, dict[int, str]]:
    """Return the folder with the rows of a suite at a scale, made now unless it is there, and the queries."""
    rows = folder / f"tpc{suite}-{scale:g}"
    if suite == "h":
        if not rows.exists():
            command = [TPCH_GENERATOR, "parquet", "-s", f"{scale:g}", f"--output-dir={rows}"]
            subprocess.run(command, check=True, capture_output=True)
        return rows, dict(enumerate(tpch.QUERIES, 1))
    if not (rows / "queries.json").exists():
        rows.mkdir(parents=True, exist_ok=True)
        python = folder / "generator" / "bin" / "python"
        if not python.exists():
            venv.create(folder / "generator", with_pip=True)
            packages = [f"duckdb=={VERSION}", f"duckdb-extension-tpcds=={VERSION}"]
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        subprocess.run([python, "-c", GENERATE, str(rows), str(scale)], check=True)
    return rows, {int(number): text for number, text in json.loads((rows / "queries.json").read_text()).items()}


def store(con: Any, name: str, rows: pa.Table, is_cube: bool) -> None:
    """Write a table as a dataset, or as a cube of two datasets."""
    if not is_cube:
        con.create_dataset(name, rows)
        return
    key = list(KEYS.get(name, rows.column_names[:1]))
    parts = min(rows.num_rows // ROWS_OF_A_PART + 1, MOST_PARTS)
    first = rows.column(key[0]).cast(pa.int64())
    part = pc.subtract(first, pc.multiply(pc.divide(first, parts), parts))
    rows = rows.append_column(PART, part)
    others = [c for c in rows.column_names if c not in (*key, PART)]
    data = {"seed": rows.select([*key, PART, *others[::2]])}
    if others[1::2]:
        data["more"] = rows.select([*key, PART, *others[1::2]])
    con.build_cube(kartosql.Cube(name, key, [PART]), data)


def asked(engines: Mapping[str, Ask], text: str) -> tuple[str, str]:
    """Return whether engines answer a query as the first one: ok, refused or different, with the reason."""
    verdict, reason = _compared(engines, text)
    statement = sqlglot.parse_one(text, dialect="duckdb")
    if verdict == "different" and statement.args.get("limit"):  # which of equals come first is free
        statement.set("limit", None)
        verdict, all_of_them = _compared(engines, statement.sql("duckdb"))
        reason = f"{all_of_them} without LIMIT, with it {reason}"
    return verdict, reason


def _compared(engines: Mapping[str, Ask], text: str) -> tuple[str, str]:
    wanted: list[tuple[Any, ...]] | None = None
    took = []
    for name, ask in engines.items():
        begun = time.perf_counter()
        try:
            found = unordered(ask(text))
        except KartosqlError as e:
            return ("refused" if e.code == "not-portable" else "different"), f"{e.code}: {e.message}"
        took.append(f"{name} {time.perf_counter() - begun:.2f} s")
        wanted = found if wanted is None else wanted
        if len(wanted) != len(found):
            return "different", f"{len(found)} rows on {name}, {len(wanted)} wanted"
        unlike = next(((a, b) for a, b in zip(wanted, found, strict=True) if not same(a, b, 1e-9)), None)
        if unlike:
            return "different", f"{unlike[1]} on {name}, {unlike[0]} wanted"
    return "ok", f"{len(wanted or ())} rows, {', '.join(took)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", nargs="?", choices=("h", "ds"), default="ds")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--cubes", action="store_true")
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "kartosql-tpc"))
    parser.add_argument("--only", default="", help="numbers of queries, with commas")
    parser.add_argument("--memory", default="2g", help="of Spark")
    parser.add_argument("--without-spark", action="store_true")
    given = parser.parse_args()
    rows, queries = generated(given.suite, Path(given.folder), given.scale)
    chosen = [int(n) for n in given.only.split(",") if n] or sorted(queries)
    if not given.without_spark:
        from kartosql.engines.spark.session import session

        session(master="local[2]", memory=given.memory)
    counts = {"ok": 0, "refused": 0, "different": 0}
    empty = 0
    plain = duckdb.connect()
    with tempfile.TemporaryDirectory() as folder:
        with kartosql.connect(folder) as con:
            for file in sorted(rows.glob("*.parquet")):
                store(con, file.stem, pq.read_table(file), given.cubes)
                plain.execute(f"CREATE VIEW {file.stem} AS FROM '{file}'")
        with Both(folder) as both:
            engines: dict[str, Ask] = {"plain": lambda text: rows_of(plain.sql(text).to_arrow_table())}
            engines |= {"DuckDB": both.on_duckdb} | ({} if given.without_spark else {"Spark": both.on_spark})
            for number in chosen:
                verdict, reason = asked(engines, queries[number])
                counts[verdict] += 1
                empty += reason.startswith("0 rows")
                print(f"query {number}: {verdict}, {reason}", flush=True)
    print(
        f"{counts['ok'] + counts['different']} of {len(chosen)} answered, {counts['different']} different, "
        f"{empty} without rows"
    )
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
