"""Short forms of the programmes over lake tables: random statements, and writers that race with indexes.

For long runs see ``lakes.statements`` and ``lakes.races``.
"""

from __future__ import annotations

import pytest

from lakes.races import TABLES, race, rounds
from lakes.statements import run_lakes


@pytest.mark.parametrize("seed", range(4))
def test_random_statements_answer_as_over_what_the_own_readers_of_the_tables_read(seed):
    tally = run_lakes(seed, range(20))
    if tally.failures:
        pytest.fail("\n\n".join(tally.failures), pytrace=False)
    assert tally.statuses["checked"] > 10
    assert tally.pruned


@pytest.mark.parametrize("kind", TABLES)
def test_no_acknowledged_row_is_lost_to_writers_that_race_with_indexes(kind, tmp_path):
    counts = race(kind, tmp_path, 0, rounds(4))
    assert counts["statements"]
