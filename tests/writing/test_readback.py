"""The original, kartothek 5.3.0, reads, checks and appends to what is written here.

``readback.py`` stands beside the checkout, in ``../shared/check``, or where KARTOSQL_CHECK says. The original needs an
environment of its own: KARTOSQL_KARTOTHEK names its interpreter. In CI with ``../shared`` the environment is made where
there is none, and whatever is missing is a failure; elsewhere the tests are skipped then.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import golden
import kartosql
from tests.benchmarks import races

pytestmark = pytest.mark.timeout(900)

CUBE = kartosql.Cube("c", ["x", "y"], ["p"], index_columns=["i"])
MADE = Path(sys.prefix) / "kartothek"  # the environment that CI makes, beside the packages of the tests


def script() -> Path:
    named = os.environ.get("KARTOSQL_CHECK")
    folder = Path(named) if named else golden.BESIDE / "check"
    path = folder / "kartothek" / "readback.py"
    if not path.is_file():
        missing(f"no {path}; set KARTOSQL_CHECK to the folder of the checks")
    return path


@functools.cache
def original() -> str:
    """Return the interpreter that has the original; in CI its environment is made."""
    named = os.environ.get("KARTOSQL_KARTOTHEK")
    if named:
        return named
    python = MADE / "bin" / "python"
    complete = MADE / "complete"
    if not complete.is_file():
        if not os.environ.get("CI"):
            missing("set KARTOSQL_KARTOTHEK to a Python that has kartothek 5.3.0, or CI to make one")
        requirements = script().parent / "requirements-venv311.txt"
        # The original wants pyarrow 10, which there is for no later Python.
        base = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
        if base is None:
            missing("no python3.11, which kartothek 5.3.0 needs")
        install = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "setuptools<70",
            "-r",
            str(requirements),
        ]
        # Installed again where an index of packages did not answer.
        for command, more in (([str(base), "-m", "venv", "--clear", str(MADE)], 0), (install, 2)):
            done = subprocess.run(command, capture_output=True, text=True)
            while done.returncode and more:
                more -= 1
                done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                missing(f"the environment of the original cannot be made: {done.stderr[-2000:]}")
        complete.touch()
    return str(python)


def missing(reason: str) -> None:
    """Fail where the originals were asked for, and in CI where the checks stand beside the checkout; skip elsewhere."""
    if any(os.environ.get(name) for name in ("KARTOSQL_CHECK", "KARTOSQL_KARTOTHEK")):
        pytest.fail(reason, pytrace=False)
    golden.missing(reason)


def verify(*arguments: str) -> dict[str, Any]:
    """Let the original look at a store, and return its report, which must be fine."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [original(), str(script()), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    report: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"problems": [done.stderr[-2000:]]}
    assert not report["problems"], report["problems"]
    assert done.returncode == 0, done.stderr[-2000:]
    return report


# -- cubes -----------------------------------------------------------------------------------------


def seed(xs: range, p: str, value: int) -> pa.Table:
    count = len(xs)
    days = pa.array([20_000 + x for x in xs], pa.int32()).cast(pa.date32())
    return pa.table({"x": list(xs), "y": days, "p": [p] * count, "v": [value] * count, "i": [f"i{x % 3}" for x in xs]})


def more(xs: range, p: str, value: float) -> pa.Table:
    return pa.table({"x": list(xs), "p": [p] * len(xs), "w": [value] * len(xs), "j": [x * 10 for x in xs]})


def build(con: kartosql.Connection) -> None:
    both = pa.concat_tables([seed(range(6), "a ü=%", 1), seed(range(6, 9), "b", 1)])
    con.build_cube(CUBE, {"seed": both}, metadata={"seed": {"about": "ours"}})


def extend(con: kartosql.Connection) -> None:
    con.extend_cube("c", {"e": pa.concat_tables([more(range(6), "a ü=%", 0.5), more(range(6, 8), "b", 0.5)])})


