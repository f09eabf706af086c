"""What mutations replace, and the tests that notice them, are there: else a run of them would tell nothing."""

from __future__ import annotations

from mutations import MUTATIONS
from run import TESTS

from mutated import ROOT, misplaced


def test_what_is_replaced_occurs_once() -> None:
    assert misplaced(MUTATIONS) == {}


def test_the_tests_that_notice_exist() -> None:
    for mutation in MUTATIONS:
        path, _, test = mutation.by.partition("::")
        if path:
            assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text("utf-8"), mutation.name
    assert [path for paths in TESTS.values() for path in paths if not (ROOT / path).exists()] == []
