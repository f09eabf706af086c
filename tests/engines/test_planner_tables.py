"""The planner's relations over many statements: made once, held when that pays, dropped in the end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import builders
from kartosql.engines.duckdb import lookups as module
from kartosql.engines.duckdb.evaluator import Planner
from kartosql.engines.duckdb.footers import Footers
from kartosql.engines.duckdb.runtime import Instance
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.indexes.index import ValueCondition
from kartosql.store import Store
from trees import tree_of

NAN = float("nan")
Values = list[list[Any]]


@pytest.fixture
def planner(local: Store) -> Iterator[Planner]:
    planner = Planner(Instance(local, {}), FileAccess(local), Footers())
    yield planner
    planner.close()


@pytest.fixture(autouse=True)
def held_at_the_second_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_SECONDS", 0)


@pytest.fixture
def make(local: Store) -> Callable[..., DatasetTable]:
    """Make a table without data files, of which file n holds values[n] of the indexed column ``i``."""

    def make(type_: pa.DataType, values: Values, uuid: str = "d") -> DatasetTable:
        builders.write_dataset(
            local,
            uuid,
            {"n": pa.int64(), "i": type_},
            [f"n={n}" for n in range(len(values))],
            partition_keys=["n"],
            indices={"i": f"{uuid}/i.parquet"},
        )
        table = Snapshot(local).dataset(uuid).tables["table"]
        labels: dict[Any, list[str]] = {}
        for label, found in zip(table.labels, values, strict=True):
            for value in found:
                labels.setdefault(value, []).append(label)
        index = {"i": pa.array(labels, type_), "partition": pa.array(labels.values(), pa.list_(pa.string()))}
        local.put(f"{uuid}/i.parquet", builders.parquet(pa.table(index)))
        return table

    return make


def _index(planner: Planner, table: DatasetTable, predicate: str, parameters: Any = None) -> set[int]:
    evaluator, given = planner, parameters or {}
    says, files = tree_of(evaluator, predicate, given), table.all_files
    asked = ValueCondition(table, "i", predicate, given, says, "k0" in predicate, True, True, files)
    return set(evaluator.index(asked).files)


def _tables(planner: Planner) -> set[str]:
    return {name for (name,) in planner.rows("SELECT table_name FROM duckdb_tables()")}


TEXTS: Values = [["a", "abc"], ["b", "Abc"], ["it's", "7"], ["", "07", "a"]]
NUMBERS: Values = [[1, 2], [2, 3], [-5, 2**60], [7]]


@pytest.mark.parametrize(
    ("type_", "values", "predicate", "parameters", "files"),
    [
        (pa.string(), TEXTS, "(v LIKE 'a%')", None, {0, 3}),
        (pa.string(), TEXTS, "(v LIKE '%b_')", None, {0, 1}),
        (pa.string(), TEXTS, "(lower(v) = 'abc')", None, {0, 1}),
        (pa.string(), TEXTS, "(TRY_CAST(v AS INTEGER) = 7)", None, {2, 3}),
        (pa.string(), TEXTS, "(v IN (SELECT unnest($1)))", {"1": ["7", "b"]}, {1, 2}),
        (pa.string(), TEXTS, "(v = ANY($1))", {"1": ["7", "b"]}, {1, 2}),
        (pa.string(), TEXTS, "(list_contains($1, v))", {"1": ["it's"]}, {2}),
        (pa.string(), TEXTS, "(v = 'a' AND k0 > 0)", None, {3}),
        (pa.int64(), NUMBERS, "(v = 2)", None, {0, 1}),
        (pa.int64(), NUMBERS, "(v % 5 = 2)", None, {0, 1, 3}),
        (pa.int64(), NUMBERS, "(v::VARCHAR = '7')", None, {3}),
        (pa.int64(), NUMBERS, "(v IN (FROM unnest([3, 7])))", None, {1, 3}),
        (pa.int64(), NUMBERS, "(v IN (VALUES (3), (7)))", None, {1, 3}),
        (pa.int64(), NUMBERS, "(v NOT IN (SELECT unnest($x)))", {"x": [1, 2, 7]}, {1, 2}),
        (pa.int64(), NUMBERS, "(v NOT IN (SELECT unnest($x)))", {"x": [1, None]}, set()),
        (pa.int64(), NUMBERS, "(v = 2 AND k0 = 1)", None, {1}),
        (pa.float64(), [[0.0], [1.5]], "(1 / v < 0)", None, {0}),
        (pa.float64(), [[0.0], [1.5]], "(v::VARCHAR = '-0.0')", None, {0}),
        (pa.date32(), [[18262], [18263, 18262], [0]], "(v = '2020-01-02')", None, {1}),
        (pa.bool_(), [[True], [False]], "(NOT v)", None, {1}),
    ],
)
def test_an_index_gives_the_same_answer_before_and_after_it_is_held(
    planner, make, type_, values, predicate, parameters, files
):
    table = make(type_, values)
    held = []
    for _ in range(4):
        assert _index(planner, table, predicate, parameters) == files
        ordered = planner.structures.ordered(table, "i").values is not None
        held.append(ordered or any("held" in name for name in _tables(planner)))
    assert not held[0]
    assert held[3]


def test_values_are_found_once_an_index_is_held(planner, make):
    table = make(pa.int64(), [[v, v + 1] for v in range(0, 600, 2)])
    for _ in range(3):
        _index(planner, table, "(v = 0)")
    assert _index(planner, table, "(v = 401)") == {200}
    assert _index(planner, table, "(v IN (0, 401, 9999))") == {0, 200}
    assert _index(planner, table, "(v BETWEEN 2 AND 5)") == {1, 2}


@pytest.mark.parametrize(
    ("type_", "literal"), [(pa.int64(), str), (pa.uint64(), str), (pa.string(), lambda v: f"'it''s {v}'")]
)
@pytest.mark.parametrize("parameters", [{}, {"1": 3}, {"a": 3}])
def test_long_lists_of_literals_find_what_short_ones_do(planner, make, type_, literal, parameters):
    numbers = [f"it's {v}" if pa.types.is_string(type_) else v for v in range(6_000)]
    table = make(type_, [numbers[at : at + 100] for at in range(0, 6_000, 100)])
    extra = "".join(f" AND k0 <> ${name}" for name in parameters)
    for _ in range(4):
        listed = ", ".join(map(literal, range(0, 4_000, 2)))
        assert _index(planner, table, f"(v IN ({listed}){extra})", parameters) == set(range(40)) - {
            *parameters.values()
        }
        listed = ", ".join(map(literal, range(1_000, 6_000)))
        assert _index(planner, table, f"(v NOT IN ({listed}){extra})", parameters) == set(range(10)) - {
            *parameters.values()
        }


def test_long_lists_of_partition_values(planner, make):
    table = make(pa.int64(), [[n] for n in range(40)])
    listed = ", ".join(map(str, range(20, 3_000)))
    assert planner.partitions(table, f"(k0 IN ({listed}))", {}) == set(range(20, 40))
    assert planner.partitions(table, f"(k0 NOT IN ({listed}))", {}) == set(range(20))


def test_null_is_in_no_long_list(planner):
    listed = ", ".join(map(str, range(3_000)))
    evaluator = planner
    assert not evaluator.constant(f"(CAST(NULL AS BIGINT) IN ({listed}))", {})
    assert not evaluator.constant(f"(CAST(NULL AS DECIMAL(9,2)) NOT IN ({listed}))", {})
    assert evaluator.constant(f"(coalesce(CAST(NULL AS BIGINT), 2999) IN ({listed}))", {})
    assert not evaluator.constant(f"(coalesce(CAST(NULL AS BIGINT), 3000) IN ({listed}))", {})


def test_texts_that_a_collation_takes_for_equal_stay_apart_in_an_index(planner, make):
    table = make(pa.string(), [["a"], ["A"], ["b"]])
    planner.run("SET default_collation = 'nocase'")
    for _ in range(4):
        assert _index(planner, table, "(v = 'a')") == {0, 1}
    planner.run("SET default_collation = ''")
    assert _index(planner, table, "(v = 'a')") == {0}


def test_relations_are_dropped_with_their_table(planner, make):
    table = make(pa.int64(), [[1], [2]])
    for _ in range(4):
        _index(planner, table, "(v + 0 = 1)")
    before = _tables(planner)
    assert any("held" in name for name in before)
    del table
    gc.collect()  # Python 3.13 keeps it with the error about a file that is not there
    other = make(pa.int64(), [[5], [6], [7]], "other")
    assert _index(planner, other, "(v = 7)") == {2}
    assert not before & _tables(planner)


def test_tables_used_longest_ago_make_room(planner, make, monkeypatch):
    monkeypatch.setattr(module, "MAX_TABLES", 2)
    tables = [make(pa.int64(), [[n], [n + 1]], f"d{n}") for n in range(4)]
    for _ in range(2):
        for n, table in enumerate(tables):
            assert _index(planner, table, f"(v = {n + 1})") == {1}
            assert planner.partitions(table, "(k0 = 0)", {}) == {0}
    assert len([name for name in _tables(planner) if "partitions" in name]) == 2


def test_held_indices_are_bounded(planner, make, monkeypatch):
    monkeypatch.setattr(module, "MAX_PAIRS", 5)
    tables = [make(pa.int64(), [[n, n + 1], [n + 1]], f"d{n}") for n in range(4)]
    for table in tables * 5:
        _index(planner, table, "(v + 0 = 2)")
    assert len([name for name in _tables(planner) if "held" in name]) == 1
    assert [_index(planner, t, "(v = 2)") for t in tables] == [set(), {0, 1}, {0}, set()]


def test_an_index_that_breaks_is_named(planner, make, local):
    table = make(pa.int64(), [[1], [2]])
    assert _index(planner, table, "(v = 1)") == {0}
    local.put("d/i.parquet", b"nonsense")
    with pytest.raises(Exception, match=r"d/i\.parquet") as e:
        _index(planner, table, "(v = 1)")
    assert e.value.code == "invalid-index"
