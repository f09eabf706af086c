from __future__ import annotations

import decimal
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import golden
import kartosql
from builders import WRITE_ID, parquet, write_dataset
from engines.spark.spark_rows import comparable, on_duckdb, on_spark
from kartosql.engines.spark.scan import ScanFrames
from kartosql.errors import KartosqlError
from kartosql.store import Store

UTC = "UTC"


def tables_of(con: kartosql.Connection) -> list[str]:
    return sorted({*con.datasets(), *con.cubes()})


def put(store: Store, uuid: str, schema: dict[str, pa.DataType], files: dict[str, Any], **changes: Any) -> None:
    """Write a dataset of one file per folder; files are tables, or bytes."""
    write_dataset(store, uuid, schema, files, **changes)
    for folder, data in files.items():
        key = f"{uuid}/table/{folder}/{WRITE_ID}.parquet".replace("//", "/")
        store.put(key, data if isinstance(data, bytes) else parquet(data))


def same(spark: Any, con: kartosql.Connection, text: str) -> list[str]:
    expected, found = comparable(on_duckdb(con, text)), comparable(on_spark(spark, con, text))
    assert found == expected
    return found[1]


def code_of(spark: Any, con: kartosql.Connection, text: str) -> str:
    with pytest.raises(KartosqlError) as caught:
        on_spark(spark, con, text)
    assert caught.value.hint
    return caught.value.code


@pytest.mark.parametrize(
    "name", ["kartothek/ktk_store", "kartothek/plateau_store", "sql/main", "sql/paths", "sql/typed"]
)
def test_views_hold_the_rows_and_types_of_duckdbs_relations(spark: Any, name: str) -> None:
    compared = 0
    with kartosql.connect(golden.find(name)) as con:
        for table in tables_of(con):
            text = f'SELECT * FROM "{table}"'
            try:
                con.sql(text).arrow()
            except KartosqlError as e:
                assert code_of(spark, con, text) == e.code  # noqa: PT017
                continue
            same(spark, con, text)
            compared += 1
    assert compared


def test_differently_written_files_are_read_each_in_its_way(spark: Any, local: Store) -> None:
    schema = {
        "p": pa.int64(), "i": pa.int64(), "u": pa.uint64(), "f": pa.float64(), "s": pa.string(),
        "t": pa.timestamp("us"), "z": pa.timestamp("us", UTC), "d": pa.decimal128(9, 3), "l": pa.list_(pa.int64()),
    }  # fmt: skip
    wide = {
        "i": pa.array([2**62, None]), "u": pa.array([2**64 - 1, 0], pa.uint64()), "f": [float("nan"), -0.0],
        "s": ["é", None], "t": pa.array([-1, None], pa.timestamp("us")),
        "z": pa.array([1, None], pa.timestamp("us", UTC)),
        "d": pa.array([decimal.Decimal("1.5"), None], pa.decimal128(9, 3)),
        "l": pa.array([[1, None], None], pa.list_(pa.int64())),
    }  # fmt: skip
    narrow = {
        "i": pa.array([-5], pa.int8()), "u": pa.array([2**32 - 1], pa.uint32()), "f": pa.array([0.1], pa.float32()),
        "s": pa.nulls(1), "t": pa.array([7_000_000], pa.timestamp("ns")), "z": pa.array([7], pa.timestamp("ms", UTC)),
        "d": pa.array([decimal.Decimal("2.5")], pa.decimal128(4, 1)), "l": pa.array([[3]], pa.list_(pa.int32())),
    }  # fmt: skip
    void = {name: pa.nulls(2) for name in wide}
    put(local, "t", schema, {"p=1": wide, "p=2": narrow, "p=3": void}, partition_keys=["p"])
    con = kartosql.connect(local.root)
    assert len(same(spark, con, "SELECT * FROM t")) == 5
    assert len(same(spark, con, "SELECT i, u, f, s, t, z, d FROM t")) == 5  # without the list Arrow is not needed


@pytest.mark.parametrize("column", ["t", "z"])
def test_nanoseconds_that_spark_lacks_are_an_error_and_not_cut_off(spark: Any, local: Store, column: str) -> None:
    zone = UTC if column == "z" else None
    put(local, "t", {column: pa.timestamp("ns", zone)}, {"": {column: pa.array([1001], pa.timestamp("ns", zone))}})
    con = kartosql.connect(local.root)
    with pytest.raises(Exception, match="kartosql:nanoseconds"):
        on_spark(spark, con, "SELECT * FROM t")


