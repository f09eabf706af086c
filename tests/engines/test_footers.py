"""What is remembered of the footers of files: schemas, row counts, statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import builders
from kartosql import parquet
from kartosql.engines.duckdb import evaluator
from kartosql.engines.duckdb import footers as module
from kartosql.engines.duckdb.evaluator import Planner
from kartosql.engines.duckdb.footers import Footers
from kartosql.engines.duckdb.runtime import Instance
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.errors import FormatError
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.predicate.tree import Comparison, Value
from kartosql.store import Store
from kartosql.tables import statistics
from kartosql.tables.statistics import statistics_of

SEVEN = Comparison(("x",), "=", Value("integer", 7))


class Checker:
    """A table of given files, and the queries over their footers."""

    def __init__(self, store: Store, files: list[pa.Table]) -> None:
        self.footers = Footers()
        self.planner = Planner(Instance(store, {}), FileAccess(store), self.footers)
        builders.write_dataset(store, "d", {"x": pa.int64()}, [f"n={n}" for n in range(len(files))])
        self.table: DatasetTable = Snapshot(store).dataset("d").tables["table"]
        for key, rows in zip(self.table.files, files, strict=True):
            store.put(key, builders.parquet(rows))
        self.queries: list[str] = []
        rows = self.planner.rows

        def counted(sql: str, parameters: Any = None) -> list[Any]:
            self.queries.append(sql)
            return rows(sql, parameters)

        self.planner.rows = counted  # type: ignore[method-assign]

    def check(self, declared: dict[str, str], keys: tuple[str, ...] = ()) -> list[str]:
        """Check files and return the queries that took."""
        keys = keys or self.table.files
        self.queries.clear()
        self.planner.set_files("kartosql_test", keys)
        self.narrower = self.footers.check(self.planner, self.table, keys, declared)
        return list(self.queries)


@pytest.fixture
def make(local: Store) -> Iterator[Callable[[list[pa.Table]], Checker]]:
    made: list[Checker] = []

    def make(files: list[pa.Table]) -> Checker:
        made.append(Checker(local, files))
        return made[-1]

    yield make
    for checker in made:
        checker.planner.close()


def _x(*values: Any, type_: pa.DataType | None = None) -> pa.Table:
    return pa.table({"x": pa.array(values, type_ or pa.int64())})


def test_a_footer_is_read_once(make):
    checker = make([_x(1), _x(2), pa.table({"x": [3], "y": ["a"]})])
    assert len(checker.check({"x": "BIGINT"}, checker.table.files[:2])) == 1
    assert len(checker.check({"x": "BIGINT"})) == 1
    assert checker.check({"x": "BIGINT"}) == []


def test_of_many_new_files_with_one_schema_only_the_first_is_read_by_the_engine(make):
    checker = make([_x(n) for n in range(20)])
    asked: list[int] = []
    ask = checker.footers._ask

    def counted(session: Any, files: list[Any]) -> Any:
        asked.append(len(files))
        return ask(session, files)

    checker.footers._ask = counted  # type: ignore[method-assign]
    checker.check({"x": "BIGINT"}, checker.table.files[:10])
    checker.check({"x": "BIGINT"})
    assert sum(asked) == 1
    assert checker.narrower == set()


@pytest.mark.parametrize("bad", [0, 1, 7])
def test_a_new_file_of_another_schema_is_found_among_many(make, bad):
    odd = pa.table({"x": pa.array([1], pa.int64()), "X2": ["a"]})
    wrong = _x("a", type_=pa.string())
    checker = make([wrong if n == bad else odd if n % 3 == 2 else _x(n) for n in range(8)])
    with pytest.raises(FormatError, match=f"table/n={bad}/"):
        checker.check({"x": "BIGINT"})
    good = tuple(k for n, k in enumerate(checker.table.files) if n != bad)
    checker.check({"x": "BIGINT"}, good)
    assert checker.narrower is None


def test_a_damaged_file_is_left_to_the_engine_to_name(make, local):
    checker = make([_x(n) for n in range(4)])
    data = local.read(checker.table.files[2])
    local.put(checker.table.files[2], data[:-4] + b"oops")
    with pytest.raises(duckdb.Error, match="n=2"):
        checker.check({"x": "BIGINT"})


def test_beginnings_of_footers_are_not_kept_without_end(make, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_PREFIXES", 2)
    checker = make([pa.table({"x": [n], f"y{n}": [n]}) for n in range(6)])
    for key in checker.table.files:
        checker.check({"x": "BIGINT"}, (key,))
    assert len(checker.footers._cache._recent) == 2


def test_other_columns_of_a_file_are_checked_without_reading_it_again(make):
    checker = make([pa.table({"x": [1], "y": [1]})])
    checker.check({"x": "BIGINT"})
    assert checker.check({"x": "BIGINT", "y": "BIGINT"}) == []
    with pytest.raises(FormatError, match=r"table/n=0/.*: the column 'z' is missing") as e:
        checker.check({"z": "BIGINT"})
    assert e.value.code == "schema-mismatch"


@pytest.mark.parametrize("bad", [_x("a", type_=pa.string()), _x(1.5, type_=pa.float64()), pa.table({"y": [1]})])
def test_the_file_that_does_not_fit_is_named_every_time(make, bad):
    checker = make([_x(1), _x(2), bad, _x(3)])
    for _ in range(2):
        with pytest.raises(FormatError, match="table/n=2/") as e:
            checker.check({"x": "BIGINT"})
        assert e.value.code == "schema-mismatch"
    checker.check({"x": "BIGINT"}, checker.table.files[:2])


def test_a_nested_column_may_have_the_name_of_another(make):
    checker = make([pa.table({"x": [1], "s": [{"x": "a"}]})])
    checker.check({"x": "BIGINT", "s": "STRUCT(x VARCHAR)"})


def test_a_file_of_another_size_is_another_file(make, local):
    checker = make([_x(1), _x(2)])
    checker.check({"x": "BIGINT"})
    local.put(checker.table.files[1], builders.parquet(_x("not a number", type_=pa.string())))
    checker.planner.files = FileAccess(local)
    with pytest.raises(FormatError, match="table/n=1/"):
        checker.check({"x": "BIGINT"})


def _known(checker: Checker, *columns: str, files: range | None = None) -> Any:
    wanted = range(len(checker.table.files)) if files is None else files
    return checker.footers.statistics(checker.planner, checker.table, wanted, columns)


def test_row_counts_are_read_once(make, monkeypatch):
    checker = make([_x(1, 2), _x(3), _x()])
    assert _known(checker, files=range(2)).rows([0, 1]) == [2, 1]
    assert statistics_of(checker.table).rows([1, 2]) is None
    assert _known(checker).rows([0, 1, 2]) == [2, 1, 0]
    monkeypatch.setattr(module, "local_footer", None)
    assert _known(checker).rows([0, 1, 2]) == [2, 1, 0]


def test_a_footer_read_for_statistics_tells_the_schema_too(make, monkeypatch):
    checker = make([_x(n) for n in range(3)])
    _known(checker, "x")
    monkeypatch.setattr(module, "local_footer", None)
    checker.check({"x": "BIGINT"})
    assert checker.narrower == set()


def _kept(checker: Checker, *among: int) -> Any:
    asked = frozenset(among) or checker.table.all_files
    return checker.planner.statistics(checker.table, "x", SEVEN, {}, asked)


def test_footers_are_read_where_a_few_of_them_leave_out_enough(make, monkeypatch):
    monkeypatch.setattr(evaluator, "SAMPLED_FOOTERS", 4)
    checker = make([_x(n, n + 1) for n in range(40)])
    assert _kept(checker) == {6, 7}
    assert statistics_of(checker.table).column("x").seen == checker.table.all_files


def test_a_few_footers_tell_that_no_more_have_to_be_read(make, monkeypatch):
    monkeypatch.setattr(evaluator, "SAMPLED_FOOTERS", 4)
    checker = make([_x(0, 100) for _ in range(40)])
    for _ in range(3):
        assert _kept(checker) == checker.table.all_files
        assert len(statistics_of(checker.table).column("x").seen) == 4


def test_only_footers_of_files_that_are_left_are_read(make):
    checker = make([_x(n) for n in range(80)])
    assert _kept(checker, *range(40)) == {7, *range(40, 80)}
    assert _kept(checker) == {7}


def test_statistics_are_those_of_one_state_of_a_table(make, local):
    checker = make([_x(n) for n in range(40)])
    assert _kept(checker) == {7}
    again = Snapshot(local).dataset("d").tables["table"]
    assert statistics_of(again).column("x") is None
    assert statistics_of(checker.table).column("x") is not None


def test_what_is_remembered_is_bounded(make, monkeypatch):
    monkeypatch.setattr(statistics, "MAX_GROUPS", 3)
    checker = make([_x(1), _x(2), _x(3), _x(4)])
    for at in (*range(4), *range(4)):
        _known(checker, "x", files=range(at, at + 1))
    assert len(statistics_of(checker.table)) <= 3


def test_a_collation_of_the_session_keeps_all_files(make):
    checker = make([pa.table({"x": [f"a{n}", f"B{n}"]}) for n in range(40)])
    table, wanted = checker.table, Comparison(("x",), "=", Value("string", "A7"))
    object.__setattr__(table, "schema", pa.schema([("x", pa.string())]))
    assert checker.planner.statistics(table, "x", wanted, {}, table.all_files) == frozenset()
    checker.planner.instance.settings["default_collation"] = "nocase"
    assert checker.planner.statistics(table, "x", wanted, {}, table.all_files) is None
    assert checker.planner.bounds(table, ["x"], range(40)) is None
