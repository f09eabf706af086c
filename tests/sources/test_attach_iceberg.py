"""Iceberg tables: what pyiceberg and others write, against pyiceberg's own scan and a model in plain Python."""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import json
import os
import random
import shutil
import sys
import uuid
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import HandTable, with_ids
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

import kartosql
from builders import change_footer
from kartosql.errors import KartosqlError
from kartosql.store import Store

NAN = float("nan")
A_S = Schema(NestedField(1, "a", LongType()), NestedField(2, "s", StringType()), schema_id=0)


@pytest.fixture
def con(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        yield con


@pytest.fixture
def catalog(tmp_path: Path):
    (tmp_path / "warehouse").mkdir()
    made = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("n")
    yield made
    made.close()


def root_of(table: Any) -> str:
    return str(table.location().removeprefix("file://"))


def rows(con: Any, sql: str, engine: str = "duckdb") -> list[Any]:
    return sorted(con.sql(sql, engine=engine).rows(), key=repr)


def failing(con: Any, url: object, sql: str = "", **options: Any) -> KartosqlError:
    def run() -> None:
        con.attach(url, "t", type="iceberg", replace=True, **options)
        con.sql(sql).rows()

    with pytest.raises(KartosqlError) as e:
        run()
    return e.value


def scan_of(con: Any, sql: str) -> dict[str, Any]:
    found: dict[str, Any] = con.explain(sql).to_dict()["scans"][0]["datasets"][0]
    return found


# -- tables of pyiceberg ------------------------------------------------------------------------

LONG_TEXT = "abcdefghijklmnopqrstuvwxyz"  # of which manifests keep 16 letters
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[str]]] = {
    "i": (pa.int64(), [None, -3, 0, 1, 5, 2**40], ["0", "1", "5", "1.5", "-3"]),
    "s": (pa.string(), [None, "", "a", "ä", LONG_TEXT, "b"], ["''", "'a'", "'ä'", f"'{LONG_TEXT[:16]}'"]),
    "d": (pa.float64(), [None, -1.5, 0.0, 2.0, NAN, float("inf")], ["0.0", "2", "'nan'::DOUBLE"]),
    "t": (pa.timestamp("us"), [None, dt.datetime(1969, 12, 31, 23), dt.datetime(2024, 2, 29, 12)], ["'2024-02-29'"]),
    "y": (pa.date32(), [None, dt.date(1969, 12, 31), dt.date(2024, 1, 1)], ["DATE '2024-01-01'", "DATE '2000-01-01'"]),
    "b": (pa.bool_(), [None, True, False], ["true", "false"]),
    "m": (pa.decimal128(9, 2), [None, *map(Decimal, ("-1.50", "0.00", "12345.67"))], ["0", "12345.67"]),
    "z": (pa.timestamp("us", "UTC"), [None, dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)], ["'2024-01-01 00:00Z'"]),
}
TRANSFORMS = [
    *(("i", IdentityTransform()), ("s", IdentityTransform()), ("y", IdentityTransform()), ("b", IdentityTransform())),
    *(("i", BucketTransform(3)), ("s", TruncateTransform(2)), ("i", TruncateTransform(2)), ("t", DayTransform())),
    *(("y", MonthTransform()), ("t", HourTransform()), ("z", YearTransform()), ("t", IdentityTransform())),
]


def _some(choose: random.Random, columns: dict[str, Any]) -> pa.Table:
    count = choose.randrange(1, 8)
    return pa.table(
        {c: pa.array([choose.choice(known[1]) for _ in range(count)], known[0]) for c, known in columns.items()}
    )


def _change(choose: random.Random, table: Any, columns: dict[str, Any]) -> None:
    what = choose.random()
    if what < 0.1:
        table.overwrite(
            _some(choose, columns), overwrite_filter=f"{choose.choice(['i', 'c'])} > 0" if "c" in columns else "i > 0"
        )
    elif what < 0.25:
        table.delete(choose.choice(["i == 1", "s == 'a'", "y is null", "b == true"]))
    elif what < 0.35 and "i" in columns:
        new = columns.pop("i")
        with table.update_schema() as update:
            update.rename_column("i", "c")
        columns["c"] = new
    elif what < 0.45 and "c" in columns and "i" not in columns:
        with table.update_schema() as update:
            update.add_column("i", StringType())
        columns["i"] = (pa.string(), [None, "x", "1"], ["'x'"])
    elif what < 0.55:
        with table.update_spec() as update:
            column, transform = choose.choice([(c, t) for c, t in TRANSFORMS if c in columns and c not in "ic"])
            update.add_field(column, transform, f"p{choose.randrange(10**9)}")
    else:
        table.append(_some(choose, columns))