def test_columns_that_differ_in_case_are_two(spark: Any, local: Store) -> None:
    put(local, "t", {"x": pa.int64(), "X": pa.string()}, {"": {"x": [1, 2], "X": ["a", "b"]}})
    con = kartosql.connect(local.root)
    found = on_spark(spark, con, "SELECT * FROM t")
    assert sorted(map(tuple, (r.values() for r in found.to_pylist()))) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("folder", ["[a]", "a*b", "{x}", "a b", "é%41"])
def test_the_folder_of_a_store_is_no_pattern(spark: Any, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    store = Store(str(tmp_path / folder))
    put(
        store,
        "t",
        {"p": pa.string(), "x": pa.int64()},
        {"p=a%2Fb": {"x": [1]}, "p=%C3%A9": {"x": [2]}},
        partition_keys=["p"],
    )
    assert len(same(spark, kartosql.connect(store.root), "SELECT * FROM t")) == 2


def test_files_that_spark_would_hide_are_read(spark: Any, local: Store) -> None:
    put(local, "t", {"x": pa.int64()}, {"": {"x": [1]}})
    document = local.read("t.by-dataset-metadata.json").decode()
    for name in ("_hidden", ".dotted"):
        local.put(f"t/table/{name}.parquet", parquet({"x": [2]}))
        document = document.replace(
            '"partitions": {', f'"partitions": {{"{name}": {{"files": {{"table": "t/table/{name}.parquet"}}}}, '
        )
    local.put("t.by-dataset-metadata.json", document.encode())
    assert len(same(spark, kartosql.connect(local.root), "SELECT * FROM t")) == 3


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "corrupt-file"),
        (b"PAR1 no footer PAR1", "corrupt-file"),
        ({"x": ["text"]}, "schema-mismatch"),
        ({"y": [1]}, "schema-mismatch"),
        ({"x": pa.array([1], pa.uint64())}, "schema-mismatch"),
    ],
)
def test_files_that_do_not_fit_are_named(spark: Any, local: Store, data: Any, code: str) -> None:
    put(local, "t", {"p": pa.int64(), "x": pa.int64()}, {"p=1": {"x": [1]}, "p=2": data}, partition_keys=["p"])
    con = kartosql.connect(local.root)
    assert code_of(spark, con, "SELECT * FROM t") == code


def test_a_missing_file_is_named(spark: Any, local: Store) -> None:
    write_dataset(local, "t", {"x": pa.int64()}, [""])
    assert code_of(spark, kartosql.connect(local.root), "SELECT * FROM t") == "missing-file"


def test_types_that_spark_lacks_are_refused_where_they_are_used(spark: Any, local: Store) -> None:
    put(local, "t", {"x": pa.int64(), "c": pa.time64("us")}, {"": {"x": [1], "c": pa.array([1], pa.time64("us"))}})
    con = kartosql.connect(local.root)
    assert code_of(spark, con, "SELECT * FROM t") == "not-portable"
    assert same(spark, con, "SELECT x FROM t") == ["(1,)"]


def test_a_store_in_memory_is_out_of_reach(spark: Any) -> None:
    store = Store("memory://out-of-reach")
    with pytest.raises(KartosqlError) as caught:
        ScanFrames(spark, store)
    assert caught.value.code == "store-unreachable"


