"""Filters of many files: the same answers whether they are read or stay in memory."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest

from kartosql.formats.xskipper import bloom, refreshing
from kartosql.formats.xskipper.bloom import Budget
from kartosql.formats.xskipper.kinds import IndexSpec
from kartosql.formats.xskipper.layout import layout_for
from kartosql.formats.xskipper.refreshing import Sources, refresh
from kartosql.formats.xskipper.scans import DataFile
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.store import Store

FILES = [DataFile(f"/t/{n}", n, str(n)) for n in range(40)]
LISTING = [(f.path, f.modified_ms) for f in FILES]


def _values(key: str) -> list[str]:
    rng = random.Random(key)
    # Few values leave most words zero, many leave none.
    return [f"{key}-{i}" for i in range(rng.choice([0, 1, 5, 300]))]


def _scan(keys: Any, columns: Any) -> Any:
    for number, key in enumerate(keys):
        yield number, pa.RecordBatch.from_pydict({"s": pa.array(_values(key), pa.string())})


@pytest.mark.parametrize("budget", [0, 10_000, 1 << 30])
@pytest.mark.parametrize("ndv", [3, 200, 5_000])
def test_answers_do_not_depend_on_what_stays_in_memory(tmp_path, monkeypatch, budget, ndv):
    monkeypatch.setattr(refreshing, "_GROUP_BYTES", 30_000)
    layout = layout_for("/t", [IndexSpec("bloomfilter", "s", 0.02, ndv)], {"s": pa.string()})
    refresh(Store(tmp_path), "m", FILES, layout, Sources(_scan))
    monkeypatch.setattr(bloom, "_MOST_HELD", budget)
    asked = ["3-0", "4-4", "7-299", "x", "y", "39-0"]
    expected = {}
    for value in asked:
        store = MetadataStore.open(tmp_path / "m")
        expected[value] = store.select(f"s = '{value}'", LISTING)
        holding = {f.path for f in FILES if value in _values(f.key)}
        assert holding <= set(expected[value])
    if ndv > 300:
        assert len(expected["x"]) < 5
    store = MetadataStore.open(tmp_path / "m")
    for _ in range(3):
        for value in asked:
            assert store.select(f"s = '{value}'", LISTING) == expected[value]
    both = set(expected["3-0"]) | set(expected["4-4"])
    assert set(store.select("s IN ('3-0', '4-4')", LISTING)) == both


def test_a_budget_is_spent_once():
    budget = Budget(10)
    assert [budget.take(n) for n in (6, 6, 4, 1)] == [True, False, True, False]
    assert Budget().take(1)


@pytest.mark.parametrize("cut", range(9))
@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.9, 1])
def test_filters_in_memory_have_the_bits_of_those_in_files(cut, share):
    """Of few words that are not zero, the first and the last among them, of many, and of none."""
    rng = random.Random(cut)
    lengths = [8 * 100 + cut, 0, 73 + cut, 5, 8 * 100 + cut, 0]
    data = bytearray(cut + sum(lengths))
    for start in range(cut, len(data), 8):
        if rng.random() < share or (share and start < cut + 8):
            data[min(start + rng.randrange(8), len(data) - 1)] = rng.randrange(1, 256)
    batch = bloom._Batch(memoryview(bytes(data)), list(accumulate(lengths, initial=cut)), [0, -1, 1, 0, 0, -1])
    packed, size = batch.packed()
    assert size <= len(data) * 5 / 4 + 64
    for number, (cell, kept, length) in enumerate(zip(batch.cells(), packed, lengths, strict=True)):
        if cell is None or kept is None:
            assert cell is kept
            continue
        assert kept.form == cell.form
        assert (kept.bitmap is None) == (share > 0.5)
        # The first bytes are not of the filter.
        for at in range(0 if number else 8, length):
            for bit in range(8):
                probe = [(at, 1 << bit)]
                assert kept.has(probe) == cell.has(probe)
