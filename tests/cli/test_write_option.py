"""Statements that write on the command line: only with --write."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import kartosql


@pytest.fixture
def store(cube, tmp_path) -> str:
    """A copy of the store with the cube ``c``, to change."""
    return str(shutil.copytree(cube, tmp_path / "store"))


STATEMENTS = [
    "INSERT INTO c SELECT 9 AS x, 1 AS p, 'z' AS v, 7 AS i",
    "DELETE FROM c WHERE p = 1",
    "CREATE DATASET d AS SELECT 1 AS a",
    "DROP CUBE c",
]


def _files(folder: str) -> list[str]:
    return sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)


@pytest.mark.parametrize("sql", STATEMENTS)
def test_without_write_the_command_changes_nothing(run, store, sql):
    before = _files(store)
    found = run(store, "-c", sql)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("error[read-only]: ")
    assert "--write" in found.err
    assert _files(store) == before


def test_with_write_a_statement_tells_what_it_did(run, store):
    found = run(store, "--write", "-c", STATEMENTS[0], "--format", "jsonl")
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith('{"dataset":"seed","files":1,"rows":1,"bytes":')
    assert run(store, "-c", "SELECT v FROM c WHERE x = 9").out == "v\nz\n"


def test_statements_of_a_script_see_what_those_before_committed(run, store):
    sql = "CREATE DATASET d AS SELECT x FROM c; INSERT INTO d VALUES (100); SELECT sum(x) AS s FROM d"
    found = run(store, "--write", "-c", sql)
    assert (found.code, found.err) == (0, "")
    assert found.out.endswith("s\n106\n")


def test_a_failure_takes_back_nothing_that_was_committed_before(run, store):
    found = run(store, "--write", "-c", "DELETE FROM c WHERE p = 0; DELETE FROM c WHERE nope = 'd'")
    assert found.code == 1
    assert "error[unknown-column]" in found.err
    assert "LINE 1: DELETE FROM c WHERE p = 0; DELETE FROM c WHERE nope = 'd'" in found.err
    assert "at: -c, statement 2" in found.err
    assert run(store, "-c", "SELECT x FROM c ORDER BY x").out == "x\n2\n3\n"


def test_parameters_reach_queries_and_conditions(run, store):
    sql = "INSERT INTO c SELECT $x AS x, 5 AS p, $v AS v, 1 AS i; DELETE FROM c WHERE p = $p"
    found = run(store, "--write", "-c", sql, "--param", "x=50", "--param", "v=new", "--param", "p=0")
    assert (found.code, found.err) == (0, "")
    assert run(store, "-c", "SELECT x, v FROM c WHERE x > 2 ORDER BY x").out == "x,v\n3,d\n50,new\n"


def test_a_parameter_of_no_statement_is_told_before_anything_is_written(run, store):
    before = _files(store)
    found = run(store, "--write", "-c", "DELETE FROM c WHERE p = $p; DROP CUBE c", "--param", "p=0", "--param", "q=1")
    assert found.code == 2
    assert "has a parameter 'q'" in found.err
    assert _files(store) == before


def test_box_shows_the_table_of_what_was_done(run, store):
    found = run(store, "--write", "-c", "DELETE FROM c WHERE p = 1", "--format", "box")
    assert "removed" in found.out.splitlines()[1]
    assert "seed" in found.out


def test_ctrl_c_stops_a_statement_and_nothing_of_it_is_visible(store, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    sql = (
        "CREATE DATASET d AS SELECT max(a.i * b.i * c.i) AS m FROM range(3000) a(i), range(3000) b(i), range(3000) c(i)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "kartosql", store, "--write", "-c", sql, "-o", str(out / "rows.csv")],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not os.listdir(out):  # the statement is about to run
            time.sleep(0.01)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert (process.returncode, err.strip()) == (130, "interrupted")
    assert os.listdir(out) == []
    with kartosql.connect(store) as con:
        assert con.datasets() == ["c++seed"]
        assert not [f for f in _files(store) if os.sep + "d" + os.sep in f.removeprefix(store)]


def test_a_dataset_is_created_by_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-m", "kartosql", str(tmp_path), "--write", "-c", "CREATE DATASET d AS SELECT 1 AS x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
