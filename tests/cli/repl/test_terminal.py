"""The shell in a terminal, key by key."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from terminal import SUMMARY, Terminal

from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube

# Takes minutes, and its progress can be told.
LONG = "select sum(hash(a.v, b.range) % 7) as s from wide a, range(20000000) b;"


@pytest.fixture
def opened(sales: str, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Return a function that opens the shell in a terminal, by default over the sales."""
    found: list[Terminal] = []

    def open_(*arguments: str, **given: Any) -> Terminal:
        given = {
            "KARTOSQL_CONFIG": str(tmp_path / "config" / "config.toml"),
            "KARTOSQL_HISTORY": str(tmp_path / "state" / "history"),
            **given,
        }
        found.append(Terminal(*(arguments or (sales,)), **given))
        return found[-1]

    yield open_
    for terminal in found:
        terminal.__exit__()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the cube ``wide`` of 40 files."""
    folder = str(tmp_path_factory.mktemp("wide"))
    rows = 40 * 50
    data = pa.table({"x": range(rows), "p": [i % 40 for i in range(rows)], "v": range(rows)})
    build_cube(Store(folder), Cube("wide", "x", "p"), data)
    return folder


def test_enter_runs_only_a_complete_statement(opened):
    terminal = opened().ready()
    terminal.send("select ';' as a,\r")
    terminal.send("2 as b\r")
    terminal.until("...>")
    assert "│" not in terminal.display
    terminal.run(";")
    assert "│ ;       │       2 │" in terminal.display
    terminal.send("\x04")
    assert terminal.ended() == 0


def test_what_is_pasted_waits_for_enter(opened):
    terminal = opened().ready()
    terminal.paste("select 1 as a;\nselect 2 as b;\nselect 3 as ")
    terminal.until("select 3 as")
    time.sleep(0.3)
    terminal.read()
    assert "│" not in terminal.display
    terminal.run("c;", "│       3 │")
    assert terminal.text.index("│       1 │") < terminal.text.index("│       2 │") < terminal.text.index("│       3 │")


def test_a_pasted_megabyte_and_half_a_quote_are_calm(opened):
    terminal = opened().ready()
    terminal.paste("select '" + "x" * 1_000_000)
    terminal.until("xxxxx")
    terminal.send("\x03")
    terminal.run("select 41 + 1 as answer;", "│      42 │")


def test_columns_are_offered_before_from_and_bring_it_along(opened):
    terminal = opened().ready()
    terminal.send("select amo")
    terminal.until("sales: BIGINT, payload")
    terminal.send("\t\r")
    terminal.until("select amount FROM sales")
    # The cursor stands behind the column.
    terminal.run(", rain\x1b[F where day = 1 order by shop;", "1.25 │")
    assert "select amount, rain FROM sales where" in terminal.text


def test_the_next_letter_takes_what_is_chosen(opened):
    terminal = opened().ready()
    terminal.send("select amo")
    terminal.until("sales: BIGINT, payload")
    terminal.send("\t,")
    terminal.until("select amount, FROM sales")


def test_values_come_with_the_number_of_their_files(opened):
    terminal = opened().ready()
    terminal.send("select amount from sales where product = 'a")
    terminal.until("3 of 3 files")
    terminal.send("\t\r")
    terminal.run(" and day = 1;", "12,345 │")
    terminal.send("select amount from sales where country = ")
    terminal.send("\t")
    # The menu is wider if Tab came before the values were read, as it has keywords then.
    terminal.until(lambda: re.search("GB +1 of 3 files", terminal.display))


def test_joins_settings_and_commands_are_completed(opened):
    terminal = opened().ready()
    terminal.send("select * from sales s join sales.weather w on \t")
    terminal.until("s.country = w.country")
    terminal.send("\x1b\x03")
    terminal.send("set engi")
    terminal.until("engine that runs")
    terminal.send("\x1b\x03")
    terminal.send(".part")
    terminal.until("partitions of a table")


def test_progress_has_true_totals_and_ctrl_c_stops(opened, wide):
    terminal = opened(wide).ready()
    terminal.send(LONG + "\r")
    terminal.until("reads 40 files")
    started = time.monotonic()
    terminal.send("\x03")
    # The terminal may show ^C before it.
    terminal.until(lambda: re.search(r"Cancelled after .* it reads 40 ", terminal.display))
    # Half a second on a machine with nothing else to do.
    assert time.monotonic() - started < 60
    terminal.run("select 41 + 1 as answer;", "│      42 │")


def test_ctrl_c_drops_what_is_typed_and_ctrl_d_leaves(opened):
    terminal = opened().ready()
    terminal.send("select 'half")
    terminal.until("' is open")
    terminal.send("\x03")
    terminal.run("select 1 as one;", "│       1 │")
    terminal.send("\x04")
    assert terminal.ended() == 0


def test_history_is_kept_searched_and_suggested(opened, tmp_path):
    terminal = opened().ready()
    terminal.run("select 'needle' as found;")
    terminal.send("\x04")
    assert terminal.ended() == 0
    history = tmp_path / "state" / "history"
    assert "needle" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    terminal = opened().ready()
    terminal.send("select 'n")
    terminal.until("select 'needle' as found;")  # behind the cursor
    terminal.send("\x03")
    terminal.until(lambda: terminal.text.count("sales0>") == 2)
    terminal.send("\x12needle\r")
    terminal.until("> select 'needle' as found;")
    terminal.run("", "│ needle  │")


def test_a_history_that_cannot_be_written_is_told_once(opened, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    terminal = opened(KARTOSQL_HISTORY=str(blocked / "history")).ready()
    assert "kept for this session only" in " ".join(terminal.text.split())
    terminal.run("select 1 as one;", "│       1 │")
    terminal.run("select 2 as two;", "│       2 │")
    assert terminal.text.count("warning:") == 1


def test_the_terminal_may_be_resized(opened):
    terminal = opened(columns=100, COLUMNS="100", LINES="30").ready()
    sql = "select country, product, amount, shop, day from sales where amount = 7;"
    terminal.run(sql)
    assert "┌" in terminal.display
    terminal.resize(30, 30)
    terminal.run(sql, "amount  │ 7")


def test_a_narrow_terminal_shows_all(opened):
    terminal = opened(columns=20, lines=10)
    terminal.until(">")
    terminal.run("select 1 as one;", "│       1 │")


def test_long_results_go_through_the_pager(opened):
    terminal = opened(lines=20, KARTOSQL_PAGER="less -SR").ready()
    terminal.send("select range as r from range(5000);\r")
    terminal.until("│     14 │\n:")
    terminal.send("G")
    terminal.until("40 of 5,000 shown")
    terminal.send("q")
    terminal.send(".last\r")
    terminal.until("│     14 │\n:")
    terminal.send("G")
    terminal.until("│   4999 │")
    terminal.send("q")
    terminal.run("select 41 + 1 as answer;", "│      42 │")


def test_what_fits_and_what_nobody_wants_paged_is_not(opened, tmp_path):
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\nsed 's/^/paged /'\n")
    pager.chmod(0o755)
    terminal = opened(lines=20, KARTOSQL_PAGER=str(pager)).ready()
    terminal.run("select range as r from range(10);", "10 rows")
    assert "paged" not in terminal.text
    terminal.run("select range as r from range(30);", "paged │     29 │")
    terminal.run(".pager off", "pager: off")
    terminal.run("select 100 + range as q from range(30);", "│    129 │")
    assert "paged │    129" not in terminal.text


def test_a_terminal_that_answers_nothing_is_no_problem(opened):
    terminal = opened(answers=False)
    terminal.until(">")
    terminal.run("select 41 + 1 as answer;", "│      42 │")
    assert "WARNING" not in terminal.text


def test_no_colours_where_they_are_not_wanted(opened):
    terminal = opened(NO_COLOR="1").ready()
    terminal.run("select 1 as one;", "│       1 │")
    colours = [code for code in terminal.raw.split(b"\x1b[") if code[:4].rstrip(b"m;0")[:2] in (b"31", b"90", b"94")]
    assert colours == []
    terminal = opened(NO_COLOR="").ready()
    terminal.run("select 1 as one;", "│       1 │")
    assert b"\x1b[90m" in terminal.raw


def test_a_dumb_terminal_reads_lines(opened):
    terminal = opened(TERM="dumb")
    terminal.until("kartosql>")
    terminal.send("select 1 as one,\r")
    terminal.until("...>")
    terminal.run("2 as two;", "│       2 │")
    assert b"\x1b" not in terminal.raw
    terminal.send("\x04")
    assert terminal.ended() == 0


def test_vi_keys(opened, tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text('[shell]\nkeys = "vi"\n')
    terminal = opened().ready()
    terminal.send("select 7 as seven;")
    terminal.until("seven;")
    terminal.send("\x1b")
    time.sleep(0.7)
    terminal.send("0cwfrom range(3) select \x1b")
    terminal.until("from range(3) select 7")


def test_a_broken_config_file_is_told_and_no_more(opened, tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("[shell\n")
    terminal = opened(columns=200).ready()
    assert "is no TOML" in terminal.text
    terminal.run("select 1 as one;", "│       1 │")


def test_a_store_that_is_not_there_ends_the_shell(opened, tmp_path):
    terminal = opened(str(tmp_path / "nowhere"))
    assert terminal.ended() == 3
    assert "error[store-not-found]" in terminal.text


def test_a_store_that_fails_behind_the_prompt_ends_the_shell(opened):
    terminal = opened("nosuchprotocol://x")
    assert terminal.ended() == 3
    assert "error[store-failed]" in terminal.text


def test_data_cannot_reach_the_terminal(opened):
    terminal = opened().ready()
    terminal.run("select chr(27) || ']0;owned' || chr(7) || chr(8238) as e;", "\\x1b]0;owned\\x07\\u202e")
    assert b"\x1b]0;owned" not in terminal.raw
    terminal.send("select '\u202e")
    terminal.until("�")
    assert "\u202e".encode() not in terminal.raw


def test_hanging_up_ends_the_shell(opened):
    terminal = opened().ready()
    os.kill(terminal.process.pid, signal.SIGHUP)
    terminal.ended()
    assert not terminal.process.isalive()


def test_bytes_that_are_no_text_are_calm(opened):
    terminal = opened().ready()
    terminal.process.send(b"select '\xff\xfe' as a;\r")
    # Before the prompt is back Ctrl-C would be a signal, which may come when the next statement is typed already.
    terminal.until(lambda: re.search(rf"(?s)({SUMMARY}|error\[).*sales0>", terminal.text))
    terminal.process.send(b"\x00\x7f\x03")
    terminal.run("select 41 + 1 as answer;", "│      42 │")
