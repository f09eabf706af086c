"""Whatever a page names exists: options, Python names, codes, settings, variables, modules and files."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fences
import pytest

import kartosql
import kartosql.spark
from codes import error_codes
from kartosql.cli.cube import COMMANDS, parser_of
from kartosql.cli.options import command_parser
from kartosql.plan.scan import ScanReport
from kartosql.result import ReportQuery
from kartosql.serve.command import parser as serve_parser
from kartosql.settings import SETTINGS

CHECKOUT = fences.CHECKOUT
SOURCE = CHECKOUT / "src" / "kartosql"
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# What words before the dot stand for in prose; other pages use the same.
_OBJECTS = {"con": kartosql.Connection, "q": ReportQuery, "report": ScanReport}

EVERY_PAGE = pytest.mark.parametrize("page", fences.PAGES, ids=lambda p: p.stem)


def inline(page: Path) -> list[str]:
    """Return the pieces of code inside of sentences."""
    return re.findall(r"`([^`\n]+)`", _FENCE.sub("", page.read_text("utf-8")))


@functools.cache
def python_files() -> dict[Path, str]:
    """Return the texts of the source and the tests."""
    return {p: p.read_text("utf-8") for root in (SOURCE, CHECKOUT / "tests") for p in root.rglob("*.py")}


@functools.cache
def text_of(folder: Path) -> str:
    return "".join(text for path, text in python_files().items() if folder in path.parents and path != Path(__file__))


def options() -> set[str]:
    parsers = [command_parser(), serve_parser(), *map(parser_of, COMMANDS)]
    return {o for one in parsers for action in one._actions for o in action.option_strings}


# -- commands --------------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command that a page shows, in blocks and in sentences."""
    texts = inline(page)
    for language in ("text", "sh", "console"):
        for block in fences.blocks(page, language):
            lines = block.replace("\\\n", " ").splitlines()
            texts += [line.removeprefix("$ ") for line in lines if language != "console" or line.startswith("$ ")]
    for text in texts:
        with contextlib.suppress(ValueError):  # an apostrophe in a sentence
            words = shlex.split(text)
            if words:
                yield words


def wrong_in(words: list[str]) -> str | None:
    """Return what of a command does not exist."""
    roots = [CHECKOUT, SOURCE.parent]
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        name, _, folders = words[0].partition("=")
        roots += [CHECKOUT / folder for folder in folders.split(":")] if name == "PYTHONPATH" else []
        words = words[1:]
    program = words[0].rsplit("/", 1)[-1] if words else ""
    given = [w.strip("[],.|").partition("=")[0] for w in words[1:]]
    if program == "kartosql":
        return next((w for w in given if _OPTION.fullmatch(w) and w not in options()), None)
    if program != "python":
        return None
    if words[1:2] == ["-m"] and words[2] not in ("pytest", "pip"):
        path = words[2].replace(".", "/")
        if not any((root / f"{path}{end}").is_file() for root in roots for end in (".py", "/__main__.py")):
            return words[2]
    files = [w.partition("::")[0] for w in given if w.startswith("tests/")]
    return next((f for f in files if not (CHECKOUT / f).exists()), None)


@EVERY_PAGE
def test_commands_of_a_page_have_these_options_modules_and_files(page: Path) -> None:
    wrong = {" ".join(words): what for words in commands(page) if (what := wrong_in(words))}
    assert wrong == {}


def test_options_modules_and_files_that_do_not_exist_are_found() -> None:
    assert wrong_in(shlex.split("kartosql s3://bucket/cubes --profile nightly -f report.sql")) == "--profile"
    assert wrong_in(shlex.split("kartosql [--write] DIR --max-bytes=1KB")) is None
    assert wrong_in(shlex.split("python -m benchmarks.scan")) == "benchmarks.scan"
    assert wrong_in(shlex.split("python -m pytest tests/nowhere.py")) == "tests/nowhere.py"
    assert wrong_in(shlex.split("python tests/mutation/go.py")) == "tests/mutation/go.py"


