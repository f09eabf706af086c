from __future__ import annotations

import pyarrow as pa
import pytest

from builders import SEED_FLAGS, schema_bytes, write_cube, write_dataset
from kartosql.errors import FormatError, UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot

SEED = {"p": pa.int64(), "x": pa.int64(), "v": pa.int64()}


# -- the specification -----------------------------------------------------------------------


def test_names_are_kept_in_order_and_single_ones_may_be_text():
    cube = Cube("c", ["y", "x"], "p", index_columns="i", suppress_index_on=["x"])
    assert (cube.dimension_columns, cube.partition_columns) == (("y", "x"), ("p",))
    assert (cube.index_columns, cube.suppress_index_on) == ({"i"}, {"x"})
    assert cube.seed_dataset == "seed"
    assert cube.uuid("weather") == "c++weather"


def test_bytes_are_decoded():
    assert Cube(b"c", [b"x"], b"p") == Cube("c", ["x"], ["p"])


def test_cubes_with_equal_parts_are_equal():
    first, second = Cube("c", "x", "p", index_columns=["a", "b"]), Cube("c", "x", "p", index_columns=["b", "a"])
    assert first == second
    assert hash(first) == hash(second)
    assert first != Cube("c", "x", "q")


@pytest.mark.parametrize(
    "arguments",
    [
        ("", "x", "p"),
        ("a b", "x", "p"),
        ("a++b", "x", "p"),
        ("a.b", "x", "p"),
        ("c\n", "x", "p"),
        (None, "x", "p"),
        (1, "x", "p"),
        ("c", [], "p"),
        ("c", "x", []),
        ("c", "", "p"),
        ("c", ["x", "x"], "p"),
        ("c", {"x"}, "p"),
        ("c", {"x": 1}, "p"),
        ("c", 1, "p"),
        ("c", None, "p"),
        ("c", [1], "p"),
        ("c", ["a\0b"], "p"),
        ("c", [b"\xff"], "p"),
        (b"\xff", "x", "p"),
        ("c", "x", "x"),
        ("c", "x", "p", "a++b"),
        ("c", "x", "p", ""),
        ("c", "x", "p", "seed", "x"),
        ("c", "x", "p", "seed", "p"),
        ("c", "x", "p", "seed", 5),
        ("c", "x", "p", "seed", (), "y"),
    ],
    ids=str,
)
def test_names_and_roles_that_do_not_fit_are_refused(arguments):
    with pytest.raises(UsageError) as e:
        Cube(*arguments)
    assert e.value.code == "invalid-cube"


# -- the state -------------------------------------------------------------------------------


def test_members_join_on_dimensions_and_cube_partition_columns(local):
    write_cube(
        local,
        "c",
        {
            "seed": {"p": pa.int64(), "x": pa.int64(), "v": pa.int64(), "__hidden": pa.int64()},
            "both": {"p": pa.int64(), "x": pa.int64(), "b": pa.string()},
            "dim": {"x": pa.int64(), "d": pa.string()},
        },
    )
    state = Snapshot(local).cube("c")
    assert {name: m.join_key for name, m in state.members.items()} == {
        "seed": ("x", "p"), "both": ("x", "p"), "dim": ("x",),
    }  # fmt: skip
    assert {name: m.payload for name, m in state.members.items()} == {"seed": ("v",), "both": ("b",), "dim": ("d",)}
    assert state.owner == {"v": "seed", "b": "both", "d": "dim"}
    assert list(state.types) == ["b", "d", "p", "v", "x"]


def test_a_column_without_type_takes_the_type_of_another_member(local):
    write_cube(local, "c", {"seed": {**SEED, "x": pa.null()}, "dim": {"x": pa.int64(), "d": pa.string()}})
    assert Snapshot(local).cube("c").types["x"] == pa.int64()


def test_a_member_may_have_partition_keys_of_its_own(local):
    write_cube(local, "c", {"seed": SEED})
    write_dataset(local, "c++own", {"k": pa.string(), "x": pa.int64()}, ["k=a"], partition_keys=["k"])
    member = Snapshot(local).cube("c").members["own"]
    assert (member.join_key, member.payload) == (("x",), ("k",))


BROKEN = {
    "payload twice": ({"seed": SEED, "two": {"x": pa.int64(), "v": pa.int64()}}, "'v' is also in"),
    "types differ": ({"seed": SEED, "two": {"x": pa.uint64(), "w": pa.int64()}}, "'x' is"),
    "float and int": ({"seed": SEED, "two": {"x": pa.float64(), "w": pa.int64()}}, "'x' is"),
    "partition types differ": ({"seed": SEED, "two": {"p": pa.string(), "x": pa.int64(), "w": pa.int64()}}, "'p' is"),
    "no dimension": ({"seed": SEED, "two": {"w": pa.int64()}}, "no dimension column"),
    "seed lacks a dimension": ({"seed": {"p": pa.int64(), "v": pa.int64()}}, "lacks the column 'x'"),
    "seed lacks a partition column": ({"seed": {"x": pa.int64(), "v": pa.int64()}}, "lacks the column 'p'"),
}


@pytest.mark.parametrize(("members", "reason"), BROKEN.values(), ids=BROKEN)
def test_members_that_do_not_make_a_table_are_refused(local, members, reason):
    write_cube(local, "c", members)
    with pytest.raises(FormatError, match=reason) as e:
        Snapshot(local).cube("c")
    assert e.value.code == "invalid-cube"
    assert "'c'" in e.value.message


def test_a_cube_partition_column_must_be_a_partition_key_of_each_member(local):
    write_cube(local, "c", {"seed": SEED})
    write_dataset(local, "c++two", {"p": pa.int64(), "x": pa.int64()}, [""])
    with pytest.raises(FormatError, match=r"'two'.*'p' is a partition column of the cube, but no partition key") as e:
        Snapshot(local).cube("c")
    assert e.value.code == "invalid-cube"


def test_a_seed_must_be_partitioned_by_the_partition_columns(local):
    write_dataset(local, "c++seed", SEED, [""], metadata=SEED_FLAGS)
    with pytest.raises(FormatError, match="no partition key") as e:
        Snapshot(local).cube("c")
    assert e.value.code == "invalid-cube"


def test_members_have_one_table_called_table(local):
    write_cube(local, "c", {"seed": SEED})
    partitions = {"l": {"files": {"core": "c++two/core/l.parquet", "table": "c++two/table/l.parquet"}}}
    write_dataset(local, "c++two", {"x": pa.int64()}, partitions=partitions)
    local.put("c++two/core/_common_metadata", schema_bytes({"x": pa.int64()}))
    with pytest.raises(FormatError, match=r"\['core', 'table'\]") as e:
        Snapshot(local).cube("c")
    assert e.value.code == "invalid-cube"


def test_an_emptied_member_stays_a_member(local):
    write_cube(local, "c", {"seed": SEED})
    write_dataset(local, "c++two", {"x": pa.int64(), "w": pa.int64()})
    state = Snapshot(local).cube("c")
    assert state.members["two"].table.files == ()
    assert "w" in state.types
