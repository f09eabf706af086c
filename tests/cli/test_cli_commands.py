"""Commands of the shell in ``-c``, in files and in pipes."""

from __future__ import annotations

import os

import pytest

from kartosql.cli.repl.registry import has_commands


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT 1", False),
        (".tables", True),
        (r"\dt", True),
        ("SELECT 1;\n  .mode json\nSELECT 2", True),
        ("SELECT t\n.x FROM t", False),
        ("SELECT '\n.tables\n'", False),
        ("-- \n.5", False),
        ("quit", False),
    ],
)
def test_a_command_is_a_line_where_a_statement_would_begin(text, found):
    assert has_commands(text) is found


def test_commands_and_statements_follow_each_other(run, cube):
    found = run(cube, "-c", ".mode jsonl\nSELECT 1 AS n; SELECT 2 AS n\n;.print done", "-c", "SELECT 3 AS n")
    assert (found.code, found.out, found.err) == (0, '{"n":1}\n{"n":2}\ndone\n{"n":3}\n', "mode: jsonl\n")


def test_commands_of_a_pipe_and_of_a_file_are_run(run, cube, tmp_path):
    assert run(cube, stdin=".tables\n").out.startswith("table,kind\nc,cube\n")
    place = tmp_path / "report.sql"
    place.write_text(".print rows\nSELECT count(*) AS n FROM c")
    assert run(cube, "-f", str(place)).out == "rows\nn\n4\n"
    assert run(cube, "-c", f".read {place}").out == "rows\nn\n4\n"


def test_options_of_the_command_line_hold_for_them(run, cube):
    found = run(cube, "-At", "--null-value", "-", "--param", "m=1", "-c", ".print x\nSELECT x, v FROM c WHERE x = $m")
    assert found.out == "x\n1|-\n"
    assert run(cube, "--format", "box", "-c", ".nullvalue <none>\nSELECT v FROM c WHERE x = 1").out.count("<none>") == 1


def test_all_rows_of_a_box_are_shown(run, cube):
    assert run(cube, "--format", "box", "-c", ".print\nSELECT * FROM range(60)").out.count("\n") == 66


@pytest.mark.parametrize(
    ("text", "code", "number"),
    [
        (".nope", "unknown-command", 2),
        (".mode json\nSELECT nope FROM c;\n.print never", "unknown-column", 1),
        (".read {}/nowhere.sql", "invalid-argument", 2),
        (".write maybe", "invalid-argument", 2),
        (".cd {}/nowhere", "invalid-argument", 2),
        (".shell", "invalid-argument", 2),
        ("DROP CUBE c;\n.print never", "read-only", 2),
    ],
)
def test_the_first_that_fails_ends_the_run(run, cube, text, code, number):
    found = run(cube, "-c", text.format(cube))
    assert (found.code, found.out) == (number, "")
    assert f"error[{code}]: " in found.err


def test_quit_ends_the_run(run, cube):
    found = run(cube, "-c", ".print a\n.quit\n.print b")
    assert (found.code, found.out) == (0, "a\n")


def test_rows_go_to_a_file(run, cube, tmp_path):
    place = tmp_path / "rows.csv"
    assert run(cube, "-o", str(place), "-c", ".print told\nSELECT x FROM c WHERE x = 3").out == "told\n"
    assert place.read_text() == "x\n3\n"
    assert "invalid-argument" in run(cube, "-o", "x", "--partition-by", "p", "-c", ".print x").err


def test_writing_is_switched_on_and_off(run, tmp_path):
    change = "CREATE DATASET d AS SELECT 1 AS x"
    found = run(str(tmp_path), "-c", f".write on\n{change};\n.write off\nDROP DATASET d")
    assert "write: on\nwrite: off\nerror[read-only]" in found.err
    assert (tmp_path / "d").is_dir()


@pytest.mark.process
def test_commands_of_the_system_are_run_in_the_folder(run, cube, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    found = run(cube, "-c", ".cd inner\n.shell pwd\n\\! exit 3\nSELECT count(*) AS n FROM c")
    assert found.out == f"{tmp_path}/inner\nn\n4\n"
    assert "It ended with 3." in found.err
    assert os.getcwd() == f"{tmp_path}/inner"


def test_the_shell_begins_with_its_init_file(run, cube, tmp_path, monkeypatch):
    monkeypatch.setenv("KARTOSQL_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "init.sql").write_text(".timing off\n.print ready\nSELECT 7 AS seven;")
    lines = iter([".timing", ".quit"])
    monkeypatch.setattr("builtins.input", lambda: next(lines))
    found = run(cube).out
    assert found.index("ready") < found.index("seven") < found.index("timing: on")