def _where(choose: random.Random, columns: dict[str, Any], depth: int = 0) -> str:
    if depth < 2 and choose.random() < 0.35:
        left, right = (_where(choose, columns, depth + 1) for _ in range(2))
        return f"({left} {choose.choice(['AND', 'OR'])} {right})"
    column = choose.choice(sorted(columns))
    value = choose.choice(columns[column][2])
    if choose.random() < 0.2:
        return f"{column} IS {choose.choice(['', 'NOT '])}NULL"
    return f"{column} {choose.choice(['=', '<>', '<', '<=', '>', '>=', 'IS DISTINCT FROM'])} {value}"


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning")
@pytest.mark.parametrize("seed", range(int(os.environ.get("KARTOSQL_ICEBERG", "3"))))
def test_rows_are_those_of_pyiceberg_whatever_is_pruned(con, catalog, seed):
    choose = random.Random(seed)
    columns = dict(COLUMNS)
    told = {"write.metadata.metrics.default": choose.choice(["truncate(16)", "full", "counts", "truncate(2)"])}
    told["format-version"] = choose.choice("12")
    schema = pa.schema([(c, known[0]) for c, known in columns.items()])
    table = catalog.create_table("n.t", schema, properties=told)
    with table.update_spec() as update:
        for at, (column, transform) in enumerate(choose.sample(TRANSFORMS, choose.randrange(3))):
            with contextlib.suppress(ValueError):  # two of one column, of which pyiceberg refuses some
                update.add_field(column, transform, f"q{at}")
    con.attach(root_of(table), "t", type="iceberg")
    pruned = 0
    for _ in range(7):
        try:
            _change(choose, table, columns)
        except (ValueError, TypeError, NotImplementedError):
            table.refresh()  # pyiceberg refuses some of them
        con.register("u", table.scan().to_arrow())
        shown = ", ".join(columns)
        for _ in range(4):
            where = _where(choose, columns)
            wanted = Counter(map(repr, con.sql(f"SELECT {shown} FROM u WHERE {where}").rows()))
            got = con.sql(f"SELECT {shown} FROM t WHERE {where}")
            assert Counter(map(repr, got.rows())) == wanted, (where, str(got.report))
            whole = con.sql(f"SELECT {shown} FROM t WHERE CASE WHEN random() >= 0 THEN {where} END")
            assert Counter(map(repr, whole.rows())) == wanted, where
            assert con.sql(f"SELECT count(*) FROM t WHERE {where}").rows() == [(wanted.total(),)], where
            pruned += got.report.files_selected < got.report.files_total
        column = choose.choice(sorted(columns))
        sql = f"SELECT min({column}), max({column}), count({column}) FROM"
        assert repr(con.sql(f"{sql} t").rows()) == repr(con.sql(f"{sql} u").rows())
    assert pruned or seed  # the first one is known to prune


def test_partition_values_and_bounds_are_steps_of_the_plan(con, catalog):
    schema = pa.schema([("k", pa.string()), ("t", pa.timestamp("us")), ("n", pa.int32())])
    table = catalog.create_table("n.t", schema)
    with table.update_spec() as update:
        update.add_field("k", IdentityTransform(), "k")
        update.add_field("t", DayTransform(), "day")
    days = [dt.datetime(2024, 1, d) for d in (1, 2, 3)]
    for n, key in enumerate(("x", "y")):
        table.append(pa.table({"k": [key] * 3, "t": days, "n": [n, n + 10, n + 20]}, schema=schema))
    con.attach(root_of(table), "t", type="iceberg")
    found = scan_of(con, "SELECT n FROM t WHERE k = 'x' AND t >= TIMESTAMP '2024-01-03'")
    assert [(s["by"], s["files_before"], s["files_after"]) for s in found["steps"]] == [
        ("partition key", 6, 3), ("manifest statistics", 3, 1)
    ]  # fmt: skip
    assert con.sql("SELECT n FROM t WHERE k = 'x' AND t >= TIMESTAMP '2024-01-03'").rows() == [(20,)]
    assert con.sql("SELECT DISTINCT k FROM t ORDER BY k").rows() == [("x",), ("y",)]
    # Of a specification that came later older files have no value.
    with table.update_spec() as update:
        update.remove_field("k")
    table.append(pa.table({"k": ["x", "z"], "t": days[:2], "n": [7, 8]}, schema=schema))
    found = scan_of(con, "SELECT n FROM t WHERE k = 'y'")
    assert [(s["by"], s["files_after"]) for s in found["steps"]] == [("manifest statistics", 3)]
    assert rows(con, "SELECT n FROM t WHERE k = 'x'") == [(0,), (10,), (20,), (7,)]


def test_columns_are_followed_by_their_ids(con, catalog):
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    schema = pa.schema(
        [("a", pa.int32()), ("b", pa.string()), ("r", inner), ("l", pa.list_(inner)), ("f", pa.float32())]
    )
    table = catalog.create_table("n.t", schema)
    one = {"x": 1, "y": "u"}
    table.append(pa.table({"a": [1], "b": ["o"], "r": [one], "l": [[one, None]], "f": [1.5]}, schema=schema))
    with table.update_schema() as update:
        update.rename_column("a", "n")
        update.update_column("a", LongType())
        update.delete_column("b")
        update.rename_column("r.x", "w")
        update.rename_column("l.element.y", "v")
        update.update_column("f", DoubleType())
    with table.update_schema() as update:
        update.add_column("b", LongType())
        update.add_column("a", StringType())
        update.add_column(("r", "x"), StringType())
        update.move_first("f")
    con.attach(root_of(table), "t", type="iceberg")
    assert list(con.sql("SELECT * FROM t").columns) == ["f", "n", "r", "l", "b", "a"]
    expected = (1.5, 1, {"w": 1, "y": "u", "x": None}, [{"x": 1, "v": "u"}, None], None, None)
    assert con.sql("SELECT * FROM t").rows() == [expected]
    assert con.sql("SELECT n FROM t WHERE a IS NULL AND n = 1 AND r.w = 1 AND b IS NULL").rows() == [(1,)]
    assert con.sql("SELECT max(b), min(n), max(a), min(f) FROM t").rows() == [(None, 1, None, 1.5)]
    # A snapshot has the columns of its time.
    first = table.snapshots()[0].snapshot_id
    assert con.sql(f"SELECT a, b FROM t AT (VERSION => {first})").rows() == [(1, "o")]


