"""Indexes of attached tables that executors of Spark build are those that one machine builds."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_lake_indexes import Iceberg

import kartosql
from delta_tables import DeltaTable, column
from kartosql.errors import KartosqlError

NAN = float("nan")
INDEXED = ["k", "s", "f"]
SKIPPING: dict[str, Any] = {"minmax": ["k", "f"], "valuelist": "k", "bloomfilter": "s", "ngram": "s", "prefix": "s"}
ASKED = [
    "k = 3", "k IN (14, 25)", "k > 50", "k BETWEEN 20 AND 23", "s = 'text 21'", "s LIKE '%ext 3%'", "s LIKE 'text 1%'",
    "f = 0.0", "f < 2.5 OR k = 31", "k IS NULL", "s > 'text 4' AND k < 50",
]  # fmt: skip


def rows(at: int) -> dict[str, list[Any]]:
    keys = [10 * at + n for n in range(6)]
    return {
        "k": [None if k % 5 == 4 else k for k in keys],
        "s": [None if k % 7 == 3 else f"text {k}" for k in keys],
        "f": [NAN if k % 11 == 1 else -0.0 if k % 3 == 0 else k / 4 for k in keys],
    }


def delta(root: Path) -> tuple[str, dict[str, Any]]:
    """Columns with other names in files, some of which lack one, widened types, and deletion vectors."""
    fields = [column("k", "integer", "col-1", 1), column("s", "string", "Odd.name", 2)]
    more = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
    made = DeltaTable(root / "d", fields, features=["columnMapping", "deletionVectors"], configuration=more)
    names = [made.add([{"k": k, "s": s} for k, s in zip(rows(at)["k"], rows(at)["s"], strict=True)]) for at in (0, 1)]
    made.evolve([column("k", "long", "col-1", 1), fields[1], column("f", "double", "col-3", 3)])
    for at in range(2, 6):
        names.append(made.add([dict(zip("ksf", row, strict=True)) for row in zip(*rows(at).values(), strict=True)]))
    made.delete(names[3], [0, 1])
    return str(root / "d"), {"type": "delta"}


def iceberg(root: Path) -> tuple[str, dict[str, Any]]:
    """A column that was renamed, and another one that has its name now."""
    lake = Iceberg(root)
    types = {"k": pa.int64(), "s": pa.string(), "f": pa.float64(), "o": pa.string()}
    for at in range(6):
        lake.append(pa.table({c: pa.array(rows(at).get(c, ["x"] * 6), t) for c, t in types.items()}))
        if at == 3:
            lake.swap("s", "o")
    lake.delete("k = 21")
    lake.close()
    return lake.url, lake.options


def folder(root: Path) -> tuple[str, dict[str, Any]]:
    """Types that differ between files, columns that are not in all, partitions, and a file without rows."""
    for at in range(6):
        path = root / "f" / f"p={at % 2}" / f"{at}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table(rows(at))
        table = table.set_column(0, "k", table["k"].cast(pa.int32())) if at == 2 else table
        pq.write_table(table.drop_columns(["f"] if at == 1 else []), path, row_group_size=2)
    pq.write_table(pa.table(rows(0)).slice(0, 0), root / "f" / "p=0" / "empty.parquet")
    return str(root / "f"), {"type": "parquet"}


def kept(store: Path) -> list[Any]:
    """Return the pairs of all segments by the names of files, and what skipping indexes keep of each file."""
    found = []
    for path in sorted(store.glob(".kartosql/*/*.parquet")):
        with pq.ParquetFile(path) as file:
            found.append((file.metadata.metadata[b"kartosql.files"], file.read().to_pylist()))
    parts = sorted(store.glob(".kartosql/*/skipping/*.parquet"))
    cells = [row for path in parts for row in pq.read_table(path, partitioning=None).to_pylist()]
    return [sorted(map(repr, found)), sorted(map(repr, cells))]


@pytest.mark.parametrize("made", [delta, iceberg, folder])
def test_executors_build_what_one_machine_builds(spark, tmp_path, made):
    url, options = made(tmp_path)
    cons = []
    for name, session in (("one", None), ("many", spark)):
        (tmp_path / name).mkdir()
        cons.append(con := kartosql.connect(tmp_path / name))
        con.attach(url, "t", **options)
        done = con.create_index("t", INDEXED, spark=session)["files"]
        assert all(d["kept"] == d["unindexed"] == 0 for d in done)
        again = con.create_index("t", "k", spark=session)["files"][0]
        assert (again["added"], again["kept"]) == (0, done[0]["added"])  # what is indexed is not read again
        con.create_skipping_index("t", **SKIPPING, spark=session)
        assert con.refresh_skipping_index("t", spark=session)["added"] == 0
        assert not list((tmp_path / name).glob("**/kartosql-spark-*"))
    assert kept(tmp_path / "one") == kept(tmp_path / "many")
    for where in ASKED:
        one, many = (con.sql(f"SELECT * FROM t WHERE {where} ORDER BY ALL") for con in cons)
        plain = cons[0].sql(f"SELECT * FROM t WHERE CASE WHEN random() >= 0 THEN {where} END ORDER BY ALL")
        assert repr(one.rows()) == repr(many.rows()) == repr(plain.rows()), where
        assert one.report.files_selected == many.report.files_selected, where
    for con in cons:
        con.close()


def test_values_of_all_types_are_keys_as_one_machine_has_them(spark, tmp_path):
    values = {
        "u": pa.array([2**64 - 1, 0], pa.uint64()),
        "d": pa.array([dt.date(1850, 3, 1), None], pa.date32()),
        "t": pa.array([dt.datetime(1969, 12, 31, 23, 59, 59, 5), dt.datetime(2400, 1, 1)], pa.timestamp("ms")),
        "z": pa.array([dt.datetime(2020, 2, 29, tzinfo=dt.timezone.utc), None], pa.timestamp("us", "UTC")),
        "n": pa.array([Decimal("-1.50"), Decimal("10.00")], pa.decimal128(9, 2)),
        "b": pa.array([True, None], pa.bool_()),
        "g": pa.array([0.1, NAN], pa.float32()),
    }
    (tmp_path / "f").mkdir()
    pq.write_table(pa.table(values), tmp_path / "f" / "1.parquet")
    for name, session in (("one", None), ("many", spark)):
        (tmp_path / name).mkdir()
        with kartosql.connect(tmp_path / name) as con:
            con.attach(tmp_path / "f", "t", type="parquet")
            con.create_index("t", list(values), spark=session)
    assert kept(tmp_path / "one") == kept(tmp_path / "many")


def test_csv_files_are_indexed_without_executors(spark, tmp_path):
    (tmp_path / "c").mkdir()
    for n in range(3):
        (tmp_path / "c" / f"{n}.csv").write_text(f"k;d\n{n};{n},5\n")
    for name, session in (("one", None), ("many", spark)):
        (tmp_path / name).mkdir()
        with kartosql.connect(tmp_path / name) as con:
            con.attach(tmp_path / "c", "c", type="csv", decimal_separator=",")
            con.create_index("c", "k", spark=session)
            con.create_skipping_index("c", minmax="d", spark=session)
            con.refresh_skipping_index("c", spark=session)
            for where in ("k = 1", "d = 1.5"):
                query = con.sql(f"SELECT k, d FROM c WHERE {where}")
                assert query.rows() == [(1, 1.5)]
                assert len(query.explain().to_dict()["scans"][0]["datasets"][0]["files"]) == 1
    assert kept(tmp_path / "one") == kept(tmp_path / "many")


def test_files_that_are_gone_are_named(spark, tmp_path):
    url, options = delta(tmp_path)
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        con.attach(url, "t", **options)
        min(Path(url).glob("*.parquet")).unlink()
        for call in (
            lambda: con.create_index("t", "k", spark=spark),
            lambda: con.create_skipping_index("t", minmax="k"),
        ):
            with pytest.raises(KartosqlError) as error:
                call()
            assert error.value.code == "missing-file"
        assert con.sql("SHOW INDEXES FROM t").rows() == []
