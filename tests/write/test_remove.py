"""What a removal takes from a dataset."""

from __future__ import annotations

import pyarrow as pa
import pytest

import builders
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.write.removal import Removal, everything, same_partitions


def nothing(table):
    return ()


@pytest.mark.parametrize(
    ("columns", "keys", "named", "expected"),
    [
        ([], (), False, everything),
        ([], ("p",), False, everything),
        (["p"], ("p", "q"), False, nothing),
        (["p", "z"], ("p",), False, nothing),
        (["p"], ("q",), False, None),
        (["p"], (), False, None),
        (["p"], (), True, everything),
        (["p"], ("q",), True, everything),
    ],
)
def test_a_removal_is_about_the_partition_keys_a_dataset_has(columns, keys, named, expected):
    assert Removal(frozenset(columns), nothing).of(keys, named=named) is expected


def test_partitions_are_the_same_by_their_values_not_by_their_paths(local):
    folders = ["f=1.0/s=a%2Fb", "f=1/s=a/b", "f=nan/s=x", "f=2.0/s=a"]
    schema = {"f": pa.float64(), "s": pa.string(), "x": pa.int64()}
    builders.write_dataset(local, "d", schema, folders, partition_keys=["f", "s"])
    table = Snapshot(local).dataset("d").tables["table"]
    selected = same_partitions(["d/table/f=1.0/s=a%2Fb/n.parquet", "d/table/f=NaN/s=x/n.parquet"], "table")(table)
    assert list(selected) == list(table.labels[:3])


def test_without_partition_keys_there_is_one_partition(local):
    builders.write_dataset(local, "d", {"x": pa.int64()}, [""])
    table = Snapshot(local).dataset("d").tables["table"]
    assert same_partitions(["d/table/n.parquet"], "table")(table) == table.labels