def test_files_without_ids_are_read_by_the_mapping_of_names(con, tmp_path):
    table = HandTable(tmp_path / "t", A_S)
    path = table.root / "data" / "old.parquet"
    plain = pa.table({"A_old": [1, 2], "s": ["x", None]})
    pq.write_table(plain, path)
    table.commit(table.file(path, plain))
    assert failing(con, table.root, "SELECT a FROM t").code == "schema-mismatch"
    mapping = [{"field-id": 1, "names": ["a", "A_old"]}, {"field-id": 2, "names": ["s"]}]
    table.edits = {"properties": {"schema.name-mapping.default": json.dumps(mapping)}}
    table.write()
    con.attach(table.root, "t", type="iceberg", replace=True)
    assert rows(con, "SELECT a, s FROM t") == [(1, "x"), (2, None)]


def test_columns_that_files_lack_have_the_default_or_the_partition_value(con, tmp_path):
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"), spec_id=0)
    table = HandTable(tmp_path / "t", A_S, spec, version=3)
    one, two = (table.data(pa.table({"a": [n]}), [key]) for n, key in ((1, "x"), (2, "y")))
    table.commit(one, two)
    con.attach(table.root, "t", type="iceberg")
    assert rows(con, "SELECT a, s FROM t") == [(1, "x"), (2, "y")]
    # Once files of another specification come, it is a column like others, of which they tell the values.
    table.specs.append(PartitionSpec(spec_id=1))
    table.spec = table.specs[1]
    table.commit(table.data(pa.table({"a": [3], "s": ["y"]})), table.keys(pa.table({"s": ["x"]})))
    assert rows(con, "SELECT a, s FROM t") == [(2, "y"), (3, "y")]
    assert rows(con, "SELECT a FROM t WHERE s = 'y'") == [(2,), (3,)]
    later = [
        NestedField(3, "n", IntegerType(), initial_default=7),
        NestedField(4, "d", DateType(), initial_default="2024-02-29"),
        NestedField(5, "m", DecimalType(9, 2), initial_default="1.50"),
        NestedField(6, "t", TimestampType(), initial_default="2024-02-29T12:00:00"),
    ]
    table.evolve(Schema(*A_S.fields, *later, schema_id=1))
    table.schemas[1] = Schema(*A_S.fields, schema_id=1)
    document = [json.loads(A_S.model_dump_json()), json.loads(A_S.model_dump_json())]
    types = {"n": "int", "d": "date", "m": "decimal(9,2)", "t": "timestamp"}
    told = [{"id": f.field_id, "name": f.name, "required": False, "type": types[f.name]} for f in later]
    given = [7, "2024-02-29", "1.50", "2024-02-29T12:00:00"]
    document[1]["schema-id"] = 1
    document[1]["fields"] += [{**f, "initial-default": value} for f, value in zip(told, given, strict=True)]
    table.edits = {"schemas": document}
    table.commit(table.data(pa.table({"a": [4], "n": pa.array([None], pa.int32())})))
    day = dt.date(2024, 2, 29)
    values = (day, Decimal("1.50"), dt.datetime(2024, 2, 29, 12))
    assert rows(con, "SELECT a, n, d, m, t FROM t") == [(2, 7, *values), (3, 7, *values), (4, None, *values)]
    assert rows(con, "SELECT a FROM t WHERE n = 7") == [(2,), (3,)]
    assert con.sql("SELECT min(n), max(d), count(n) FROM t").rows() == [(7, day, 2)]


# -- deletes -------------------------------------------------------------------------------------


class _Model:
    """A table in plain Python: rows by file, with the number of the commit and the partition of each file."""

    def __init__(self) -> None:
        self.files: list[dict[str, Any]] = []

    def rows(self) -> list[tuple[Any, ...]]:
        return [row for f in self.files for n, row in enumerate(f["rows"]) if n not in f["gone"]]


def _same(left: Any, right: Any) -> bool:
    return bool(left == right or (left != left and right != right))


