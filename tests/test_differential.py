"""Random statements, answered three ways: pruned, unpruned, and over tables made without the library's reader.

By default a few hundred statements; with CI set 1,000 over 10 stores. For a long run set
KARTOSQL_DIFFERENTIAL to <stores>x<statements>: 500x200 makes 100,000 of them, 100-200x200 those of the
stores 100 to 199. From 5,000 on every construct has to be met.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from differential.constructs import NOT_YET, PRUNES, USED
from differential.runs import Runs
from differential.tally import Tally

CHOSEN = os.environ.get("KARTOSQL_DIFFERENTIAL", "8x80" if "CI" in os.environ else "4x60")
STORES, STATEMENTS = CHOSEN.split("x")
FIRST, LAST = map(int, STORES.split("-")) if "-" in STORES else (0, int(STORES))
SEEDS = range(FIRST, LAST)
ENOUGH = 5_000  # statements after which every construct must have been met


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    made = Runs(SEEDS, int(STATEMENTS))
    yield made
    made.end()


@pytest.fixture(scope="module")
def total(runs) -> Tally:
    return runs.total()


@pytest.mark.timeout(0)  # a store waits for those before it
@pytest.mark.parametrize("seed", SEEDS)
def test_pruned_unpruned_and_plain_answers_agree(seed, runs):
    tally = runs.futures[seed].result()
    if tally.failures:
        pytest.fail("\n\n".join(tally.failures), pytrace=False)


def test_most_statements_are_valid_and_their_answers_determined(total):
    assert total.valid > 0.9, total
    assert total.statuses["undetermined"] < 0.01 * total.statements, total


def test_pruning_is_not_idle(total):
    assert total.power > 0.2, total


@pytest.mark.skipif(len(SEEDS) * int(STATEMENTS) < ENOUGH, reason="too few statements to meet every construct")
def test_every_construct_is_exercised(total):
    print(total)
    assert [name for name in USED if not total.used[name]] == []


@pytest.mark.skipif(len(SEEDS) * int(STATEMENTS) < ENOUGH, reason="too few statements to meet every construct")
def test_conditions_prune_through_every_construct_that_lets_them(total):
    assert [name for name in PRUNES if not total.lost[name] and name not in NOT_YET] == [], total


@pytest.mark.skipif(len(SEEDS) * int(STATEMENTS) < ENOUGH, reason="too few statements to meet every construct")
def test_what_is_not_done_yet_is_not_done(total):
    assert [name for name in sorted(NOT_YET) if total.lost[name]] == [], f"take them off the list\n{total}"
