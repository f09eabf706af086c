"""Lookups that would not pay: every shortcut keeps more files, never fewer."""

from __future__ import annotations

import dataclasses
import math
import random
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import builders
import kartosql
from kartosql.engines.duckdb import lookups as module
from kartosql.engines.duckdb import sorted_index
from kartosql.engines.duckdb.evaluator import Planner
from kartosql.engines.duckdb.footers import Footers
from kartosql.engines.duckdb.runtime import Instance
from kartosql.engines.duckdb.sorted_index import compared
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.formats.kartothek.dataset import DatasetTable, InvertedIndex
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.sorted_values import SortedValues
from kartosql.indexes.index import Candidates, ValueCondition
from kartosql.predicate.from_sql import predicate_of
from kartosql.store import Store
from kartosql.user_cache import UserCache
from trees import tree_of

FILES = 60
VALUES = 3_000
ROUNDS = 60
PREDICATES = (
    *("(v <> {a})", "(v > {a})", "(v < {a})", "(v BETWEEN {a} AND {b})", "(v % {m} = 1)", "(v IN ({a}, {b}))"),
    *("(v NOT IN ({a}, {b}))", "(v % {m} = 1 OR k0 = {k})", "(v > {a} AND k0 < {k})", "(v = {a} OR v > 100000)"),
)


class Indexed:
    """A table without data files, of which file n holds ``values[n]`` of the indexed column ``i``."""

    def __init__(self, store: Store, values: list[list[Any]], type_: pa.DataType, row_group: int) -> None:
        self.planner = Planner(Instance(store, {}), FileAccess(store), Footers())
        self.values, self.store = values, store
        builders.write_dataset(
            store,
            "d",
            {"n": pa.int64(), "i": type_},
            [f"n={n}" for n in range(len(values))],
            partition_keys=["n"],
            indices={"i": "d/i.parquet"},
        )
        self.table: DatasetTable = Snapshot(store).dataset("d").tables["table"]
        labels: dict[Any, list[str]] = {}
        for label, found in zip(self.table.labels, values, strict=True):
            for value in found:
                labels.setdefault(value, []).append(label)
        order = sorted(labels)
        data = pa.table(
            {"i": pa.array(order, type_), "partition": pa.array([labels[v] for v in order], pa.list_(pa.string()))}
        )
        store.put("d/i.parquet", builders.parquet(data, row_group_size=row_group))
        pairs = [(n, n, value) for n, found in enumerate(values) for value in found]
        self.pairs = pa.table({"file": [p[0] for p in pairs], "k0": [p[1] for p in pairs], "v": [p[2] for p in pairs]})
        self.planner.register("pairs", self.pairs)

    def matching(self, predicate: str) -> frozenset[int]:
        return frozenset(f for (f,) in self.planner.rows(f"SELECT DISTINCT file FROM pairs WHERE {predicate}"))

    def find(self, predicate: str, among: frozenset[int] | None = None) -> Candidates:
        files, says = self.table.all_files if among is None else among, tree_of(self.planner, predicate)
        return self.planner.index(
            ValueCondition(self.table, "i", predicate, {}, says, "k0" in predicate, True, True, files)
        )

    @property
    def index(self) -> module.IndexTables:
        return self.planner.structures.index(self.table, "i")

    @property
    def ordered(self) -> sorted_index.Ordered:
        return self.planner.structures.ordered(self.table, "i")

    def hold(self) -> None:
        self.planner.structures.hold(self.table, self.index)
        assert self.index.held is not None

    def again(self) -> None:
        """Go on as another process does."""
        self.planner.close()
        footers = Footers()
        footers.user_cache = self.planner.footers.user_cache
        self.planner = Planner(Instance(self.store, {}), FileAccess(self.store), footers)


@pytest.fixture
def make(local: Store) -> Iterator[Callable[..., Indexed]]:
    made: list[Indexed] = []

    def make(values: list[list[Any]], type_: pa.DataType | None = None, row_group: int = 500) -> Indexed:
        made.append(Indexed(local, values, type_ or pa.int64(), row_group))
        return made[-1]

    yield make
    for one in made:
        one.planner.close()


