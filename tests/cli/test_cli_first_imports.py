"""Ctrl-C while the command still imports: one quiet line and the exit code, at whichever module it comes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Python imports a module of this name when it starts. It sends SIGINT when the n-th module after the entry point is
# asked for, so nothing depends on how fast the machine is; without a number it tells how many there are.
FINDER = """
import atexit, os, signal, sys

class Finder:
    at = int(os.environ["STOP_AT"])
    count = None

    def find_spec(self, name, path=None, target=None):
        if name == "kartosql.cli.command":
            self.count = 0
        if self.count is not None:
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGINT)
            self.count += 1

finder = Finder()
sys.meta_path.insert(0, finder)
if finder.at < 0:
    atexit.register(lambda: print(finder.count, file=sys.stderr))
"""
MODULE = ("-m", "kartosql")
SCRIPT = ("-c", "import sys; from kartosql.cli.main import main; sys.exit(main())")  # as installed
Start = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def start(tmp_path_factory, cube) -> Start:
    """Return a function that runs a statement and stops it at a module."""
    folder: Path = tmp_path_factory.mktemp("finder")
    (folder / "sitecustomize.py").write_text(FINDER)

    def start(at: int, how: tuple[str, ...] = MODULE, command: str = "") -> subprocess.CompletedProcess[bytes]:
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path, "STOP_AT": str(at)}
        line = [sys.executable, *how, cube, "-c", "SELECT count(*) AS n FROM c"]
        if command:
            line = ["sh", "-c", command, "sh", *line]
        return subprocess.run(line, env=env, capture_output=True)

    return start


def outcome(found: subprocess.CompletedProcess[bytes]) -> tuple[int, bytes, bytes]:
    return found.returncode, found.stdout, found.stderr


INTERRUPTED = (130, b"", b"interrupted\n")


@pytest.fixture(scope="module")
def count(start) -> int:
    """How many modules are imported from the entry point to the end of a statement."""
    code, out, err = outcome(start(-1))
    assert (code, out) == (0, b"n\n4\n")
    assert int(err) > 100
    return int(err)


@pytest.mark.parametrize("how", [MODULE, SCRIPT], ids=["module", "script"])
def test_the_first_module_of_all(start, how):
    assert outcome(start(0, how)) == INTERRUPTED


@pytest.mark.parametrize("share", [i / 12 for i in range(12)])
def test_any_module(start, count, share):
    assert outcome(start(int(count * share))) == INTERRUPTED


def test_whoever_has_it_ignored_is_not_stopped(start):
    assert outcome(start(3, command="trap '' INT; exec \"$@\"")) == (0, b"n\n4\n", b"")
