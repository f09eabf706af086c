from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from kartosql import __version__

HEAVY = ("duckdb", "pyarrow", "sqlglot", "pandas", "fsspec", "rich", "prompt_toolkit", "platformdirs")


def test_the_version_needs_no_heavy_import():
    code = (
        "import sys; from kartosql.cli.main import main; code = main(['--version'])\n"
        f"print([m for m in {HEAVY} if m in sys.modules], code)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert found.stdout.splitlines() == [f"kartosql {__version__}", "[] 0"]


@pytest.mark.parametrize(("daemon", "ends"), [(True, ["registered"]), (False, ["waited", "registered"])])
def test_the_process_ends_when_what_is_registered_is_done_and_no_thread_wants_to_be_waited_for(daemon, ends):
    code = (
        "import atexit, sys, threading; from kartosql.cli.main import main; goes_on = threading.Event();"
        "atexit.register(print, 'registered');"
        "threading.Thread(target=lambda: goes_on.wait() and print('waited'), daemon=%r).start();"
        "sys.argv[1:] = ['--version']; main(); goes_on.set()"
    )
    found = subprocess.run([sys.executable, "-c", code % daemon], capture_output=True, text=True, timeout=200)
    assert (found.stdout.splitlines(), found.stderr) == ([f"kartosql {__version__}", *ends], "")
    assert found.returncode == 0


def test_the_version_is_quick():
    def used(*how: str) -> float:
        """Return the CPU time that Python takes at best."""
        found = []
        for _ in range(4):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *how], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        return min(found)

    # 0.04 s and 0.01 s on the machine it was written on; DuckDB, pyarrow and sqlglot take 0.7 s.
    assert used("-m", "kartosql", "--version") < 15 * used("-c", "pass")


def test_usage_errors_need_no_heavy_import():
    code = (
        "import sys; from kartosql.cli.main import main; code = main(['store', '--nope'])\n"
        f"print([m for m in {HEAVY} if m in sys.modules], code)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert found.stdout.splitlines() == ["[] 2"]


def test_statements_can_be_piped_in(process, cube):
    found = process(cube, stdin="SELECT count(*) AS n FROM c; SELECT 'ü' AS u")
    assert (found.returncode, found.stdout, found.stderr) == (0, "n\n4\nu\nü\n", "")


def test_output_is_utf8_whatever_the_locale(process, cube):
    found = process(cube, "-c", "SELECT 'ü' AS u", "--format", "box", PYTHONIOENCODING="ascii")
    assert found.returncode == 0
    assert "│ ü │" in found.stdout


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_reader_that_has_enough_is_no_error(cube, format):
    process = subprocess.Popen(
        [sys.executable, "-m", "kartosql", cube, "-c", "SELECT * FROM range(3000000)", "--format", format],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(4)
    process.stdout.close()
    with process.stderr as stderr:
        assert (stderr.read(), process.wait(200)) == (b"", 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_a_store_error(cube):
    with open("/dev/full", "wb") as full:
        found = subprocess.run(
            [sys.executable, "-m", "kartosql", cube, "-c", "SELECT * FROM c"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=200,
        )
    assert found.returncode == 3
    first, *_ = found.stderr.splitlines()
    assert first == b"error[store-failed]: Cannot write to stdout: No space left on device"


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.5])  # while it is planned, begins and runs
def test_ctrl_c_ends_a_statement_and_leaves_no_file(cube, tmp_path, seconds):
    sql = "SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b"
    out = tmp_path / "out.csv"
    process = subprocess.Popen(
        [sys.executable, "-m", "kartosql", cube, "-c", sql, "-o", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for _ in range(6000):
        time.sleep(0.005)
        if os.listdir(tmp_path):
            break
    assert os.listdir(tmp_path) != []  # the part file: the statement is about to run
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=200) == (b"", b"interrupted\n")
    assert process.returncode == 130
    assert os.listdir(tmp_path) == []
