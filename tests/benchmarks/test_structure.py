"""The measures of the structure that must not grow again."""

from __future__ import annotations

from tests.benchmarks import structure


def test_a_predicate_is_parsed_once_and_never_again(tmp_path):
    structure.build(str(tmp_path))
    first, *again = structure.parses(str(tmp_path))
    assert 0 < first <= 5
    assert again == [0, 0]