def append(con: kartosql.Connection) -> None:
    con.append_to_cube("c", {"seed": seed(range(3, 12), "a ü=%", 2), "e": more(range(3), "a ü=%", 1.5)})


def index(con: kartosql.Connection) -> None:
    con.create_index("c.e", ["j"])


def compact(con: kartosql.Connection) -> None:
    con.compact("c")


def update(con: kartosql.Connection) -> None:
    con.update_cube("c", {"seed": seed(range(20, 24), "d", 3)}, remove_conditions=[("p", "==", "b")])


def remove(con: kartosql.Connection) -> None:
    con.remove_partitions("c", [("p", "==", "b")])


def replace(con: kartosql.Connection) -> None:
    con.replace_partitions("c.seed", seed(range(40, 42), "d", 4))


def clean(con: kartosql.Connection) -> None:
    con.cleanup_cube("c")


STEPS = (build, extend, append, index, compact, update, remove, replace, clean)


@pytest.mark.parametrize("steps", range(1, len(STEPS) + 1), ids=[step.__name__ for step in STEPS])
def test_the_original_reads_checks_and_appends_to_a_cube_after(tmp_path, steps):
    with kartosql.connect(str(tmp_path)) as con:
        for step in STEPS[:steps]:
            step(con)
        ours = con.query_cube(CUBE).arrow().num_rows
    info = verify("verify", "--store", str(tmp_path), "--prefix", "c")["info"]
    assert info["rows"] == ours > 0
    assert "seed" in info["append_ok"]


def test_the_original_reads_a_copy_under_another_name(tmp_path):
    (tmp_path / "copy").mkdir()
    with kartosql.connect(str(tmp_path)) as con:
        for step in STEPS[:4]:
            step(con)
        con.copy_cube("c", str(tmp_path / "copy"), name="other")
        ours = con.query_cube(CUBE).arrow().num_rows
    report = verify("verify", "--store", str(tmp_path / "copy"), "--prefix", "other")
    assert report["info"]["rows"] == ours


def test_the_original_reads_and_appends_to_what_executors_of_spark_wrote(tmp_path, spark):
    def frame(table: pa.Table) -> Any:
        return spark.createDataFrame(table).repartition(3)

    (tmp_path / "copy").mkdir()
    with kartosql.connect(str(tmp_path)) as con:
        both = pa.concat_tables([seed(range(6), "a ü=%", 1), seed(range(6, 9), "b", 1)])
        con.build_cube(CUBE, {"seed": frame(both)}, rows_per_file=2)
        con.extend_cube("c", {"e": frame(more(range(6), "a ü=%", 0.5))})
        con.append_to_cube("c", {"seed": frame(seed(range(3, 12), "a ü=%", 2))}, repartition=False)
        con.create_index("c.e", ["j"], spark=spark)
        con.copy_cube("c", str(tmp_path / "copy"), name="other", spark=spark)
        con.compact("c", spark=spark)
        ours = con.query_cube(CUBE).arrow().num_rows
    for folder, prefix in ((tmp_path, "c"), (tmp_path / "copy", "other")):
        info = verify("verify", "--store", str(folder), "--prefix", prefix)["info"]
        assert info["rows"] == ours > 0
        assert "seed" in info["append_ok"]


def test_the_original_reads_slashes_in_partition_values(tmp_path):
    """It cannot append to such a partition: whoever reads a path with a slash that it wrote gets another value."""
    with kartosql.connect(str(tmp_path)) as con:
        con.build_cube(CUBE, {"seed": pa.concat_tables([seed(range(3), "a/b", 1), seed(range(3, 5), "a", 1)])})
        con.append_to_cube("c", {"seed": seed(range(5, 7), "a/b", 1)})
    report = verify("verify", "--store", str(tmp_path), "--prefix", "c", "--no-append")
    assert report["info"]["rows"] == 7


