"""What a test costs is found by itself."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

import crashes
import tiers


def _helper() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


class _Machine:
    def start(self) -> None:
        _helper()


def _directly() -> None:
    import multiprocessing

    multiprocessing.get_context("spawn")


def _in_a_class() -> None:
    _Machine().start()


def _in_another_module() -> None:
    assert not crashes.was_killed(lambda: None, 0, "before")


def _inside() -> None:
    def call() -> None:
        _helper()

    call()


def _not_at_all() -> None:
    assert tiers.TESTS.is_dir()


@pytest.mark.parametrize("starting", [_helper, _directly, _in_a_class, _in_another_module, _inside])
def test_whoever_starts_processes_is_found(starting):
    assert tiers.starts_processes(_not_at_all, starting)


def test_who_starts_none_is_not():
    assert not tiers.starts_processes(_not_at_all)


def test_every_test_has_one_tier(request):
    names = {"quick", "slow", "process", "spark"}
    for item in request.session.items:
        found = {mark.name for mark in item.iter_markers()} & names
        assert len(found) == 1, item


def test_tests_that_are_slow_exist():
    for test in tiers.slow():
        path, _, name = test.partition("::")
        assert f"def {name.rpartition('::')[2]}(" in (tiers.TESTS.parent / path).read_text("utf-8"), test


def test_slow_is_what_takes_long_in_all_cases_together(tmp_path):
    report = tmp_path / "report.xml"
    cases = "".join(
        f'<testcase classname="tests.a.test_b" name="{n}" time="{t}"/>'
        for n, t in (("test_c[1]", 0.4), ("test_c[2]", 0.4), ("test_d", 0.1))
    )
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert tiers.measured(str(report)) == ["tests/a/test_b.py::test_c"]


def test_no_two_files_of_tests_have_one_name():
    """pytest imports each by its name alone."""
    names = Counter(path.name for path in tiers.TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_process_in_the_quick_tier_is_refused():
    guard = tiers.Guard()
    guard.test = "this"
    try:
        with pytest.raises(RuntimeError, match="this starts a process"):
            _helper()
    finally:
        guard.test = None
    _helper()
