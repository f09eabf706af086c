"""Rows of lake tables with indexes of all kinds: pruned, not pruned, and on Spark."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import HandTable
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import kartosql
from delta_tables import DeltaTable, column

NAN = float("nan")
TYPES = {"k": pa.int64(), "s": pa.string(), "f": pa.float64()}
SKIPPING: dict[str, Any] = {
    "minmax": ["k", "f"],
    "valuelist": ["k", "f"],
    "bloomfilter": ["s", "k"],
    "ngram": "s",
    "prefix": "s",
}
ASKED = [
    "k = 13", "k IN (3, 44)", "k BETWEEN 20 AND 23", "k > 50", "k <> 12", "k IS NULL", "k IS NOT NULL AND k < 9",
    "NOT (k = 12 OR k IS NULL)", "k IS DISTINCT FROM 13", "f = 'nan'::DOUBLE", "f > 14", "f >= 'inf'::DOUBLE",
    "f = 0.0", "f = -0.0", "f <= 0", "f < 2.5 OR k = 31", "f IN (10.5, 'nan'::DOUBLE)", "NOT (f < 5)", "f IS NULL",
    "s = 'text 21'", "s IN ('text 2', 'text 63')", "s LIKE '%ext 3%'", "s LIKE 'text 1%'", "s ILIKE '%XT 4%'",
    "s NOT LIKE '%ext 1%'", "regexp_matches(s, 'xt 5[0-3]$')", "starts_with(s, 'text 6')", "s IS NULL AND k > 30",
    "s > 'text 4' AND k < 50", "s LIKE '%ext 2%' AND f >= 5", "s = '' OR s LIKE '%é%'", "s LIKE '%no such%'",
]  # fmt: skip


def rows(at: int) -> list[dict[str, Any]]:
    """Return rows with NULL, NaN, zeros of both signs, infinity, and two files without any value of a column."""
    floats = {0: NAN, 1: -0.0, 2: 0.0, 3: float("inf"), 4: None}
    made: list[dict[str, Any]] = []
    for k in range(10 * at, 10 * at + 6):
        text = None if k % 7 == 3 else "" if k % 13 == 5 else "é" if k % 17 == 2 else f"text {k}"
        made.append({"k": None if k % 5 == 4 else k, "s": text, "f": floats.get(k % 11, k / 4)})
    lost: dict[str, Any] = {1: {"f": NAN}, 2: {"s": None}, 3: {"k": None, "f": None}}.get(at, {})
    return [row | lost for row in made]


class Delta:
    """Rows go by deletion vectors, and the column ``f`` came late."""

    type = "delta"

    def __init__(self, root: Path) -> None:
        fields = [column(c, t, f"col-{c}", n) for n, (c, t) in enumerate(zip("ksf", ("long", "string", "double")), 1)]
        more = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
        features = ["columnMapping", "deletionVectors"]
        self._table = DeltaTable(root, fields[:2], features=features, configuration=more)
        self._table.add([{"k": 13, "s": "text 13"}])
        self._table.evolve(fields)

    def add(self, at: int) -> Any:
        return self._table.add(rows(at))

    def delete(self, file: Any, places: list[int]) -> None:
        self._table.delete(file, places)


class Iceberg:
    """Rows go by files of positions, and by equal values."""

    type = "iceberg"

    def __init__(self, root: Path) -> None:
        fields = [
            NestedField(n, c, t) for n, (c, t) in enumerate(zip("ksf", (LongType(), StringType(), DoubleType())), 1)
        ]
        self._table = HandTable(root, Schema(*fields, schema_id=0))

    def add(self, at: int) -> Any:
        file = self._table.data(pa.Table.from_pylist(rows(at), pa.schema(TYPES)))
        self._table.commit(file)
        return file

    def delete(self, file: Any, places: list[int]) -> None:
        equal = self._table.keys(pa.table({"k": pa.array([32, None], pa.int64()), "s": ["text 32", None]}))
        self._table.commit(self._table.positions([(file, n) for n in places]), equal)


class Folder:
    """To delete rows the file is written again."""

    type = "parquet"

    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, at: int) -> Any:
        path = self._root / f"p={at % 2}" / f"{at}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows(at), pa.schema(TYPES)), path, row_group_size=2)
        return path

    def delete(self, file: Any, places: list[int]) -> None:
        table = pq.read_table(file, partitioning=None)
        pq.write_table(table.take([n for n in range(len(table)) if n not in places]), file)


def counted(query: Any) -> Counter[str]:
    return Counter(map(repr, query.rows()))


@pytest.mark.parametrize(("of", "turn"), [(Delta, 0), (Iceberg, 1), (Folder, 0)])
def test_pruned_rows_are_all_rows_and_those_of_spark(spark, tmp_path, monkeypatch, of, turn):
    monkeypatch.setattr("kartosql.sources.file_indexes.GROUP_ROWS", 4)
    lake: Any = of(tmp_path / "t")
    files = [lake.add(at) for at in range(6)]
    lake.delete(files[1], [3])
    with contextlib.ExitStack() as stack:
        cons: dict[str, Any] = {}
        for kind in ("inverted index", *SKIPPING, "all"):
            (tmp_path / kind).mkdir()
            con = cons[kind] = stack.enter_context(kartosql.connect(tmp_path / kind))
            con.attach(tmp_path / "t", "t", type=lake.type)
            if kind in ("inverted index", "all"):
                con.create_index("t", [*TYPES])
            if kind != "inverted index":
                con.create_skipping_index("t", **(SKIPPING if kind == "all" else {kind: SKIPPING[kind]}))
        lake.add(6)  # which no index has seen
        lake.delete(files[2], [0, 1])  # since they were built
        steps, pruned = Counter[str](), 0
        for number, where in enumerate(ASKED):
            whole = counted(cons["all"].sql(f"SELECT * FROM t WHERE CASE WHEN random() >= 0 THEN {where} END"))
            for kind, con in cons.items():
                found = con.sql(f"SELECT * FROM t WHERE {where}")
                assert counted(found) == whole, (kind, where, str(found.report))
                steps.update({s["by"] for s in found.report.to_dict()["scans"][0]["datasets"][0]["steps"]} & {kind})
            pruned += found.report.files_selected < found.report.files_total
            if number % 2 == turn:  # both halves are asked, each of other tables
                assert counted(con.sql(f"SELECT * FROM t WHERE {where}", engine="spark")) == whole, where
            assert con.sql(f"SELECT count(*) FROM t WHERE {where}").rows() == [(whole.total(),)], where
        assert pruned > 10
        assert steps.keys() == cons.keys() - {"all"}, steps
