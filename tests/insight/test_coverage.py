from __future__ import annotations

import datetime as dt
import json
import xml.etree.ElementTree as ET

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import SqlError, UsageError
from kartosql.insight.coverage import MAX_COLUMNS, MAX_ROWS, shade

HOSTILE = '<script>alert(1)</script>"\x1b[31m\u202e'


def _rows(con, sql):
    return {(r["dataset"], *(r[c] for c in list(r)[:-4])): (r["cells"], r["seed_cells"], r["unknown"]) for r in sql}


def test_cells_of_each_dataset_by_the_partition_columns(con):
    found = con.sql("SHOW COVERAGE (FORMAT TABLE) OF c").arrow()
    assert found.column_names == ["p", "dataset", "cells", "seed_cells", "unknown"]
    assert _rows(con, found.to_pylist()) == {
        **{("seed", p): (10, 10, 0) for p in range(4)},
        ("e", 3): (10, 10, 0),
        ("e", 4): (0, 0, 10),
    }


def test_cells_that_the_seed_does_not_know_are_counted_by_what_their_dataset_knows(con):
    coverage = con.coverage("c", ["p", "t"])
    seed, e = coverage.datasets
    assert (seed.cells, seed.unknown, e.cells, e.unknown) == (40, 0, 10, 10)
    unknown = [r for r in e.found.to_pylist() if r["unknown"]]
    assert unknown == [{"p": 4, "t": None, "cells": 0, "unknown": 10}]  # t is payload of the seed


def test_newer_versions_of_a_cell_count_once(con):
    con.append_to_cube("c", {"seed": pa.table({"x": [0], "p": [0], "i1": [5], "v1": [1.0], "t": ["new"]})})
    assert con.coverage("c").datasets[0].cells == 40


def test_cells_agree_with_counts_made_by_hand(con):
    found = con.coverage("c", "i1").datasets
    for at, dataset in enumerate(["seed", "e"]):
        of = "c.seed" if at == 0 else "c.seed s SEMI JOIN c.e USING (x, p)"
        wanted = dict(con.sql(f"SELECT i1, count(*) FROM {of} GROUP BY i1").rows())
        got = {r["i1"]: r["cells"] for r in found[at].found.to_pylist() if r["cells"]}
        assert got == wanted, dataset


def test_a_dataset_that_knows_part_of_the_key_covers_all_cells_that_share_it(con):
    cube = kartosql.Cube("k", ["x", "y"], ["p"])
    seed = pa.table({"x": [1, 1, 2], "y": [1, 2, 1], "p": [0, 0, 0], "v": [1, 2, 3]})
    con.build_cube(cube, {"seed": seed, "d": pa.table({"x": [1, 9], "p": [0, 0], "w": [1, 2]})})
    _, d = con.coverage("k", "x").datasets
    assert d.found.to_pylist() == [{"x": 1, "cells": 2, "unknown": 0}, {"x": 9, "cells": 0, "unknown": 1}]


def test_plain_datasets_and_members_are_counted_in_rows_and_cells(con):
    con.create_dataset("d", pa.table({"q": ["a", "b", "b"], "k": [1, 2, 3]}), partition_on=["q"])
    assert str(con.coverage("d")).splitlines()[1] == "table: 3 rows"
    assert con.sql("SHOW COVERAGE OF c.e BY p").content.datasets[0].cells == 20


def test_the_map_shows_shares_and_marks_unknown_cells(con):
    text = str(con.coverage("c", ["p", "i1"]))
    assert "seed: 40 cells" in text
    assert "e: 10 of them (25 %), 10 cells unknown to the seed" in text
    lines = text.splitlines()
    of_e = lines[lines.index(next(line for line in lines if line.startswith("e: "))) :]
    row = {line.split()[0]: line for line in of_e if line.startswith("  ")}
    assert row["0"].count("·") == 10
    assert row["3"].count("█") == 10
    assert row["4"].rstrip().endswith("!")


def test_one_column_gives_bars(con):
    lines = con.sql("SHOW COVERAGE OF c BY p").lines
    assert lines[:3] == ["c by p", "seed: 40 cells", "e: 10 of them (25 %), 10 cells unknown to the seed"]
    three, four = (line.split() for line in lines[-2:])
    assert three == ["3", "10", "█" * 20, "10", "(100", "%)"]
    assert four == ["4", "0", "0", "10"]