def _random_deletes(choose: random.Random, root: Path) -> tuple[HandTable, _Model]:
    schema = Schema(
        NestedField(1, "a", LongType()),
        NestedField(2, "s", StringType()),
        NestedField(3, "d", DoubleType()),
        schema_id=0,
    )
    names, types = ["a", "s", "d"], [pa.int64(), pa.string(), pa.float64()]
    parted = choose.random() < 0.6
    fields = [PartitionField(2, 1000, IdentityTransform(), "s")] if parted else []
    table, model = HandTable(root, schema, PartitionSpec(*fields, spec_id=0), choose.choice([2, 3])), _Model()
    values = [[None, 0, 1, 2, 9], [None, "", "x", "y"], [None, NAN, 0.5, 2.0]]

    def some(key: Any, count: int) -> list[tuple[Any, ...]]:
        found = [[choose.choice(v) for v in values] for _ in range(count)]
        return [(a, key if parted else s, d) for a, s, d in found]

    def arrow(given: list[tuple[Any, ...]], wanted: list[str]) -> pa.Table:
        columns = {n: pa.array([r[at] for r in given], t) for at, (n, t) in enumerate(zip(names, types, strict=True))}
        return pa.table({n: columns[n] for n in wanted})

    for _ in range(choose.randrange(2, 6)):
        added, now = [], table.sequence + 1
        for _ in range(choose.randrange(3)):
            key = choose.choice(values[1])
            given = some(key, choose.randrange(1, 6))
            entry = table.data(arrow(given, names), [key] if parted else [], bounds=choose.random() < 0.8)
            added.append(entry)
            model.files.append({"rows": given, "gone": set(), "at": now, "key": key if parted else 0, "entry": entry})
        old = [f for f in model.files if f["at"] < now]
        if old and choose.random() < 0.7:
            key = choose.choice(old)["key"]
            given = some(key, choose.randrange(1, 3))
            wanted = choose.sample(names, choose.randrange(1, 4))
            added.append(table.keys(arrow(given, wanted), [key] if parted else []))
            at = [names.index(w) for w in wanted]
            for f in old:
                hit = (n for n, r in enumerate(f["rows"]) if any(all(_same(r[i], g[i]) for i in at) for g in given))
                f["gone"] |= set(hit) if f["key"] == key else set()
        if model.files and choose.random() < 0.7:
            key = choose.choice(model.files)["key"]
            some_files = [f for f in model.files if f["key"] == key and "vector" not in f]
            deleted = [(f, n) for f in some_files for n in range(len(f["rows"])) if choose.random() < 0.3]
            if deleted:
                added.append(table.positions([(f["entry"], n) for f, n in deleted], [key] if parted else []))
            for f, n in deleted:
                f["gone"].add(n)
                f.setdefault("positions", set()).add(n)
        if model.files and table.version == 3 and choose.random() < 0.5:
            f = choose.choice(model.files)
            if "vector" not in f:
                more = {n for n in range(len(f["rows"])) if choose.random() < 0.4} | f.get("positions", set())
                if more:
                    f["vector"] = table.vector(f["entry"], sorted(more), [f["key"]] if parted else [])
                    added.append(f["vector"])
                    f["gone"] |= more
        if added:
            table.commit(*added)
    return table, model


@pytest.mark.parametrize("seed", range(int(os.environ.get("KARTOSQL_ICEBERG", "12"))))
def test_random_deletes_leave_the_rows_that_a_model_leaves(con, tmp_path, seed):
    choose = random.Random(seed)
    table, model = _random_deletes(choose, tmp_path / "t")
    if not table.snapshots:
        return
    con.attach(table.root, "t", type="iceberg")
    own = duckdb.connect()
    left = model.rows()
    types = [pa.int64(), pa.string(), pa.float64()]
    own.register("t", pa.table([pa.array([r[at] for r in left], t) for at, t in enumerate(types)], ["a", "s", "d"]))
    conditions = ["true", "a = 1", "s = 'x'", "d > 1", "a IS NULL", "s IS NULL AND a > 0", "a <> 9 OR d = 2", "s < 'x'"]
    for where in conditions:
        wanted = Counter(map(repr, own.sql(f"SELECT a, s, d FROM t WHERE {where}").fetchall()))
        got = con.sql(f"SELECT a, s, d FROM t WHERE {where}")
        assert Counter(map(repr, got.rows())) == wanted, (where, str(got.report))
        assert con.sql(f"SELECT count(*) FROM t WHERE {where}").rows() == [(wanted.total(),)]
    sql = "SELECT min(a), max(a), min(s), max(s), count(*) FROM t"
    assert con.sql(sql).rows() == own.sql(sql).fetchall()
    own.close()


def test_keys_may_be_of_a_column_that_was_dropped(con, tmp_path):
    table = HandTable(tmp_path / "t", A_S)
    table.commit(table.data(pa.table({"a": [1, 2], "s": ["x", "y"]})))
    table.commit(table.keys(pa.table({"s": ["x"]})))
    table.evolve(Schema(NestedField(1, "a", LongType()), NestedField(3, "s", LongType()), schema_id=1))
    table.write()
    con.attach(table.root, "t", type="iceberg")
    assert con.sql("SELECT * FROM t").rows() == [(2, None)]


# -- snapshots, places, catalogs ------------------------------------------------------------------


def test_snapshots_are_asked_for_by_number_and_time(con, tmp_path):
    table = HandTable(tmp_path / "t", A_S)
    numbers = [table.commit(table.data(pa.table({"a": [n], "s": ["x"]}))) for n in range(3)]
    con.attach(table.root, "t", type="iceberg")
    assert rows(con, f"SELECT a FROM t AT (VERSION => {numbers[0]})") == [(0,)]
    assert rows(con, "SELECT a FROM t AT (TIMESTAMP => '2023-11-14 22:15:20')") == [(0,), (1,)]
    assert rows(con, "SELECT a FROM t AS OF '2030-01-01'") == [(0,), (1,), (2,)]
    for past in ("VERSION => 5", "TIMESTAMP => '2020-01-01'"):
        assert failing(con, table.root, f"SELECT a FROM t AT ({past})").code == "no-such-version"
    con.sql(f"ATTACH '{table.root}' AS u (TYPE iceberg, SNAPSHOT {numbers[1]})")
    con.sql(f"ATTACH '{table.root}' AS v (TYPE iceberg, AS_OF '2023-11-14 22:14:20')")
    assert (rows(con, "SELECT a FROM u"), rows(con, "SELECT a FROM v")) == ([(0,), (1,)], [(0,)])
    for options in (
        {"snapshot": "x"},
        {"as_of": "yesterday"},
        {"snapshot": 1001, "as_of": "2024-01-01"},
        {"catalog": "c"},
    ):
        assert failing(con, table.root, **options).code == "invalid-option"
    table.snapshots = table.snapshots[1:]
    table.edits = {"snapshot-log": [{"timestamp-ms": 1, "snapshot-id": numbers[0]}]}
    table.write()
    assert failing(con, table.root, as_of="2000-01-01").code == "version-gone"
    # A writer commits: the next statement sees it, what was attached by its metadata file stays.
    table.edits = {}
    con.attach(table.write(), "file", type="iceberg")
    con.attach(table.root, "t", type="iceberg", replace=True)
    table.commit(table.data(pa.table({"a": [9], "s": ["x"]})))
    assert rows(con, "SELECT max(a) FROM t") == [(9,)]
    assert rows(con, "SELECT max(a) FROM file") == [(2,)]


