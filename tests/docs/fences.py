"""Fenced blocks of Markdown pages, and the comparison of what they show with what comes out."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kartosql.cli.main import main

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", CHECKOUT / ".github" / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs from run to run: sizes of files that another version of the compression wrote, times and commits.
_CHANGING = [
    (re.compile(r"\d+(\.\d+)? (B|KiB|MiB)\b"), "SIZE"),
    (re.compile(r"[-\d]{10} [:\d]{8}(\.\d+)?\+00:00,f1620[0-9a-f]{64}"), "MOMENT,HASH"),
    (re.compile(r"^(\d+),[-\d]{10} [:.\d]+\+00:00,(\w+,.*),[0-9a-f]{32}$", re.MULTILINE), r"\1,TIME,\2,COMMIT"),
    (re.compile(r"\d+\.\d+ s\b"), "TIME"),
    (re.compile(r"^creation_time,\S+", re.MULTILINE), "creation_time,TIME"),
    (re.compile(r"^(\S+,\d+,\d+),\d+,(\d+),\d*,[0-9a-f]{32}((,\d+){2})?$", re.MULTILINE), r"\1,SIZE,\2,COMMIT\3"),
    (re.compile(r"^(\S+,\S+,\d*),\d+,[0-9a-f]{32}$", re.MULTILINE), r"\1,COMMIT"),
    (re.compile(r"^(\S+,\S+/)[0-9a-f]{32}\.parquet,\d+,[^,]+\+00:00,[^,]+\+00:00,", re.MULTILINE), r"\1FILE,TIMES,"),
    (re.compile(r"\b\d[\d,]* bytes belong"), "SIZE belong"),
    (re.compile(r"\b\d+(\.\d)? ms\b"), "TIME"),
    (re.compile(r"planning: \d+ calls to the store"), "planning: CALLS"),
    (re.compile(r"\(plan \d+\.\d+, read \d+\.\d+\)"), "TIMES"),
    (re.compile(r"(made|store):  .*"), r"\1"),
    (re.compile(r" {2,}"), "  "),  # between columns, as wide as sizes are long
    (re.compile(r"─+"), "─"),
    (re.compile(r"\b(parse|bind|conditions|files|lookups|shapes) \d+\.\d\b"), r"\1 TIME"),
]


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page that are in a language."""
    return [text for found, text in _FENCE.findall(page.read_text("utf-8")) if found == language]


def languages(page: Path) -> set[str]:
    return {found for found, _ in _FENCE.findall(page.read_text("utf-8"))}


class Checker(doctest.OutputChecker):
    """Compares output but for what changes from run to run; ``...`` stands for anything."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(steady(want), steady(got), optionflags | doctest.ELLIPSIS)


def steady(text: str) -> str:
    """Return a text without what changes from run to run."""
    for pattern, word in _CHANGING:
        text = pattern.sub(word, text)
    return text


def run_python(page: Path) -> None:
    """Run the python blocks of a page in one namespace; those with prompts show their output."""
    namespace: dict[str, Any] = {"__name__": page.stem}
    for number, text in enumerate(blocks(page, "python"), 1):
        name = f"{page.name}, python block {number}"
        if not text.startswith(">>>"):
            exec(compile(text, name, "exec"), namespace)
            continue
        test = doctest.DocTestParser().get_doctest(text, {}, name, str(page), 0)
        test.globs = namespace
        report = io.StringIO()
        result = doctest.DocTestRunner(Checker(), verbose=False).run(test, out=report.write, clear_globs=False)
        assert not result.failed, report.getvalue()


def command(words: list[str]) -> tuple[int, str]:
    """Run a kartosql command line in this process; returns its exit code, and stdout before stderr."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    out.flush()
    return code, out.buffer.getvalue().decode() + err.getvalue()  # type: ignore[attr-defined]


def console_steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block with the output below it."""
    for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, _, shown = step.partition("\n")
        yield line, shown


def run_shell(text: str, folder: Path) -> None:
    """Run the commands of a sh block in a folder; each has to succeed."""
    environment = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def run_console(text: str) -> None:
    """Run the commands of a console block and compare what they print."""
    code = 0
    for line, shown in console_steps(text):
        words = shlex.split(line)
        if words == ["echo", "$?"]:
            got = f"{code}\n"
        else:
            assert words[0] == "kartosql", line
            code, got = command(words[1:])
        wanted = shown.rstrip("\n") + "\n" if shown.strip() else ""
        assert Checker().check_output(wanted, got, 0), f"$ {line}\nexpected:\n{wanted}\ngot:\n{got}"
    sys.stdout.flush()
