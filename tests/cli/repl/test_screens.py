"""What the shell and the command print on terminals of 40, 80 and 120 columns, through a terminal emulator."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyte
import pytest

import kartosql
from conftest import Session
from kartosql.cli.repl.complete import candidates
from kartosql.cli.repl.shell import progress_line
from kartosql.result import Progress

WIDTHS = (40, 80, 120)
RESULTS = {
    "numbers": "SELECT id, price FROM n ORDER BY id;",
    "texts": "SELECT name, id FROM n ORDER BY id;",
    "null": "SELECT NULL AS nothing, 'NULL' AS word;",
    "wide characters": "SELECT name, upper(name) AS large FROM n;",
    "no rows": "SELECT id FROM n WHERE id > 1000000;",
    "many rows": "SELECT range AS r, range * 1000 AS big FROM range(100);",
    "many columns": "SELECT a.*, b.* FROM w a, w b, range(4);",
    "more columns": "SELECT * FROM w a, w b, w c, range(9);",
    "nested": "SELECT [1, 2] AS l, {'a': 1} AS s, 2.50 AS d FROM range(2);",
    "times": "SELECT TIMESTAMP '2020-01-02 03:04:05' AS t, DATE '2020-01-02' AS d;",
}
REPORTS = {
    "explain": "EXPLAIN SELECT name FROM n WHERE id > 5 AND price < 2;",
    "analyze": "EXPLAIN ANALYZE SELECT name, count(*) FROM n JOIN w ON id = c0 GROUP BY name;",
    "cost": "EXPLAIN COST SELECT * FROM w;",
    "why": "EXPLAIN WHY '.parquet' SELECT id FROM n WHERE price < 2;",
    "advise": "ADVISE SELECT id FROM n WHERE CAST(id AS VARCHAR) = '1';",
    "verify": "VERIFY (DUCKDB) SELECT id FROM n;",
    "coverage": "SHOW COVERAGE OF n BY id;",
}
ERRORS = {
    "column": ("SELECT id, prce FROM n;", "prce"),
    "table": ("SELECT 1 FROM missing_table WHERE true;", "missing_table"),
    "far": (f"SELECT id, {', '.join(f'id + {i} AS a{i}' for i in range(30))}, wrong FROM n WHERE id > 1;", "wrong"),
    "early": (f"SELECT wrong, {', '.join(f'id + {i} AS a{i}' for i in range(30))} FROM n;", "wrong"),
}
HELP = {"help": ".help", "about": ".help .mode", "code": ".help unknown-column", "config": ".config"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place: Path = tmp_path_factory.mktemp("store")
    with kartosql.connect(str(place)) as con:
        con.create_dataset("w", pa.table({f"c{i}": [i, i + 1] for i in range(12)}))
        names = ["a", "東京都", "the quick brown fox"]
        con.create_dataset("n", pa.table({"id": [1, 20000, -3], "price": [1.5, None, 12345.25], "name": names}))
    return str(place)


class Emulator:
    """A shell that writes to a terminal emulator, in this process."""

    def __init__(self, folder: str, columns: int) -> None:
        self.columns = columns
        self.session = Session(folder, columns=columns, lines=25, read_only=True)
        self.session.screen.is_terminal = True
        self.session.screen.pager = "off"
        self.session.screen.theme = "dark"
        self.session.shell.options.set("rows", 10)
        self.session.shell.options.set("progress", False)

    def __call__(self, text: str) -> list[str]:
        """Return the lines that a text prints, as the terminal shows them, none of which it had to break."""
        return shown(self.session(text), self.columns)


def shown(printed: str, columns: int) -> list[str]:
    """Return the lines that a terminal shows, without what is blank behind them."""
    count = printed.count("\n")
    screen = pyte.Screen(columns, count + 2)
    pyte.Stream(screen).feed(printed.replace("\n", "\r\n"))
    assert screen.cursor.y == count, f"a line is longer than {columns}:\n" + "\n".join(screen.display)
    return [line.rstrip() for line in screen.display[:count]]


@pytest.fixture(scope="module", params=WIDTHS)
def terminal(folder: str, request: pytest.FixtureRequest) -> Emulator:
    return Emulator(folder, request.param)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_fits_and_counts_what_is_left_out(terminal, name):
    lines = terminal(RESULTS[name])
    table = terminal.session.shell.last.table
    text = "\n".join(lines)
    if not lines[0].startswith("┌"):
        assert sum(line.startswith("── row ") for line in lines) == table.num_rows
        assert {line.partition(" │")[0].strip() for line in lines if " │ " in line} == {*table.column_names}
        return
    box = [line for line in lines if line[0] in "┌│├└"]
    assert len({len(line) for line in box if line[0] != "│"}) == 1
    heads, types = ([cell.strip() for cell in line.split("│")[1:-1]] for line in box[1:3])
    is_elided = "…" in heads
    assert f"{table.num_columns} columns ({len(heads) - is_elided} shown)" in text or not is_elided
    assert is_elided or heads == table.column_names
    assert all(type_ or head == "…" for head, type_ in zip(heads, types, strict=True))
    rows = len(box) - 5
    assert rows == table.num_rows or f"{rows:,} of {table.num_rows:,} shown" in text
    assert f"{table.num_rows:,} row" in text


@pytest.mark.parametrize("name", ["numbers", "many rows", "many columns"])
def test_numbers_of_a_column_end_in_one_place(terminal, name):
    box = [line for line in terminal(RESULTS[name]) if line[0] == "│"][2:]
    cells = [line.split("│")[1] for line in box if re.search(r"\d", line.split("│")[1])]
    assert len({len(cell) - len(cell.rstrip()) for cell in cells}) == 1


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_fits(terminal, name):
    lines = terminal(REPORTS[name])
    assert not [line for line in lines if line.startswith("error")]
    assert not {"{", "}"} & set("".join(lines))


@pytest.mark.parametrize("name", ERRORS)
def test_a_caret_stands_below_what_is_wrong(terminal, name):
    sql, wrong = ERRORS[name]
    lines = terminal(sql)
    at = next(i for i, line in enumerate(lines) if line.startswith("LINE 1: "))
    start = lines[at + 1].index("^")
    assert lines[at][start:].startswith(wrong)
    assert set(lines[at + 1].strip()) == {"^"}
    assert len(lines[at + 1]) - start == len(wrong)
    assert lines[0].startswith("error[")


@pytest.mark.parametrize("name", HELP)
def test_help_fits_and_breaks_no_word(terminal, name):
    words = {*re.split(r"\s+|(?<=/)", " ".join(terminal(HELP[name])))}
    wide = Emulator(terminal.session.shell.connection.store.url, 500)
    assert words <= {*re.split(r"\s+|(?<=/)", " ".join(wide(HELP[name])))}


@pytest.mark.parametrize(
    "progress",
    [
        None,
        Progress("plan"),
        Progress("read", 123, 10**10, 0.5),
        Progress("read", 123_456, 10**13, 0.999),
        Progress("read", 7, None, 0.1, True),
    ],
)
def test_progress_takes_one_line_that_the_next_output_takes_away(folder, terminal, progress):
    out, screen = io.StringIO(), Emulator(folder, terminal.columns).session.screen
    screen.out = out
    screen.status(progress_line(progress, 123.4, 100.0, (progress and progress.fraction) or 0.0, 123_456_789))
    emulated = pyte.Screen(terminal.columns, 3)
    stream = pyte.Stream(emulated)
    stream.feed(out.getvalue())
    line = emulated.display[0].rstrip()
    assert line
    assert not "".join(emulated.display[1:]).strip()
    assert not line.endswith((" ·", ","))
    screen.write("next\n")
    stream.feed(out.getvalue()[len(out.getvalue()) - out.getvalue()[::-1].index("\r") - 1 :])
    assert emulated.display[0].rstrip() == "next"


@pytest.mark.parametrize("text", ["SELECT i", "SELECT * FROM ", ".mo", "SELECT id FROM n WHERE pr", "EXPLAIN "])
def test_completions_are_one_line_each(terminal, text):
    from kartosql.cli.repl.known import load

    shell = terminal.session.shell
    found = list(candidates(text, len(text), shell, load(shell.connection)))
    assert found
    assert all("\n" not in (c.shown or c.text) + c.about for c in found)


@pytest.mark.parametrize("name", [*RESULTS, *REPORTS])
def test_the_command_prints_plain_text_into_pipes(folder, name, run: Callable[..., object]):
    sql = {**RESULTS, **REPORTS}[name].rstrip(";")
    done = run(folder, "-c", sql)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    if name in REPORTS:
        assert not done.out.startswith(("explain\n", '"'))
        assert not {"{", "}"} & set(done.out)