def test_a_table_without_a_snapshot_has_no_rows(con, tmp_path):
    table = HandTable(tmp_path / "t", A_S)
    table.write()
    con.attach(table.root, "t", type="iceberg")
    assert con.sql("SELECT count(*) FROM t").rows() == [(0,)]
    assert con.sql("SELECT a, s FROM t WHERE a > 0").rows() == []


def test_a_table_that_was_moved_is_read_where_it_is(con, tmp_path):
    table = HandTable(tmp_path / "t", A_S)
    file = table.data(pa.table({"a": [1, 2], "s": ["x", "y"]}))
    table.commit(file, table.positions([(file, 0)]))
    shutil.move(table.root, tmp_path / "moved")
    for url in (tmp_path / "moved", tmp_path / "moved" / "metadata" / "v1.metadata.json"):
        con.attach(url, "t", type="iceberg", replace=True)
        assert con.sql("SELECT a FROM t").rows() == [(2,)]


def test_data_files_elsewhere_are_read_if_it_is_said_where(con, tmp_path):
    table = HandTable(tmp_path / "t", A_S)
    file = table.data(pa.table({"a": [1], "s": ["x"]}))
    (tmp_path / "other").mkdir()
    shutil.move(table.root / "data" / Path(file.file_path).name, tmp_path / "other" / "f.parquet")
    file[1] = f"file:{tmp_path}/other/f.parquet"
    table.commit(file)
    assert failing(con, table.root).code == "unsafe-key"
    con.attach(table.root, "t", type="iceberg", data=tmp_path / "other")
    assert con.sql("SELECT a FROM t").rows() == [(1,)]
    with kartosql.connect(tmp_path / "store", attach=[str(tmp_path / "t")]) as fewer:
        assert failing(fewer, table.root, data=str(tmp_path / "other")).code == "not-allowed"


def test_a_table_of_a_catalog(con, catalog, tmp_path):
    table = catalog.create_table("n.t", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1]}))
    url = f"sqlite:///{tmp_path}/catalog.db"
    con.sql(f"ATTACH '{url}' AS t (TYPE iceberg, CATALOG c, TABLE 'n.t')")
    assert con.sql("SELECT a FROM t").rows() == [(1,)]
    table.append(pa.table({"a": [2]}))
    assert rows(con, "SELECT a FROM t") == [(1,), (2,)]
    options = {"catalog.uri": url, "catalog.type": "sql"}
    con.attach("sqlite://elsewhere", "u", type="iceberg", catalog="c", table="n.t", storage_options=options)
    assert rows(con, "SELECT a FROM u") == [(1,), (2,)]
    error = failing(con, url, catalog="c", table="n.none")
    assert (error.code, "n.none" in error.message, "catalog." in error.hint) == ("store-failed", True, True)
    assert failing(con, f"sqlite:///{tmp_path}/no.db", table="n.t").code == "store-failed"
    con.detach("t")


def test_the_metadata_file_that_counts(tmp_path):
    from kartosql.formats.iceberg.metadata import newest

    names = ["v1.metadata.json", "v2.gz.metadata.json", "v10.metadata.json", "snap-1.avro", "version-hint.text"]
    assert newest(names, None, "f") == "v10.metadata.json"
    assert newest(names, "1", "f") == "v2.gz.metadata.json"  # the hint is late by one
    assert newest(names[1:], "1", "f") == "v10.metadata.json"  # it was cleaned up
    assert newest(["00002-a.metadata.json", "00001-b.metadata.json.gz"], None, "f") == "00002-a.metadata.json"
    assert newest(["00002-a.metadata.json", "00001-b.metadata.json"], "00001-b", "f") == "00001-b.metadata.json"
    cases = [
        (["x.json"], None),
        (["00001-a.metadata.json", "00001-b.metadata.json"], None),
        (names, "v3.metadata.json"),
        (names, "77"),
    ]
    for names, hint in cases:
        with pytest.raises(KartosqlError) as e:
            newest(names, hint, "f")
        assert e.value.code in ("no-files", "iceberg-invalid-metadata")