@functools.cache
def _options_of_others() -> set[str]:
    """Return the options of our scripts and of what %ksql takes, and those of programs that pages tell how to call."""
    texts = [text for text in python_files().values() if "add_argument" in text]
    texts += [text_of(SOURCE / "cli" / "repl"), (SOURCE / "notebook.py").read_text("utf-8")]
    ours = {option for text in texts for option in _OPTION.findall(text)}
    pytest_and_pip = {"--timeout", "--hypothesis-profile", "--dist", "--editable"}
    spark_submit = {"--archives", "--master", "--conf"}
    return ours | pytest_and_pip | spark_submit | {"--cacert"}  # of curl


@EVERY_PAGE
def test_options_that_a_page_mentions_exist(page: Path) -> None:
    if page.stem == "coming-from-kartothek-cube":
        return  # its options are those of the original, beside ours
    mentioned = set(_OPTION.findall(page.read_text("utf-8")))
    assert mentioned - options() - _options_of_others() == set()


# -- Python ----------------------------------------------------------------------------------------


def resolves(name: str) -> bool:
    """Return whether a dotted name stands for something."""
    first, *rest = name.split(".")
    if first in _OBJECTS:
        home = _OBJECTS[first]
        return hasattr(home, rest[0]) or any(f"self.{rest[0]} = " in inspect.getsource(c) for c in home.__mro__[:-1])
    found = importlib.import_module(first)
    for at, word in enumerate(rest, 1):
        if not hasattr(found, word):
            try:
                importlib.import_module(".".join([first, *rest[:at]]))
            except ModuleNotFoundError:
                return False
        found = getattr(found, word)
    return True


@EVERY_PAGE
def test_python_names_that_a_page_mentions_exist(page: Path) -> None:
    pattern = re.compile(r"^(?:con|q|report|kartosql)(?:\.[A-Za-z_]\w*)+(?=\(|$)")
    named = {m[0] for code in inline(page) if (m := pattern.match(code))} - {"kartosql.toml"}
    assert {n for n in named if not resolves(n)} == set()


def test_python_names_that_do_not_exist_are_found() -> None:
    assert resolves("con.build_cube")
    assert resolves("kartosql.spark.register")
    assert not resolves("con.build_cubes")
    assert not resolves("kartosql.sparks.register")


# -- codes, settings, variables, files -------------------------------------------------------------


@functools.cache
def codes() -> set[str]:
    """Return the codes of errors, and words of that form that the source has as text: findings of CHECK."""
    return error_codes() | set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', text_of(SOURCE)))


@EVERY_PAGE
def test_codes_and_settings_that_a_page_mentions_exist(page: Path) -> None:
    kebab = {code for code in inline(page) if re.fullmatch(r"[a-z]+(-[a-z]+)+", code)}
    programs = {"kartosql-demo", "spark-sql", "tpchgen-cli", "pyspark-client", "spark-submit", "adbc-driver-flightsql"}
    assert kebab - codes() - programs == set()
    settings = {name for code in inline(page) for name in re.findall(r"^(?:RE)?SET (\w+)", code)}
    assert {n for n in settings if n not in SETTINGS} - {"name", "TIME"} == set()  # SET TIME ZONE


@EVERY_PAGE
def test_variables_that_a_page_mentions_are_read(page: Path) -> None:
    read = text_of(SOURCE) + text_of(CHECKOUT / "tests")
    assert {v for v in re.findall(r"\bKARTOSQL_\w+", page.read_text("utf-8")) if v not in read} == set()


@EVERY_PAGE
def test_files_of_the_checkout_that_a_page_mentions_exist(page: Path) -> None:
    roots = tuple(sorted(p.name for p in CHECKOUT.iterdir() if p.is_dir() and not p.name.startswith(".")))
    named = {code for code in inline(page) if re.fullmatch(r"[\w./-]+", code)}
    named = {n for n in named if n.startswith((*(f"{r}/" for r in roots if r in ("src", "tests", "docs")), ".ci/"))}
    assert {n for n in named if not (CHECKOUT / n).exists()} == set()


# -- the lines of functions in docs/architecture.md ------------------------------------------------

