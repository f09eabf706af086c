"""Filters of many files: the same answers whether they are read or stay in memory."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from kartosql.formats.xskipper import DataFile, IndexSpec, MetadataStore, Sources, filters, layout_for, refresh, writer
from kartosql.formats.xskipper.filters import Budget
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
    monkeypatch.setattr(writer, "_GROUP_BYTES", 30_000)
    layout = layout_for("/t", [IndexSpec("bloomfilter", "s", 0.02, ndv)], {"s": pa.string()})
    refresh(Store(tmp_path), "m", FILES, layout, Sources(_scan))
    monkeypatch.setattr(filters, "_default_budget", lambda: budget)
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
def test_filters_in_memory_have_the_bits_of_those_in_files(cut):
    """Of few words that are not zero, the first and the last among them, of many, and of none."""
    rng = random.Random(cut)
    for share in (0, 0.01, 0.4, 0.6, 1):
        data = bytearray(8 * 300 + cut)
        for start in range(cut, len(data), 8):
            if rng.random() < share or (start in (cut, len(data) - 8) and share):
                data[start + rng.randrange(8)] = rng.randrange(1, 256)
        cell = filters._Cell(0, memoryview(bytes(data)))
        packed = cell.packed()
        assert (packed.bitmap is None) == (share > 0.5)
        for at in range(cut % 8, len(data)):
            for bit in range(8):
                probe = [(at, 1 << bit)]
                assert packed.has(probe) == cell.has(probe) == bool(data[at] >> bit & 1)