@pytest.fixture
def reckoning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small indices be reckoned with as large ones are."""
    monkeypatch.setattr(module, "NEGLIGIBLE", 0.0)
    monkeypatch.setattr(module, "FIRST", 8)
    monkeypatch.setattr(module, "FREE_USES", 1_000)
    monkeypatch.setattr(module, "SMALL_INDEX_BYTES", 0)


@pytest.mark.parametrize("texts", [False, True], ids=["integers", "texts"])
def test_the_first_lookups_of_a_new_index_file_read_the_row_groups_that_may_have_the_values(
    make: Callable[..., Indexed], monkeypatch: pytest.MonkeyPatch, texts: bool
) -> None:
    monkeypatch.setattr(sorted_index, "FIRST_LOOKS", 1_000)
    monkeypatch.setattr(sorted_index, "LARGE_BYTES", 0)
    values: list[list[Any]] = [[n for n in found if n % 3] for found in _scattered(60)]
    if texts:
        values = [[f"é{n:04}" for n in found] for found in values]
    one = make(values, pa.string() if texts else pa.int64(), 50)
    read: list[int] = []
    some = pq.ParquetFile.read_row_groups

    def noted(file: pq.ParquetFile, numbers: list[int], columns: list[str]) -> pa.Table:
        read.extend(numbers)
        return some(file, numbers, columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noted)
    for number in (*range(0, VALUES, 97), 1, VALUES - 1, VALUES + 5):
        value, other = (f"'é{n:04}'" if texts else f"{n}" for n in (number, 1))
        for predicate in (f"v = {value}", f"v IN ({value}, {value}, {other})"):
            read.clear()
            assert one.find(predicate).files == one.matching(predicate)
            assert len(read) <= 2
    assert not one.planner.structures._of(one.table).indices
    monkeypatch.setattr(sorted_index, "FIRST_LOOKS", 0)
    assert one.find("v = 'é0001'" if texts else "v = 1").files == one.matching("v = 'é0001'" if texts else "v = 1")
    assert one.planner.structures._of(one.table).indices


def test_small_index_files_that_come_and_go_leave_nothing_beside_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KARTOSQL_CACHE", str(tmp_path / "cache"))
    with kartosql.connect(str(tmp_path / "store"), read_only=False) as con:
        con.create_dataset("d", pa.table({"x": [-1]}), index_columns=["x"])
        for n in range(3):
            con.append_to_dataset("d", pa.table({"x": [n]}))
            assert con.sql("SELECT x FROM d WHERE x = ?", [n]).rows() == [(n,)]
    assert not list((tmp_path / "cache").glob(f"{sorted_index.WANTED}*"))


def _scattered(each: int = 400) -> list[list[int]]:
    random_ = random.Random(1)
    return [sorted(random_.sample(range(VALUES), each)) for _ in range(FILES)]


def _clustered() -> list[list[int]]:
    return [list(range(n * VALUES // FILES, (n + 1) * VALUES // FILES)) for n in range(FILES)]


def _skewed() -> list[list[int]]:
    """The small values stand in every file, the others in one each."""
    return [[*range(500), *range(500 + n * 40, 540 + n * 40)] for n in range(FILES)]


@pytest.mark.parametrize("file_seconds", [0.0, 1e-5, 1.0])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("values", [_scattered, _clustered, _skewed])
def test_no_file_with_a_match_is_left_out_whatever_files_cost(
    make, monkeypatch, reckoning, values, held, ordered, file_seconds
):
    monkeypatch.setattr(module, "FILE_SECONDS", file_seconds)
    one = make(values())
    if held:
        one.hold()
    if ordered:
        one.ordered.collect()
    random_ = random.Random(2)
    exact = 0
    for _ in range(ROUNDS):
        a, b = sorted(random_.choices(range(-5, VALUES + 5), k=2))
        predicate = random_.choice(PREDICATES).format(
            a=a, b=b, m=random_.choice([2, 7, 500]), k=random_.randrange(FILES)
        )
        among = frozenset(random_.sample(range(FILES), random_.choice([1, 5, FILES])))
        found, matching = one.find(predicate, among), one.matching(predicate)
        assert matching & among <= found.files, predicate
        exact += found.files & among == matching & among
    assert exact == ROUNDS if file_seconds == 1.0 else exact < ROUNDS


RANGES = ("(v < {0})", "(v <= {0})", "(v > {0})", "(NOT (v >= {0}))", "({0} < v)", "({0} >= v)", "({0} = v)")


@pytest.mark.parametrize("type_", [pa.int64(), pa.int16(), pa.string()])
def test_extremes_of_files_answer_ranges_as_all_values_do(make, monkeypatch, reckoning, type_):
    is_text = pa.types.is_string(type_)
    random_ = random.Random(3)
    values = [random_.sample(range(VALUES), random_.randint(20, 90)) for _ in range(FILES)]
    one = make([sorted(str(v) if is_text else v for v in found) for found in values], type_)
    one.hold()
    for at in range(ROUNDS):
        bound = random_.choice([*range(-5, VALUES + 5), 10**15])
        predicate = RANGES[at % len(RANGES)].format(f"'{bound}'" if is_text else bound)
        assert one.find(predicate).files == one.matching(predicate), predicate
    assert one.index.extremes is not None


LABELS = pa.list_(pa.string())
POINTS = ("(v = {0})", "({0} = v)", "(v = {0}\n)")
ORDERED = (*POINTS, "(v < {0})", "(v <= {0})", "(v > {0})", "(v >= {0})", "(v IN ({0}, {1}))", "({0} < v)")


@pytest.mark.parametrize("batch", [10, 300, 500_000])
@pytest.mark.parametrize("type_", [pa.int64(), pa.int16(), pa.uint8(), pa.string()])
def test_a_point_query_finds_the_files_of_its_value(make, monkeypatch, reckoning, type_, batch):
    monkeypatch.setattr(sorted_index, "BATCH_PAIRS", batch)
    is_text, limit = pa.types.is_string(type_), 200 if type_ == pa.uint8() else VALUES
    random_ = random.Random(4)
    low = 0 if type_ == pa.uint8() else -limit
    values = [random_.sample(range(low, limit), random_.randint(0, 90)) for _ in range(FILES)]
    one = make([sorted(f"é{v}" if is_text else v for v in found) for found in values], type_)
    one.hold()
    one.ordered.collect()
    assert one.ordered.values is not None
    known = sorted({v for found in values for v in found})
    for at in range(ROUNDS):
        value = random_.choice([random_.choice(known), random_.randint(-5, limit + 5), known[0], known[-1], 10**20])
        values_ = [f"'é{v}'" if is_text else v for v in (value, random_.choice(known))]
        predicate = ORDERED[at % len(ORDERED)].format(*values_)
        assert one.find(predicate).files == one.matching(predicate), predicate


@pytest.mark.parametrize(
    "predicate",
    ["(v = 17.0)", "(v = '17')", "(v + 0 = 17)", "(v = 17 OR v = 18)", "(NOT v = 17)", "(v = 17 AND k0 < 30)"],
)
def test_other_predicates_are_no_point_queries(make, monkeypatch, predicate):
    one = make(_scattered())
    one.ordered.collect()
    monkeypatch.setattr(SortedValues, "files", lambda *_: pytest.fail("asked"))
    assert one.find(predicate).files == one.matching(predicate)


@pytest.mark.parametrize(("rows", "statements"), [(1_000, 1), (1_500_000, 2), (50_000_000, 4)])
def test_no_statement_spends_more_than_its_share_on_an_index(rows, statements):
    stored = InvertedIndex("i", pa.int64(), "k")
    index = module.IndexTables("x", "i", stored, 0, rows=rows, pairs=2 * rows, plain=True, uses=5, saved=1e9)
    assert index.allowance == min(index.hold_seconds, max(0.1, index.hold_seconds / 4))
    assert math.ceil(index.hold_seconds / index.allowance) == statements
    index.seconds, index.saved = 1e9, 0.0
    assert math.ceil(index.hold_seconds / index.allowance) == statements


def test_indices_are_put_in_order_only_where_there_is_room(make, monkeypatch):
    monkeypatch.setattr(module, "MAX_ORDERED", 10)
    one = make(_scattered())
    for _ in range(5):
        one.index.saved = 100.0
        assert one.find("(v = 17)").files == one.matching("(v = 17)")
    assert one.ordered.values is None
    assert one.index.held is not None


@pytest.mark.parametrize(
    ("values", "type_", "ascending"),
    [
        *((v, pa.int64(), True) for v in ([1, 2, 3], [1, 3, 2], [1, 2, 2], [1, 2, None])),
        ([1, 2, 2**63], pa.uint64(), False),
    ],
)
def test_values_in_any_order_are_found(make, local, values, type_, ascending):
    one = make([[1], [2], [3]], type_)
    data = {"i": pa.array(values, type_), "partition": pa.array([[label] for label in one.table.labels], LABELS)}
    local.put("d/i.parquet", builders.parquet(pa.table(data)))
    one.ordered.collect()
    assert (one.ordered.values is not None) is ascending
    for value in (2, 3, 2**63):
        assert one.find(f"(v = {value})").files == {n for n, v in enumerate(values) if v == value}


@pytest.mark.parametrize("ordered", [False, True])
def test_an_index_without_values_is_held_and_finds_no_file(make, local, ordered):
    one = make([[1], [2], [3]], pa.int64())
    data = {"i": pa.array([], pa.int64()), "partition": pa.array([], LABELS)}
    local.put("d/i.parquet", builders.parquet(pa.table(data)))
    if ordered:
        one.ordered.collect()
    else:
        one.hold()
    assert one.find("(v = 2)").files == frozenset()


@pytest.mark.parametrize("predicate", ["(v < 1999.5)", "(v < '2000')", "(v + 1 < 2000)", "(v < 2000 OR v > 2999)"])
def test_other_predicates_are_asked_of_the_values(make, reckoning, predicate):
    one = make(_scattered())
    one.hold()
    for _ in range(5):
        assert one.matching(predicate) <= one.find(predicate).files
    assert one.index.ranges == 0


def test_extremes_are_noted_once_ranges_are_asked_for_repeatedly(make, reckoning):
    one = make(_scattered())
    one.hold()
    noted = []
    for bound in range(100, 600, 100):
        one.find(f"(v < {bound})")
        noted.append(one.index.extremes is not None)
    assert noted == [False, False, True, True, True]


@pytest.mark.parametrize("held", [False, True])
def test_what_nearly_all_values_match_is_not_looked_up(make, reckoning, held):
    one = make(_scattered())
    if held:
        one.hold()
    for predicate in ("(v <> 17)", "(v > 3)", "(v % 2 = 1)"):
        assert one.find(predicate).files == one.table.all_files
    assert (one.index.held is not None) is held


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("values", [_clustered, _skewed])
def test_what_few_values_match_prunes_where_neighbours_lie_together(make, monkeypatch, reckoning, values, held):
    monkeypatch.setattr(module, "FILE_SECONDS", 1e-3)
    one = make(values())
    if held:
        one.hold()
    for predicate in ("(v > 2400)", "(v BETWEEN 600 AND 1400)", "(v IN (700, 2999))", "(v > 5000)"):
        assert one.find(predicate).files == one.matching(predicate) != one.table.all_files


def test_few_files_do_not_pay_for_a_large_index(make, monkeypatch, reckoning):
    monkeypatch.setattr(module, "READ_PAIR", 1e-5)
    one = make(_scattered())
    assert one.find("(v = 17)", frozenset({3})).files == one.table.all_files
    assert one.index.uses == 1
    assert one.index.seconds == 0
    monkeypatch.setattr(module, "FILE_SECONDS", 1.0)
    one.planner.structures.file_seconds.clear()
    assert one.find("(v = 17)").files == one.matching("(v = 17)")


def test_the_report_says_that_an_index_was_not_looked_up(make, monkeypatch, reckoning):
    monkeypatch.setattr(module, "FILE_SECONDS", 1e-9)
    monkeypatch.setattr(module, "BYTE_SECONDS", 0.0)
    one = make(_scattered())
    assert one.find("(v = 17)") == Candidates(
        one.table.all_files, f"not looked up, at most {FILES} files could be left out"
    )


# -- making tables of indices ----------------------------------------------------------------------


@pytest.mark.parametrize("row_group", [7, 500, VALUES])
@pytest.mark.parametrize("type_", [pa.int64(), pa.int32(), pa.string()], ids=str)
def test_an_index_is_held_portion_by_portion(make, monkeypatch, type_, row_group):
    from kartosql.engines.duckdb import sorted_index

    monkeypatch.setattr(sorted_index, "BATCH_PAIRS", 300)
    text = pa.types.is_string(type_)
    values = [[f"v{v:05}" if text else v for v in found] for found in _scattered(40)]
    one = make(values, type_, row_group)
    index, structures_ = one.index, one.planner.structures
    wanted = one.matching("(v = 'v00042')" if text else "(v = 42)")
    portions = 0
    while index.held is None and portions < 100:
        assert one.find("(v = 'v00042')" if text else "(v = 42)").files == wanted
        structures_.hold(one.table, index, 1e-9)
        portions += 1
    assert portions > 1 or row_group == VALUES
    assert index.plain
    assert one.find("(v = 'v00042')" if text else "(v = 42)").files == wanted
    rows = one.planner.rows(f"SELECT v, file FROM {index.name} ORDER BY ALL")
    assert rows == sorted((v, n) for n, found in enumerate(values) for v in found)


@pytest.mark.parametrize(
    ("make_index", "plain"),
    [
        (lambda labels: {"i": pa.array([3, 1, 2]), "partition": pa.array([[labels[0]], labels[:2], []], LABELS)}, True),
        (
            lambda labels: {
                "i": pa.array([1, 2, 1]),
                "partition": pa.array([[labels[0]], labels, [labels[1]]], LABELS),
            },
            True,
        ),
        (
            lambda labels: {"i": pa.array([1, 3]), "partition": pa.array([[labels[0], "gone"], [labels[1]]], LABELS)},
            False,
        ),
        (lambda labels: {"i": pa.array([1, 3]), "partition": pa.array([[labels[0]], None], LABELS)}, False),
        (lambda labels: {"partition": pa.array([[labels[0]], [labels[2]]], LABELS), "i": pa.array([1, 3])}, True),
        (
            lambda labels: {
                "i": pa.array([1, 3]),
                "x": pa.array([1, 2]),
                "partition": pa.array([labels, labels], LABELS),
            },
            False,
        ),
    ],
    ids=["unsorted", "twice", "unknown label", "no labels", "other order", "more columns"],
)
def test_unusual_index_files_say_the_same_once_they_are_held(make, local, make_index, plain):
    one = make([[1], [2], [3]])
    local.put("d/i.parquet", builders.parquet(pa.table(make_index(one.table.labels))))
    predicates = ["(v = 1)", "(v = 3)", "(v > 1)", "(v <> 9)"]
    before = [one.find(p).files for p in predicates]
    one.ordered.collect()
    assert (one.ordered.values is not None) is plain
    assert [one.find(p).files for p in predicates] == before
    one.hold()
    assert one.index.plain is plain
    one.ordered.values = None
    assert [one.find(p).files for p in predicates] == before


def test_text_that_is_none_is_left_to_duckdb(make, local):
    one = make([["a"], ["b"]], pa.string())
    values = pa.array([b"a\xff", b"b"]).view(pa.string())
    index = {"i": values, "partition": pa.array([[label] for label in one.table.labels], LABELS)}
    local.put("d/i.parquet", builders.parquet(pa.table(index)))
    one.planner.structures.hold(one.table, one.index)
    one.ordered.collect()
    assert one.index.held is one.ordered.values is None
    assert one.find("(v = 'b')").files >= {1}


# -- values in order, kept beside the user -----------------------------------------------------------


@pytest.fixture
def keeping(make, tmp_path, monkeypatch) -> Callable[..., Indexed]:
    """Make tables whose planner has a cache, which takes what was just written."""
    monkeypatch.setattr(sorted_index, "SETTLED_NS", 0)

    def keeping(*given: Any, **options: Any) -> Indexed:
        one = make(*given, **options)
        one.planner.footers.user_cache = UserCache(str(tmp_path / "cache"))
        return one

    return keeping


@pytest.mark.parametrize("type_", [pa.int64(), pa.string()], ids=str)
def test_values_that_are_kept_answer_without_the_index_file_being_read(keeping, monkeypatch, type_):
    is_text = pa.types.is_string(type_)
    one = keeping([sorted(str(v) if is_text else v for v in found) for found in _scattered(40)], type_)
    one.ordered.collect()
    one.again()
    assert one.ordered.is_kept
    one.planner.register("pairs", one.pairs)
    monkeypatch.setattr(one.planner.structures, "index", lambda *_, **__: pytest.fail("read"))
    for at, predicate in enumerate(ORDERED * 3):
        wanted = predicate.format(*(f"'{v}'" if is_text else v for v in (at * 97, 3 + at)))
        assert one.find(wanted).files == one.matching(wanted), wanted


@pytest.mark.parametrize("values", [[3, 1, 2], [2, 1, 2], [None, 3, 1]])
@pytest.mark.parametrize("batch", [1, 500_000])
@pytest.mark.parametrize("type_", [pa.int32(), pa.string()], ids=str)
def test_values_in_another_order_are_kept_in_order(keeping, local, monkeypatch, values, batch, type_):
    monkeypatch.setattr(sorted_index, "BATCH_PAIRS", batch)
    texts = [v if v is None or type_ == pa.int32() else f"é{v}" for v in values]
    one = keeping([["1"] if type_ == pa.string() else [1], [], []], type_)
    labels = [[one.table.labels[n], one.table.labels[2]] for n in range(3)]
    data = pa.table({"i": pa.array(texts, type_), "partition": pa.array(labels, LABELS)})
    local.put("d/i.parquet", builders.parquet(data, row_group_size=1))
    one.ordered.collect()
    one.again()
    assert one.ordered.is_kept
    for value in (0, 1, 2, 3):
        wanted = value if type_ == pa.int32() else f"é{value}"
        files = {file for n, v in enumerate(texts) if v == wanted for file in (n, 2)}
        assert one.find(f"(v = {wanted!r})").files == files


def test_what_is_kept_belongs_to_one_index_file_and_one_list_of_files(keeping, local):
    one = keeping([[1], [2], [3]])
    one.ordered.collect()
    index = pa.table({"i": [1, 2], "partition": pa.array([[label] for label in one.table.labels[1:]], LABELS)})
    local.put("d/i.parquet", builders.parquet(index))
    one.again()
    assert not one.ordered.is_kept
    assert one.find("(v = 1)").files == {1}
    one.ordered.collect()
    one.table = dataclasses.replace(
        one.table, labels=tuple(reversed(one.table.labels)), files=tuple(reversed(one.table.files))
    )
    one.again()
    assert not one.ordered.is_kept
    assert one.find("(v = 1)").files == {1}
    assert one.find("(v = 2)").files == {0}


@pytest.mark.parametrize("places", [[0, 1, 9, 9], [0, 1, 0, 3], [0, 1, 2], [0, 1, 2, 3, 4]])
def test_an_entry_that_is_none_is_made_anew(keeping, places):
    one = keeping([[1], [2], [3]])
    cache = one.planner.footers.user_cache
    one.ordered.collect()
    values, files = array("q", [1, 2, 3]), array("i", [0, 1, 7])
    cache.put(sorted_index.INDEX, one.ordered.identity, [b.tobytes() for b in (values, array("I", places), files)])
    one.again()
    assert one.find("(v = 2)").files == {1}
    one.ordered.collect()
    one.again()
    assert one.ordered.is_kept
    assert one.find("(v = 2)").files == {1}


def test_a_file_that_was_just_written_or_changes_is_not_kept(keeping, local, monkeypatch):
    one = keeping([[1], [2], [3]])
    monkeypatch.setattr(sorted_index, "SETTLED_NS", 10**15)
    one.ordered.collect()
    assert one.find("(v = 2)").files == {1}
    one.again()
    monkeypatch.setattr(sorted_index, "SETTLED_NS", 0)
    data = local.read("d/i.parquet")
    assert one.ordered.values is None
    local.put("d/i.parquet", data)
    one.ordered.collect()
    assert not one.ordered.is_kept


def test_the_second_process_that_asks_reads_the_whole_index(keeping, monkeypatch):
    monkeypatch.setattr(sorted_index, "BATCH_PAIRS", 10)
    one = keeping(_scattered(40))
    one.ordered.collect(1.0, 1e-9)
    assert one.ordered.values is None
    one.again()
    one.ordered.collect(1.0, 1e-9)
    assert one.ordered.is_kept


def test_collecting_that_was_stopped_begins_anew(make, monkeypatch):
    monkeypatch.setattr(sorted_index, "BATCH_PAIRS", 10)
    one = make(_scattered(40))
    one.ordered.collect(1.0, 1e-9)
    with monkeypatch.context() as patch:
        patch.setattr(sorted_index.Collected, "add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            one.ordered.collect(1.0, 1e-9)
    one.ordered.collect()
    assert one.find("(v = 42)").files == one.matching("(v = 42)")


@pytest.mark.parametrize(
    ("predicate", "type_", "found"),
    [
        ("v < 5", pa.int64(), ("<", 5)),
        ("v <= -5", pa.int8(), ("<=", -5)),
        ("5 < v", pa.int64(), (">", 5)),
        ("NOT v < 5", pa.uint64(), (">=", 5)),
        ("v <> 5", pa.int64(), ("<>", 5)),
        ("-7 = v", pa.int64(), ("=", -7)),
        ("v = 007", pa.int64(), ("=", 7)),
        ("v = 7::INTEGER", pa.int64(), ("=", 7)),
        ("v = 999999999999999999", pa.int64(), ("=", 999999999999999999)),
        ("v = 9999999999999999999", pa.int64(), ("", None)),
        ("v < 5", pa.float64(), ("", None)),
        ("v < 5", pa.string(), ("", None)),
        ("v < 5.5", pa.int64(), ("", None)),
        ("v = 7.0", pa.int64(), ("", None)),
        ("v < 'a'", pa.int64(), ("", None)),
        ("v = '7'", pa.int64(), ("", None)),
        ("v < NULL", pa.int64(), ("", None)),
        ("v + 1 < 5", pa.int64(), ("", None)),
        ("v < 5 AND v < 6", pa.int64(), ("", None)),
        ("v = 1 OR v = 2", pa.int64(), ("", None)),
        ("5 < 6", pa.int64(), ("", None)),
        ("v < w", pa.int64(), ("", None)),
        ("v.x < 5", pa.int64(), ("", None)),
        ("v = 7 + 1", pa.int64(), ("", None)),
        ("v < 'a'", pa.string(), ("<", "a")),
        ("'a' < v", pa.string(), (">", "a")),
        ("v = '7 a'", pa.string(), ("=", "7 a")),
        ("v = ''", pa.string(), ("=", "")),
        ("v LIKE 'ab'", pa.string(), ("=", "ab")),
        ("v LIKE 'ab%'", pa.string(), ("", None)),
        ("v = -'7'", pa.string(), ("", None)),
    ],
)
def test_comparisons_that_are_answered_without_the_engine(predicate, type_, found):
    assert compared(predicate_of(predicate), type_) == found