def test_many_values_are_put_together_and_no_cell_is_lost(con):
    n = 1_000
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(n)]
    table = pa.table({"a": list(range(n)), "b": days})
    con.create_dataset("d", table)
    coverage = con.coverage("d", ["a", "b"])
    shown = coverage.heat_map().binned()
    assert len(shown.axes[0]) <= MAX_ROWS
    assert len(shown.axes[1]) <= MAX_COLUMNS
    assert shown.totals() == [(n, 0)]
    assert shown.axes[0][0] == "0 … 24"
    assert str(coverage).count("█") == 0 or "…" in str(coverage)


def test_values_stand_in_the_order_of_their_type(con):
    con.create_dataset("d", pa.table({"a": [10, 9, None, 100]}))
    assert con.coverage("d", "a").heat_map().axes[0] == ("9", "10", "100", "NULL")


@pytest.mark.parametrize(("part", "whole", "char"), [(0, 0, " "), (0, 5, "·"), (1, 9, "░"), (5, 9, "▒"), (9, 9, "█")])
def test_only_nothing_is_blank_and_only_all_is_full(part, whole, char):
    assert shade(part, whole) == char
    assert shade(whole - 1, whole) != "█" or whole < 1


def test_svg_is_one_well_formed_image_without_anything_from_elsewhere(con):
    text = "\n".join(con.sql("SHOW COVERAGE (FORMAT SVG) OF c BY p, i1").lines)
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    places = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if len(e)]
    assert len(places) == 2 * 5 * 11  # two datasets, partitions 0 to 4, i1 from 0 to 9 and NULL
    assert sum(e.get("stroke-width") == "2" for e in places) == 1
    assert "href" not in text
    shown = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert shown[-3:] == ["none", "as many as the busiest place, or all cells of the seed there", "unknown to the seed"]
    assert {"p", "i1", "10 cells unknown to the seed"} <= set(shown)
    assert 400 < int(root.get("width")) <= 900
    tips = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "p 4, i1 NULL: 0 cells of 0, 10 unknown to the seed" in tips


def test_values_of_strangers_do_no_harm(con):
    con.create_dataset("d", pa.table({"a": [HOSTILE, "x"], "b": [1, 2]}))
    coverage = con.coverage("d", ["a", "b"])
    for text in (str(coverage), coverage.svg(), coverage.html(), repr(coverage)):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<script" not in coverage.svg()
    ET.fromstring(coverage.svg())


def test_json_holds_totals_and_places(con):
    found = json.loads(con.sql("SHOW COVERAGE (FORMAT JSON) OF c BY p").rows()[0][0])
    seed, e = found["datasets"]
    assert (seed["cells"], e["cells"], e["unknown"], e["seed_cells"]) == (40, 10, 10, 40)
    assert {"values": ["4"], "cells": 0, "unknown": 10} in e["found"]


def test_an_empty_cube_has_an_empty_map(con):
    cube = kartosql.Cube("n", ["x"], ["p"])
    con.build_cube(cube, {"seed": pa.table({"x": [1], "p": [1], "v": [1]})})
    con.remove_partitions("n", kartosql.C("p") == 1)
    for by in (["p"], ["p", "x"]):
        coverage = con.coverage("n", by)
        assert "seed: 0 cells" in str(coverage)
        ET.fromstring(coverage.svg())


@pytest.mark.parametrize(
    ("sql", "code", "hint"),
    [
        ("SHOW COVERAGE OF c BY pp", "unknown-column", "p"),
        ("SHOW COVERAGE OF c BY v2", "unknown-column", "Columns: i1"),
        ("SHOW COVERAGE OF nope BY p", "unknown-table", None),
        ("SHOW COVERAGE OF r BY a", "unknown-table", None),
        ("SHOW COVERAGE OF d", "invalid-argument", "BY"),
    ],
)
def test_names_that_do_not_fit_are_errors_with_their_place(con, sql, code, hint):
    con.register("r", pa.table({"a": [1]}))
    con.create_dataset("d", pa.table({"a": [1]}))
    with pytest.raises(SqlError) as e:
        con.sql(sql)
    assert e.value.code == code
    assert hint is None or hint in e.value.hint
    if code.startswith("unknown"):
        start, end = e.value.span
        assert sql[start:end] in ("pp", "v2", "nope", "r")


@pytest.mark.parametrize("by", [["p", "x", "i1"], [1], None])
def test_the_call_refuses_what_is_no_list_of_names(con, by):
    with pytest.raises((UsageError, TypeError)):
        con.coverage("c", by)


def test_the_budget_holds_for_coverage_too(con):
    con.sql("SET max_bytes = 1")
    with pytest.raises(kartosql.KartosqlError) as e:
        con.sql("SHOW COVERAGE OF c BY i1")
    assert e.value.code == "byte-budget"