# -- datasets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_the_original_reads_a_dataset_and_its_index(tmp_path, format):
    rows = pa.table({"p": [1, 1, 2], "i": ["a", "b", "a"], "v": [1.5, None, 2.5]})
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", rows, partition_on=["p"], index_columns=["i"], format=format)
        con.append_to_dataset("d", rows)
        con.replace_partitions("d", rows.slice(2))
    verify("verify-dataset", "--store", str(tmp_path), "--uuid", "d", "--lib", "kartothek")


def test_the_original_reads_a_dataset_of_several_tables(tmp_path):
    one = pa.table({"p": [1, 2], "v": [1, 2]})
    other = pa.table({"p": [2, 3], "w": ["x", "y"]})
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", {"one": one, "other": other}, partition_on=["p"])
        con.append_to_dataset("d", {"one": one, "other": other})
    verify("verify-dataset", "--store", str(tmp_path), "--uuid", "d", "--lib", "kartothek")


def test_the_original_reads_what_racing_writers_left(tmp_path):
    races.create(str(tmp_path))
    assert races.race_processes(str(tmp_path), 4, 5)[1] == []
    verify("verify-dataset", "--store", str(tmp_path), "--uuid", "d", "--lib", "kartothek")


def test_the_original_finds_what_is_wrong(tmp_path):
    """The check itself: a dataset whose file is gone is not fine."""
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", pa.table({"v": [1]}))
    for path in (tmp_path / "d" / "table").glob("*.parquet"):
        path.unlink()
    with pytest.raises(AssertionError, match="missing key"):
        verify("verify-dataset", "--store", str(tmp_path), "--uuid", "d", "--lib", "kartothek")


READS_ADDED = """
import json, sys
from functools import partial
import pandas as pd
from storefact import get_store_from_url
from kartothek.io.eager import read_table, update_dataset_from_dataframes
from kartothek.io.eager_cube import append_to_cube, query_cube
from kartothek.core.cube.cube import Cube
store, cube = partial(get_store_from_url, "hfs://" + sys.argv[1]), Cube(["x"], ["p"], "c")
rows = lambda frame: sorted(frame.fillna(-1)[sorted(frame)].values.tolist())
found = {"all": rows(read_table("d", store, table="table"))}
try:
    read_table("d", store, table="table", columns=["x", "z"])
except Exception as e:
    found["named"] = str(e)[:40]
update_dataset_from_dataframes([pd.DataFrame({"p": [3], "x": [3], "z": [30]})], store=store, dataset_uuid="d")
found["seed"] = rows(query_cube(cube, store, payload_columns=["v"])[0])
append_to_cube(pd.DataFrame({"x": [3], "p": [3], "v": [3], "w": [30]}), cube, store)
print(json.dumps(found))
"""


def test_the_original_reads_a_dataset_with_an_added_column_and_appends_to_it(tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", pa.table({"p": [1], "x": [1]}), partition_on="p", index_columns="x")
        con.append_to_dataset("d", pa.table({"p": [2], "x": [2], "z": [20]}), evolve=True)
        con.build_cube(kartosql.Cube("c", "x", "p"), {"seed": pa.table({"x": [1], "p": [1], "v": [1]})})
        con.append_to_dataset("c.seed", pa.table({"x": [2], "p": [2], "v": [2], "w": [20]}), evolve=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [original(), "-W", "ignore", "-c", READS_ADDED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["all"] == [[1, 1, -1], [2, 2, 20]]
    assert found["named"].startswith("No match for FieldRef")  # the file from before has no such column
    assert found["seed"] == [[1, 1, 1], [2, 2, 2]]
    with kartosql.connect(str(tmp_path)) as con:
        assert con.sql("SELECT x, z FROM d ORDER BY x").rows() == [(1, None), (2, 20), (3, 30)]
        assert con.sql("SELECT x, w FROM c ORDER BY x").rows() == [(1, None), (2, 20), (3, 30)]
        with pytest.warns(kartosql.KartosqlWarning, match="another program wrote it"):
            con.sql("INSERT OVERWRITE c.seed SELECT * FROM c.seed")
    report = verify("verify", "--store", str(tmp_path), "--prefix", "c", "--no-append")
    assert report["info"]["rows"] == 3
