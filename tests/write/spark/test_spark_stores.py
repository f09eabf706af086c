"""Stores that executors reach by URL, and executors that have nothing of this package."""

from __future__ import annotations

import bz2
import json
import os
import pickle
import subprocess
import sys
import textwrap
import venv
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sameness import leftovers, metadata

import kartosql
from kartosql.errors import KartosqlError
from kartosql.store import Store
from kartosql.store.remote import arrow_files
from kartosql.write.files import WriteOptions
from kartosql.write.layout import Layout
from kartosql.write.spark import job, ship
from kartosql.write.spark.task import Address, answer, write_files
from s3_server import BUCKET, serve

CUBE = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
FEW = ("id AS x", "concat('p', id % 3) AS p", "concat('i', id % 7) AS i", "id * 0.5D AS v")


def test_executors_write_to_object_stores(spark):
    pytest.importorskip("s3fs")
    with serve() as server:
        options = server.storage_options
        with kartosql.connect(f"s3://{BUCKET}/some/prefix", storage_options=options) as con:
            con.build_cube(CUBE, spark.range(100).selectExpr(*FEW))
            con.append_to_cube("c", spark.range(50, 120).selectExpr(*FEW), repartition=False)
            assert con.sql("SELECT count(*), sum(v) FROM c").rows() == [(120, 3570.0)]
            assert con.create_index("c.seed", "v", spark=spark)["values"] == {"v": 120}
            made = con.create_skipping_index("c.seed", minmax="v", bloomfilter={"i": {"ndv": 9}}, spark=spark)
            assert (made["added"] > 3, made["unindexed"]) == (True, 0)
            con.compact("c", spark=spark)
            con.copy_cube("c", con, name="other", spark=spark)
            assert con.sql("SELECT count(*), sum(v) FROM other").rows() == [(120, 3570.0)]
            assert {key for key in leftovers(con.store) if "kartosql-spark" in key} == set()


def test_a_server_in_trouble_is_a_named_error_with_the_code_of_the_store(spark, monkeypatch):
    pytest.importorskip("s3fs")
    with serve() as server, kartosql.connect(f"s3://{BUCKET}/x", storage_options=server.storage_options) as con:
        con.build_cube(CUBE, spark.range(9).selectExpr(*FEW))
        wrong = {**server.storage_options, "endpoint_url": "http://127.0.0.1:9", "secret": "hunter2"}
        address = Address(con.store.url, wrong)
        monkeypatch.setattr(job, "address_of", lambda _: address)
        with pytest.raises(KartosqlError) as e:
            con.append_to_cube("c", spark.range(9).selectExpr(*FEW))
        assert e.value.code == "store-failed"
        assert "hunter2" not in str(e.value)
        assert con.sql("SELECT count(*) FROM c").rows() == [(9,)]


# -- executors that have nothing of this package ------------------------------------------------------


def write(folder: Path, address: Address | None = None) -> Any:
    """Return work for a task that writes a table of one column."""
    (folder / "d" / ".commit").mkdir(parents=True)
    (folder / "d" / ".commit" / "token").write_bytes(b"")
    layout = Layout("d", "d", ("p",), ("p", "x"), ("x",), ("p", "x"))
    schema = pa.schema([("p", pa.string()), ("x", pa.int64())])
    options = WriteOptions(row_group_rows=1000)
    work = partial(write_files, write_id="f" * 32, layout=layout, schema=schema, options=options)
    return partial(answer, address or Address(str(folder), {}), "d/.commit/token", work)


HIDDEN = ("fsspec", "s3fs", "botocore", "msgpack", "zstandard", "duckdb", "sqlglot", "pandas")
BARE = """
    import importlib.abc, pickle, sys
    import pyarrow as pa
    from pyspark import cloudpickle

    class Nothing(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in sys.argv[1:]:
                raise ModuleNotFoundError(f"{name} is not installed here", name=name)

    sys.meta_path.insert(0, Nothing())
    apply = cloudpickle.loads(sys.stdin.buffer.read())
    batch = pa.RecordBatch.from_pydict({"c0": ["a", "a", "b"], "c1": [1, 2, 1]})
    for done in apply([batch]):
        print(done.to_pylist()[0]["answer"])
    assert type(sys.modules["kartosql"].__loader__).__name__ == "ShippedModules"
"""


