"""The 99 queries of TPC-DS on both engines, over rows that DuckDB's generator makes.

    PYTHONPATH=src:tests python -m engines.spark.tpcds [--scale 0.1] [--folder FOLDER] [--only 1,2,3]

makes an environment with ``duckdb-extension-tpcds``, which generates the rows and holds the texts (the TPC's licence
keeps them out of this repository), writes each of the 24 tables as a dataset, and runs each query on DuckDB and on
Spark. It prints what Spark refuses, with the reason, and where answers differ; it ends with exit code 1 if any do.
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
from pathlib import Path

import pyarrow.parquet as pq

import kartosql
from kartosql.errors import KartosqlError
from sparks import Both, same, unordered

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


def generated(folder: Path, scale: float) -> Path:
    """Return the folder with the rows and the texts of a scale, made now unless it is there."""
    rows = folder / f"tpcds-{scale}"
    if not (rows / "queries.json").exists():
        rows.mkdir(parents=True, exist_ok=True)
        python = folder / "generator" / "bin" / "python"
        if not python.exists():
            venv.create(folder / "generator", with_pip=True)
            packages = [f"duckdb=={VERSION}", f"duckdb-extension-tpcds=={VERSION}"]
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        subprocess.run([python, "-c", GENERATE, str(rows), str(scale)], check=True)
    return rows


def asked(both: Both, text: str) -> tuple[str, str]:
    """Return whether a query is answered alike: ok, refused or different, with the reason."""
    wanted = both.on_duckdb(text)
    try:
        found = both.on_spark(text)
    except KartosqlError as e:
        return ("refused" if e.code == "not-portable" else "different"), f"{e.code}: {e.message}"
    pairs = list(zip(unordered(wanted), unordered(found), strict=False))
    if len(wanted) != len(found):
        return "different", f"{len(wanted)} rows on DuckDB, {len(found)} on Spark"
    unlike = next(((a, b) for a, b in pairs if not same(a, b, 1e-9)), None)
    return ("different", f"{unlike[0]} on DuckDB, {unlike[1]} on Spark") if unlike else ("ok", f"{len(wanted)} rows")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "kartosql-tpcds"))
    parser.add_argument("--only", default="", help="numbers of queries, with commas")
    given = parser.parse_args()
    rows = generated(Path(given.folder), given.scale)
    queries = {int(number): text for number, text in json.loads((rows / "queries.json").read_text()).items()}
    chosen = [int(n) for n in given.only.split(",") if n] or sorted(queries)
    from kartosql.engines.spark.session import session

    session(master="local[2]", memory="2g")
    counts = {"ok": 0, "refused": 0, "different": 0}
    empty = 0
    with tempfile.TemporaryDirectory() as store:
        with kartosql.connect(store) as con:
            for file in sorted(rows.glob("*.parquet")):
                con.create_dataset(file.stem, pq.read_table(file))
        with Both(store) as both:
            for number in chosen:
                begun = time.perf_counter()
                verdict, reason = asked(both, queries[number])
                counts[verdict] += 1
                empty += reason == "0 rows"
                print(f"query {number}: {verdict}, {reason} ({time.perf_counter() - begun:.1f} s)", flush=True)
    print(
        f"{counts['ok'] + counts['different']} of {len(chosen)} answered, {counts['different']} different, "
        f"{empty} without rows"
    )
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
