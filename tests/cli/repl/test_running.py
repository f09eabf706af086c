from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kartosql.cli import output
from kartosql.cli.repl.shell import Running, Shell, progress_line, stopped
from kartosql.errors import CommitUnknown, KartosqlError
from kartosql.result import Progress

LONG = "select sum(hash(a.amount, b.range) % 7) as s from sales a, range(2000000000) b;"


@pytest.mark.parametrize(
    ("progress", "wanted"),
    [
        (None, "working … 2.0 s · Ctrl-C cancels"),
        (Progress("plan"), "planning … 2.0 s · Ctrl-C cancels"),
        (Progress("read", 40, 2048), "running … 2.0 s · reads 40 files, 2.0 KiB"),
        (Progress("read", 1, None, 0.0), "░░░░░░░░░░░░░░░░░░░░ 0 % · reads 1 file"),
        (Progress("read", 40, 4096, 0.5), "██████████░░░░░░░░░░ 50 % · 1 s left · reads 40 files, 4.0 KiB"),
        (Progress("read", 40, 4096, 0.004), "░░░░░░░░░░░░░░░░░░░░ 0 % · reads 40 files, 4.0 KiB"),
        (Progress("read", 1, 8, 1.0), "████████████████████ 99 % · 2.0 s · reads 1 file, 8 B"),
        (Progress("read", 7, None, 0.4, True), "running … 2.0 s · 40 % of the stages that run · reads 7 files"),
    ],
)
def test_progress_tells_what_is_known(progress, wanted):
    assert progress_line(progress, 2.0, 1.0, (progress and progress.fraction) or 0.0) == wanted


def test_progress_counts_rows_that_came_and_never_says_that_all_is_done():
    after = [progress_line(Progress("read", 1, 8, None), 9.0, 8.0, share, rows=1_000) for share in (0.0, 1.0)]
    assert after == [
        "running … 9.0 s · 1,000 rows so far · reads 1 file, 8 B",
        "████████████████████ 99 % · 9.0 s · 1,000 rows so far · reads 1 file, 8 B",
    ]


def test_time_left_is_that_of_the_whole_run():
    """Whatever the files that it reads weigh: the share of the run and the time since it began say what is left."""
    for files, size in ((1, 10), (10_000, 10**12)):
        assert "30 s left" in progress_line(Progress("read", files, size, 0.25), 12.0, 10.0, 0.25)
    assert "8 min left" in progress_line(Progress("read", 1, 1, 0.02), 12.0, 10.0, 0.02)


@pytest.mark.parametrize(
    ("progress", "wanted"),
    [
        (None, "Cancelled after 1.5 s"),
        (Progress("plan"), "Cancelled after 1.5 s, while it was planned; no data file was read"),
        (Progress("read", 40, 4096), "Cancelled after 1.5 s, at the beginning; it reads 40 files, 4.0 KiB"),
        (Progress("read", 40, 4096, 0.25), "Cancelled after 1.5 s, at 25 %; it reads 40 files, 4.0 KiB"),
    ],
)
def test_a_cancelled_statement_tells_how_far_it_was(progress, wanted):
    assert stopped(progress, 1.5, (progress and progress.fraction) or 0.0) == wanted


def test_the_share_only_grows(shell):
    shown = Running(shell.shell)
    for fraction in (0.2, 0.6, 0.1, None):
        shown.note(Progress("read", 1, 1, fraction))
    assert shown.share == 0.6


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def interrupted(shell: Shell, text: str, when: Callable[[], object]) -> float:
    """Run a text, send SIGINT when something holds, and return how long it took from there."""
    sent = []

    def send() -> None:
        while not when():
            time.sleep(0.005)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    shell.execute(text)
    ended = time.monotonic()
    thread.join()
    return ended - sent[0]


@pytest.fixture
def is_begun(monkeypatch) -> Callable[[], object]:
    """Return a function that tells whether a statement has begun to run."""
    work = Running._work
    begun: list[Running] = []

    def noted(self: Running, *given: Any) -> None:
        begun.append(self)
        work(self, *given)

    monkeypatch.setattr(Running, "_work", noted)
    return lambda: begun


@pytest.mark.parametrize("reading", [False, True])
def test_ctrl_c_stops_a_statement_and_the_shell_goes_on(shell, monkeypatch, is_begun, reading):
    monkeypatch.setenv("TERM", "xterm")
    # A statement that is not stopped keeps the shell that long.
    monkeypatch.setattr(output, "PATIENCE", 200.0)
    shell.screen.out = shell.out = Terminal()
    shell.screen.is_terminal = True
    when = (lambda: " reads 3 files, " in shell.out.getvalue()) if reading else is_begun
    took = interrupted(shell.shell, LONG, when)
    # Half a second is promised; a machine with much else to do needs longer.
    assert took < 60
    _, told, last = shell.out.getvalue().rpartition("Cancelled after")
    assert told
    if reading:
        assert " reads 3 files, " in last
    assert "│      42 │" in shell("select 41 + 1 as answer;")


def test_a_statement_behind_a_cancelled_one_does_not_run(shell, is_begun):
    interrupted(shell.shell, LONG + " select 'next' as n;", is_begun)
    assert "next" not in shell.out.getvalue()


def test_rows_that_came_before_ctrl_c_are_accounted_for(shell):
    shell(".mode csv")
    sql = "select a.range, b.range from range(10000000) a, range(10000000) b;"
    interrupted(shell.shell, sql, lambda: len(shell.out.getvalue()) > 1000)
    shown = shell.out.getvalue()
    assert "range" in shown
    assert "Cancelled" in shown.splitlines()[-1]


def test_a_watched_statement_runs_until_ctrl_c(shell):
    interrupted(
        shell.shell, ".watch 0.2 select 'again' as word;", lambda: shell.out.getvalue().count("│ again   │") >= 2
    )
    shown = shell.out.getvalue()
    assert shown.count("│ again   │") >= 2
    assert shown.endswith("No longer watched.\n")


def test_what_ended_in_spite_of_ctrl_c_is_shown(shell, monkeypatch):
    """A commit is not stopped; whoever pressed Ctrl-C must not be told that it was."""

    def too_late(work, stop, tick):
        work()
        raise KeyboardInterrupt

    monkeypatch.setattr("kartosql.cli.repl.shell.interruptible", too_late)
    assert "│      42 │" in shell("select 41 + 1 as answer;")


def test_an_error_that_says_more_than_cancelled_is_told(shell, monkeypatch):
    def unknown(work, stop, tick):
        with contextlib.suppress(KartosqlError):
            work()
        raise KeyboardInterrupt

    def lost() -> None:
        raise CommitUnknown("The store gave no answer.")

    monkeypatch.setattr("kartosql.cli.repl.shell.interruptible", unknown)
    shell.shell._guarded(lambda text: shell.shell.run_query(lost), "x")
    assert "error[commit-unknown]" in shell.out.getvalue()
    assert "Cancelled" not in shell.out.getvalue()
