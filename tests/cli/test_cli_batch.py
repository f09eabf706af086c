from __future__ import annotations

import json
import os
import shlex
import warnings

import pyarrow.parquet as pq
import pytest

from kartosql.cli import batch
from kartosql.connection import Connection
from kartosql.engines.duckdb import runtime
from kartosql.errors import KartosqlWarning


def test_rows_are_csv_with_header_when_stdout_is_no_terminal(run, cube):
    found = run(cube, "-c", "SELECT x, v FROM c ORDER BY x")
    assert (found.code, found.err) == (0, "")
    assert found.out == 'x,v\n0,a\n1,\n2,""\n3,d\n'


@pytest.mark.parametrize(("statements", "engines"), [(1, 1), (2, 2)])
def test_a_single_statement_takes_one_engine(run, cube, monkeypatch, statements, engines):
    made = []

    class Noted(runtime.Instance):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            made.append(self)

    monkeypatch.setattr(runtime, "Instance", Noted)
    found = run(cube, *["-c", "SELECT count(DISTINCT x) AS n FROM c WHERE i = 7"] * statements)
    assert (found.code, found.out) == (0, "n\n2\n" * statements)
    assert len(made) == engines


def test_a_terminal_gets_a_box(run, cube, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    found = run(cube, "-c", "SELECT 1 AS a, chr(27) AS b")
    assert found.out.splitlines()[1] == "│ a │ b    │"
    assert "\x1b" not in found.out


def test_results_follow_each_other_in_the_order_given(run, cube, tmp_path):
    script = tmp_path / "two.sql"
    script.write_text("\ufeffSELECT 2 AS b; -- a comment; with a semicolon\nSELECT ';' AS c;\n")
    found = run(cube, "-c", "SELECT 1 AS a", "-f", str(script), "-c", "SELECT 4 AS d")
    assert found.out == "a\n1\nb\n2\nc\n;\nd\n4\n"


@pytest.mark.parametrize("arguments", [[], ["-"], ["-f", "-"]])
def test_statements_come_from_stdin(run, cube, arguments):
    assert run(cube, *arguments, stdin="SELECT count(*) AS n FROM c").out == "n\n4\n"


def test_a_closed_stdout_is_an_error_of_the_usage(run, cube, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)  # as Python has it where a shell is told >&-
    found = run(cube, "-c", "SELECT 1 AS a")
    assert found.code == 2
    assert "no stdout" in found.err
    assert run(cube, "-c", "SELECT 1 AS a", "-o", str(tmp_path / "a.csv")).code == 0
    assert (tmp_path / "a.csv").read_text() == "a\n1\n"


def test_stdin_is_left_alone_when_there_is_a_statement(run, cube):
    assert run(cube, "-c", "SELECT 1 AS a", stdin="SELECT 2 AS b").out == "a\n1\n"


def test_a_terminal_without_statement_opens_the_shell(run, cube):
    found = run(cube)
    assert found.code == 0
    assert "Statements end with a semicolon" in found.out


@pytest.mark.parametrize("text", ["", " ; -- nothing\n"])
def test_no_statement_at_all_is_a_usage_error(run, cube, text):
    found = run(cube, stdin=text or b"")
    assert found.code == 2
    assert found.err.startswith("error[empty-statement]")


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_script_is_a_usage_error(run, cube, tmp_path, content):
    path = tmp_path / "x.sql"
    if content:
        path.write_bytes(content)
    found = run(cube, "-f", str(path))
    assert found.code == 2
    assert "x.sql" in found.err


def test_the_first_failing_statement_ends_the_run(run, cube):
    found = run(cube, "-c", "SELECT 1 AS a; SELECT 1 // 0 AS b, CAST('x' AS INT) AS c; SELECT 3 AS d")
    assert found.code == 1
    assert found.out == "a\n1\n"
    assert "at: -c, statement 2" in found.err


def test_errors_point_into_the_script(run, cube):
    found = run(cube, "-c", "SELECT 1 AS a;\n\nSELECT x,\n  nope, nada FROM c")
    assert found.code == 1
    lines = found.err.splitlines()
    assert lines[0].startswith("error[unknown-column]")
    assert "LINE 4:   nope, nada FROM c" in lines
    assert lines[lines.index("LINE 4:   nope, nada FROM c") + 1].strip() == "^^^^"
    assert found.err.count("LINE 4") == 2
    assert lines[-2].startswith("hint: ")
    assert lines[-1] == 'see: kartosql . -c ".help unknown-column"'
    told = run(*shlex.split(lines[-1])[2:])
    assert (told.code, told.out.splitlines()[0]) == (0, "unknown-column")
    assert "`DESCRIBE`\nlists the columns." in told.out


def test_parameters_by_number_and_name(run, cube):
    found = run(cube, "-c", "SELECT x FROM c WHERE x = $1 OR x = $2", "--param", "1=1", "--param", "2=3")
    assert sorted(found.out.split()) == ["1", "3", "x"]
    assert run(cube, "-c", "SELECT v FROM c WHERE v = :w", "--param", "w=d").out == "v\nd\n"
    assert run(cube, "-c", "SELECT typeof(?) AS t", "--param", "1='5'").out == "t\nVARCHAR\n"


def test_each_statement_gets_the_parameters_it_has(run, cube):
    found = run(cube, "-c", "SELECT $a AS a; SHOW CUBES; SELECT $b AS b, $a AS a", "--param", "a=1", "--param", "b=2")
    assert found.code == 0
    assert found.out.startswith("a\n1\n")
    assert found.out.endswith("b,a\n2,1\n")


def test_a_parameter_that_no_statement_has_is_named(run, cube):
    for text in ("SELECT 1 AS a", "SELECT 1 AS a; SELECT 2 AS b"):
        found = run(cube, "-c", text, "--param", "extra=1")
        assert found.code in (1, 2)
        assert "'extra'" in found.err
        assert found.out == ""


def test_settings_reach_the_connection(run, cube):
    found = run(cube, "-c", "SHOW SETTINGS", "--set", "timezone=Asia/Tokyo", "--timeout", "7", "--max-bytes", "1kB")
    values = dict(line.split(",")[:2] for line in found.out.splitlines())
    assert values["TimeZone"] == "Asia/Tokyo"
    assert values["timeout"] == "7.0"
    assert values["max_bytes"] == "1000"


def test_set_statements_hold_for_the_following_and_print_nothing(run, cube):
    found = run(cube, "-c", "SET TimeZone = 'Asia/Tokyo'; SELECT TIMESTAMPTZ '2026-01-01 00:00:00+00' AS t")
    assert found.out == "t\n2026-01-01 09:00:00+09:00\n"


@pytest.mark.parametrize("flags", [[], ["--write"]])
def test_the_connection_is_read_only_unless_told(run, cube, monkeypatch, flags):
    seen = []
    sql = Connection.sql
    monkeypatch.setattr(Connection, "sql", lambda self, *a: seen.append(self.read_only) or sql(self, *a))
    run(cube, "-c", "SELECT 1 AS a", *flags)
    assert seen == [not flags]


def test_stats_are_one_line_of_json_per_statement(run, cube):
    found = run(cube, "-c", "SELECT x FROM c WHERE p = 1; SHOW CUBES", "--stats")
    first, second = map(json.loads, found.err.splitlines())
    assert (first["rows"], first["files_total"], first["files_read"]) == (2, 2, 1)
    assert second == {"rows": 1}


def test_output_goes_to_a_file_in_the_format_of_its_suffix(run, cube, tmp_path):
    path = tmp_path / "out.parquet"
    found = run(cube, "-c", "SELECT x FROM c ORDER BY x", "-o", str(path))
    assert (found.code, found.out, found.err) == (0, "", "")
    assert pq.read_table(path)["x"].to_pylist() == [0, 1, 2, 3]
    run(cube, "-c", "SELECT 1 AS a; SELECT 2 AS b", "-o", str(path), "--format", "jsonl")
    assert path.read_text() == '{"a":1}\n{"b":2}\n'


def test_a_failed_run_leaves_no_output(run, cube, tmp_path):
    found = run(cube, "-c", "SELECT 1 AS a; SELECT nope FROM c", "-o", str(tmp_path / "out.csv"))
    assert found.code == 1
    assert os.listdir(tmp_path) == []


def test_binary_formats_hold_one_result(run, cube, tmp_path):
    path = str(tmp_path / "out.arrow")
    found = run(cube, "-c", "SELECT 1 AS a; SELECT 2 AS b", "-o", path)
    assert found.code == 2
    assert "one result" in found.err
    assert run(cube, "-c", "SET threads = 1; SELECT 2 AS b", "-o", path).code == 0


def test_an_explain_prints_plain_lines_in_a_box(run, cube):
    found = run(cube, "-c", "EXPLAIN SELECT x FROM c WHERE p = 1", "--format", "box")
    assert found.out.startswith("engine: duckdb")
    assert "│" not in found.out
    assert run(cube, "-c", "EXPLAIN SELECT x FROM c", "--format", "csv").out.startswith("explain\n")
    shown = run(cube, "-c", "EXPLAIN (FORMAT JSON) SELECT x FROM c", "--format", "box").out
    assert json.loads(shown)["scans"][0]["table"] == "c"


def test_markdown_tables_stand_apart(run, cube):
    found = run(cube, "-c", "SELECT 1 AS a; SELECT 2 AS b", "--format", "markdown")
    assert found.out == "| a |\n| ---: |\n| 1 |\n\n| b |\n| ---: |\n| 2 |\n"


def test_there_is_no_row_limit(run, cube):
    found = run(cube, "-c", "SELECT * FROM range(250000)", "--format", "jsonl")
    assert found.out.count("\n") == 250_000


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (["{cube}", "-c", "SELEC 1"], 1, "syntax-error"),
        (["{cube}", "-c", "SELECT 'open"], 1, "syntax-error"),
        (["{cube}", "-c", "SELECT * FROM nope"], 1, "unknown-table"),
        (["{cube}", "-c", "SELECT CAST('x' AS INT) AS a"], 1, "invalid-value"),
        (["{cube}", "-c", "SELECT 1", "--set", "nope=1"], 2, "unknown-setting"),
        (["{cube}", "-c", "SELECT 1", "--set", "url=1"], 2, "unknown-setting"),
        (["{cube}", "-c", "SELECT 1", "--timeout", "soon"], 2, "invalid-setting"),
        (["{cube}", "-c", "SELECT 1", "--engine", "abacus"], 2, "invalid-setting"),
        (["{cube}", "-c", "SELECT 1", "-o", "out.xyz"], 2, "invalid-argument"),
        (["{cube}", "--nope"], 2, "invalid-argument"),
        (["{cube}/missing", "-c", "SELECT 1"], 3, "store-not-found"),
        (["{cube}", "-c", "SELECT 1 AS a", "-o", "{cube}/missing/out.csv"], 3, "store-failed"),
        (["{cube}", "-c", "SELECT * FROM c", "--max-bytes", "1"], 4, "byte-budget"),
        (["{cube}", "-c", "SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b",
          "--timeout", "0.1"], 4, "timeout"),
    ],
)  # fmt: skip
def test_exit_codes(run, cube, arguments, code, name):
    found = run(*[a.format(cube=cube) for a in arguments])
    assert found.err.startswith(f"error[{name}]: ")
    assert (found.code, found.out) == (code, "")
    assert "Traceback" not in found.err


