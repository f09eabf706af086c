"""Everything at once over one store, for some seconds; ``python -m tests.trust soak --hours 1`` is the long form."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("pyarrow.flight")  # of the server
if sys.platform != "linux":
    pytest.skip("what a process holds is read from /proc", allow_module_level=True)
from trust import soak


def test_writers_readers_upkeep_and_a_server_get_along():
    failures, counts, held = soak.soak(5, clients=3, every=0.5)
    assert not failures, failures
    assert min(counts[what] for what in ("ok", "statements of writers", "looks of readers", "rounds of upkeep")) > 0
    assert held.taken


def test_what_grows_is_told():
    samples = soak.Samples({}, {})
    for at in range(3 * soak.LEAST):
        samples._add("writer 0", "memory", 1e8 + at * 1e6)
        samples._add("reader 0", "memory", 1e8 + at * 1e3)
    assert [text.partition(" grew")[0] for text in samples.grown()] == ["memory of writer 0"]
