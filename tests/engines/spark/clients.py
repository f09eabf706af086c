"""Clients of Spark Connect without Spark and without Java: each in an environment of its own, against one server.

    PYTHONPATH=src:tests python -m engines.spark.clients 4.0.1 4.2.0 [--folder FOLDER]

makes an environment for each version of pyspark-client, with this package, and starts a server in the JVM of a local
session. Each client then registers views, reads them, runs statements on both engines and writes a cube of a
DataFrame; it ends with exit code 1 if one of them differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

CLIENT = """
import importlib.util, shutil, sys, tempfile
import pyarrow as pa
import kartosql, kartosql.spark
from kartosql.errors import KartosqlError
from pyspark.sql import SparkSession

assert importlib.util.find_spec("pyspark.core") is None and shutil.which("java") is None
with kartosql.connect(tempfile.mkdtemp()) as con:
    con.create_dataset("d", pa.table({"x": [1, 2, 3], "p": ["a", "é", "z"]}), partition_on=["p"])
    try:
        con.sql("SELECT sum(x) FROM d", engine="spark").rows()
    except KartosqlError as e:
        print(f"without a session: {e.code}")
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    views = kartosql.spark.register(spark, con.store.url)
    found = spark.sql("SELECT x, p FROM d WHERE p < 'z' OR p > 'zz'").collect()
    assert sorted(map(tuple, found)) == [(1, "a"), (2, "é")]
    views.close()
    frame = kartosql.spark.sql(spark, con, "SELECT p, median(x) AS m FROM d GROUP BY p")
    assert frame.count() == 3
    text = "SELECT p, sum(x) AS s, max(x) AS m FROM d GROUP BY p ORDER BY ALL"
    assert con.sql(text, engine="spark").rows() == con.sql(text, engine="duckdb").rows()
    con.build_cube(kartosql.Cube("c", ["x"], ["y"]), spark.createDataFrame([(1, 2), (3, 4)], "x BIGINT, y BIGINT"))
    assert sorted(con.sql("SELECT x, y FROM c").rows()) == [(1, 2), (3, 4)]
    print("views, statements and a cube of a DataFrame: as on DuckDB")
"""


def client(version: str, folder: str) -> str:
    """Return the Python of an environment with pyspark-client and this package, made now unless it is there."""
    place = Path(folder) / f"pyspark-client-{version}"
    python = str(place / "bin" / "python")
    if not os.path.exists(python):
        venv.create(place, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", f"pyspark-client=={version}", str(ROOT)]
        subprocess.run(install, check=True)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "kartosql-clients"))
    given = parser.parse_args()
    from kartosql.engines.spark.session import session

    pythons = {version: client(version, given.folder) for version in given.versions}
    spark = session(master="local[2]", memory="1g")
    context = spark._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1").set("spark.connect.grpc.binding.port", "0")
    server = getattr(getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    server.start(context)
    failed = 0
    for version, python in pythons.items():
        # Nothing of this process: neither its Java nor its packages, but for the source that is tested.
        environment = {"PATH": "/nonexistent", "PYTHONPATH": str(ROOT / "src"), "LANG": "C.UTF-8"}
        environment |= {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
        command = [python, "-c", CLIENT, f"sc://127.0.0.1:{server.localPort()}"]
        ran = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        print(
            f"pyspark-client {version}: {'ok' if ran.returncode == 0 else 'failed'}\n{ran.stdout}{ran.stderr[-3000:]}"
        )
        failed += ran.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
