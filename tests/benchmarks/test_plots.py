"""The curves: every way answers alike at the smallest size, and their numbers stand in the page."""

from __future__ import annotations

import pytest

from tests.benchmarks import plots
from tests.benchmarks.ideal import Ideal
from tests.benchmarks.lineitem import Data
from tests.benchmarks.peers import PAGE, at_scale, measure


@pytest.mark.parametrize(
    ("name", "most", "ways"),
    [
        ("files", 100, {plots.OPENED, plots.ANEW, plots.BARE, "DuckDB, glob"}),
        ("rows", 10_000, {plots.OPENED, plots.ANEW, plots.BARE, "DuckDB, glob"}),
        ("columns", 10, {plots.OPENED, plots.ANEW, plots.BARE, "DuckDB, glob"}),
        ("datasets", 2, {plots.OPENED, "DuckDB, LEFT JOIN by hand", "DuckDB, one wide table"}),
    ],
)
def test_a_curve_has_a_cost_of_each_way_whose_answers_are_equal(name, most, ways):
    curve = plots.CURVES[name](1, most)
    assert ways <= set(curve.costs)
    assert all(cost > 0 for costs in curve.costs.values() for cost in costs.values())
    assert curve.sizes == [most] or curve.sizes == [1, 2]


def test_another_answer_of_one_way_ends_the_measurement():
    ways = {"one": lambda turn: [(1, 2.0)], "other": lambda turn: [(1, 2.5)]}
    with pytest.raises(AssertionError, match="other"):
        plots.measured("files", "", [1], lambda size, stack: ways, 1)


def test_the_numbers_of_a_curve_stand_below_its_picture():
    curve = plots.Curve("files", "Cost", [100, 1_000], {"kartosql": {100: 1.25, 1_000: 2.0}, "Polars": {100: 4.0}})
    assert "".join(plots.text([curve])) == (
        "![Cost](images/cost-by-files.svg)\n\n| files, CPU ms | 100 | 1,000 |\n|---|--:|--:|\n"
        "| kartosql | 1.2 | 2.0 |\n| Polars | 4.0 |  |\n\n"
    )


def test_pictures_can_be_drawn_from_the_numbers_of_the_page():
    with open(PAGE, encoding="utf-8") as f:
        page = f.read()
    curves = plots.told(page)
    assert [curve.name for curve in curves] == list(plots.CURVES)
    assert "".join(plots.text(curves)) in page


def test_point_queries_over_files_of_one_key_each_have_the_answer_of_the_ideal(tmp_path):
    with Ideal() as ideal:
        rows = [measure(q, Data(str(tmp_path), 1), ideal, {}, 1) for q in at_scale(str(tmp_path), 300, 3)]
    assert [set(row.ratios) for row in rows] == [{"ideal", "kartosql"}] * 3