def test_more_ways_than_are_read_natively_are_read_by_arrow(
    spark: Any, local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kartosql.engines.spark.scan.MAX_GROUPS", 1)
    files = {"p=1": {"x": [1], "y": pa.nulls(1)}, "p=2": {"x": pa.nulls(1), "y": ["b"]}, "p=3": {"x": [3], "y": ["c"]}}
    put(local, "t", {"p": pa.int64(), "x": pa.int64(), "y": pa.string()}, files, partition_keys=["p"])
    assert len(same(spark, kartosql.connect(local.root), "SELECT * FROM t")) == 3


def test_conditions_reach_files_and_row_groups(spark: Any, local: Store) -> None:
    files = {f"p={p}": {"x": [p, p + 10]} for p in range(4)}
    put(local, "t", {"p": pa.int64(), "x": pa.int64()}, files, partition_keys=["p"])
    con = kartosql.connect(local.root)
    frame = ScanFrames(spark, con.store).frame(con.sql("SELECT * FROM t").report.scan.occurrences[0])  # type: ignore[attr-defined]
    narrow = frame.where("p = 2 AND x > 5")
    plan = narrow._jdf.queryExecution().executedPlan().toString()
    assert "PartitionFilters: [isnotnull(p" in plan
    assert "PushedFilters: [IsNotNull(x), GreaterThan(x,5)]" in plan
    assert [tuple(r) for r in narrow.collect()] == [(2, 12)]
    assert len(frame.where("p = 2").inputFiles()) == 4  # what is asked for, before filters
    assert frame.where("p IN (1, 3)").count() == 4


def test_registered_data_become_a_frame(spark: Any, local: Store) -> None:
    con = kartosql.connect(local.root)
    data = {
        "u": pa.array([2**64 - 1], pa.uint64()),
        "t": pa.array([1], pa.timestamp("us")),
        "c": pa.array([1], pa.time64("us")),
    }
    con.register("mine", pa.table(data))
    source = con.sql("SELECT * FROM mine").sources[0]  # type: ignore[attr-defined]
    found = ScanFrames(spark, con.store).registered(source.data, source.exposed).toArrow()
    assert [str(f.type) for f in found.schema] == ["decimal128(20, 0)", "timestamp[us]"]
    assert found.to_pylist()[0]["u"] == 2**64 - 1


def test_registered_data_with_empty_batches_keep_all_rows(spark: Any, local: Store) -> None:
    none, some = pa.array([], pa.int64()), pa.array([1, 2])
    with kartosql.connect(local.root) as con:
        for chunks in ([none, some], [some, none, some], [none, none], []):
            con.register("t", pa.table({"x": pa.chunked_array(chunks, pa.int64())}))
            rows = con.sql("SELECT count(*) FROM t", engine="spark").rows()
            assert rows == [(sum(map(len, chunks)),)], chunks


def test_frames_leave_no_view_in_the_session_and_outlive_what_made_them(spark: Any, local: Store) -> None:
    put(local, "t", {"x": pa.int64()}, {"": {"x": [1]}})
    con = kartosql.connect(local.root)
    con.register("mine", pa.table({"x": [1]}))
    before = {table.name for table in spark.catalog.listTables()}
    frames = ScanFrames(spark, con.store)
    stored = frames.frame(con.sql("SELECT * FROM t").report.scan.occurrences[0])  # type: ignore[attr-defined]
    made = [stored, frames.registered(pa.table({"x": [1]}), {})]
    assert {table.name for table in spark.catalog.listTables()} == before
    del frames
    con.close()
    assert [frame.count() for frame in made] == [1, 1]


@pytest.mark.parametrize("text", ["f > 5", "f <> 1", "s.f > 5", "s.t.f > 5", "f = 0", "s.f = 0", "NOT (f <= 5)"])
def test_statistics_of_floats_leave_no_row_out(spark: Any, local: Store, text: str) -> None:
    nan, zero = float("nan"), -0.0
    schema = pa.schema(
        [
            pa.field("i", pa.int64()),
            pa.field("f", pa.float64()),
            pa.field("s", pa.struct({"a'b\\n": pa.string(), "f": pa.float64(), "t": pa.struct({"f": pa.float64()})})),
        ]
    )
    values = [(1, nan), (2, zero), (3, 1.0), (4, None)]
    rows = [{"i": i, "f": f, "s": {"a'b\\n": "x", "f": f, "t": {"f": f}}} for i, f in values] + [{"i": 5, "s": None}]
    data = pa.Table.from_pylist(rows, schema)
    put(local, "t", {n: schema.field(n).type for n in schema.names}, {"": parquet(data, row_group_size=1)})
    con = kartosql.connect(local.root)
    frame = ScanFrames(spark, con.store).frame(con.sql("SELECT * FROM t").report.scan.occurrences[0])  # type: ignore[attr-defined]
    assert frame.count() == 5
    assert same(spark, con, "SELECT * FROM t")
    found = sorted(row.i for row in frame.where(text).select("i").collect())
    assert found == sorted(i for (i,) in con.sql(f"SELECT i FROM t WHERE {text}").rows())


PARTITION_CONDITIONS = """
s = 'a/b' | s > 'a' | s LIKE '%é%' | s = '' | s IN ('', 'x', NULL) | upper(s) = 'X' | s IS NULL | NOT (s <=> 'x')
f > 5 | f = 0 | f <> 1 | f = double('NaN') | f IN (double('NaN'), 0.0) | isnan(f) | f BETWEEN -1 AND 1
i = -5 | i % 2 = 0 | i > 3 OR s = 'x' | i = x | i > x AND s <> 'x' | coalesce(i, 1) > 2 | cast(i AS string) LIKE '9%'
d = DATE'2020-01-31' | year(d) = 1969 | d < t | t > TIMESTAMP_NTZ'2020-01-01 00:00:00' | hour(t) = 23
b | NOT b | b OR i > 0 | CASE WHEN b THEN i > 0 ELSE f > 0 END | i IN (SELECT max(x) FROM rows) | rand(1) < 2 AND i > 0
"""


def test_conditions_on_partition_columns_leave_no_file_out_that_matters(spark: Any, local: Store) -> None:
    schema = {
        "s": pa.string(), "f": pa.float64(), "i": pa.int64(), "d": pa.date32(), "t": pa.timestamp("us"),
        "b": pa.bool_(), "x": pa.int64(),
    }  # fmt: skip
    folders = [
        "s=a%2Fb/f=nan/i=-5/d=2020-01-31/t=2020-01-31 23%3A59%3A59.000001/b=True",
        "s=/f=-0.0/i=4/d=1969-12-31/t=1969-12-31 23%3A00%3A00/b=False",
        "s=x/f=0.0/i=4/d=2020-01-31/t=2020-01-01 00%3A00%3A00/b=True",
        "s=%C3%A9/f=inf/i=9223372036854775807/d=9999-12-31/t=2020-01-02 00%3A00%3A00/b=False",
        "s=__HIVE_DEFAULT_PARTITION__/f=1e-300/i=0/d=0001-01-01/t=0001-01-01 00%3A00%3A00/b=True",
    ]
    files = {folder: {"x": [at, -5, 4]} for at, folder in enumerate(folders)}
    put(local, "t", schema, files, partition_keys=list(schema)[:-1])
    con = kartosql.connect(local.root)
    assert len(same(spark, con, "SELECT * FROM t")) == 15
    check_conditions(spark, con, PARTITION_CONDITIONS)


def check_conditions(spark: Any, con: kartosql.Connection, text: str) -> None:
    """Ask the frame of t and a copy of its rows for the rows that satisfy each of some conditions of Spark."""
    query: Any = con.sql("SELECT * FROM t")
    frame = ScanFrames(spark, query._context.runtime.store).frame(query.report.scan.occurrences[0])
    spark.createDataFrame(frame.toArrow()).createOrReplaceTempView("rows")
    frame.createOrReplaceTempView("pruned")
    try:
        conditions = text.strip().replace("\n", " | ").split(" | ")
        found = {}
        for table in ("pruned", "rows"):
            # One statement, as each job takes its time; every branch has a scan of its own.
            branches = [f"SELECT {at} AS n, i, x, s FROM {table} WHERE {c}" for at, c in enumerate(conditions)]
            found[table] = sorted(map(tuple, spark.sql(" UNION ALL ".join(branches)).collect()), key=repr)
        different = {conditions[row[0]] for row in set(found["pruned"]) ^ set(found["rows"])}
        assert not different
        assert found["pruned"] == found["rows"]
        assert len({row[0] for row in found["rows"]}) > len(conditions) // 2
    finally:
        spark.catalog.dropTempView("rows")
        spark.catalog.dropTempView("pruned")


NULL_CONDITIONS = """
i IS NULL | i IS NOT NULL | i = 1 | i <> 1 | NOT (i > 1) | i IN (1, NULL) | NOT (i IN (2, NULL)) | i <=> NULL
s IS NULL | s > '' | coalesce(s, 'x') = 'x' | s IS NULL AND i IS NULL | s IS NULL OR i = 2 | s <> 'a'
d IS NULL | d > DATE'2019-01-01' | t IS NULL | hour(t) = 10 | f IS NULL | f >= 1.5 | NOT (f < 2)
(d IS NULL) = (f IS NULL)
e IS NULL | e IS NOT NULL | coalesce(e, 'x') = 'x' | CASE WHEN i IS NULL THEN x = 0 ELSE true END | i IS DISTINCT FROM 1
"""


def test_partition_columns_may_be_null_in_each_type(spark: Any, tmp_path: Path) -> None:
    values = {"i": "1 2", "s": "a %C3%A9", "d": "2020-01-31 1969-12-31", "t": "2020-01-31%2010%3A00%3A00 1969-12-31"}
    values |= {"f": "1.5 -2.25", "e": "", "u": "18446744073709551615 7"}
    null = "__HIVE_DEFAULT_PARTITION__"
    columns = {name: [*given.split(), null, null, null][:3] for name, given in values.items()}
    columns["s"] = [null, *columns["s"][:2]]
    for at in range(3):
        folder = tmp_path / "t" / "/".join(f"{name}={found[at]}" for name, found in columns.items())
        folder.mkdir(parents=True)
        (folder / "x.parquet").write_bytes(parquet({"x": [0, at]}))
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        con.attach(tmp_path / "t", "t")
        texts = {
            "SELECT * FROM t": 6,
            "SELECT x, e FROM t WHERE e IS NULL": 6,
            "SELECT a.x, b.x FROM t a JOIN t b ON a.s = b.s AND a.i IS NULL": 4,
        }
        for text, count in texts.items():
            duck, found = (con.sql(text, engine=engine).arrow() for engine in ("duckdb", "spark"))
            assert found.schema == duck.schema
            assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, duck.to_pylist()))
            assert found.num_rows == count
        check_conditions(spark, con, NULL_CONDITIONS)