def test_times_that_older_versions_of_arrow_noted_with_a_zone_have_none(con, catalog):
    times = [dt.time(hour, 2, 3, 4) for hour in range(3)]
    table = catalog.create_table("n.t", pa.schema({"t": pa.time64("us"), "r": pa.struct({"u": pa.time64("us")})}))
    for time in times:
        table.append(pa.table({"t": [time], "r": [{"u": time}]}, schema=table.schema().as_arrow()))
    data = f"{root_of(table)}/data"
    for name in os.listdir(data):
        change_footer(Store(data), name, b"\x7c\x12\x1c", b"\x7c\x11\x1c")  # TIME is adjusted to UTC
    con.attach(f"{data}/{name}", "f")
    assert con.sql("SELECT typeof(t), typeof(r.u) FROM f").rows() == [("TIME WITH TIME ZONE",) * 2]
    con.attach(root_of(table), "t", type="iceberg")
    assert con.sql("SELECT DISTINCT typeof(t), typeof(r.u) FROM t").rows() == [("TIME",) * 2]
    conditions = {"t > '02:00:00'": times[2:], "t = '01:02:03.000004'": times[1:2], "r.u < '01:30:00'": times[:2]}
    for where, expected in {"true": times, **conditions}.items():
        asked = f"SELECT t, r.u FROM t WHERE {where} ORDER BY t"
        assert con.sql(asked).rows() == [(time, time) for time in expected]


def test_types_are_those_of_the_files(con, catalog):
    rows_ = pa.table(
        {
            "i": pa.array([1], pa.int32()),
            "t": pa.array([dt.time(1, 2, 3, 4)], pa.time64("us")),
            "u": pa.array([uuid.UUID(int=7).bytes], pa.uuid()),
            "f": pa.array([b"ab"], pa.binary(2)),
            "b": pa.array([b"x"], pa.binary()),
            "m": pa.array([[("k", [1.5, None])]], pa.map_(pa.string(), pa.list_(pa.float32()))),
            "r": pa.array([{"x": {"y": Decimal("1.5")}}], pa.struct([("x", pa.struct([("y", pa.decimal128(38, 1))]))])),
        }
    )
    table = catalog.create_table("n.t", rows_.schema)
    table.append(rows_)
    con.attach(root_of(table), "t", type="iceberg")
    con.attach(f"{root_of(table)}/data/{os.listdir(f'{root_of(table)}/data')[0]}", "f")
    assert con.sql("SELECT * FROM t").rows() == con.sql("SELECT * FROM f").rows()
    assert con.sql("SELECT u, t, f, m['k'][1], r.x.y FROM t WHERE i = 1 AND b = 'x'::BLOB").rows() == [
        (str(uuid.UUID(int=7)), dt.time(1, 2, 3, 4), b"ab", 1.5, Decimal("1.5"))
    ]


def test_metadata_may_be_compressed(con, tmp_path):
    table = HandTable(tmp_path / "t", A_S)
    table.commit(table.data(pa.table({"a": [1], "s": ["x"]})))
    path = table.write()
    data = path.read_bytes()
    path.unlink()
    for name in ("v2.gz.metadata.json", "v3.metadata.json.gz"):
        (path.parent / name).write_bytes(gzip.compress(data))
        con.attach(table.root, "t", type="iceberg", replace=True)
        assert con.sql("SELECT a FROM t").rows() == [(1,)]
        (path.parent / name).unlink()


def test_without_pyiceberg_it_is_said_what_to_install(con, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kartosql.sources.iceberg", None)  # as if its imports failed
    error = failing(con, tmp_path)
    assert (error.code, "kartosql[iceberg]" in error.hint) == ("missing-extra", True)


# -- bad input -----------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path):
    made = HandTable(tmp_path / "t", A_S, version=3)
    made.file_ = made.data(pa.table({"a": [1, 2, 3], "s": ["x", "y", "z"]}))
    return made


def test_what_is_no_table_is_refused(con, tmp_path):
    assert failing(con, tmp_path / "nowhere").code == "store-not-found"
    assert failing(con, tmp_path).code == "no-files"
    (tmp_path / "metadata").mkdir()
    assert failing(con, tmp_path).code == "no-files"
    assert failing(con, tmp_path / "metadata" / "v1.metadata.json").code == "store-not-found"


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"format-version": 2}', b"\x1f\x8b\x08torn", b'{"a":' * 9000, b"\xff"]
)
def test_torn_metadata_are_refused(con, tmp_path, data):
    (tmp_path / "t" / "metadata").mkdir(parents=True)
    (tmp_path / "t" / "metadata" / "v1.metadata.json").write_bytes(data)
    error = failing(con, tmp_path / "t")
    assert (error.code, "v1.metadata.json" in error.message) == ("iceberg-invalid-metadata", True)


def test_what_is_not_read_is_refused_by_name(con, table):
    cases = [
        ({"format-version": 4}, {}, "version 4"),
        ({"properties": {"encryption.key-id": "k"}}, {}, "encrypted"),
        ({}, {"file_format": "ORC"}, "Orc"),
        ({}, {"file_format": "AVRO"}, "Avro"),
        ({}, {"key_metadata": b"k"}, "encrypted"),
    ]
    for edits, other, said in cases:
        table.edits = edits
        file = table.data(pa.table({"a": [1], "s": ["x"]}), **{k: v for k, v in other.items() if k != "file_format"})
        if "file_format" in other:
            file[2] = FileFormat[other["file_format"]]
        table.commit(file)
        error = failing(con, table.root)
        assert (error.code, said in error.message) == ("unsupported-feature", True), (error, said)
        table._manifests = []


