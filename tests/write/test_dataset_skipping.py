"""Skipping indexes of datasets: made by statements, kept by commits, and used by queries without changing them."""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
import kartosql.query
from kartosql.errors import KartosqlWarning, SqlError, UsageError
from kartosql.formats.kartothek.naming import BASE, POINTER
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.plan.prune import prune
from kartosql.predicate.from_sql import predicate_of
from kartosql.store import Store

ALL = "MINMAX(a, f, s, t, x.m), VALUELIST(s, b, k), BLOOMFILTER(a, s) WITH (fpp = 0.05, ndv = 100)"


def rows(numbers: range) -> pa.Table:
    """``a`` and ``t`` grow with ``p``; ``f`` has NaN, ``s`` NULLs, ``x`` is a struct."""
    values = {
        "p": [n // 20 for n in numbers],
        "a": list(numbers),
        "f": [float("nan") if n % 37 == 5 else -0.0 if n % 41 == 0 else n / 4 for n in numbers],
        "s": [None if n % 11 == 3 else f"s{n // 5}" for n in numbers],
        "t": [dt.datetime(2024, 1, 1) + dt.timedelta(hours=n) for n in numbers],
        "b": [n % 60 < 20 for n in numbers],
        "k": [Decimal(n // 20) / 2 for n in numbers],
        "x": [{"m": n, "o": None} for n in numbers],
    }
    types = {
        **{"p": pa.int64(), "a": pa.int64(), "f": pa.float64(), "s": pa.string(), "t": pa.timestamp("us")},
        **{"b": pa.bool_(), "k": pa.decimal128(10, 2), "x": pa.struct([("m", pa.int64()), ("o", pa.string())])},
    }
    return pa.table(values, schema=pa.schema(list(types.items())))


@pytest.fixture
def connection():
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as made:
        made.create_dataset("d", rows(range(400)), partition_on="p")
        yield made


def read(connection: Any, sql: str) -> dict[str, int]:
    """Return how many files each kind of index leaves, of those that leave out any, in the order of the steps."""
    (scan,) = connection.explain(sql).to_dict()["scans"]
    steps = [step for dataset in scan["datasets"] for step in dataset["steps"]]
    return {s["by"]: s["files_after"] for s in steps if s["files_after"] < s["files_before"]}


def both(connection: Any, monkeypatch: pytest.MonkeyPatch, sql: str) -> list[str]:
    """Return the rows, which are the same without pruning."""
    found = sorted(map(repr, connection.sql(sql).rows()))
    with monkeypatch.context() as patch:
        patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
        assert found == sorted(map(repr, connection.sql(sql).rows())), sql
    return found


def test_statements_make_show_refresh_and_drop_them(connection):
    made = connection.sql(f"CREATE SKIPPING INDEX ON d ({ALL})")
    assert made.rows() == [("d", 10, 20, 0, 0, 0)]
    assert made.written == 0
    shown = connection.sql("SHOW SKIPPING INDEXES FROM d").rows()
    assert ("table", "bloomfilter", "s", "fpp = 0.05, ndv = 100", 20, 20) in shown
    assert ("table", "minmax", "x.m", "", 20, 20) in shown
    assert connection.sql("REFRESH SKIPPING INDEX ON d").rows() == [("d", 10, 0, 0, 20, 0)]
    ((name, files),) = connection.sql("DROP SKIPPING INDEX ON d").rows()
    assert name == "d"
    assert files > 0
    assert connection.store.list_below(BASE) == {}
    assert POINTER not in connection._session.snapshot().dataset("d").document.metadata
    assert connection.sql("SHOW SKIPPING INDEXES FROM d").rows() == []


@pytest.mark.parametrize(
    ("where", "by", "files"),
    [
        ("a = 77", "minmax", 1),
        ("a BETWEEN 55 AND 65", "minmax", 2),
        ("a < 20 OR a >= 380", "minmax", 2),
        ("s = 's30'", "valuelist", 1),
        ("s LIKE 's399%'", "minmax", 1),
        ("s LIKE '%39'", "valuelist", 1),
        ("s LIKE '_%77%' OR contains(s, 's12')", "valuelist", 2),
        ("t >= TIMESTAMP '2024-01-17 00:00:00'", "minmax", 1),
        ("x.m IN (3, 399)", "minmax", 2),
        ("NOT (a > 10)", "minmax", 1),
        ("k = 3.5", "valuelist", 1),
        ("NOT b", "valuelist", 13),
    ],
)
def test_each_kind_leaves_out_files(connection, monkeypatch, where, by, files):
    connection.sql(f"CREATE SKIPPING INDEX ON d ({ALL})")
    sql = f"SELECT p, a, s FROM d WHERE {where}"
    assert read(connection, sql)[by] == files
    both(connection, monkeypatch, sql)


def test_filters_alone_leave_out_files(connection, monkeypatch):
    connection.sql("CREATE SKIPPING INDEX ON d (BLOOMFILTER(s) WITH (fpp = 0.0001, ndv = 100))")
    sql = "SELECT a FROM d WHERE s = 's30'"
    assert read(connection, sql) == {"bloomfilter": 1}
    assert len(both(connection, monkeypatch, sql)) == 5


def test_the_same_in_python(connection):
    made = connection.create_skipping_index("d", minmax="a", bloomfilter={"s": {"ndv": 10}})
    assert (made["indexes"], made["added"]) == (2, 20)
    made = connection.create_skipping_index("d", valuelist=["s"], bloomfilter={"s": {"ndv": 50}})
    assert (made["indexes"], made["added"]) == (3, 20)
    assert connection.refresh_skipping_index("d")["kept"] == 20
    assert connection.drop_skipping_index("d")["files"] > 0


def test_commits_keep_them_up_to_date(connection, monkeypatch):
    connection.sql("CREATE SKIPPING INDEX ON d (MINMAX(a))")
    connection.append_to_dataset("d", rows(range(400, 440)))
    assert read(connection, "SELECT * FROM d WHERE a = 410") == {"minmax": 1}
    connection.append_to_dataset("d", rows(range(40)))
    connection.compact("d")
    assert len(both(connection, monkeypatch, "SELECT p FROM d WHERE a = 5")) == 2
    assert read(connection, "SELECT * FROM d WHERE a = 5") == {"minmax": 1}
    connection.sql("DELETE FROM d WHERE p = 3")
    assert connection.sql("SHOW SKIPPING INDEXES FROM d").rows()[0][-2:] == (21, 21)


def test_indexes_outlast_that_there_are_no_files(connection):
    connection.sql("CREATE SKIPPING INDEX ON d (MINMAX(a))")
    connection.sql("DELETE FROM d WHERE p >= 0")
    assert connection.sql("SHOW SKIPPING INDEXES FROM d").rows() == [("table", "minmax", "a", "", 0, 0)]
    assert connection.refresh_skipping_index("d")["indexes"] == 1
    connection.create_dataset("e", rows(range(0)), partition_on="p")
    assert connection.create_skipping_index("e", minmax="a", bloomfilter="s")["indexes"] == 2
    for name in ("d", "e"):
        connection.append_to_dataset(name, rows(range(100)))
        assert read(connection, f"SELECT * FROM {name} WHERE a = 41") == {"minmax": 1}


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_numbers_without_sign_leave_out_files(connection, monkeypatch, bits):
    top = 2**bits - 1
    numbers = [0, 1, top // 2, top // 2 + 1, top - 1, top]
    type_ = getattr(pa, f"uint{bits}")()
    table = pa.table({"u": pa.array(numbers, type_), "p": [0, 0, 1, 1, 2, 2]})
    connection.create_dataset("e", table, partition_on="p")
    connection.sql("CREATE SKIPPING INDEX ON e (MINMAX(u), VALUELIST(u))")
    for number in (-1, 0, 1, 2, top // 2, top // 2 + 1, top - 1, top, top + 1, 0.5, 1.5):
        for op in ("=", "<>", "<", "<=", ">", ">="):
            for text in (f"{number}", f"({number}, 1)") if op == "=" else (f"{number}",):
                both(connection, monkeypatch, f"SELECT * FROM e WHERE u {'IN' if ',' in text else op} {text}")
    assert read(connection, f"SELECT * FROM e WHERE u = {top}")["minmax"] == 1


def test_files_of_other_writers_are_read_until_a_refresh(connection, monkeypatch):
    connection.sql("CREATE SKIPPING INDEX ON d (MINMAX(a))")
    monkeypatch.setattr("kartosql.write.operation.Operation._keep_up", lambda *_: None)
    connection.append_to_dataset("d", rows(range(1000, 1010)))
    assert read(connection, "SELECT * FROM d WHERE a = 5") == {"minmax": 2}
    assert len(both(connection, monkeypatch, "SELECT * FROM d WHERE a = 1005")) == 1
    connection.refresh_skipping_index("d")
    monkeypatch.setattr("kartosql.formats.kartothek.dataset_skipping.RECHECK_SECONDS", 0.0)
    assert read(connection, "SELECT * FROM d WHERE a = 5") == {"minmax": 1}


def entries(connection: Any) -> list[list[str]]:
    """Return the names of files that the metadata of ``d`` know, of the kinds of the original and of our own."""
    store = connection._session.store
    (folder,) = {key.rpartition("/")[0] for key in store.list_below(f"{BASE}/d/")}
    segments = MetadataStore.below(store, folder).segments
    return [
        sorted(name.rpartition("#")[0].rpartition("/")[2] for s in segments if s.is_own == own for name in s.ids())
        for own in (False, True)
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM d WHERE p = 3",
        "DELETE FROM d WHERE p > 3",
        "DELETE FROM d WHERE a >= 100 AND a < 140",
        "DELETE FROM d WHERE a = 77",
        "UPDATE d SET s = 'new' WHERE a = 77",
        "DELETE FROM d WHERE p >= 0",
        "COMPACT d",
    ],
)
def test_entries_of_files_that_a_commit_removes_go_with_it_and_no_other_file_is_looked_at(connection, monkeypatch, sql):
    connection.append_to_dataset("d", rows(range(400, 410)))
    connection.sql("CREATE SKIPPING INDEX ON d (MINMAX(a), NGRAM(s))")
    connection.append_to_dataset("d", rows(range(410, 420)))
    listed = []
    details = Store.details
    monkeypatch.setattr(Store, "details", lambda store, prefix="": listed.append(prefix) or details(store, prefix))
    connection.sql(sql)
    files = sorted(key.rpartition("/")[2] for key in connection.sql("SHOW FILES FROM d").arrow()["key"].to_pylist())
    assert entries(connection) == [files, files]
    assert all(prefix.endswith(".parquet") for prefix in listed)
    both(connection, monkeypatch, "SELECT * FROM d WHERE a >= 70 AND a < 90")
    both(connection, monkeypatch, "SELECT * FROM d WHERE s LIKE '%15%'")


def test_files_of_others_are_indexed_with_those_of_a_commit(connection, monkeypatch):
    connection.sql("CREATE SKIPPING INDEX ON d (MINMAX(a), NGRAM(s))")
    with monkeypatch.context() as patch:
        patch.setattr("kartosql.write.operation.Operation._keep_up", lambda *_: None)
        connection.append_to_dataset("d", rows(range(1000, 1040)))
        connection.sql("DELETE FROM d WHERE p = 4")
    connection.sql("DELETE FROM d WHERE p = 3")
    files = sorted(key.rpartition("/")[2] for key in connection.sql("SHOW FILES FROM d").arrow()["key"].to_pylist())
    assert entries(connection) == [files, files]


def test_part_files_that_vanish_are_looked_for_again(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", rows(range(400)), partition_on="p")
        con.sql("CREATE SKIPPING INDEX ON d (MINMAX(a), VALUELIST(s), BLOOMFILTER(a))")
        sql = "SELECT * FROM d WHERE a = 77 AND s = 's15'"
        skipping = con._session.snapshot().dataset("d").tables["table"].skipping
        assert skipping.indexed()[1] == 20
        # Another program refreshes after the metadata were opened, and before a column of them is read.
        (part,) = (tmp_path / BASE / "d").rglob("part*.parquet")
        part.rename(part.with_name("part-1.parquet"))
        found = skipping.skipped(predicate_of("a = 77 AND s = 's15'"), None, "UTC")
        assert len(frozenset().union(*(f.files for f in found))) == 19
        assert read(con, sql)["minmax"] == 1


def test_a_failing_refresh_does_not_fail_the_commit(connection, monkeypatch):
    connection.sql("CREATE SKIPPING INDEX ON d (MINMAX(a))")

    def fail(*_: Any, **__: Any) -> None:
        raise UsageError("no room")

    monkeypatch.setattr("kartosql.write.skipping.refresh", fail)
    with pytest.warns(KartosqlWarning, match="no room"):
        connection.append_to_dataset("d", rows(range(1000, 1010)))
    assert connection.sql("SELECT count(*) FROM d").rows() == [(410,)]


def test_broken_metadata_warn_and_leave_out_nothing(connection, monkeypatch):
    connection.sql("CREATE SKIPPING INDEX ON d (MINMAX(a))")
    for key in connection.store.list_below(BASE):
        connection.store.put(key, b"PAR1 nothing PAR1")
    with pytest.warns(KartosqlWarning, match="Data skipping"):
        assert len(both(connection, monkeypatch, "SELECT * FROM d WHERE a = 5")) == 1
    assert "minmax" not in read(connection, "SELECT * FROM d WHERE a = 5")


@pytest.mark.parametrize(
    "pointer", ["", "x", "[]", '{"folder": "../elsewhere", "table": "t"}', '{"folder": "d/table"}']
)
def test_pointers_of_strangers_lead_nowhere(connection, pointer):
    from kartosql.formats.kartothek.naming import place_in

    assert place_in({POINTER: pointer}, "d") is None


def test_they_go_with_the_dataset_and_are_not_copied(connection):
    cube = kartosql.Cube("c", ["a"], ["p"], seed_dataset="seed")
    table = rows(range(100)).drop_columns(["x"])
    connection.build_cube(cube, {"seed": table})
    connection.sql("CREATE SKIPPING INDEX ON c.seed (MINMAX(t))")
    connection.copy_cube("c", connection.store.url, name="copy")
    assert connection.sql("SHOW SKIPPING INDEXES FROM copy.seed").rows() == []
    connection.cleanup_cube("c")
    assert connection.store.list_below(f"{BASE}/c++seed") != {}
    connection.delete_cube("c")
    assert connection.store.list_below(BASE) == {}


def test_what_others_deleted_is_cleaned_up(connection):
    cube = kartosql.Cube("c", ["a"], ["p"], seed_dataset="seed")
    table = rows(range(100)).drop_columns(["x"])
    extra = table.select(["p", "a"]).append_column("w", table["a"])
    connection.build_cube(cube, {"seed": table, "extra": extra})
    connection.sql("CREATE SKIPPING INDEX ON c.extra (MINMAX(w))")
    connection.store.delete(["c++extra.by-dataset-metadata.json"])
    connection.cleanup_cube("c")
    assert connection.store.list_below(BASE) == {}


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("CREATE SKIPPING INDEX ON d (MINMAX(nothing))", "unknown-column"),
        ("CREATE SKIPPING INDEX ON d (MINMAX(x))", "unsupported-type"),
        ("CREATE SKIPPING INDEX ON d (BLOOMFILTER(f))", "unsupported-type"),
        ("CREATE SKIPPING INDEX ON d (BLOOMFILTER(s) WITH (fpp = 2))", "invalid-argument"),
        ("CREATE SKIPPING INDEX ON d (BLOOMFILTER(s) WITH (size = 2))", "syntax-error"),
        ("CREATE SKIPPING INDEX ON d (MINMAX(a) WITH (fpp = 0.1))", "syntax-error"),
        ("CREATE SKIPPING INDEX ON d (HASH(a))", "syntax-error"),
        ("CREATE SKIPPING INDEX ON d ()", "syntax-error"),
        ("CREATE OR REPLACE SKIPPING INDEX ON d (MINMAX(a))", "not-supported"),
        ("CREATE SKIPPING INDEX ON nothing (MINMAX(a))", "unknown-table"),
        ("REFRESH SKIPPING INDEX ON d", "not-indexed"),
        ("DROP SKIPPING INDEX ON d", "not-indexed"),
        ("SHOW SKIPPING FROM d", "syntax-error"),
    ],
)
def test_what_cannot_be_is_refused(connection, sql, code):
    with pytest.raises((SqlError, UsageError)) as caught:
        connection.sql(sql)
    assert caught.value.code == code
    assert connection.store.list_below(BASE) == {}


def test_overlaid_rows_stay_hidden(monkeypatch):
    cube = kartosql.Cube("c", ["x"], ["p"], seed_dataset="seed")
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as connection:
        first = pa.table({"x": range(40), "p": [i // 10 for i in range(40)], "v": range(40)})
        connection.build_cube(cube, {"seed": first, "more": first.rename_columns(["x", "p", "w"])})
        connection.sql("CREATE SKIPPING INDEX ON c.seed (MINMAX(v, x))")
        connection.sql("CREATE SKIPPING INDEX ON c.more (MINMAX(w))")
        changed = pa.table({"x": range(15), "p": [i // 10 for i in range(15)], "v": range(1000, 1015)})
        connection.append_to_cube(cube, {"seed": changed})
        for where in (
            "v < 5",
            "v > 900",
            "v = 12",
            "w = 12",
            "w IS NULL",
            "x = 3",
            "v < 5 OR w > 38",
            "x > 30 AND w < 33",
        ):
            both(connection, monkeypatch, f"SELECT x, p, v, w FROM c WHERE {where}")
        assert both(connection, monkeypatch, "SELECT x FROM c WHERE v < 5") == []
        assert read(connection, "SELECT x FROM c WHERE v = 35")["minmax"] <= 2


def test_random_predicates_give_the_rows_of_all_files(connection, monkeypatch):
    connection.append_to_dataset("d", rows(range(13, 700, 7)))
    connection.sql(f"CREATE SKIPPING INDEX ON d ({ALL})")
    chosen = random.Random(7)
    atoms = [
        lambda: f"a {chosen.choice(['=', '<>', '<', '>='])} {chosen.randrange(-5, 720)}",
        lambda: f"f {chosen.choice(['=', '<>', '<', '>='])} {chosen.choice([0.0, -0.0, 3.25, 50, 1e9])}",
        lambda: f"s {chosen.choice(['=', '<>', '<', 'LIKE', 'NOT LIKE'])} 's{chosen.randrange(90)}'",
        lambda: f"s IN ('s1', 's{chosen.randrange(90)}')",
        lambda: f"x.m > {chosen.randrange(700)}",
        lambda: f"t < TIMESTAMP '2024-01-{chosen.randrange(1, 28):02} 12:00:00'",
        lambda: f"k = {chosen.randrange(40) / 2}",
        lambda: chosen.choice(["b", "NOT b", "b IS NULL", "s IS NULL", "s IS NOT NULL", "f = 'NaN'::DOUBLE"]),
    ]
    skipped = 0
    for _ in range(60):
        where = chosen.choice(atoms)()
        for _ in range(chosen.randrange(3)):
            other = chosen.choice(atoms)()
            where = f"{chosen.choice(['', 'NOT '])}({where} {chosen.choice(['AND', 'OR'])} {other})"
        sql = f"SELECT p, a, s FROM d WHERE {where}"
        both(connection, monkeypatch, sql)
        skipped += bool({"minmax", "valuelist", "bloomfilter"} & read(connection, sql).keys())
    assert skipped > 20


@pytest.mark.parametrize(
    ("values", "type_", "in_spark"),
    [
        ([1, 2], pa.int64(), pa.int32()),
        ([1, 2**40], pa.int64(), pa.int64()),
        ([1, 2**64 - 1], pa.uint64(), pa.decimal128(20, 0)),
        (["1", "02"], pa.string(), pa.int32()),
        (["a", "2"], pa.string(), pa.string()),
        (["2024-01-01", "2024-01-02"], pa.string(), pa.date32()),
        ([True, False], pa.bool_(), pa.string()),
        ([1.5, 2.0], pa.float64(), pa.float64()),
        ([dt.datetime(2024, 1, 1), dt.datetime(1500, 1, 1)], pa.timestamp("us"), pa.timestamp("us", "UTC")),
    ],
)
def test_partition_values_have_the_types_that_spark_infers(connection, monkeypatch, values, type_, in_spark):
    table = pa.table({"q": pa.array(values, type_), "a": [1, 2]})
    connection.create_dataset("e", table, partition_on="q")
    connection.create_skipping_index("e", minmax="a")
    (key,) = (k for k in connection.store.list_below(f"{BASE}/e") if k.endswith(".parquet"))
    found = pq.read_table(pa.BufferReader(connection.store.read(key)))["virtual_q"]
    assert found.type == in_spark
    assert found.null_count == 0
    assert connection.refresh_skipping_index("e")["kept"] == 2
    assert len(both(connection, monkeypatch, "SELECT q FROM e WHERE a = 2")) == 1


def test_the_metadata_are_those_of_version_4(connection):
    connection.sql("CREATE SKIPPING INDEX ON d (MINMAX(a))")
    (folder,) = {key.rpartition("/")[0] for key in connection.store.list_below(BASE)}
    metadata = MetadataStore.below(connection.store, folder)
    assert metadata.versions == [4]
    assert metadata.describe()["partition_columns"] == {"p": "integer"}
    assert len(metadata.objects) == 20


@pytest.mark.filterwarnings("ignore:.*another program wrote it")
@pytest.mark.parametrize("is_new", [True, False], ids=["new connection", "open connection"])
def test_a_dataset_that_was_written_anew_under_labels_of_its_user_is_read_anew(tmp_path, is_new, monkeypatch):
    monkeypatch.setattr("kartosql.formats.kartothek.dataset_skipping.RECHECK_SECONDS", 0.0)

    def write(numbers: range) -> None:
        """Write as other programs do: whole files under labels that a user chose, then the document."""
        for at in range(4):
            key = f"d/table/p={at}/mine.parquet"
            (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
            part = pa.table({"a": list(numbers[at * 10 : at * 10 + 10])})
            pq.write_table(part, tmp_path / ".part")
            (tmp_path / ".part").replace(tmp_path / key)
        document = tmp_path / "d.by-dataset-metadata.json"
        found = json.loads(document.read_text())
        partitions = {f"p={at}/mine": {"files": {"table": f"d/table/p={at}/mine.parquet"}} for at in range(4)}
        found["metadata"] = {**found["metadata"], "written": str(numbers)}
        document.write_text(json.dumps({**found, "partitions": partitions}))

    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", pa.table({"a": [1], "p": [0]}), partition_on="p")
        write(range(100, 140))
        con.sql("CREATE SKIPPING INDEX ON d (MINMAX(a), VALUELIST(a))").rows()
        sql = "SELECT a, p FROM d WHERE a IN (105, 215, 217) ORDER BY a"
        assert con.sql(sql).rows() == [(105, 0)]
        assert read(con, sql).get("minmax", 4) == 1
        write(range(200, 240))
        with kartosql.connect(tmp_path) as other:
            asked = other if is_new else con
            assert asked.sql(sql).rows() == [(215, 1), (217, 1)]
            asked.sql("REFRESH SKIPPING INDEX ON d").rows()
            assert asked.sql(sql).rows() == [(215, 1), (217, 1)]
            assert read(asked, sql).get("minmax", 4) == 1