def test_workers_need_pyarrow_and_nothing_of_ours() -> None:
    from pyspark import cloudpickle

    from kartosql.engines.spark.scan import decoder

    content = parquet({"x": pa.array([1, 2], pa.uint8()), "y": ["a", "b"]})
    sent = cloudpickle.dumps(decoder({"x": pa.uint64(), "y": pa.string()}, ["p"]))
    program = """if True:
        import pickle, sys
        sys.modules["kartosql"] = None
        import pyarrow as pa
        sent, content = pickle.load(sys.stdin.buffer)
        batch = pa.RecordBatch.from_pydict({"path": ["f"], "content": [content], "p": ["é"]})
        (rows,) = pickle.loads(sent)(iter([batch]))
        print(rows.schema.types, rows.to_pylist() == [
            {"c0": 1, "c1": "a", "p": "é", "__kartosql_row": 0}, {"c0": 2, "c1": "b", "p": "é", "__kartosql_row": 1}])
    """
    ran = subprocess.run([sys.executable, "-c", program], input=pickle.dumps((sent, content)), capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()
    assert "Decimal128Type(decimal128(20, 0))" in ran.stdout.decode()
    assert ran.stdout.decode().strip().endswith("True")


def test_columns_that_files_lack_are_null_if_they_were_added(spark: Any, tmp_path: Path) -> None:
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", pa.table({"p": [1, 2], "x": [1, 2]}), partition_on="p")
        con.sql("ALTER DATASET d ADD COLUMN t TIMESTAMP")
        con.append_to_dataset("d", pa.table({"p": [1, 3], "x": [3, 4], "z": ["k", None]}), evolve=True)
        frame = spark.createDataFrame([(5, 5, "l")], "p BIGINT, x BIGINT, z STRING")
        con.append_to_dataset("d", frame, evolve=True)
        con.append_to_dataset("d", frame.selectExpr("p", "x + 1 AS x", "1.5D AS n"), evolve=True)
        con.create_dataset("both", pa.table({"v": [1], "V": [2]}))  # names that Spark cannot tell apart
        con.append_to_dataset("both", pa.table({"v": [3], "V": [4], "w": [5]}), evolve=True)
        same(spark, con, "SELECT * FROM d")
        for text in (
            "SELECT x FROM d WHERE z IS NULL ORDER BY x",
            "SELECT x, n FROM d WHERE z = 'k' OR n > 1 ORDER BY x",
            "SELECT count(z), max(z), count(n), count(t), count(*) FROM d",
            'SELECT "v", "V", w FROM both ORDER BY w',
        ):
            assert con.sql(text, engine="spark").rows() == con.sql(text).rows()


def test_changes_are_those_of_duckdb(spark: Any, tmp_path: Path) -> None:
    with kartosql.connect(str(tmp_path)) as con:
        con.build_cube(
            kartosql.Cube("c", "x", "p"), {"seed": pa.table({"x": [1, 2], "p": ["a", "b"], "v": [1.5, None]})}
        )
        con.append_to_dataset(
            "c.seed", pa.table({"x": [1, 3], "p": ["a", "a"], "v": [2.5, 3.5], "z": [1, 2]}), evolve=True
        )
        con.create_dataset("d", pa.table({"p": ["a", "a", "b"], "x": [1, 1, 2]}), partition_on="p")
        con.replace_partitions("d", pa.table({"p": ["a"], "x": [1]}))
        for text in ("changes('c.seed', 0)", "changes('d', 0)", "changes('d', 0) WHERE p = 'a' AND _change = 'delete'"):
            text = f"SELECT * FROM {text} ORDER BY ALL"
            found = con.sql(text, engine="spark").rows()
            assert found
            assert found == con.sql(text).rows()
