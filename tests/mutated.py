"""A copy of the package in which one text is another: for mutations of the planner, and bugs made on purpose."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"


class Change(Protocol):
    """Text of a module that is replaced."""

    @property
    def name(self) -> str: ...

    @property
    def module(self) -> str: ...

    @property
    def old(self) -> str: ...

    @property
    def new(self) -> str: ...


def misplaced(changes: Iterable[Change]) -> dict[str, int]:
    """Return how often the texts occur that are not there exactly once."""
    found = {c.name: _path(SOURCE, c).read_text("utf-8").count(c.old) for c in changes}
    return {name: count for name, count in found.items() if count != 1}


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """Make a copy of the package for a while, and make sure that it is what runs there."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        shutil.copytree(SOURCE, source, dirs_exist_ok=True, ignore=lambda *_: ["__pycache__"])
        done = run_over(source, ["-c", "import kartosql; print(kartosql.__file__)"])
        if not done.stdout.startswith(folder):
            raise SystemExit(f"it would run over {done.stdout.strip()}, not over the copy\n{done.stderr}")
        yield source


@contextlib.contextmanager
def broken(change: Change, source: Path) -> Iterator[str]:
    """Apply a change to a copy for a while, and tell what is wrong with it, if anything."""
    path = _path(source, change)
    text = path.read_text("utf-8")
    if (found := text.count(change.old)) != 1:
        yield f"{change.module}: the text occurs {found} times"
        return
    _write(path, text.replace(change.old, change.new))
    try:
        yield ""
    finally:
        _write(path, text)


def run_over(
    source: Path, given: Sequence[str], timeout: float | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python over a copy, from the root of the repository; raises TimeoutExpired."""
    command, environment = [sys.executable, *given], {**os.environ, "PYTHONPATH": str(source), **variables}
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout
    )


def _path(source: Path, change: Change) -> Path:
    return source / "kartosql" / change.module


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    # Bytecode is told apart by size and second only.
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