def test_metadata_that_contradict_each_other_are_refused(con, table):
    table.commit(table.file_)
    spec = {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "transform": "identity", "name": "s"}]}
    cases = [
        {"partition-specs": [spec]},  # the manifest has no values of it
        {"partition-specs": [{"spec-id": 5, "fields": []}], "default-spec-id": 5},
        {"current-schema-id": 9},
        {"current-snapshot-id": 77},
        {"properties": {"schema.name-mapping.default": "{"}},
        {"properties": {"schema.name-mapping.default": '[{"field-id": 1}]'}},
        {"schemas": [{"type": "struct", "schema-id": 0, "fields": [{"id": 1}]}]},
    ]
    for edits in cases:
        table.edits = edits
        table.write()
        assert failing(con, table.root, "SELECT a FROM t").code == "iceberg-invalid-metadata", edits
    twice = [{"id": i, "name": "a", "required": False, "type": "long"} for i in (1, 2)]
    table.edits = {"schemas": [{"type": "struct", "schema-id": 0, "fields": twice}]}
    table.write()
    assert failing(con, table.root, "SELECT a FROM t").code in ("schema-conflict", "iceberg-invalid-metadata")


def test_a_metadata_file_that_is_being_written_is_waited_for(con, table, monkeypatch):
    table.commit(table.file_)
    con.attach(table.root, "t", type="iceberg")
    table.commit(table.data(pa.table({"a": [9], "s": ["x"]})))
    path = table.write()
    data = path.read_bytes()
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            path.write_bytes(data)

    # Not the module's own function, which threads of other connections call as well.
    monkeypatch.setattr("kartosql.sources.iceberg.time", SimpleNamespace(sleep=sleep))
    path.write_bytes(data[:-9])
    assert con.sql("SELECT max(a) FROM t").rows() == [(9,)]
    assert len(waits) == 2


def test_missing_and_torn_manifests_are_refused(con, table):
    table.commit(table.file_)
    listing = Path(table.snapshots[0]["manifest-list"].removeprefix("file://"))
    manifest = Path(table._manifests[0].manifest_path.removeprefix("file://"))
    for path in (listing, manifest):
        data = path.read_bytes()
        for torn in (b"", data[:100], data[: len(data) // 2], data[:-30] + b"\0" * 30):
            path.write_bytes(torn)
            assert failing(con, table.root, "SELECT a FROM t").code == "iceberg-invalid-metadata", (path, torn)
        path.unlink()
        assert failing(con, table.root).code == "missing-file"
        path.write_bytes(data)
    con.attach(table.root, "t", type="iceberg", replace=True)
    assert con.sql("SELECT count(*) FROM t").rows() == [(3,)]


def test_files_that_are_gone_or_damaged_are_named(con, table):
    table.commit(table.file_)
    path = Path(table.file_.file_path.removeprefix("file://"))
    data = path.read_bytes()
    path.write_bytes(data[:50])
    error = failing(con, table.root, "SELECT a FROM t")
    assert (error.code, path.name in error.message) == ("corrupt-file", True)
    path.unlink()
    error = failing(con, table.root, "SELECT a FROM t")
    assert (error.code, path.name in error.message) == ("missing-file", True)
    pq.write_table(with_ids(pa.table({"a": ["text"], "s": ["x"]}), table.ids), path)
    assert failing(con, table.root, "SELECT a FROM t").code == "schema-mismatch"


def test_paths_that_leave_the_table_are_refused(con, table, tmp_path):
    secret = tmp_path / "secret.parquet"
    pq.write_table(with_ids(pa.table({"a": [42], "s": ["q"]}), table.ids), secret)
    for path in (
        f"{table.location}/../secret.parquet",
        f"file://{secret}",
        str(secret),
        "s3://b/x",
        f"{table.location}x/y",
    ):
        file = table.file(Path(table.root / "metadata"), pa.table({"a": [42], "s": ["q"]}))
        file[1] = path
        table._manifests = []
        table.commit(file)
        assert failing(con, table.root, "SELECT a FROM t").code == "unsafe-key", path


@pytest.mark.parametrize("is_near", [True, False])
def test_links_in_the_place_of_files_and_folders_are_refused(con, table, tmp_path, is_near):
    other = table.data(pa.table({"a": [9], "s": ["x"]}))
    table.commit(table.file_, other)
    deletes = [table.vector(table.file_, [0]), table.positions([(other, 0)]), table.keys(pa.table({"s": ["x"]}))]
    table.commit(*deletes)
    manifests = [table.snapshots[-1]["manifest-list"], *(m.manifest_path for m in table._manifests)]
    named = [*manifests, *(f.file_path for f in [table.file_, other, *deletes])]
    metadata = [table.root / "metadata" / n for n in ("version-hint.text", f"v{table.sequence}.metadata.json")]
    folders = [] if is_near else [table.root / "data", table.root / "metadata"]
    for path in [*(Path(n.removeprefix("file://")) for n in named), *metadata, *folders]:
        real = (table.root if is_near else tmp_path) / f"real-{path.name}"
        path.rename(real)
        path.symlink_to(real)
        for sql in ("SELECT a FROM t", "SELECT * FROM t WHERE a > 0"):
            assert failing(con, table.root, sql).code == "unsafe-key", path
        path.unlink()
        real.rename(path)
    con.attach(table.root, "t", type="iceberg", replace=True)
    assert rows(con, "SELECT a FROM t") == [(2,), (3,)]


def test_bounds_that_lie_about_types_are_ignored(con, tmp_path):
    table = HandTable(tmp_path / "t", A_S)
    given = pa.table({"a": [1, 2, 3], "s": ["x", "y", "z"]})
    lies: list[dict[str, Any]] = [
        {"lower_bounds": {1: b"\1"}, "upper_bounds": {1: b"\1" * 9}},
        {"lower_bounds": {1: b"\x09" + b"\0" * 7}, "upper_bounds": {1: b"\x01" + b"\0" * 7}},
        {"lower_bounds": {2: b"\xff"}, "upper_bounds": {2: b"\xff\xff"}},
        {"lower_bounds": {1: b"\x07\0\0\0"}, "upper_bounds": None},
        {"lower_bounds": {}, "upper_bounds": {}, "null_value_counts": {1: 77, 2: -5}},
        {"lower_bounds": None, "upper_bounds": None, "null_value_counts": None, "record_count": -1},
    ]
    table.commit(*(table.data(given, **lie) for lie in lies))
    con.attach(table.root, "t", type="iceberg")
    assert con.sql("SELECT count(*) FROM t WHERE a = 2").rows() == [(len(lies),)]
    assert con.sql("SELECT count(*) FROM t WHERE s = 'y'").rows() == [(len(lies),)]
    assert con.sql("SELECT count(*) FROM t WHERE s IS NOT NULL AND a IS NOT NULL").rows() == [(3 * len(lies),)]


def test_what_manifests_do_not_tell_leaves_out_no_file(con, tmp_path):
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "t", DateType()), schema_id=0)
    table = HandTable(tmp_path / "t", schema, version=3)
    days = [dt.date(2024, 1, 1), None]
    table.commit(table.data(pa.table({"a": [1, None], "t": pa.array(days, pa.date32())}), null_value_counts={}))
    # Bounds of dates are days, and the column has moments now.
    table.evolve(Schema(NestedField(1, "a", LongType()), NestedField(2, "t", TimestampType()), schema_id=1))
    table.write()
    con.attach(table.root, "t", type="iceberg")
    assert con.sql("SELECT count(*) FROM t WHERE a IS NULL").rows() == [(1,)]
    assert con.sql("SELECT a FROM t WHERE t = TIMESTAMP '2024-01-01'").rows() == [(1,)]
    assert scan_of(con, "SELECT a FROM t WHERE a > 1")["files"] == []


