"""Random data, indexes and predicates: a skipped file never holds a matching row."""

from __future__ import annotations

import os
from pathlib import Path

import skipping_data

PER_WORLD = 40


def _cases() -> int:
    named = os.environ.get("KARTOSQL_SKIPPING")
    return int(named) if named else 2_000 if os.environ.get("CI") else 800


def test_no_skipped_file_holds_a_match(tmp_path: Path):
    asked = files = skipped = possible = 0
    for seed in range(_cases() // PER_WORLD):
        for world, where, matching, read in skipping_data.cases(seed, tmp_path / str(seed), PER_WORLD):
            assert matching <= read, (
                f"seed {seed}, version {world.version}, {world.zone}: {where} loses {matching - read}"
            )
            assert world.store.problems == []
            asked += 1
            files += len(world.files)
            skipped += len(world.files) - len(read)
            possible += len(world.files) - len(matching)
    # Random predicates are mostly understood, and much of what can be skipped is.
    assert asked > 0.8 * _cases()
    assert skipped > 0.25 * possible, (skipped, possible, files)
