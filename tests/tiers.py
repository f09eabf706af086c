"""What a test costs, told by its fixtures and its code: a session of Spark, processes, seconds, or little.

``pytest -m quick`` runs those that cost little, for somebody who changes a line. What takes long otherwise was measured
and is named in ``slow.txt``: ``pytest -m "quick or slow" --junitxml=FILE``, then ``python tests/tiers.py FILE``.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).resolve().parent
SLOW = TESTS / "slow.txt"
LIMIT = 0.7  # seconds that all cases of a test may take together without being slow
# Names in code that stand for starting a process.
_STARTING = {"subprocess", "multiprocessing", "Spawn", "fork", "posix_spawn", "ProcessPoolExecutor"}
_TAKES_SPARK = re.compile(r"(def test_\w+\([^)]*\b|usefixtures\(\")spark(_connect)?\b")  # the fixtures
_OF_ORIGINALS = ("test_beside_originals.py", "test_readback.py")
_STARTED = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")


def mark(items: list[pytest.Item]) -> None:
    """Mark tests with what they cost."""
    for item in items:
        item.add_marker(tier(item))


@functools.cache
def group(path: str) -> str:
    """Return the tests that stay in one process of pytest-xdist with those of a file: itself, or all that need Spark.

    So one session of Spark does for all, and what the fixtures of a module make is made once, as the environment of
    the originals is.
    """
    if Path(path).name in _OF_ORIGINALS:
        return "originals"
    needs_spark = "spark" in path.split("/") or _TAKES_SPARK.search((TESTS.parent / path).read_text("utf-8"))
    return "spark" if needs_spark else path


def tier(item: pytest.Item) -> str:
    """Return what a test costs."""
    if "spark_of_the_run" in getattr(item, "fixturenames", ()):
        return "spark"
    if item.get_closest_marker("process") or starts_processes(item.function, *_fixtures(item)):  # type: ignore[attr-defined]
        return "process"
    return "slow" if item.nodeid.partition("[")[0] in slow() else "quick"


@functools.cache
def slow() -> frozenset[str]:
    """Return the tests that take long by themselves."""
    return frozenset(SLOW.read_text("utf-8").splitlines())


def measured(report: str) -> list[str]:
    """Return the tests of a report in JUnit's format that take more than LIMIT, all cases of each together."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.attrib["classname"].replace(".", "/") + ".py"
        seconds[f"{module}::{case.attrib['name'].partition('[')[0]}"] += float(case.attrib["time"])
    return sorted(test for test, taken in seconds.items() if taken > LIMIT)


def _fixtures(item: Any) -> Iterator[Callable[..., Any]]:
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        yield from (definition.func for definition in definitions)


@functools.cache
def starts_processes(*functions: Callable[..., Any]) -> bool:
    """Return whether functions, or what they call of the tests, name something that starts a process."""
    waiting, seen = [*functions], set()
    while waiting:
        function = inspect.unwrap(waiting.pop())
        function = getattr(function, "__func__", function)
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        names = set(_names(function.__code__))
        if names & _STARTING:
            return True
        for name in names & function.__globals__.keys():
            waiting += _called(function.__globals__[name], names)
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _called(value: Any, names: set[str]) -> list[Any]:
    """Return the functions of the tests that a name may stand for."""
    if inspect.ismodule(value):
        ours = TESTS in Path(getattr(value, "__file__", None) or "/").parents
        return [f for n, f in vars(value).items() if n in names] if ours else []
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if TESTS not in Path(getattr(module, "__file__", None) or "/").parents:
        return []
    return list(vars(value).values()) if inspect.isclass(value) else [value]


class Guard:
    """Lets no test of the quick tier start a process, where that tier is run."""

    def __init__(self) -> None:
        self.test: str | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.test is not None and event in _STARTED:
            raise RuntimeError(f"{self.test} starts a process: mark it with pytest.mark.process")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        try:
            return (yield)
        finally:
            self.test = None


if __name__ == "__main__":
    SLOW.write_text("\n".join(measured(sys.argv[1])) + "\n", "utf-8")
