"""The figures compare like with like: every way of a question gives the same rows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

import kartosql
from tests.benchmarks import planning, pruning, ratios
from tests.benchmarks.comparisons import Comparison, comparisons
from tests.benchmarks.ideal import Ideal
from tests.benchmarks.lineitem import Data, generator, prepare
from tests.benchmarks.scan import PARTS, run

SCALE = 0.001
COUNTS = {"lineitem_few": 90, "lineitem_many": 150}
QUESTIONS = 10

pytestmark = pytest.mark.skipif(not os.path.exists(generator()), reason="needs kartosql[benchmarks]")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return prepare(str(tmp_path_factory.mktemp("tpch")), SCALE, COUNTS)


@pytest.fixture(scope="module")
def connection(data: Data) -> Iterator[kartosql.Connection]:
    with kartosql.connect(data.root, read_only=True, keep_answers=False) as con:
        yield con


@pytest.fixture(scope="module")
def questions(data: Data) -> Iterator[list[Comparison]]:
    with Ideal() as ideal:
        yield comparisons(data, ideal, 2)


def rows(table: pa.Table) -> list[str]:
    return sorted(repr(row) for row in zip(*(c.to_pylist() for c in table.columns), strict=True))


def test_the_store_holds_all_rows_in_every_layout(data, connection):
    counts = {connection.sql(f"SELECT count(l_tax) FROM {t}").rows()[0][0] for t in (*COUNTS, "lines")}
    assert counts == {6005}
    assert all(abs(len(data.files[t]) - n) < 10 for t, n in COUNTS.items())
    assert all(len(set(names)) == len(names) for names in data.files.values())


def test_a_second_run_takes_the_data_of_the_first(data):
    before = os.stat(data.files["part"][0]).st_ino
    assert prepare(os.path.dirname(data.root), SCALE, COUNTS).root == data.root
    assert os.stat(data.files["part"][0]).st_ino == before


@pytest.mark.parametrize("at", range(QUESTIONS))
def test_by_hand_and_by_us_the_answer_is_the_same(questions, connection, at):
    for pair in questions[at].pairs:
        ours = rows(connection.sql(pair.sql).arrow())
        assert ours
        assert ours == rows(pair.by_hand())


def test_no_question_is_left_out(questions):
    assert len(questions) == QUESTIONS


def test_duckdb_on_the_glob_gives_the_same_answer(questions, connection):
    asked = [q for q in questions if q.on_the_glob]
    assert asked
    for question in asked:
        assert rows(duckdb.connect().sql(question.on_the_glob).to_arrow_table()) == rows(
            connection.sql(question.pairs[0].sql).arrow()
        )


def test_the_ideal_gets_only_files_that_hold_a_value(data):
    files = data.files["lineitem_many"]
    with Ideal() as ideal:
        held = ideal.holding(files, "l_orderkey", [1, 2])
    for key in (1, 2):
        counts = {
            f: duckdb.connect().execute(f"SELECT count(*) FROM '{f}' WHERE l_orderkey = {key}").fetchall()[0][0]
            for f in files
        }
        assert held[key] == sorted(f for f, n in counts.items() if n)


@pytest.mark.parametrize("name", pruning.STATEMENTS)
def test_pruning_changes_no_answer(connection, name):
    sql = pruning.statement(name, 7)
    pruned = connection.sql(sql).arrow()
    with pruning.switched_off():
        whole = connection.sql(sql).arrow()
    if name in pruning.WITHOUT_ORDER:
        assert pruned.num_rows == whole.num_rows > 0
    else:
        assert rows(pruned) == rows(whole)


def test_the_switch_turns_pruning_off(connection):
    sql = "SELECT count(*) FROM lineitem_few WHERE l_shipmonth = '1995-03'"
    assert connection.explain(sql).files_selected < 5
    with pruning.switched_off():
        assert connection.explain(sql).files_selected == connection.explain(sql).files_total


@pytest.mark.parametrize("name", planning.ORDINARY)
def test_planning_ends_before_the_report_is_there(connection, name):
    scan, cpu, report = planning.Planner(connection).plan(planning.ordinary(name, 3, SCALE))
    assert 0 < scan < report
    assert cpu > 0


def test_every_turn_plans_other_values():
    texts = {planning.ordinary("point", turn, 1) for turn in range(20)} | {planning.listed(10, t, 1) for t in range(20)}
    assert len(texts) == 40


@pytest.mark.parametrize(
    ("part", "only"), list(zip(PARTS, ("one partition", "no condition", "UNION ALL"), strict=True))
)
def test_each_part_measures_what_is_asked_for(data, part, only):
    (figure,) = run(data, [part], 1, only)
    assert only in figure.name
    assert ratios.row(figure).count("|") == ratios.HEAD.splitlines()[0].count("|")


def test_ways_take_turns_and_warming_up_does_not_count():
    calls: list[tuple[str, int]] = []
    ways = {name: lambda turn, name=name: calls.append((name, turn)) for name in "ab"}
    costs = ratios.in_turns(ways, 2)
    assert calls == [("b", 0), ("a", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert [len(c.elapsed) for c in costs.values()] == [2, 2]


def test_a_ratio_is_that_of_a_turn():
    ours, other = ratios.Cost([1.0, 20.0, 3.0], [1.0] * 3), ratios.Cost([2.0, 10.0, 2.0], [1.0] * 3)
    figure = ratios.at_most("f", 1.5, ours, other)
    assert (figure.measured, figure.ok) == ("1.50 x", True)
    assert not ratios.at_most("f", 1.4, ours, other).ok
    assert ratios.at_least("f", 0.6, ours, other).ok
    assert not ratios.at_least("f", 0.7, ours, other).ok
    assert not ratios.within("f", 0.1, 0.2).ok
