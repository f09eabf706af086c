"""What executors write is what one process writes."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sameness import described, leftovers

import kartosql
from kartosql.formats.kartothek import naming
from kartosql.store import Store

CUBE = kartosql.Cube("c", ["x", "y"], ["p"], index_columns=["i"])


def seed(xs: range, value: int = 1) -> pa.Table:
    count = len(xs)
    order = list(xs)
    random.Random(7).shuffle(order)
    return pa.table(
        {
            "x": pa.array(order, pa.int64()),
            "y": pa.array([dt.date(2026, 1, 1 + x % 3) for x in order]),
            "p": pa.array([["a ü=%", "b/c", "d"][x % 3] for x in order]),
            "v": pa.array([None if x % 5 == 0 else x + value / 2 for x in order], pa.float64()),
            "i": pa.array([f"i{x % 7}" for x in order]),
            "small": pa.array([x % 100 for x in order], pa.int8()),
            "money": pa.array([decimal.Decimal(x) / 4 for x in order], pa.decimal128(12, 2)),
            "at": pa.array([dt.datetime(1965, 1, 1) + dt.timedelta(hours=x) for x in order], pa.timestamp("us")),
            "raw": pa.array([bytes([x % 256, 0]) for x in order], pa.binary()),
            "list": pa.array([[x, None] for x in order], pa.list_(pa.int32())),
            "nothing": pa.array([None] * count, pa.string()),
        }
    )


def more(xs: range) -> pa.Table:
    return pa.table({"x": list(xs), "p": [["a ü=%", "b/c", "d"][x % 3] for x in xs], "w": [x / 8 for x in xs]})


def both(tmp_path: Path) -> list[tuple[Path, kartosql.Connection]]:
    found = []
    for name in ("local", "spark"):
        (tmp_path / name).mkdir(exist_ok=True)
        found.append((tmp_path / name, kartosql.connect(str(tmp_path / name))))
    return found


def framed(spark: Any, name: str, table: pa.Table) -> Any:
    return table if name == "local" else spark.createDataFrame(table).repartition(3)


@pytest.mark.parametrize("repartition", [True, False, "range"])
def test_a_cube_is_the_same_as_one_process_writes_it(spark, tmp_path, repartition):
    for folder, con in both(tmp_path):
        build = {"seed": framed(spark, folder.name, seed(range(300)))}
        con.build_cube(CUBE, build, metadata={"seed": {"about": "ours"}}, repartition=repartition)
        con.extend_cube("c", {"e": framed(spark, folder.name, more(range(100)))}, repartition=repartition)
        con.append_to_cube("c", {"seed": framed(spark, folder.name, seed(range(290, 400), 9))}, repartition=repartition)
        assert not leftovers(Store(str(folder)))
    one, other = [described(folder) for folder, _ in both(tmp_path)]
    assert one == other
    answers = [con.sql("SELECT * FROM c ORDER BY x, y, p").rows() for _, con in both(tmp_path)]
    assert answers[0] == answers[1]
    assert len(answers[0]) == 400


def test_all_kinds_of_changes_take_data_frames(spark, tmp_path):
    for folder, con in both(tmp_path):
        con.build_cube(CUBE, framed(spark, folder.name, seed(range(30))))
        con.update_cube("c", framed(spark, folder.name, seed(range(60, 90))), remove_conditions=[("p", "==", "d")])
        con.replace_partitions("c.seed", framed(spark, folder.name, seed(range(100, 103))))
        con.append_to_dataset("c.seed", framed(spark, folder.name, seed(range(103, 109))))
        con.create_dataset("d", framed(spark, folder.name, more(range(20))), index_columns=["x"])
        con.append_to_dataset("d", framed(spark, folder.name, more(range(20))))
        con.create_dataset("e", framed(spark, folder.name, more(range(20))), partition_on=["p"], index_columns=["w"])
        con.replace_partitions("e", framed(spark, folder.name, more(range(2))))
    one, other = [described(folder) for folder, _ in both(tmp_path)]
    assert one == other


def test_rows_per_file_bounds_files_of_executors_and_of_one_process(spark, tmp_path):
    for folder, con in both(tmp_path):
        con.build_cube(CUBE, framed(spark, folder.name, seed(range(300))), rows_per_file=30)
        sizes = con.sql("SELECT count(*) AS n FROM c GROUP BY p").rows()
        assert sizes == [(100,)] * 3
        files = con.sql("SHOW FILES FROM c.seed").arrow().to_pylist()
        assert len(files) == 12
        store = Store(str(folder))
        keys = [key for key in store.list_below("c++seed/table/") if key.endswith(".parquet")]
        assert len({naming.write_id(key) for key in keys}) == 1
        # Files of one write hold different cells, so one of them does for one cell.
        steps = con.explain("SELECT v FROM c WHERE x = 77").to_dict()["scans"][0]["datasets"][0]
        assert steps["files_selected"] == 1
    one, other = [described(folder) for folder, _ in both(tmp_path)]
    assert one == other


def test_a_copy_keeps_several_files_of_a_partition_apart(tmp_path):
    (tmp_path / "copy").mkdir()
    with kartosql.connect(str(tmp_path)) as con:
        con.build_cube(CUBE, seed(range(60)), rows_per_file=7)
        con.copy_cube("c", str(tmp_path / "copy"))
        rows = con.sql("SELECT * FROM c ORDER BY x").rows()
    with kartosql.connect(str(tmp_path / "copy")) as con:
        assert con.sql("SELECT * FROM c ORDER BY x").rows() == rows
        assert con.explain("SELECT v FROM c WHERE x = 7").files_selected == 1


def test_several_frames_are_one_dataset(spark, tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        later = more(range(10, 20)).select(["w", "p", "x"])
        frames = [spark.createDataFrame(more(range(10))), spark.createDataFrame(later)]
        con.create_dataset("d", frames)
        assert con.sql("SELECT count(*), sum(x), sum(w) FROM d").rows() == [(20, 190, 23.75)]
        with pytest.raises(kartosql.KartosqlError, match="some of its parts are Spark DataFrames") as e:
            con.append_to_dataset("d", [*frames, more(range(3))])
        assert e.value.code == "invalid-data"


def test_names_that_spark_cannot_tell_apart_are_written(spark, tmp_path):
    table = pa.table({"X": [1, 2], "a.b": [3, 4], "p`q": ["u", "v"], "é": [5, 6]})
    frame = spark.createDataFrame(table).selectExpr("X", "X + 10 AS x", "`a.b`", "`p``q`", "`é`")
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", frame, partition_on=["p`q"], index_columns=["a.b"])
        found = con.sql('SELECT "X", "x", "a.b", "p`q", "é" FROM d ORDER BY 1').rows()
        assert found == [(1, 11, 3, "u", 5), (2, 12, 4, "v", 6)]


def test_moments_are_those_of_any_session_zone(spark, tmp_path):
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        moment = "timestamp_seconds(1000000000) AS moment"
        frame = spark.sql(f"SELECT 1 AS x, {moment}, TIMESTAMP_NTZ '2026-01-02 03:04:05' AS n")
        with kartosql.connect(str(tmp_path)) as con:
            con.create_dataset("d", frame, partition_on=["n"])
            schema = con.sql("SELECT moment, n FROM d").arrow()
            assert schema["moment"].cast(pa.int64()).to_pylist() == [1_000_000_000_000_000]
            assert schema["n"].to_pylist() == [dt.datetime(2026, 1, 2, 3, 4, 5)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_a_column_of_nothing_takes_the_type_of_the_table(spark, tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", pa.table({"x": [1], "s": ["a"]}))
        con.append_to_dataset("d", spark.sql("SELECT 2L AS x, NULL AS s"))
        assert con.sql("SELECT x, s FROM d ORDER BY x").rows() == [(1, "a"), (2, None)]


def test_a_frame_of_pandas_on_spark_is_one_of_spark(spark, tmp_path):
    class OnSpark:
        """Stands for pyspark.pandas.DataFrame, which does not work with every pandas."""

        def to_spark(self) -> Any:
            return spark.createDataFrame(more(range(4)))

    OnSpark.__module__ = "pyspark.pandas.frame"
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", OnSpark())
        assert con.sql("SELECT count(*) FROM d").rows() == [(4,)]


def test_a_dataset_without_rows_is_one_file_and_a_cube_none(spark, tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        empty = spark.createDataFrame(more(range(4))).where("x < 0")
        con.create_dataset("d", empty)
        assert con.sql("SELECT count(*) FROM d").rows() == [(0,)]
        with pytest.raises(kartosql.KartosqlError, match="has no rows") as e:
            con.build_cube(kartosql.Cube("e", ["x"], ["p"]), empty)
        assert e.value.code == "invalid-data"
        assert not leftovers(con.store)


def test_progress_is_told(spark, tmp_path):
    told: list[Any] = []
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", spark.createDataFrame(more(range(9))), partition_on=["p"], progress=told.append)
    assert [(t.dataset, t.rows, t.files) for t in told] == [("d", 9, 3)]


def test_the_example_of_the_page_runs(spark, tmp_path):
    page = Path(__file__).resolve().parents[3] / "docs" / "writing.md"
    text = page.read_text("utf-8").split("```pyspark\n")[1].split("```")[0]
    text = text.replace("hours.parquet", str(tmp_path / "hours.parquet"))  # Spark's folder is where its JVM was started
    hours = [(hour, 1 + hour // 50, "AA" if hour % 2 else "UA", hour / 4) for hour in range(100)]
    spark.createDataFrame(hours, "hour long, month int, carrier string, delay double").write.parquet(
        str(tmp_path / "hours.parquet")
    )
    (tmp_path / "store").mkdir()
    with kartosql.connect(str(tmp_path / "store")) as con:
        exec(text, {"spark": spark, "kartosql": kartosql, "con": con})
        assert con.sql("SELECT count(*), sum(delay) FROM delays").rows() == [(100, 1237.5)]
