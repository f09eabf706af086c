from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest

from kartosql.cli.main import main
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def cube(tmp_path_factory) -> str:
    """A store with the cube ``c`` of 4 cells in 2 partitions."""
    folder = str(tmp_path_factory.mktemp("store"))
    data = pa.table({"x": [0, 1, 2, 3], "p": [0, 0, 1, 1], "v": ["a", None, "", "d"], "i": [7, 8, 7, 9]})
    build_cube(Store(folder), Cube("c", "x", "p", index_columns=["i"]), data)
    return folder


@pytest.fixture
def run(capfd, monkeypatch) -> Callable[..., Outcome]:
    """Return a function that runs a command line in this process; ``stdin`` None is a terminal."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Outcome:
        class Stdin(io.TextIOWrapper):
            def isatty(self) -> bool:
                return stdin is None

        data = (stdin or "").encode() if not isinstance(stdin, bytes) else stdin
        monkeypatch.setattr(sys, "stdin", Stdin(io.BytesIO(data)))
        code = main(arguments)
        return Outcome(code, *capfd.readouterr())

    return run


@pytest.fixture
def process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a command line in a process of its own."""

    def process(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kartosql", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=200,
            env={**os.environ, **environment},
        )

    return process