_LINE = re.compile(r"^(\S+\.py) +(\S+) +-> (.+)$", re.MULTILINE)
WALKS = [
    _LINE.findall(block)
    for block in fences.blocks(fences.CHECKOUT / "docs" / "architecture.md", "text")
    if _LINE.search(block)
]


@functools.cache
def definitions(path: str) -> dict[str, ast.AST]:
    """Return the functions, classes and methods of a module by their names."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse((SOURCE / path).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef):
                found[f"{node.name}.{inner.name}"] = inner
    return found


@functools.cache
def everything() -> set[str]:
    return {name for path in SOURCE.rglob("*.py") for name in definitions(str(path.relative_to(SOURCE)))}


def wrong_in_line(path: str, caller: str, called: str) -> list[str]:
    """Return what is wrong with a line."""
    node = definitions(path).get(caller)
    if node is None:
        return [f"{path} has no {caller}"]
    words = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    words |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    names = called.split(", ")
    found = [f"{caller} does not call {name}" for name in names if name.rpartition(".")[2] not in words]
    return found + [f"there is no {name}" for name in names if name not in everything()]


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk[0][1])
def test_each_function_of_a_walk_calls_the_next_ones(walk: list[tuple[str, str, str]]) -> None:
    assert [problem for line in walk for problem in wrong_in_line(*line)] == []
    reached = {walk[0][1].rpartition(".")[2]}
    for _, caller, called in walk:
        assert caller.removesuffix(".__init__").rpartition(".")[2] in reached, caller
        reached |= {name.rpartition(".")[2] for name in called.split(", ")}


def test_there_are_walks_of_a_query_and_of_a_write() -> None:
    assert [walk[0][1] for walk in WALKS] == ["Connection.sql", "SelectQuery.reader", "run"]


def test_lines_that_are_wrong_are_found() -> None:
    assert wrong_in_line("connection.py", "Connection.sequel", "bind") == ["connection.py has no Connection.sequel"]
    assert wrong_in_line("connection.py", "Connection.sql", "prune") == ["Connection.sql does not call prune"]
    assert wrong_in_line("connection.py", "Connection.sql", "Request.query, Session.run") == ["there is no Session.run"]


# -- the script of CI ------------------------------------------------------------------------------


def test_ci_installs_runs_the_linters_and_then_the_tests(tmp_path: Path) -> None:
    """In a checkout whose README has two other commands, and whose linters say that they were called."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((CHECKOUT / ".ci" / "run").read_bytes())
    said = '{ true; } && \\\n  echo "* install" && \\\n  echo "* tests $PYTEST_ADDOPTS"'
    (tmp_path / "README.md").write_text(f"```sh\ndemo\n```\n\n```sh\n{said}\n```\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("ruff", "mypy", "lint-imports"):
        path = tmp_path / ".venv" / "bin" / name
        path.write_text(f'#!/bin/sh\necho "* {name} $*"\n')
        path.chmod(0o755)

    def said_by_ci() -> list[str]:
        done = subprocess.run(["bash", ".ci/run"], cwd=tmp_path, capture_output=True, text=True)
        return [line[2:].rstrip() for line in done.stdout.splitlines() if line.startswith("* ")]

    linters = ["ruff check .", "ruff format --check .", "mypy", "lint-imports"]
    assert said_by_ci()[:-1] == ["install", *linters]
    assert said_by_ci()[-1].startswith("tests -n 3")
    (tmp_path / ".venv" / "bin" / "mypy").write_text("#!/bin/sh\nexit 1\n")
    assert said_by_ci() == ["install", *linters[:2]]


_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@pytest.mark.parametrize("page", ["reliability", "security"])
def test_each_promise_of_a_page_names_a_test_that_is_there(page):
    text = (CHECKOUT / "docs" / f"{page}.md").read_text("utf-8")
    tables = [table for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE) if " test |" in table.splitlines()[0]]
    lines = [line for table in tables for line in table.splitlines()[2:]]
    assert len(lines) > 30
    for line in lines:
        named = _TEST.findall(line)
        assert named, line
        for path, name in named:
            assert f"def {name}(" in (CHECKOUT / path).read_text("utf-8"), line
    assert text.count("::test_") == sum(line.count("::test_") for line in lines)
