"""Which files hold the same values, where footers and indices are unusual."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import builders
from kartosql.engines.duckdb.evaluator import Planner
from kartosql.engines.duckdb.footers import Footers
from kartosql.engines.duckdb.runtime import Instance
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store

LABELS = pa.list_(pa.string())


@pytest.fixture
def planner(local: Store) -> Iterator[Planner]:
    planner = Planner(Instance(local, {}), FileAccess(local), Footers())
    yield planner
    planner.close()


def _table(store: Store, files: int, type_: pa.DataType, **changes: Any) -> DatasetTable:
    folders = [f"n={n}" for n in range(files)]
    builders.write_dataset(store, "d", {"n": pa.int64(), "x": type_}, folders, partition_keys=["n"], **changes)
    return Snapshot(store).dataset("d").tables["table"]


def test_a_range_spans_all_row_groups_and_is_not_known_beside_null(planner, local):
    table = _table(local, 4, pa.int64())
    for key, values in zip(table.files, ([1, 2, 7, 8], [5], [3, 4, None, 9], []), strict=True):
        rows = pa.table({"x": pa.array(values, pa.int64())})
        local.put(key, builders.parquet(rows, row_group_size=2))
    ranges = planner.cells.ranges(table, "x", table.all_files)
    assert ranges == {0: (1, 8), 1: (5, 5)}


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("type_", "index"),
    [
        (pa.int64(), lambda a, b: {"x": [1, 2], "partition": pa.array([[a, b], [b]], LABELS)}),
        (pa.int64(), lambda a, b: {"x": [1, 2, 1], "partition": pa.array([[a], [b], [b]], LABELS)}),
        (
            pa.timestamp("us"),
            lambda a, b: {"x": pa.array([1_000, 1_001], pa.timestamp("ns")), "partition": pa.array([[a], [b]], LABELS)},
        ),
    ],
    ids=["once", "twice", "twice in the type of the column"],
)
def test_a_value_that_two_files_have_in_common_is_found(planner, local, type_, index, held):
    table = _table(local, 3, type_, indices={"x": "d/x.parquet"})
    local.put("d/x.parquet", builders.parquet(pa.table(index(*table.labels[:2])), coerce_timestamps=None))
    structures = planner.structures
    if held:
        structures.hold(table, structures.index(table, "x"))
    groups = dict.fromkeys(table.all_files, 0)
    assert planner.cells.share_values(table, "x", groups) == {(0, 1)}
    assert (structures.index(table, "x").held is not None) is held


def test_texts_of_an_embedded_index_that_are_one_value_stand_together(planner, local):
    labels = [f"n={n}/{builders.WRITE_ID}" for n in range(2)]
    index = {"2020-01-01": [labels[0]], "2020-01-01 00:00:00": [labels[1]]}
    table = _table(local, 2, pa.timestamp("us"), indices={"x": index})
    cells = planner.cells
    assert cells.share_values(table, "x", {0: 0, 1: 0}) == {(0, 1)}
    assert cells.share_values(table, "x", {0: 0, 1: 1}) == set()
