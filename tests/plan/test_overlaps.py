"""Which files are read with the last-one-wins step: those that may really hold the same cells."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.formats.kartothek.cube import Cube
from kartosql.plan import overlays
from kartosql.plan.overlays import Overlays
from kartosql.store import Store
from written import build_cube

CUBE = Cube("c", ["x", "y"], ["p"], index_columns=["i1"])


def _seed(x: list[int], y: list[int], v: str, p: int = 0) -> pa.Table:
    return pa.table({"x": x, "y": y, "p": [p] * len(x), "i1": x, "v": [f"{v}{n}" for n in x]})


def _e(d: list[Any], v: str, p: int = 0, type_: pa.DataType | None = None) -> pa.Table:
    return pa.table({"x": pa.array(d, type_), "p": [p] * len(d), "w": [f"{v}{n}" for n in range(len(d))]})


@pytest.fixture
def overlaid(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], dict[str, int]]:
    """Return how many files of each dataset a statement reads with the last-one-wins step, at its last plan."""
    found: dict[str, int] = {}
    within = Overlays.within

    def spy(self: Overlays, files: frozenset[int]) -> frozenset[int]:
        found[self._part.name] = len(result := within(self, files))
        return result

    monkeypatch.setattr(Overlays, "within", spy)

    def count(connection: Any, sql: str) -> dict[str, int]:
        found.clear()
        connection.explain(sql)
        return dict(found)

    return count


@pytest.fixture
def make(local: Store) -> Callable[..., Any]:
    """Build a cube of a first write, append others to one dataset, and return its connection."""

    def make(name: str, *writes: pa.Table, flags: bool = True) -> Any:
        seed = _seed([0, 1], [0, 0], "s") if name != "seed" else writes[0]
        build_cube(local, CUBE if name == "seed" else Cube("c", ["x", "y"], ["p"]), {"seed": seed, **{name: writes[0]}})
        for rows in writes[1:]:
            builders.append(local, f"c++{name}", rows)
        if not flags:
            made = builders.read_document(local, f"c++{name}")
            made["metadata"] = {k: v for k, v in made["metadata"].items() if k == "creation_time"}
            builders.write_document(local, made)
        return kartosql.connect(local.url)

    return make


def test_one_write_never_overlays_itself(make, overlaid):
    connection = make("seed", pa.concat_tables([_seed([0, 1], [0, 0], "a"), _seed([0, 1], [0, 0], "a", p=1)]))
    assert overlaid(connection, "SELECT v FROM c") == {"seed": 0}


def test_writes_to_different_partitions_do_not_overlay(make, overlaid):
    connection = make("seed", _seed([0, 1], [0, 0], "a"), _seed([0, 1], [0, 0], "b", p=1))
    assert overlaid(connection, "SELECT v FROM c") == {"seed": 0}


def test_files_with_interleaved_but_different_values_of_a_dimension_do_not_overlay(make, overlaid):
    connection = make("seed", _seed([0, 2, 4], [0] * 3, "a"), _seed([1, 3, 5], [0] * 3, "b"))
    assert overlaid(connection, "SELECT v FROM c") == {"seed": 0}
    assert connection.sql("SELECT v FROM c ORDER BY x").rows() == [(v,) for v in ("a0", "b1", "a2", "b3", "a4", "b5")]


def test_files_that_share_values_of_each_dimension_may_overlay(make, overlaid):
    connection = make("seed", _seed([0, 1], [0, 1], "a"), _seed([1, 2], [1, 0], "b"))
    assert overlaid(connection, "SELECT v FROM c") == {"seed": 2}
    assert connection.sql("SELECT v FROM c ORDER BY x").rows() == [("a0",), ("b1",), ("b2",)]


def test_of_two_dimensions_one_without_common_values_is_enough(make, overlaid):
    connection = make("seed", _seed([0, 1], [0, 0], "a"), _seed([0, 1], [1, 1], "b"))
    assert overlaid(connection, "SELECT v FROM c") == {"seed": 0}


def test_two_files_have_to_share_values_of_all_dimensions(make, overlaid):
    connection = make("seed", _seed([0, 1], [0, 0], "a"), _seed([1, 2], [1, 1], "b"), _seed([2, 3], [1, 0], "c"))
    assert overlaid(connection, "SELECT v FROM c") == {"seed": 2}
    assert connection.sql("SELECT v FROM c ORDER BY x, y").rows() == [(v,) for v in ("a0", "a1", "b1", "c2", "c3")]


def test_only_the_files_that_share_cells_are_read_with_the_last_one_winning(make, overlaid):
    connection = make(
        "seed", _seed([0, 1], [0, 0], "a"), _seed([1, 2], [0, 0], "b"), _seed([8, 9], [0, 0], "c"),
        _seed([0], [0], "d", p=1), _seed([5], [0], "e", p=1),
    )  # fmt: skip
    assert overlaid(connection, "SELECT v FROM c") == {"seed": 2}
    assert connection.sql("SELECT v FROM c WHERE p = 0 ORDER BY x").rows() == [
        ("a0",),
        ("b1",),
        ("b2",),
        ("c8",),
        ("c9",),
    ]
    # Of the files that are left after pruning.
    assert overlaid(connection, "SELECT v FROM c WHERE x = 2") == {"seed": 0}
    assert overlaid(connection, "SELECT v FROM c WHERE x = 1") == {"seed": 2}
    assert overlaid(connection, "SELECT v FROM c WHERE p = 1") == {"seed": 0}


def test_what_is_known_of_all_files_holds_for_some_of_them(make, overlaid):
    connection = make("seed", _seed([0, 1], [0, 0], "a"), _seed([1, 2], [0, 0], "b"), _seed([2, 3], [0, 0], "c"))
    for _ in range(2):
        assert overlaid(connection, "SELECT v FROM c") == {"seed": 3}
        assert overlaid(connection, "SELECT v FROM c WHERE x = 1") == {"seed": 2}
        assert overlaid(connection, "SELECT v FROM c WHERE x = 3") == {"seed": 0}
        assert overlaid(connection, "SELECT v FROM c WHERE i1 = 0") == {"seed": 0}
    assert connection.sql("SELECT v FROM c WHERE x < 3 ORDER BY x").rows() == [("a0",), ("b1",), ("c2",)]


def test_too_many_pairs_of_files_are_not_looked_at(make, overlaid, monkeypatch):
    connection = make("seed", _seed([0], [0], "a"), _seed([1], [0], "b"), _seed([2], [0], "c"))
    monkeypatch.setattr(overlays, "MAX_PAIRS", 1)
    assert overlaid(connection, "SELECT v FROM c") == {"seed": 3}
    assert connection.sql("SELECT v FROM c WHERE i1 = 0").rows() == [("a0",)]


def test_with_too_many_pairs_of_files_all_later_ones_may_hide_rows(make, monkeypatch):
    moved = _seed([0], [0], "b").set_column(3, "i1", pa.array([9]))
    connection = make("seed", _seed([0, 1], [0, 0], "a"), moved)
    monkeypatch.setattr(overlays, "MAX_PAIRS", 0)
    assert connection.sql("SELECT v FROM c WHERE i1 = 0").rows() == []


def test_an_index_that_costs_more_than_it_saves_is_not_read(make, overlaid, monkeypatch):
    connection = make("seed", _seed([0, 2], [0, 0], "a"), _seed([1, 3], [0, 0], "b"))
    monkeypatch.setattr(overlays, "INDEX_SHARE", 0.0001)
    assert overlaid(connection, "SELECT v FROM c") == {"seed": 2}


def test_an_index_that_cannot_be_read_does_not_matter(make, overlaid, local):
    connection = make("seed", _seed([0, 1], [0, 0], "a"), _seed([1, 2], [0, 1], "b"))
    indices = builders.read_document(local, "c++seed")["indices"]
    os.remove(local.local_path(indices["x"]))
    local.put(indices["y"], b"no Parquet")
    assert overlaid(connection, "SELECT v FROM c") == {"seed": 2}
    assert connection.sql("SELECT v FROM c ORDER BY x").rows() == [("a0",), ("b1",), ("b2",)]


def test_files_of_the_same_name_are_of_one_write_only_if_the_name_says_so(local, overlaid):
    cube = Cube("c", ["x"], ["p"])
    rows = {"x": [0], "q": ["u"], "w": ["old"]}
    build_cube(local, cube, {"seed": pa.table({"x": [0], "p": [0]}), "e": pa.table(rows)}, partition_on={"e": ["q"]})
    for q, w in (("a", "between"), ("b", "last")):
        builders.append(local, "c++e", pa.table({"x": [0], "q": [q], "w": [w]}), "part-0")
    made = builders.read_document(local, "c++e")
    made["partitions"] = {k: v for k, v in made["partitions"].items() if k.endswith("part-0")}
    builders.write_document(local, made)
    connection = kartosql.connect(local.url)
    assert overlaid(connection, "SELECT w FROM c") == {"seed": 0, "e": 2}
    assert connection.sql("SELECT w FROM c").rows() == [("last",)]


# -- ranges --------------------------------------------------------------------------------------

DAYS = [dt.date(2020, 1, n) for n in range(1, 9)]
TIMES = [dt.datetime(1969, 12, 31, 23, 59, 59, n) for n in range(1, 9)]


@pytest.mark.parametrize(
    ("values", "type_", "known"),
    [
        (range(8), pa.int64(), True),
        (range(-4, 4), pa.int64(), True),
        (DAYS, pa.date32(), True),
        (TIMES, pa.timestamp("us"), True),
        (list("abcdefgh"), pa.string(), False),  # the bounds of texts may be cut
    ],
)
def test_files_whose_ranges_of_a_dimension_do_not_meet_do_not_overlay(
    local, overlaid, monkeypatch, values, type_, known
):
    monkeypatch.setattr(overlays, "FOOTER_BYTES", 0)
    values = list(values)
    seed = pa.table({"x": pa.array(values, type_), "y": [0] * 8, "p": [0] * 8, "v": values[:0] + list(range(8))})
    build_cube(local, Cube("c", ["x", "y"], ["p"]), {"seed": seed, "e": _e(values[:3], "a", type_=type_)})
    builders.append(local, "c++e", _e(values[5:], "b", type_=type_))
    builders.append(local, "c++e", _e(values[3:5], "c", type_=type_))
    connection = kartosql.connect(local.url)
    assert overlaid(connection, "SELECT w FROM c") == {"seed": 0, "e": 0 if known else 3}
    builders.append(local, "c++e", _e(values[4:6], "d", type_=type_))
    assert overlaid(connection, "SELECT w FROM c") == {"seed": 0, "e": 3 if known else 4}
    wanted = ["a0", "a1", "a2", "c0", "d0", "d1", "b1", "b2"]
    assert connection.sql("SELECT w FROM c ORDER BY v").rows() == [(w,) for w in wanted]


def test_small_files_are_not_asked_for_their_ranges(make, overlaid):
    connection = make("e", _e([0, 1], "a"), _e([2, 3], "b"))
    assert overlaid(connection, "SELECT w FROM c") == {"seed": 0, "e": 2}


def test_large_files_are_asked_for_their_ranges(make, overlaid):
    connection = make("e", _e(list(range(20_000)), "a"), _e(list(range(20_000, 40_000)), "b"))
    assert overlaid(connection, "SELECT w FROM c") == {"seed": 0, "e": 0}


def test_ranges_and_indices_are_not_trusted_where_dimensions_may_be_null(make, overlaid, monkeypatch):
    monkeypatch.setattr(overlays, "FOOTER_BYTES", 0)
    connection = make("e", _e([0, 1], "a"), _e([2, 3], "b"), flags=False)
    assert overlaid(connection, "SELECT w FROM c")["e"] == 2


def test_a_damaged_file_is_found_when_it_is_read_not_when_its_range_is(make, overlaid, monkeypatch, local):
    monkeypatch.setattr(overlays, "FOOTER_BYTES", 0)
    connection = make("e", _e([0, 1], "a"), _e([2, 3], "b"))
    key = list(builders.read_document(local, "c++e")["partitions"].values())[1]["files"]["table"]
    local.put(key, b"no Parquet")
    assert overlaid(connection, "SELECT w FROM c") == {"seed": 0, "e": 2}
