"""Files that are left out by the bounds that the metadata of a table tell of them."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql.parquet import GroupBounds
from kartosql.tables.statistics import ColumnBounds
from renaming import Written, renamed

NAN = float("nan")
TYPES = {"i": pa.int64(), "s": pa.string(), "d": pa.float64()}
VALUES: dict[str, list[Any]] = {
    "i": [None, -3, 0, 1, 2, 5, 9],
    "s": [None, "", "a", "ab", "abc", "b", "ä", "zz"],
    "d": [None, NAN, -1.5, -0.0, 0.0, 2.0, float("inf")],
}
CONDITIONS = [
    *(
        "i = 5",
        "i <> 1",
        "i > 2 AND i < 9",
        "i IN (0, 9)",
        "i IS NULL",
        "i IS NOT NULL",
        "i = 5 OR s = 'zz'",
        "i > 1.5",
    ),
    *("s = 'ab'", "s LIKE 'ab%'", "s >= 'b'", "s < 'a'", "s IS NULL", "s <> ''", "i = 9 AND s = 'a'", "NOT i = 0"),
    *("d > 1", "d < 0", "d = 0", "d = 'nan'", "d >= 'nan'", "d <> 2", "d IS NULL", "d = 'inf' OR i = -3"),
]


class Told:
    kind = "told by a test"

    def __init__(self, bounds: dict[str, ColumnBounds]) -> None:
        self._bounds = bounds

    def column(self, name: str) -> ColumnBounds | None:
        return self._bounds.get(name)


def told(choose: random.Random, files: list[pa.Table]) -> Told:
    """Return bounds that hold, though not the closest ones, of most columns of most files."""
    found = {}
    for name, type_ in TYPES.items():
        groups: dict[int, Any] = {}
        for at, rows in enumerate(files):
            column = rows.column(name).to_pylist()
            values = [v for v in column if v is not None and v == v]
            nulls = choose.choice([column.count(None), -1])
            if choose.random() < 0.2 or (not values and nulls < len(column)):
                groups[at] = None
            elif not values:
                groups[at] = [GroupBounds(None, None, True, len(column), len(column))]
            else:
                low, high = min(values), max(values)
                if name == "s" and choose.random() < 0.5:
                    low, high = low[:1], high + "\0"
                groups[at] = [GroupBounds(low, high, False, nulls, len(column))]
        found[name] = ColumnBounds(type_).with_files(groups)
    return Told(found)


@pytest.mark.parametrize("seed", range(6))
def test_no_file_with_a_match_is_left_out(tmp_path, seed):
    choose = random.Random(seed)
    files = []
    for _ in range(12):
        count = choose.randrange(1, 4)
        files.append(pa.table({n: pa.array(choose.choices(VALUES[n], k=count), t) for n, t in TYPES.items()}))
    steps = []
    with kartosql.connect(tmp_path, attach=True) as con:
        renamed(con, tmp_path, "t", pa.schema(TYPES), [Written(f, dict(TYPES)) for f in files], told(choose, files))
        con.register("u", pa.concat_tables(files))
        for condition in CONDITIONS:
            sql = f"SELECT * FROM {{}} WHERE {condition}"
            expected = con.sql(sql.format("u")).rows()
            assert sorted(map(repr, con.sql(sql.format("t")).rows())) == sorted(map(repr, expected)), condition
            steps += con.explain(sql.format("t")).to_dict()["scans"][0]["datasets"][0]["steps"]
    left = [s["files_before"] - s["files_after"] for s in steps if s["by"] == Told.kind]
    assert len(left) > 8


def test_bounds_come_before_those_of_footers_which_are_asked_where_they_tell_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("kartosql.indexes.index.MIN_FOR_STATISTICS", 0)
    files = [pa.table({"i": [n], "s": ["x"], "d": [float(n)]}) for n in range(4)]
    known = {f: [GroupBounds(f, f, True, 0, 1)] for f in range(4)}
    with kartosql.connect(tmp_path, attach=True) as con:
        bounds = Told({"i": ColumnBounds(pa.int64()).with_files(known)})
        renamed(con, tmp_path, "t", pa.schema(TYPES), [Written(f, dict(TYPES)) for f in files], bounds)
        for column, by in (("i", Told.kind), ("d", "row groups")):
            scan = con.explain(f"SELECT * FROM t WHERE {column} = 2").to_dict()["scans"][0]["datasets"][0]
            assert (scan["files"], [s["by"] for s in scan["steps"]]) == (["002.parquet"], [by])
