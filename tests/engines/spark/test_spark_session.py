from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kartosql.engines.spark import session as sessions
from kartosql.engines.spark.listing import warming
from kartosql.errors import KartosqlError


def fake_java(folder: Path, says: str) -> None:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)


def code_of(action: Any, *args: Any) -> tuple[str, str]:
    with pytest.raises(KartosqlError) as caught:
        action(*args)
    assert caught.value.hint
    return caught.value.code, str(caught.value)


def test_without_java_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, text = code_of(sessions.check_java)
    assert code == "missing-java"
    assert "apt-get install" in text


@pytest.mark.process
def test_a_java_home_without_java_is_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert code_of(sessions.check_java)[0] == "missing-java"


@pytest.mark.process
@pytest.mark.parametrize("says", ['openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_151"'])
def test_an_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, text = code_of(sessions.check_java)
    assert code == "old-java"
    assert "Java 11" in text or "Java 8" in text


@pytest.mark.process
def test_what_is_no_java_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path, "hello")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert code_of(sessions.check_java)[0] == "missing-java"


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n == "pyspark" or n.startswith("pyspark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    code, text = code_of(sessions.session)
    assert code == "missing-extra"
    assert "kartosql[spark]" in text


@pytest.mark.skipif(sys.platform != "linux", reason="others name files in UTF-8 anyway")
@pytest.mark.parametrize("name", ["LC_ALL", "LANG", None])
def test_java_names_files_in_utf8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    for each in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(each, raising=False)
    if name is not None:
        monkeypatch.setenv(name, "C")
    before = dict(os.environ)
    with sessions._environment(sessions._started_with()):
        assert os.environ["LC_ALL"] == "C.UTF-8"
    assert dict(os.environ) == before
    monkeypatch.setenv("LC_ALL", "de_DE.utf8")
    with sessions._environment(sessions._started_with()):
        assert os.environ["LC_ALL"] == "de_DE.utf8"


def test_a_session_that_runs_is_used(spark: Any) -> None:
    assert sessions.session() is spark
    assert sessions.is_running()


def test_another_session_leaves_settings_views_and_the_active_session_alone(spark: Any) -> None:
    before = dict(spark.conf.getAll)
    with sessions.keeping_active(spark):
        other = sessions.isolated(
            spark, {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.ansi.enabled": "true"}
        )
        other.createDataFrame([(1,)], "x int").createOrReplaceTempView("of_the_other")
        assert other.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
    assert dict(spark.conf.getAll) == before
    assert not spark.catalog.tableExists("of_the_other")
    assert sessions.active() is spark


def test_sessions_let_go_of_what_the_parser_learnt(spark: Any) -> None:
    for session in (spark, sessions.isolated(spark, {})):
        assert session.conf.get("spark.sql.parser.manageParserCaches") == "true"
        assert session.conf.get("spark.sql.parser.parserDfaCacheFlushRatio") == "10"


def test_nothing_is_left_in_the_working_directory(spark: Any) -> None:
    spark.sql("SELECT 1").collect()
    assert not {"spark-warehouse", "metastore_db", "derby.log"} & set(os.listdir())


def test_workers_are_this_python(spark: Any) -> None:
    def version(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"v": [sys.executable]})

    found = spark.range(1).mapInArrow(version, "v string").collect()
    assert [row.v for row in found] == [sys.executable]


def test_a_spark_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    program = """if True:
        from kartosql.engines.spark.session import session
        from kartosql.errors import KartosqlError
        try:
            session(master="local[1]", memory="1x")
        except KartosqlError as e:
            print(e.code, "1x" in e.message, bool(e.hint))
    """
    # A process of its own, as PySpark never closes the pipe to a JVM that did not start.
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert (ran.stdout, ran.stderr) == ("spark-failed True True\n", "")
    assert os.listdir(tmp_path) == []


@pytest.fixture
def cold(spark: Any) -> Any:
    """The session, as if it had done nothing yet."""
    if hasattr(spark._sc, "_kartosql_warm"):
        del spark._sc._kartosql_warm
    return spark


def test_warming_leaves_the_session_alone(cold: Any) -> None:
    before = cold.catalog.listTables(), type(cold).getActiveSession()
    with warming(cold):
        pass
    assert (cold.catalog.listTables(), type(cold).getActiveSession()) == before
    assert "kartosql-warming" not in [t.name for t in threading.enumerate()]


def test_a_session_is_warmed_once(cold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr("kartosql.engines.spark.listing.isolated", done.append)
    for _ in range(2):
        with warming(cold):
            pass
    assert done == [cold]


def test_what_fails_while_warming_is_told_by_who_needs_it(cold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = []

    def fail(given: Any) -> None:
        failed.append(given)
        raise ValueError

    monkeypatch.setattr("kartosql.engines.spark.listing.isolated", fail)
    with warming(cold):
        pass
    assert failed == [cold]


def test_a_client_without_spark_is_imported_with_a_home(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of 4.2.0 ends the process without one."""
    seen, find, load = [], sessions.importlib.util.find_spec, sessions.importlib.import_module

    def loaded(name: str, package: str | None = None) -> Any:
        if name != "pyspark.sql.connect.session":
            return load(name, package)
        return seen.append("SPARK_HOME" in os.environ)

    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(
        sessions.importlib.util, "find_spec", lambda name, *of: None if name == "pyspark.core" else find(name, *of)
    )
    monkeypatch.setattr(sessions.importlib, "import_module", loaded)
    assert sessions._pyspark().__name__ == "SparkSession"
    assert seen == [True]
    assert "SPARK_HOME" not in os.environ


def test_a_file_that_executors_do_not_find_may_lie_where_only_the_driver_looks():
    text = "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file d/x.parquet. SQLSTATE: KD001"
    error = sessions.translate(RuntimeError(text), interrupted=False, timed_out=False)
    assert (error.code, "executors do not see the folder" in str(error.hint)) == ("missing-file", True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "An error occurred while calling o1.getResult.\n: org.apache.spark.SparkException: Exception thrown in "
            "awaitResult: \n\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)\n"
            "Caused by: java.io.IOException: No space left on device: /tmp/blocks\n\tat java.base/java.io.Write\n",
            "No space left on device: /tmp/blocks",
        ),
        ("An error occurred while calling o2.\n: java.lang.StackOverflowError", "java.lang.StackOverflowError"),
        ("Connection refused\nand more", "Connection refused"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_java_without_a_condition_is_told_by_its_innermost_cause(text, told):
    error = sessions.translate(RuntimeError(text), interrupted=False, timed_out=False)
    assert (error.code, str(error).splitlines()[0]) == ("query-failed", f"Spark failed: {told}")


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "Connection refused"), type("Py4JNetworkError", (Exception,), {})()]
)
def test_a_session_whose_jvm_is_gone_is_told_as_such(monkeypatch, error):
    def fail() -> None:
        raise error

    monkeypatch.setattr(sessions._pyspark(), "getActiveSession", fail)
    assert "its JVM is gone" in code_of(sessions.active)[1]
    assert code_of(sessions.check_session)[0] == "spark-failed"
    assert sessions.translate(error, interrupted=False, timed_out=False).code == "spark-failed"