def test_a_bug_of_ours_is_one_line(run, cube, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("so\nsorry")

    monkeypatch.setattr(batch, "open_store", fail)
    found = run(cube, "-c", "SELECT 1")
    assert found.code == 70
    assert found.err.startswith("error[internal]: ZeroDivisionError: so sorry (")
    assert found.err.count("\n") == 1
    assert "--debug" in found.err
    assert "Traceback" in run(cube, "-c", "SELECT 1", "--debug").err
    assert "Traceback" not in run(cube, "-c", "SELECT 1").err
    monkeypatch.setenv("KARTOSQL_DEBUG", "1")
    assert "Traceback" in run(cube, "-c", "SELECT 1").err


def test_tracebacks_of_errors_are_shown_for_debugging_only(run, cube):
    assert "Traceback" not in run(cube, "-c", "SELECT nope FROM c").err
    assert "Traceback" in run(cube, "--debug", "-c", "SELECT nope FROM c").err


def test_warnings_are_one_line_on_stderr(run, cube, monkeypatch):
    connect = batch.open_store

    def warn(*arguments, **how):
        warnings.warn("left\nout \x1b[31m", KartosqlWarning, stacklevel=1)
        return connect(*arguments, **how)

    monkeypatch.setattr(batch, "open_store", warn)
    found = run(cube, "-c", "SELECT 1 AS a")
    assert found.err == "warning: left out \\x1b[31m\n"
    assert found.out == "a\n1\n"


def test_names_from_the_statement_cannot_steer_the_terminal(run, cube):
    found = run(cube, "-c", 'SELECT "\x1b[31m" FROM c')
    assert found.code == 1
    assert "\x1b" not in found.err


def test_help_is_on_stdout(run):
    found = run("--help")
    assert (found.code, found.err) == (0, "")
    assert "exit codes" in found.out
    assert "--storage-option" in found.out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--no-header"], "1,\n2,b\n"),
        (["-t", "--null-value", "NA"], "1,NA\n2,b\n"),
        (["--separator", ";"], "a;s\n1;\n2;b\n"),
        (["--separator", r"\t", "--format", "tsv"], "a\ts\n1\t\n2\tb\n"),
        (["-A"], "a|s\n1|\n2|b\n"),
        (["-At", "--null-value", "-"], "1|-\n2|b\n"),
        (["-At", "--separator", ", "], "1, \n2, b\n"),
        (["-o", "-", "--format", "jsonl"], '{"a":1,"s":null}\n{"a":2,"s":"b"}\n'),
    ],
)
def test_how_rows_look_is_asked_for(run, cube, options, expected):
    found = run(cube, "-c", "SELECT * FROM (VALUES (1, NULL), (2, 'b')) v(a, s)", *options)
    assert (found.code, found.out, found.err) == (0, expected, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--separator", ";", "--format", "json"], "not for json"),
        (["--separator", ""], "--separator"),
        (["-A", "--format", "csv"], "do not go together"),
        (["--partition-by", "a"], "writes a folder"),
    ],
)
def test_options_that_do_not_fit_the_format_are_refused(run, cube, options, message):
    found = run(cube, "-c", "SELECT 1 AS a", *options)
    assert (found.code, found.out) == (2, "")
    assert message in found.err


