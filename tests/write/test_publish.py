"""Tables of other formats over the files of datasets, read back by other engines."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import StaticTable

import kartosql
from kartosql.errors import ConcurrentCommit, KartosqlError, KartosqlWarning
from kartosql.formats import roaring
from kartosql.parquet import GroupBounds
from kartosql.store import Store
from kartosql.store.keys import PreconditionFailed
from kartosql.tables.statistics import ColumnBounds
from kartosql.write.publish.delta import DeltaTarget
from kartosql.write.publish.live import FileBounds, per_file

deltalake = pytest.importorskip("deltalake")
polars = pytest.importorskip("polars")
pytest.importorskip("pyiceberg")
iceberg = pytest.importorskip("kartosql.write.publish.iceberg")

ROWS = """
    SELECT i AS x, CASE WHEN i % 5 > 0 THEN i / 3 END AS f, 'v' || i AS s, repeat('z', i::INT * 3) AS long,
        i % 2 = 0 AS b, DATE '2024-02-28' + i::INT AS d, CAST(i / 7 AS DECIMAL(10, 2)) AS m,
        CAST(i AS DECIMAL(38, 0)) AS w,
        CASE WHEN i % 3 > 0 THEN TIMESTAMP '1969-12-31 23:59:59.999501' + to_hours(i) END AS ts,
        [i, NULL] AS l, {'a': i, 'b': 'c'} AS n, encode('é') AS raw, i % 3 AS p,
        CASE WHEN i % 2 = 0 THEN 'a b' ELSE 'ä%/x=1' END AS q, DATE '2024-01-01' + (i % 2)::INT AS day
    FROM range(40) t(i)"""


@pytest.fixture
def con(tmp_path: Path, monkeypatch):
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    with kartosql.connect(tmp_path / "store") as con:
        yield con


def by_delta_rs(url: str) -> pa.Table:
    table = deltalake.DeltaTable(url)
    return pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())


def by_polars(url: str) -> pa.Table:
    return polars.read_delta(url).to_arrow()


def by_pyiceberg(url: str) -> pa.Table:
    return StaticTable.from_metadata(url).scan().to_arrow()


def by_polars_of_iceberg(url: str) -> pa.Table:
    return polars.scan_iceberg(StaticTable.from_metadata(url)).collect().to_arrow()


READERS: dict[str, list[Callable[[str], pa.Table]]] = {
    "delta": [by_delta_rs, by_polars],
    "iceberg": [by_pyiceberg, by_polars_of_iceberg],
}
TYPES = pytest.mark.parametrize("type_", READERS)
FIRST = {"delta": 0, "iceberg": 1}  # versions


def same_rows(con: Any, name: str, url: Path, type_: str = "delta", *, others: bool = True) -> int:
    """Compare the rows that other engines, and we, read at a folder with those of a dataset; returns their number."""
    columns = ", ".join(f'"{c}"' for c in con.sql(f"SELECT * FROM {name} LIMIT 0").columns)
    con.attach(url, "published", type=type_)
    try:
        for read in READERS[type_] if others else []:
            con.register("read_back", read(str(url)))
            assert difference(con, name, "read_back", columns) == 0, read
        assert difference(con, name, "published", columns) == 0
    finally:
        con.detach("published")
    return con.sql(f"SELECT count(*) FROM {name}").rows()[0][0]


def difference(con: Any, one: str, other: str, columns: str) -> int:
    sides = f"SELECT {columns} FROM {one}", f"SELECT {columns} FROM {other}"
    both = (f"SELECT count(*) FROM ({a} EXCEPT ALL {b})" for a, b in (sides, sides[::-1]))
    return sum(con.sql(text).rows()[0][0] for text in both)


def actions(folder: Path, version: int, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "_delta_log" / f"{version:020}.json").read_text("utf-8").splitlines()
    return [found[kind] for line in lines if kind in (found := json.loads(line))]


def data_files(folder: Path) -> dict[str, tuple[int, int]]:
    found = (p for p in folder.rglob("*.parquet") if "table" in p.parts)
    return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}


@TYPES
@pytest.mark.parametrize("place", ["store/t", "store", "."])
def test_other_engines_read_the_rows_of_a_dataset_over_the_same_files(con, tmp_path, place, type_):
    con.sql(f"CREATE DATASET t PARTITION BY (p, q, day) AS {ROWS}")
    before, target = data_files(tmp_path), tmp_path / place
    (done,) = con.sql(f"PUBLISH t TO '{target}' (TYPE {type_})").rows()
    assert done == ("t", str(target), type_, FIRST[type_], 6, 6, 0, 0)
    assert same_rows(con, "t", target, type_) == 40
    assert data_files(tmp_path) == before
    assert con.sql("CHECK t").rows() == con.sql("CLEANUP t").rows() == []


def test_files_beside_the_target_are_named_by_their_urls(con, tmp_path):
    con.sql(f"CREATE DATASET t PARTITION BY (p, q) AS {ROWS}")
    for folder in ("store/t_delta", "elsewhere/deep"):
        con.publish("t", tmp_path / folder)
        paths = [add["path"] for add in actions(tmp_path / folder, 0, "add")]
        assert all(path.startswith(f"file://{tmp_path}/store/t/table/p=") for path in paths)
        con.register("read_back", by_delta_rs(str(tmp_path / folder)))
        assert difference(con, "t", "read_back", "x, s, p, q, day") == 0


def first_of(folder: Path, type_: str) -> dict[str, int]:
    if type_ == "delta":
        return {"version": 0}
    document = json.loads((folder / "metadata" / "v1.metadata.json").read_text("utf-8"))
    return {"snapshot": document["current-snapshot-id"]}


@TYPES
def test_each_publish_is_a_version_of_what_changed(con, tmp_path, type_):
    target = tmp_path / "store" / "t"
    con.sql(f"CREATE DATASET t PARTITION BY (p) AS {ROWS}")
    assert con.publish("t", target, type_)["version"] == FIRST[type_]
    assert con.publish("t", target, type_)["version"] == FIRST[type_]  # nothing changed
    con.sql("INSERT INTO t SELECT * REPLACE (x + 100 AS x) FROM t WHERE p = 1")
    con.sql("DELETE FROM t WHERE p = 0")
    done = con.publish("t", target, type_)
    assert (done["version"], done["files"], done["added"], done["removed"]) == (FIRST[type_] + 1, 3, 1, 1)
    assert same_rows(con, "t", target, type_) == 39
    con.attach(target, "old", type=type_, **first_of(target, type_))
    assert con.sql("SELECT count(*) FROM old").rows() == [(40,)]
    con.sql("INSERT INTO t (EVOLVE) SELECT 1 AS p, 1 AS x, 7 AS new")
    con.sql("DROP DATASET t")
    con.sql("CREATE DATASET t PARTITION BY (d) AS SELECT 1 AS d, 'a' AS x")
    assert con.publish("t", target, type_)["removed"] == 3
    assert same_rows(con, "t", target, type_) == 1


@TYPES
def test_columns_that_came_later_are_null_in_older_files(con, tmp_path, type_):
    con.sql("CREATE DATASET t PARTITION BY (p) AS SELECT 1 AS p, 2 AS x")
    con.publish("t", tmp_path / "store" / "t", type_)
    con.sql("INSERT INTO t (EVOLVE) SELECT 1 AS p, 3 AS x, 'new' AS y")
    assert con.publish("t", tmp_path / "store" / "t", type_)["version"] == FIRST[type_] + 1
    assert same_rows(con, "t", tmp_path / "store" / "t", type_) == 2


@TYPES
def test_rows_of_a_cube_that_later_files_hide_are_deleted(con, tmp_path, type_):
    target = tmp_path / "store" / "c++seed"
    con.sql("CREATE CUBE c DIMENSIONS (x, y) PARTITION BY (p) AS SELECT x, y, x % 2 AS p, 0 AS v "
            "FROM range(300) a(x), range(3) b(y)")  # fmt: skip
    con.publish("c.seed", target, type_)
    hidden = []
    for least in (290, 100, 299):
        con.sql(f"INSERT INTO c.seed SELECT x, y, p, v + {least} AS v FROM c WHERE x >= {least} OR y = 2")
        hidden.append(con.publish("c.seed", target, type_)["hidden_rows"])
        assert same_rows(con, "c.seed", target, type_) == 900
    assert hidden == sorted(hidden)
    assert hidden[0] > 300
    con.sql("COMPACT c")
    assert con.publish("c.seed", target, type_)["hidden_rows"] == 0
    assert same_rows(con, "c.seed", target, type_) == 900
    assert con.sql("CHECK c").rows() == []


def test_a_vector_that_is_the_same_is_no_change(con, tmp_path):
    target = tmp_path / "store" / "c++seed"
    con.sql("CREATE CUBE c DIMENSIONS (x) PARTITION BY (p) AS SELECT x, x % 2 AS p, 0 AS v FROM range(30) a(x)")
    con.sql("INSERT INTO c.seed SELECT x, p, 1 AS v FROM c WHERE x < 4")
    con.publish("c.seed", target)
    con.sql("INSERT INTO c.seed SELECT x, p, 2 AS v FROM c WHERE x = 1")
    con.publish("c.seed", target)
    assert len(actions(target, 0, "add")) == 4
    assert (
        len(actions(target, 1, "add")) == 2
    )  # a new file, and that of which it hides a row that was not hidden before
    assert ["deletionVector" in a for a in actions(target, 1, "remove")] == [False]
    con.sql("INSERT INTO c.seed SELECT x, p, 3 AS v FROM c WHERE x = 3")
    con.publish("c.seed", target)
    assert [a.get("deletionVector", {}).get("cardinality") for a in actions(target, 2, "remove")] == [1]
    assert same_rows(con, "c.seed", target) == 30
    assert con.publish("c.seed", target)["version"] == 2


@given(st.sets(st.one_of(st.integers(0, 20_000), st.integers(65_500, 65_600), st.integers(0, 2**33)), max_size=300),
       st.booleans())  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_a_bitmap_is_read_as_it_was_written(numbers, dense):
    found = sorted(numbers | set(range(70_000, 75_500) if dense else ()))
    assert roaring.numbers_of(roaring.encoded(found)).to_pylist() == found


def test_statistics_hold_for_the_rows_and_prune_for_others(con, tmp_path):
    con.sql(f"CREATE DATASET t PARTITION BY (p) AS {ROWS}")
    con.publish("t", tmp_path / "store")
    con.attach(tmp_path / "store", "published", type="delta")
    for add in actions(tmp_path / "store", 0, "add"):
        told, where = json.loads(add["stats"]), f"p = {add['partitionValues']['p']}"
        items = "count(*), min(x), max(x), min(s), max(s), min(d)::VARCHAR, count(f), min(m)::DOUBLE"
        count, low, high, first, last, day, f, m = con.sql(f"SELECT {items} FROM t WHERE {where}").rows()[0]
        assert (told["numRecords"], told["nullCount"]["f"]) == (count, count - f)
        assert (told["minValues"]["x"], told["maxValues"]["x"]) == (low, high)
        assert (told["minValues"]["s"], told["maxValues"]["s"], told["minValues"]["d"]) == (first, last, day)
        assert told["minValues"]["m"] == m
        # Cut to milliseconds, and outward; of FLOAT and of long numbers and texts nothing is told.
        moments = con.sql(f"SELECT min(ts), max(ts) FROM t WHERE {where}").rows()[0]
        if moments[0] is not None:
            assert told["minValues"]["ts"] <= moments[0].isoformat()
            assert told["maxValues"]["ts"] >= moments[1].isoformat()
        assert {"f", "long", "w"}.isdisjoint(told["maxValues"])
    plan = con.explain("SELECT * FROM published WHERE x = 0")
    assert "log statistics" in str(plan)
    assert len(plan.to_dict()["scans"][0]["datasets"][0]["files"]) == 1


def test_names_that_delta_cannot_spell_are_mapped(con, tmp_path):
    con.sql('CREATE DATASET t PARTITION BY ("p q") AS SELECT 1 AS "a b", {\'x y\': 2} AS s, 3 AS "p q"')
    con.publish("t", tmp_path / "store" / "t")
    assert actions(tmp_path / "store" / "t", 0, "protocol")[0]["readerFeatures"] == ["columnMapping"]
    con.register("read_back", by_delta_rs(str(tmp_path / "store" / "t")))
    assert difference(con, "t", "read_back", '"a b", s, "p q"') == 0
    assert same_rows(con, "t", tmp_path / "store" / "t", others=False) == 1


def test_other_programs_may_read_but_not_write(con, tmp_path):
    con.sql("CREATE DATASET t AS SELECT 1 AS x")
    con.publish("t", tmp_path / "store" / "t")
    with pytest.raises(deltalake.exceptions.CommitFailedError, match="kartosqlPublished"):
        deltalake.write_deltalake(str(tmp_path / "store" / "t"), pa.table({"x": [2]}), mode="append")


def refused(con: Any, code: str, name: str, target: object, type_: Any = "delta") -> KartosqlError:
    with pytest.raises(KartosqlError) as e:
        con.publish(name, target, type_)
    assert e.value.code == code, e.value
    assert e.value.hint or code in ("invalid-argument", "unknown-table", "read-only")
    return e.value


def test_what_cannot_be_published_is_refused_and_nothing_is_written(con, tmp_path):
    con.sql("CREATE DATASET t PARTITION BY (p) AS SELECT 1 AS p, 2 AS x")
    con.sql("CREATE DATASET u AS SELECT 1::UBIGINT AS n, 2 AS x")
    con.sql("CREATE DATASET empty PARTITION BY (p) AS SELECT '' AS p, 2 AS x")
    con.sql("CREATE CUBE c DIMENSIONS (x) PARTITION BY (p) SEED a AS SELECT 1 AS x, 2 AS p")
    con.sql("ALTER CUBE c ADD DATASET b AS SELECT 1 AS x, 2 AS p, 3 AS v")
    assert "'n', which is UBIGINT" in refused(con, "unsupported-type", "u", tmp_path / "u").message
    assert "'p'" in refused(con, "unsupported-type", "empty", tmp_path / "u").message
    assert "c.a, c.b" in str(refused(con, "unknown-table", "c", tmp_path / "u").hint)
    refused(con, "unknown-table", "missing", tmp_path / "u")
    refused(con, "invalid-argument", "t", tmp_path / "store" / "t" / "table")
    refused(con, "invalid-argument", "t", tmp_path / "store" / "u")
    refused(con, "invalid-argument", "t", 7)
    refused(con, "invalid-argument", "t", tmp_path / "u", "hudi")
    con.attach(tmp_path / "store", "same", type="kartothek")
    refused(con, "unknown-table", "same.t", tmp_path / "u")
    assert not [p for p in tmp_path.rglob("*.json") if "_delta_log" in p.parts]
    with kartosql.connect(tmp_path / "store", read_only=True) as reader:
        refused(reader, "read-only", "t", tmp_path / "u")


def test_a_table_of_somebody_else_is_left_alone(con, tmp_path):
    deltalake.write_deltalake(str(tmp_path / "other"), pa.table({"x": [1]}))
    con.sql("CREATE DATASET t AS SELECT 1 AS x")
    refused(con, "target-taken", "t", tmp_path / "other")
    (tmp_path / "ice" / "metadata").mkdir(parents=True)
    (tmp_path / "ice" / "metadata" / "v1.metadata.json").write_text('{"format-version": 2}')
    refused(con, "target-taken", "t", tmp_path / "ice", "iceberg")
    assert deltalake.DeltaTable(str(tmp_path / "other")).version() == 0


@TYPES
def test_who_loses_a_race_publishes_what_stands_then(con, tmp_path, monkeypatch, type_):
    target = tmp_path / "store" / "t"
    con.sql("CREATE DATASET t AS SELECT 1 AS x")
    put, raced = Store.put_if, []

    def racing(self: Store, key: str, content: Any, expected: Any) -> Any:
        if key.startswith(("_delta_log/", "metadata/v")) and not raced:
            raced.append(key)
            con.sql("INSERT INTO t SELECT 2 AS x")
            with kartosql.connect(tmp_path / "store") as other:
                other.publish("t", target, type_)
            con.sql("INSERT INTO t SELECT 3 AS x")
        return put(self, key, content, expected)

    monkeypatch.setattr(Store, "put_if", racing)
    assert con.publish("t", target, type_)["version"] == FIRST[type_] + 1
    assert same_rows(con, "t", target, type_) == 3

    def losing(self: Store, key: str, content: Any, expected: Any) -> Any:
        if key.startswith(("_delta_log/", "metadata/v")):
            raise PreconditionFailed(key)
        return put(self, key, content, expected)

    monkeypatch.setattr(Store, "put_if", losing)
    con.sql("INSERT INTO t SELECT 4 AS x")
    with pytest.raises(ConcurrentCommit):
        con.publish("t", target, type_)


def test_a_dataset_that_is_dropped_takes_what_was_published_in_its_folder_along(con, tmp_path):
    con.sql("CREATE DATASET t AS SELECT 1 AS x")
    con.publish("t", tmp_path / "store" / "t")
    con.sql("DROP DATASET t")
    assert [row[1] for row in con.sql("CLEANUP t").rows()] == ["t/_delta_log/00000000000000000000.json"]


def test_files_without_their_data_are_told(con, tmp_path):
    con.sql("CREATE DATASET t AS SELECT 1 AS x")
    os.remove(next((tmp_path / "store" / "t").rglob("*.parquet")))
    refused(con, "missing-file", "t", tmp_path / "store" / "t")


def test_a_dataset_of_the_original_is_published(con, tmp_path):
    """Its files hold moments in microseconds, where the schema says nanoseconds."""
    con.create_dataset("t", pa.table({"t": pa.array([1_000], pa.timestamp("ns")), "p": ["a"]}), partition_on=["p"])
    assert pq.read_schema(next((tmp_path / "store" / "t").rglob("*.parquet"))).field("t").type.unit in ("us", "ns")
    con.publish("t", tmp_path / "store" / "t")
    assert (
        by_delta_rs(str(tmp_path / "store" / "t"))["t"].to_pylist()
        == con.sql("SELECT t::TIMESTAMP FROM t").arrow()[0].to_pylist()
    )


def test_columns_of_iceberg_keep_their_ids_while_they_keep_their_types(con, tmp_path):
    target = tmp_path / "store" / "t"

    def columns() -> dict[str, int]:
        document = json.loads(
            (target / "metadata" / f"v{con.publish('t', target, 'iceberg')['version']}.metadata.json").read_text()
        )
        fields = next(s["fields"] for s in document["schemas"] if s["schema-id"] == document["current-schema-id"])
        return {f["name"]: f["id"] for f in fields}

    con.sql("CREATE DATASET t PARTITION BY (p) AS SELECT 1 AS p, {'a': 1} AS s, 2 AS x")
    first = columns()
    con.sql("INSERT INTO t (EVOLVE) SELECT 1 AS p, {'a': 2} AS s, 3 AS x, [5] AS l")
    second = columns()
    assert first.items() < second.items()
    con.sql("CREATE OR REPLACE DATASET t PARTITION BY (x) AS SELECT 'p' AS p, {'a': 3} AS s, 2 AS x")
    third = columns()
    assert (third["s"], third["x"]) == (first["s"], first["x"])
    assert third["p"] not in {*first.values(), *second.values()}
    assert same_rows(con, "t", target, "iceberg") == 1


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "read-again"])
def test_manifests_stay_while_their_files_do(con, tmp_path, is_known):
    target = tmp_path / "store" / "t"

    def manifests() -> list[tuple[str, int, int]]:
        if not is_known:
            iceberg._known.clear()
        con.publish("t", target, "iceberg")
        table = StaticTable.from_metadata(str(target))
        found = table.current_snapshot().manifests(table.io)
        return [(m.manifest_path, m.added_files_count, m.existing_files_count) for m in found]

    con.sql("CREATE DATASET t PARTITION BY (p) AS SELECT x % 4 AS p, x FROM range(20) r(x)")
    first = manifests()
    assert [m[1:] for m in first] == [(4, 0)]
    con.sql("INSERT INTO t SELECT 1 AS p, 100 AS x")
    second = manifests()
    assert (second[:1], [m[1:] for m in second]) == (first, [(4, 0), (1, 0)])
    con.sql("DELETE FROM t WHERE p = 2")
    third = manifests()
    assert (third[:1], [m[1:] for m in third]) == (second[1:], [(1, 0), (0, 3)])
    table = StaticTable.from_metadata(str(target))
    entries = [e for m in table.current_snapshot().manifests(table.io) for e in m.fetch_manifest_entry(table.io)]
    assert sorted(e.sequence_number for e in entries) == [1, 1, 1, 2]
    assert same_rows(con, "t", target, "iceberg") == 16
    assert len({e.snapshot_id for e in entries}) == 2


def test_no_more_manifests_are_kept_than_agreed(monkeypatch):
    monkeypatch.setattr(iceberg, "_known", {})
    monkeypatch.setattr(iceberg, "MAX_KNOWN", 3)
    for number in range(5):
        iceberg._note(number, b"", {f"{number}-{n}": iceberg._Listed(1, 1) for n in range(2)})
    assert [number for number, _ in iceberg._known] == [4]
    iceberg._note(5, b"", {str(n): iceberg._Listed(1, 1) for n in range(9)})
    assert [number for number, _ in iceberg._known] == [5]


def test_a_log_with_odd_paths_and_vectors_is_read_again(con, tmp_path):
    con.sql("CREATE DATASET t PARTITION BY (p) AS SELECT 'ä \"%' || x AS p, x FROM range(3) r(x)")
    target = tmp_path / "store" / "t"
    con.publish("t", target)
    con.sql("DELETE FROM t WHERE x = 1")
    done = con.publish("t", target)
    assert (done["version"], done["added"], done["removed"]) == (1, 0, 1)
    assert con.publish("t", target)["version"] == 1
    assert same_rows(con, "t", target) == 2


def test_bounds_of_several_row_groups_are_those_of_the_file():
    known = ColumnBounds(pa.int64()).with_files(
        {
            4: [GroupBounds(3, 5, True, 0, 9), GroupBounds(1, 2, True, 2, 9), GroupBounds(None, None, True, 9, 9)],
            5: [GroupBounds(None, None, True, 9, 9)],
            6: [GroupBounds(1, 2, True, -1, 9), GroupBounds(0, 1, True, 1, 9)],
            7: None,
        }
    )
    found = per_file(known, [7, 6, 5, 4])
    assert found == FileBounds((None, None, 9, 11), (None, 0, None, 1), (None, 2, None, 5))
    assert found.bounds(str, lambda v: None if v == 2 else str(v)) == [(None, None, None, "1"), (None, None, None, "5")]
    assert per_file(known, []) == FileBounds((), (), ())


def test_bounds_of_iceberg_hold_for_the_rows_and_prune_for_others(con, tmp_path):
    con.sql(f"CREATE DATASET t PARTITION BY (p) AS {ROWS}")
    con.publish("t", tmp_path / "store" / "t", "iceberg")
    table = StaticTable.from_metadata(str(tmp_path / "store" / "t"))
    for condition in ("x = 0", "s = 'v0'", "d = '2024-02-28'", "m = 5.57", "w = 39", "ts < '1970-01-01T01:00:00'"):
        files = [*table.scan(row_filter=condition).plan_files()]
        assert 1 <= len(files) < 3, condition
        con.register("read_back", table.scan(row_filter=condition).to_arrow())
        assert (
            con.sql("SELECT count(*) FROM read_back").rows()
            == con.sql(f"SELECT count(*) FROM t WHERE {condition}").rows()
        )
    assert len([*table.scan(row_filter="p = 1").plan_files()]) == 1


def test_an_iceberg_table_that_is_damaged_is_told(con, tmp_path):
    con.sql("CREATE DATASET t AS SELECT 1 AS x")
    con.publish("t", tmp_path / "store" / "t", "iceberg")
    metadata = tmp_path / "store" / "t" / "metadata"
    os.remove(next(metadata.glob("*-m0.avro")))
    refused(con, "iceberg-invalid-metadata", "t", tmp_path / "store" / "t", "iceberg")
    (metadata / "v1.metadata.json").write_text("{")
    refused(con, "iceberg-invalid-metadata", "t", tmp_path / "store" / "t", "iceberg")


@TYPES
def test_a_damaged_table_begins_anew_without_the_folder_that_the_error_names(con, tmp_path, type_):
    con.sql("CREATE DATASET t AS SELECT 1 AS x")
    target = tmp_path / "store" / "t"
    con.publish("t", target, type_)
    folder = {"delta": "_delta_log", "iceberg": "metadata"}[type_]
    next((target / folder).glob("*.json")).write_text("{")
    error = refused(con, f"{type_}-invalid-{'log' if type_ == 'delta' else 'metadata'}", "t", target, type_)
    assert repr(folder) in error.hint
    shutil.rmtree(target / folder)
    con.publish("t", target, type_)
    con.attach(target, "back", type=type_)
    assert con.sql("SELECT x FROM back").rows() == [(1,)]


@TYPES
def test_counts_and_extremes_come_from_metadata_without_opening_a_file(con, tmp_path, type_):
    con.sql("CREATE DATASET t PARTITION BY (p) AS SELECT x % 5 AS p, x, 'v' || x AS s FROM range(50) r(x)")
    con.publish("t", tmp_path / "store" / "t", type_)
    con.attach(tmp_path / "store" / "t", "published", type=type_)
    extremes = ", min(x), max(s)" if type_ == "delta" else ""  # bounds in manifests need not be values
    asked = f"SELECT p, count(*){extremes} FROM published GROUP BY p ORDER BY p"
    wanted = con.sql(asked.replace("published", "t")).rows()
    for file in (tmp_path / "store" / "t" / "table").rglob("*.parquet"):
        os.remove(file)
    assert con.sql(asked).rows() == wanted
    assert con.sql("SELECT count(*) FROM published").rows() == [(50,)]


@TYPES
def test_rows_that_do_not_count_are_not_counted(con, tmp_path, type_):
    con.sql("CREATE CUBE c DIMENSIONS (x) PARTITION BY (p) AS SELECT x, x % 2 AS p, x AS v FROM range(30) r(x)")
    con.sql("INSERT INTO c.seed SELECT x, p, -v AS v FROM c WHERE x > 20")
    con.publish("c.seed", tmp_path / "store" / "published", type_)
    options = {"delta": {"clone_of": str(tmp_path / "store")}, "iceberg": {"data": str(tmp_path / "store")}}[type_]
    con.attach(tmp_path / "store" / "published", "published", type=type_, **options)
    asked = "SELECT p, count(*), max(v), min(v) FROM {} GROUP BY p ORDER BY p"
    assert con.sql(asked.format("published")).rows() == con.sql(asked.format("c")).rows()


def test_extremes_that_the_log_cuts_are_asked_of_the_files(con, tmp_path):
    con.sql("CREATE DATASET t AS SELECT TIMESTAMP '2024-01-01 00:00:00.123456' AS ts")
    con.publish("t", tmp_path / "store" / "t")
    con.attach(tmp_path / "store" / "t", "published", type="delta")
    asked = "SELECT max(ts)::VARCHAR FROM {}"
    assert (
        con.sql(asked.format("published")).rows()
        == con.sql(asked.format("t")).rows()
        == [("2024-01-01 00:00:00.123456",)]
    )


# -- with each commit ------------------------------------------------------------------------------


def version(folder: Path, type_: str) -> int:
    if type_ == "delta":
        return len(list((folder / "_delta_log").glob("*.json"))) - 1
    return int((folder / "metadata" / "version-hint.text").read_text("utf-8"))


@TYPES
def test_a_table_that_follows_has_the_rows_of_each_commit(con, tmp_path, type_):
    target = tmp_path / "store" / "t"
    con.sql(f"CREATE DATASET t PARTITION BY (p) AS {ROWS}")
    con.sql(f"PUBLISH t TO '{target}' (TYPE {type_}, FOLLOW true)")
    assert version(target, type_) == FIRST[type_]
    statements = [
        f"INSERT INTO t SELECT * REPLACE (x + 100 AS x) FROM ({ROWS}) WHERE p < 2",
        "DELETE FROM t WHERE x = 3",
        "UPDATE t SET s = 'new' WHERE x = 4",
        "COMPACT t",
        f"CREATE OR REPLACE DATASET t PARTITION BY (p) AS {ROWS}",
        f"CREATE OR REPLACE DATASET t PARTITION BY (q, p) AS {ROWS}",
        "DELETE FROM t WHERE p = 1",
    ]
    for number, statement in enumerate(statements, FIRST[type_] + 1):
        con.sql(statement)
        same_rows(con, "t", target, type_, others=False)
        assert version(target, type_) == number, statement
    assert same_rows(con, "t", target, type_) == 27
    with kartosql.connect(tmp_path / "store") as other:
        other.append_to_dataset("t", other.sql("SELECT * FROM t LIMIT 2").arrow())
    assert same_rows(con, "t", target, type_, others=False) == 29
    con.publish("t", target, type_, follow=False)
    before = version(target, type_)
    con.sql("DELETE FROM t WHERE x = 0")
    assert version(target, type_) == before


def test_datasets_of_a_cube_follow_each_by_itself(con, tmp_path):
    cube = kartosql.Cube("c", ["x"], ["p"], seed_dataset="seed")
    rows = pa.table({"x": [1, 2, 3], "p": [0, 0, 1], "v": [1, 2, 3]})
    con.build_cube(cube, {"seed": rows, "more": rows.rename_columns(["x", "p", "w"])})
    for name in ("seed", "more"):
        con.publish(f"c.{name}", tmp_path / "store" / f"c++{name}", follow=True)
    con.append_to_cube(cube, {"seed": pa.table({"x": [2, 9], "p": [0, 1], "v": [20, 9]})})
    assert same_rows(con, "c.seed", tmp_path / "store" / "c++seed") == 4
    assert version(tmp_path / "store" / "c++more", "delta") == 0
    con.remove_partitions(cube, "p == 1")
    for name in ("seed", "more"):
        assert same_rows(con, f"c.{name}", tmp_path / "store" / f"c++{name}", others=False) == 2


def test_a_commit_stands_and_is_told_where_it_cannot_be_published(con, tmp_path, monkeypatch):
    target = tmp_path / "store" / "t"
    con.sql("CREATE DATASET t AS SELECT 1 AS x")
    con.publish("t", target, follow=True)
    for error, message in ((PreconditionFailed("k"), "others publish"), (OSError("disk"), "OSError: disk")):
        with monkeypatch.context() as patch:
            patch.setattr(DeltaTarget, "write", mock.Mock(side_effect=error))
            with pytest.warns(KartosqlWarning, match=f"commit stands.*{message}"):
                con.sql("INSERT INTO t SELECT 2 AS x")
    assert con.sql("SELECT count(*) FROM t").rows() == [(3,)]
    assert version(target, "delta") == 0
    con.sql("INSERT INTO t SELECT 3 AS x")  # brings all that is missing
    assert same_rows(con, "t", target, others=False) == 4
    log = target / "_delta_log" / f"{1:020}.json"
    log.write_text("{", "utf-8")
    with pytest.warns(KartosqlWarning, match="commit stands, and is not published in delta:t"):
        con.sql("INSERT INTO t SELECT 4 AS x")
    assert con.sql("SELECT count(*) FROM t").rows() == [(5,)]


def test_what_follows_lies_in_the_store_whatever_stands_in_its_metadata(con, tmp_path):
    con.sql("CREATE DATASET t AS SELECT 1 AS x")
    for place in ("elsewhere", "store/../elsewhere"):
        with pytest.raises(KartosqlError, match="does not lie in the store") as e:
            con.publish("t", tmp_path / place, follow=True)
        assert e.value.code == "invalid-argument"
    for text in ("FOLLOW", "FOLLOW maybe", "FOLLOWS true", ""):
        with pytest.raises(KartosqlError) as e:
            con.sql(f"PUBLISH t TO '{tmp_path}/store/p' (TYPE delta, {text})")
        assert e.value.code == "syntax-error"
    with pytest.raises(KartosqlError, match="neither True nor False"):
        con.publish("t", tmp_path / "store" / "p", follow="yes")
    os.symlink(tmp_path / "outside", tmp_path / "store" / "link")
    path = tmp_path / "store" / "t.by-dataset-metadata.json"
    document = json.loads(path.read_text("utf-8"))
    entries = ["delta:../outside", "delta:link", f"delta:{tmp_path}/outside", "odd:p", "delta:t/table"]
    document["metadata"] |= {f"kartosql_published:{entry}": "t" for entry in entries}
    document["metadata"]["kartosql_published:delta:another"] = "u"  # a copy of u
    path.write_text(json.dumps(document), "utf-8")
    with pytest.warns(KartosqlWarning, match="commit stands") as warned:
        con.sql("INSERT INTO t SELECT 2 AS x")
    assert len([w for w in warned if "commit stands" in str(w.message)]) == len(entries)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]
    assert con.sql("SELECT count(*) FROM t").rows() == [(2,)]
    assert not list((tmp_path / "store").rglob("_delta_log"))


def test_a_copy_does_not_write_to_what_follows_its_original(con, tmp_path):
    con.sql("CREATE DATASET t AS SELECT 1 AS x")
    con.publish("t", tmp_path / "store" / "published", follow=True)
    con.sql(f"COPY DATASET t TO '{tmp_path}/other'")
    (tmp_path / "store" / "published").rename(tmp_path / "moved")
    with kartosql.connect(tmp_path / "other") as other:
        other.sql("INSERT INTO t SELECT 2 AS x")
    assert not (tmp_path / "other" / "published").exists()
