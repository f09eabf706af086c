from __future__ import annotations

import os
import sys

from kartosql.demo import DEMO_QUERIES


def test_the_demo_builds_once_and_shows_queries_with_their_scans(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    first = run("demo")
    assert first.code == 0
    assert "writing the cube flights" in first.err
    assert os.listdir(tmp_path) == ["kartosql-demo"]
    for title, sql in DEMO_QUERIES:
        assert title in first.out
        assert sql in first.out
    assert first.out.count("engine: duckdb") == len(DEMO_QUERIES)
    assert first.out.count("┌") == len(DEMO_QUERIES)
    assert "tailnum = 'N375JB' inverted index 12 -> 2" in " ".join(first.out.split())
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    assert f'  {python} -m kartosql kartosql-demo -c "SHOW TABLES"' in first.out

    monkeypatch.setattr("shutil.which", lambda name: name)
    again = run("demo", "kartosql-demo")
    assert again.code == 0
    assert again.err == "kartosql-demo already holds the cube flights.\n"
    assert '\n  kartosql kartosql-demo -c "SHOW TABLES"' in again.out

    # A script of a virtual environment that is not on the path is called as it was, by the shorter path.
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv/bin/kartosql"), "demo"])
    installed = run("demo", str(tmp_path / "kartosql-demo"))
    assert '\n  .venv/bin/kartosql kartosql-demo -c "SHOW TABLES"' in installed.out

    opened = run("./kartosql-demo", "-c", "SHOW CUBES", "--format", "jsonl")
    assert '"cube":"flights"' in opened.out


def test_a_folder_called_demo_is_opened_as_a_path(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("demo")
    assert run("./demo", "-c", "SELECT 1 AS a").out == "a\n1\n"
    assert run("--stats", "demo").code == 2


def test_a_demo_folder_that_is_a_file_is_a_store_error(run, tmp_path):
    (tmp_path / "file").touch()
    found = run("demo", str(tmp_path / "file"))
    assert found.code in (2, 3)
    assert "file" in found.err
