from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import time

import pytest

from kartosql.cli.repl.progress import ProgressLine, line, stopped
from kartosql.cli.repl.screen import Screen
from kartosql.cli.repl.shell import Shell
from kartosql.errors import CommitUnknown, KartosqlError
from kartosql.result import Progress

LONG = "select sum(hash(a.amount, b.range) % 7) as s from sales a, range(2000000000) b;"


@pytest.mark.parametrize(
    ("progress", "wanted"),
    [
        (None, "planning … 2.0 s · Ctrl-C cancels"),
        (Progress("plan"), "planning … 2.0 s · Ctrl-C cancels"),
        (Progress("read", 40, 2048), "reading … 2.0 s of 40 files, 2.0 KiB"),
        (Progress("read", 1, None, 0.0), "░░░░░░░░░░░░░░░░░░░░ 0 % of 1 file"),
        (Progress("read", 40, 4096, 0.5), "██████████░░░░░░░░░░ 50 % of 40 files, 4.0 KiB · 2.0 KiB/s · 1 s left"),
    ],
)
def test_progress_tells_what_is_known(progress, wanted):
    assert line(progress, 2.0, 1.0, (progress and progress.fraction) or 0.0) == wanted


@pytest.mark.parametrize(
    ("progress", "wanted"),
    [
        (None, "Cancelled after 1.5 s"),
        (Progress("plan"), "Cancelled after 1.5 s, while it was planned; no data file was read"),
        (Progress("read", 40, 4096), "Cancelled after 1.5 s, at the beginning of 40 files, 4.0 KiB"),
        (Progress("read", 40, 4096, 0.25), "Cancelled after 1.5 s, at 25 % of 40 files, 4.0 KiB"),
    ],
)
def test_a_cancelled_statement_tells_what_was_read(progress, wanted):
    assert stopped(progress, 1.5, (progress and progress.fraction) or 0.0) == wanted


def test_the_share_only_grows():
    shown = ProgressLine(Screen(io.StringIO()))
    for fraction in (0.2, 0.6, 0.1, None):
        shown.note(Progress("read", 1, 1, fraction))
    assert shown.share == 0.6


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def interrupted(shell: Shell, text: str, seconds: float) -> float:
    """Run a text, send SIGINT after some seconds, and return how long it took from there."""
    sent = []

    def send() -> None:
        time.sleep(seconds)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    shell.execute(text)
    ended = time.monotonic()
    thread.join()
    return ended - sent[0]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.1, 0.8])
def test_ctrl_c_stops_a_statement_and_the_shell_goes_on(shell, monkeypatch, seconds):
    monkeypatch.setenv("TERM", "xterm")
    shell.screen.out = shell.out = Terminal()
    shell.screen.is_terminal = True
    took = interrupted(shell.shell, LONG, seconds)
    # Half a second is promised; a machine with much else to do needs longer.
    assert took < 3
    shown = shell.out.getvalue()
    assert "Cancelled after" in shown
    if seconds > 0.3:
        assert "of 3 files, " in shown
    assert "│      42 │" in shell("select 41 + 1 as answer;")


@pytest.mark.slow
def test_a_statement_behind_a_cancelled_one_does_not_run(shell):
    interrupted(shell.shell, LONG + " select 'next' as n;", 0.3)
    assert "next" not in shell.out.getvalue()


@pytest.mark.slow
def test_rows_that_came_before_ctrl_c_are_accounted_for(shell):
    shell(".mode csv")
    interrupted(shell.shell, "select a.range, b.range from range(100000) a, range(100000) b;", 1.0)
    shown = shell.out.getvalue()
    assert "range" in shown
    assert "Cancelled" in shown.splitlines()[-1]


@pytest.mark.slow
def test_a_watched_statement_runs_until_ctrl_c(shell):
    interrupted(shell.shell, ".watch 0.2 select 'again' as word;", 1.5)
    shown = shell.out.getvalue()
    assert shown.count("│ again   │") >= 2
    assert shown.endswith("No longer watched.\n")


def test_what_ended_in_spite_of_ctrl_c_is_shown(shell, monkeypatch):
    """A commit is not stopped; whoever pressed Ctrl-C must not be told that it was."""

    def too_late(work, stop, tick):
        work()
        raise KeyboardInterrupt

    monkeypatch.setattr("kartosql.cli.repl.running.interruptible", too_late)
    assert "│      42 │" in shell("select 41 + 1 as answer;")


def test_an_error_that_says_more_than_cancelled_is_told(shell, monkeypatch):
    def unknown(work, stop, tick):
        with contextlib.suppress(KartosqlError):
            work()
        raise KeyboardInterrupt

    def lost() -> None:
        raise CommitUnknown("The store gave no answer.")

    monkeypatch.setattr("kartosql.cli.repl.running.interruptible", unknown)
    shell.shell._guarded(lambda text: shell.shell.run_query(lost, text), "x")
    assert "error[commit-unknown]" in shell.out.getvalue()
    assert "Cancelled" not in shell.out.getvalue()