def test_deletes_out_of_range_and_damaged_vectors_are_refused(con, table):
    other = table.data(pa.table({"a": [9], "s": ["x"]}))
    cases = [
        (table.positions([(table.file_, 3)]), "invalid-metadata"),
        (table.positions([(table.file_, -1)]), "invalid-metadata"),
        (table.vector(table.file_, [0, 2**33]), "invalid-metadata"),
        (table.vector(table.file_, [0, 1], record_count=3), "iceberg-invalid-metadata"),
        (table.vector(table.file_, [0, 1], content_offset=5), "iceberg-invalid-metadata"),
        (table.vector(table.file_, [0, 1], content_offset=1 << 40), "iceberg-invalid-metadata"),
        (table.vector(table.file_, [0, 1], content_size_in_bytes=1 << 40), "iceberg-invalid-metadata"),
        (table.vector(table.file_, [0, 1], content_size_in_bytes=None), "iceberg-invalid-metadata"),
        (table.keys(pa.table({"s": ["x"]}), equality_ids=[77]), "unsupported-feature"),
        (table.keys(pa.table({"s": ["x"]}), equality_ids=[]), "unsupported-feature"),
    ]
    for delete, code in cases:
        table._manifests = []
        table.commit(table.file_, other)
        table.commit(delete)
        assert failing(con, table.root, "SELECT a FROM t").code == code, delete
    # What is not touched by them is answered.
    table._manifests = []
    table.commit(table.file_, other, table.positions([(table.file_, 3)]))
    con.attach(table.root, "t", type="iceberg", replace=True)
    assert con.sql("SELECT a FROM t WHERE a = 9").rows() == [(9,)]
    table.commit(table.vector(other, [0]), table.vector(other, [0]))
    assert failing(con, table.root).code == "iceberg-invalid-metadata"


@pytest.mark.filterwarnings("ignore:Encountered invalid snapshot summary:UserWarning")
def test_whatever_is_damaged_is_answered_or_refused_by_an_error_of_ours(con, tmp_path):
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"), spec_id=0)
    table = HandTable(tmp_path / "t", A_S, spec, version=3)
    one, two = (table.data(pa.table({"a": [n, n + 1, n + 2], "s": [s] * 3}), [s]) for n, s in ((1, "x"), (4, "y")))
    table.commit(one, two)
    deletes = table.vector(one, [0], ["x"]), table.positions([(two, 0)], ["y"]), table.keys(pa.table({"a": [3]}), ["x"])
    table.commit(*deletes)
    con.attach(table.root, "t", type="iceberg")
    assert rows(con, "SELECT a FROM t") == [(2,), (5,), (6,)]
    damaged = [path for kind in ("metadata/*", "data/*deletes*", "data/*.puffin") for path in table.root.glob(kind)]
    refused = []
    for seed in range(int(os.environ.get("KARTOSQL_ICEBERG", "25"))):
        choose = random.Random(seed)
        path = choose.choice(damaged)
        data = path.read_bytes()
        torn = bytearray(data)
        for _ in range(choose.randrange(1, 4)):
            torn[choose.randrange(len(torn))] = choose.randrange(256)
        path.write_bytes(bytes(torn) if choose.random() < 0.8 else bytes(torn[: choose.randrange(len(torn))]))
        try:
            con.attach(table.root, "t", type="iceberg", replace=True)
            con.sql("SELECT a, s FROM t WHERE a > 0").rows()
        except KartosqlError as e:
            refused.append(e.code)
        path.write_bytes(data)
    assert len(refused) > 5
    assert "internal" not in refused