def test_an_executor_needs_nothing_but_pyarrow(tmp_path, monkeypatch):
    from pyspark import cloudpickle

    # Wherever the package may be installed there, it is not this one.
    monkeypatch.setattr(ship, "_stamp", lambda home: [1, 2, 3])
    work = write(tmp_path)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    # Without -I the folder of the tests would be on the path; packages of the environment are hidden by name.
    command = [sys.executable, "-I", "-c", textwrap.dedent(BARE), *HIDDEN]
    done = subprocess.run(
        command, input=cloudpickle.dumps(ship.shipped(work)), capture_output=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert b'"rows": 3' in done.stdout
    assert len(list((tmp_path / "d" / "table").rglob("*.parquet"))) == 2


DRIVER = """
    import importlib.util, sys

    sys.path.insert(0, sys.argv[2])
    import kartosql
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "700m").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    packages = ("kartosql", "pandas", "fsspec", "msgpack", "duckdb")
    look = lambda _: [name for name in packages if importlib.util.find_spec(name)]
    print(spark.sparkContext.parallelize([1], 1).flatMap(look).collect())
    with kartosql.connect(sys.argv[1]) as con:
        cube = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
        few = ("id AS x", "concat('p', id % 3) AS p", "concat('i', id % 7) AS i", "id * 0.5D AS v")
        con.build_cube(cube, spark.range(90).selectExpr(*few), rows_per_file=10)
        con.append_to_cube("c", spark.range(50, 100).selectExpr(*few), repartition=False)
        con.create_index("c.seed", "v", spark=spark)
        made = con.create_skipping_index("c.seed", minmax="v", bloomfilter={"i": {"ndv": 9}}, spark=spark)
        con.compact("c", spark=spark)
        print(made["added"] > 9, made["unindexed"], con.sql("SHOW SKIPPING INDEXES FROM c.seed").rows()[0][-2:])
        print(con.sql("SELECT count(*), sum(v) FROM c").rows())
    spark.stop()
"""


def test_workers_whose_python_has_pyarrow_and_nothing_else(spark, tmp_path):
    """In a process of its own: a session takes one interpreter for its workers."""
    venv.create(tmp_path / "bare", symlinks=True)
    packages = tmp_path / "bare" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "pyarrow").symlink_to(Path(pa.__file__).parent)
    (tmp_path / "store").mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["PYSPARK_PYTHON"] = str(tmp_path / "bare" / "bin" / "python")
    source = str(Path(kartosql.__file__).parents[1])
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path / "store"), source]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["[]", "True 0 (3, 3)", "[(100, 2475.0)]"]
    with kartosql.connect(str(tmp_path / "store")) as con:
        found = metadata(con.store)
        con.drop_skipping_index("c.seed")
        con.create_skipping_index("c.seed", minmax="v", bloomfilter={"i": {"ndv": 9}})
        assert metadata(con.store) == found


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_executor_with_nothing_but_pyarrow_writes_to_s3(tmp_path, monkeypatch):
    pytest.importorskip("s3fs")
    import boto3
    from moto.server import ThreadedMotoServer
    from pyspark import cloudpickle

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        region = {"region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=url, aws_access_key_id="k", aws_secret_access_key="s", **region)
        client.create_bucket(Bucket="a-bucket")
        options = {"endpoint_url": url, "key": "k", "secret": "s", "client_kwargs": region}
        store = Store("s3://a-bucket/some/prefix", options)
        store.put("d/.commit/token", b"")
        monkeypatch.setattr(ship, "_stamp", lambda home: [1, 2, 3])
        work = write(tmp_path, Address(store.url, options))
        command = [sys.executable, "-I", "-c", textwrap.dedent(BARE), *HIDDEN]
        data = cloudpickle.dumps(ship.shipped(work))
        done = subprocess.run(command, input=data, capture_output=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        told = json.loads(done.stdout)
        tables = [pq.read_table(pa.BufferReader(store.read(f"d/table/{label}.parquet"))) for label in told["labels"]]
        assert [table["x"].to_pylist() for table in tables] == [[1, 2], [1]]
        assert pq.read_table(pa.BufferReader(store.read(told["pairs"]["x"]))).num_rows == 3
    finally:
        server.stop()


def test_options_that_pyarrow_does_not_have_need_the_driver():
    assert arrow_files("s3://b/x", {"s3_additional_kwargs": {"ServerSideEncryption": "aws:kms"}}) is None
    assert arrow_files("s3://b/x", {"client_kwargs": {"verify": False}}) is None
    assert arrow_files("gs://b/x", {}) is None


def test_a_worker_that_served_another_version_gets_this_one(tmp_path, monkeypatch):
    from pyspark import cloudpickle

    elsewhere = [1, 2, 3]
    monkeypatch.setattr(ship, "_stamp", lambda home: elsewhere)
    first = cloudpickle.dumps(ship.shipped(write(tmp_path / "one")))
    archive, digest = ship._sources()
    sources = json.loads(bz2.decompress(archive))
    sources["kartosql.errors"] += "\nVERSION = 2\n"
    monkeypatch.setattr(ship, "_sources", lambda: (bz2.compress(json.dumps(sources).encode()), digest + "2"))
    second = cloudpickle.dumps(ship.shipped(write(tmp_path / "two")))
    script = """
        import pickle, sys
        import pyarrow as pa
        from pyspark import cloudpickle
        one, two = pickle.load(sys.stdin.buffer)
        batch = pa.RecordBatch.from_pydict({"c0": ["a", "a", "b"], "c1": [1, 2, 1]})
        for data in (one, two, two, one):
            list(cloudpickle.loads(data)([batch]))
            print(getattr(sys.modules["kartosql.errors"], "VERSION", 1))
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-I", "-c", textwrap.dedent(script)]
    done = subprocess.run(
        command, input=pickle.dumps((first, second)), capture_output=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert done.stdout.split() == [b"1", b"2", b"2", b"1"]


def test_what_is_sent_along_is_small(tmp_path):
    """More than a megabyte would be sent by a broadcast of its own."""
    archive, _ = ship._sources()
    assert len(archive) < 800_000


def test_secrets_travel_to_executors_and_into_no_message(spark, tmp_path):
    store = Store(str(tmp_path))
    store._options = {"secret": "hunter2"}
    work = write(tmp_path)
    plan: Any = spark.range(1).selectExpr("'a' AS c0", "id AS c1")
    with job.Job(spark, store, "e") as run:
        mapped = run.mapped(plan, work, "task long, answer string")
        assert "hunter2" not in mapped._jdf.queryExecution().toString()