def test_statements_without_rows_print_none(run, cube, tmp_path):
    path = tmp_path / "out.parquet"
    script = f"ATTACH '{cube}' AS other (TYPE kartothek); SELECT x FROM c ORDER BY x; DETACH other"
    assert run(cube, "-c", script).out == "x\n0\n1\n2\n3\n"
    assert run(cube, "-c", script, "-o", str(path)).code == 0
    assert pq.read_table(path)["x"].to_pylist() == [0, 1, 2, 3]


def test_what_statements_wrote_is_told_beside_the_rows_of_queries(run, tmp_path):
    script = "CREATE DATASET d AS SELECT 1 AS a; SELECT a FROM d"
    found = run(str(tmp_path), "--write", "-c", script, "-o", str(tmp_path / "out.parquet"))
    assert (found.code, found.out) == (0, "")
    assert found.err.startswith("dataset d · files 1 · rows 1")
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [{"a": 1}]


def test_rows_go_to_a_url_and_a_partitioned_folder(run, cube, tmp_path):
    assert run(cube, "-c", "SELECT x, p FROM c ORDER BY x", "-o", (tmp_path / "rows.csv").as_uri()).code == 0
    assert (tmp_path / "rows.csv").read_text() == "x,p\n0,0\n1,0\n2,1\n3,1\n"
    found = run(cube, "-c", "SELECT x, p FROM c ORDER BY x", "-o", str(tmp_path / "parts"), "--partition-by", "p")
    assert (found.code, found.out) == (0, "")
    assert sorted(os.listdir(tmp_path / "parts")) == ["p=0", "p=1"]


@pytest.mark.parametrize(
    "data", ["k,n\n1,a\n9,b\n", '[{"k": 1, "n": "a"}, {"k": 9, "n": "b"}]', '{"k": 1, "n": "a"}\n{"k": 9, "n": "b"}\n']
)
def test_rows_of_stdin_are_a_table(run, cube, data):
    found = run(cube, "-c", "SELECT n, v FROM c JOIN stdin ON x = k", "-t", stdin=data)
    assert (found.code, found.out, found.err) == (0, "a,\n", "")


def test_rows_of_stdin_that_cannot_be_read_are_told(run, cube):
    found = run(cube, "-c", "SELECT * FROM stdin", stdin="a,b\n1\n")
    assert (found.code, found.out) == (2, "")
    assert "error[invalid-data]: Dataset 'stdin'" in found.err


def test_what_is_attached_is_a_parameter(run, cube):
    script = "ATTACH $place AS other (TYPE kartothek); SELECT count(*) FROM other.c WHERE p = $p"
    assert run(cube, "-t", "-c", script, "--param", f"place={cube}", "--param", "p=1").out == "2\n"
