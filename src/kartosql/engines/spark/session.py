"""Spark sessions: the user's own if there is one, else a quiet local one."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from kartosql.engines.base import corrupt_file
from kartosql.engines.spark.types import REFUSED
from kartosql.errors import (
    ExecutionError,
    KartosqlError,
    LimitError,
    NotPortable,
    StoreError,
    UsageError,
    first_line,
    python_error,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_java_lock = threading.Lock()


def maker(spark: SparkSession) -> Any:
    """Return the Java object that makes relations and sessions, compiled once per JVM by Spark's own compiler.

    Raises ``spark-failed`` for versions of Spark that it does not fit.
    """
    context: Any = spark._sc
    with _java_lock:
        if not hasattr(context, "_kartosql_maker"):
            context._kartosql_maker = _compiled(context, spark._jvm, spark._jsparkSession)
    return context._kartosql_maker


def _compiled(context: Any, jvm: Any, java: Any) -> Any:
    source = resources.files("kartosql.engines.spark").joinpath("ListedFiles.java").read_text("utf-8")
    try:
        compiler = getattr(jvm, "org.codehaus.janino.SimpleCompiler")()
        compiler.setParentClassLoader(java.getClass().getClassLoader())
        compiler.cook(source)
        kind = compiler.getClassLoader().loadClass("kartosql.ListedFiles$Maker")
        nothing = context._gateway.new_array(getattr(jvm, "java.lang.Object"), 0)
        return kind.getConstructors()[0].newInstance(nothing)
    except Exception as e:
        raise ExecutionError(
            f"This version of Spark does not take lists of files: {str(e).splitlines()[0]}",
            code="spark-failed",
            hint="Use PySpark 4 as the extra 'spark' installs it, or engine='duckdb'.",
        ) from e


_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (.*?)(?: SQLSTATE: \w+)?(?:\n|$)")
_RAISED = r"\[USER_RAISED_EXCEPTION\] " + re.escape(REFUSED) + r"([^\n]*?)(?: SQLSTATE: \w+)?(?:\n|$)"
_OVERFLOW = r"^(?:[\w.: ]*ArithmeticException: )?(?:long|integer) overflow"  # of Java, without a condition
_TOO_LARGE = r"cannot be represented as Decimal\(38, \d+\)|[Oo]verflow in sum of decimals"
_REFUSALS = (
    (re.compile(_RAISED), "Spark would not treat {} as DuckDB does."),
    (re.compile("kartosql:nanoseconds"), "The data hold nanoseconds, which Spark does not have."),
    (re.compile(_OVERFLOW, re.MULTILINE), "Spark would not treat so far a date as DuckDB does."),
    (re.compile(_TOO_LARGE), "Spark has no numbers of more than 38 digits."),
)
_CORRUPT = re.compile(r"kartosql:corrupt-file:([^\n]*)")
_CAUSED_BY = re.compile(r"(?:Caused by|): (?:(?:\w+\.)+[\w$]+: (?=\S))?(.+)")  # without the class, if it has a message
# Conditions that tell of a value, not of the statement or of Spark.
_VALUES = (
    *("ARITHMETIC_OVERFLOW", "BINARY_ARITHMETIC_OVERFLOW", "CAST_INVALID_INPUT", "CAST_OVERFLOW", "DATETIME_OVERFLOW"),
    *("DATETIME_FIELD_OUT_OF_BOUNDS", "DIVIDE_BY_ZERO", "INTERVAL_ARITHMETIC_OVERFLOW", "REMAINDER_BY_ZERO"),
    *("NUMERIC_VALUE_OUT_OF_RANGE", "NUMERIC_OUT_OF_SUPPORTED_RANGE", "USER_RAISED_EXCEPTION", "INVALID_ARRAY_INDEX"),
)
_HINT = "Use engine='duckdb' or 'auto'."


def missing_pyspark() -> UsageError:
    """Return the error about PySpark, or what it needs, where it is not installed."""
    return UsageError("PySpark is not installed.", code="missing-extra", hint="pip install 'kartosql[spark]'")


def translate(error: BaseException, *, interrupted: bool, timed_out: bool) -> KartosqlError:
    """Return the error of ours that an error of Spark means; no traceback of Java goes further."""
    if isinstance(error, KartosqlError):
        return error
    if timed_out:
        return LimitError("The statement ran longer than its timeout.", code="timeout", hint="Raise timeout.")
    if isinstance(error, ImportError):
        return missing_pyspark()
    if _is_gone(error):
        return _ended()
    text = str(error)
    if interrupted or ("cancelled" in text and "SPARK_JOB_CANCELLED" in text):
        return ExecutionError("The statement was interrupted.", code="interrupted")
    for pattern, message in _REFUSALS:
        if refused := pattern.search(text):
            return NotPortable(message.format(*map(str.strip, refused.groups())), hint=_HINT)
    if corrupt := _CORRUPT.search(text):
        return corrupt_file(corrupt[1].strip())
    return python_error(text, "spark-failed") or _by_condition(text, type(error).__name__)


def _is_gone(error: BaseException) -> bool:
    """Return whether an error says that nobody answers for the JVM of a session."""
    return isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"


def _ended() -> ExecutionError:
    hint = "Begin with a new process, with more memory if that was short, or use engine='duckdb'."
    return ExecutionError(
        "The Spark session of this process has ended: its JVM is gone.", code="spark-failed", hint=hint
    )


def _by_condition(text: str, kind: str) -> KartosqlError:
    found = [(match[1], match[2].strip()) for match in _CONDITION.finditer(text)]
    for condition, message in found:
        if condition in _VALUES or condition.split(".")[0] in _VALUES:
            return ExecutionError(message, code="invalid-value")
    for condition, message in found:
        if condition.startswith("FAILED_READ_FILE"):
            if "FILE_NOT_EXIST" in condition or "FileNotFoundException" in text:
                hint = "It was removed meanwhile, or executors do not see the folder: all need it under the same path."
                return StoreError(message, code="missing-file", hint=hint)
            return corrupt_file(message)
    if "OutOfMemoryError" in text:
        return LimitError("Spark ran out of memory.", code="out-of-memory", hint="Give the driver or executors more.")
    return ExecutionError(f"Spark failed: {found[0][1] if found else _cause(text) or kind}", hint=_HINT)


def _cause(text: str) -> str:
    """Return the innermost cause that a traceback of Java names; the first line of other texts."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [match[1].strip() for match in map(_CAUSED_BY.match, lines) if match]
    return causes[-1] if causes else "".join(lines[:1])


JAVA_VERSION = 17  # the oldest that Spark 4 runs on
_JAVA_HINT = (
    "Install Java 17 or later and put it on PATH or into JAVA_HOME: apt-get install openjdk-17-jre-headless, "
    "brew install openjdk@17, or adoptium.net."
)
# What an answer depends on, whatever the user's session has.
SEMANTICS: Mapping[str, str] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.caseSensitive": "false",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    # Listing paths one by one takes less time than thousands of tasks that list one each.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
}
_ERROR_LOGGER = "SQLQueryContextLogger"
_lock = threading.RLock()


def session(*, master: str | None = None, memory: str | None = None) -> SparkSession:
    """Return the active Spark session, or start a quiet local one.

    ``master`` and ``memory`` (of the driver) count only for a session that is started. Raises
    ``missing-extra`` without PySpark, ``missing-java`` and ``old-java``, ``spark-failed`` when
    Spark does not start.
    """
    with _lock:
        return active() or _start(master or "local[*]", memory)


def check_session() -> None:
    """Raise what ``session`` would raise for want of PySpark or Java.

    Nothing is started.
    """
    if is_running():
        return
    if importlib.util.find_spec("pyspark") is None:
        raise missing_pyspark()
    _check_complete()
    _java_checked()


def _check_complete() -> None:
    """Raise ``spark-connect`` where PySpark is only a client, which starts no Spark."""
    if importlib.util.find_spec("pyspark.core") is None:
        raise ExecutionError(
            "The client of Spark Connect that is installed starts no Spark, and there is no session.",
            code="spark-connect",
            hint="Make one: SparkSession.builder.remote('sc://host').getOrCreate(); or use engine='duckdb'.",
        )


@functools.cache
def _java_checked() -> None:
    check_java()


def is_running() -> bool:
    """Return whether this process has a Spark session, without importing PySpark."""
    return "pyspark" in sys.modules and active() is not None


def active() -> SparkSession | None:
    """Return the session of this process, or None; raises ``missing-extra``, and ``spark-failed`` for one that died."""
    try:
        return _active(_pyspark())
    except Exception as e:
        if _is_gone(e):
            raise _ended() from None
        raise


def _active(kind: Any) -> SparkSession | None:
    import pyspark

    found: SparkSession | None = kind.getActiveSession()
    # Active is a session for one thread only; in another thread it is the default one that is meant.
    context = getattr(pyspark, "SparkContext", None)  # a client of Spark Connect has none
    if found is None and getattr(context, "_active_spark_context", None) is not None:
        found = kind.builder.getOrCreate()
    remote = getattr(sys.modules.get("pyspark.sql.connect.session"), "SparkSession", None)
    if found is None and remote is not None:
        found = remote.getActiveSession() or remote._get_default_session()
    return found


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, which has no JVM in reach."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def isolated(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session with the semantics that answers depend on; the given one keeps its settings and views.

    It shares context and executors with ``spark``, has a copy of its settings, and views of its
    own. ``settings`` are Spark settings for it. One of Spark Connect is returned itself: there is
    ``connect.configured`` for it.
    """
    if is_connect(spark):
        return spark
    wanted = {**SEMANTICS, **(settings or {})}
    lines = "\n".join(f"{name}\t{value}" for name, value in wanted.items())
    return type(spark)(spark._sc, maker(spark).isolated(spark._jsparkSession, lines))


@contextlib.contextmanager
def keeping_active(spark: SparkSession) -> Iterator[None]:
    """Keep the session of this thread the active one, whatever other sessions do inside."""
    if is_connect(spark):
        yield
        return
    kind: Any = type(spark)
    jvm: Any = kind._get_j_spark_session_class(spark._jvm)
    before, java = kind._activeSession, jvm.getActiveSession()
    try:
        yield
    finally:
        kind._activeSession = before
        if java.isDefined():
            jvm.setActiveSession(java.get())
        else:
            jvm.clearActiveSession()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep PySpark from printing errors that are raised as well."""
    from pyspark.logger import PySparkLogger

    # Of PySpark's own class whoever asks first, as PySpark hands it arguments that others do not take.
    logger = PySparkLogger.getLogger(_ERROR_LOGGER)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


# -- starting ------------------------------------------------------------------------------------


def _pyspark() -> Any:
    try:
        # It says each now and then that it does not support a new pandas yet, which is not used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        from pyspark.sql import SparkSession

        if importlib.util.find_spec("pyspark.core") is None:
            # That of 4.2.0 ends the process where it finds no Spark, as it imports its own tests.
            with _environment({"SPARK_HOME": os.environ.get("SPARK_HOME", "")}):
                importlib.import_module("pyspark.sql.connect.session")
    except ImportError:
        raise missing_pyspark() from None
    return SparkSession


def _start(master: str, memory: str | None) -> SparkSession:
    _check_complete()
    check_java()
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    folder = tempfile.mkdtemp(prefix="kartosql-spark-")
    conf = SparkConf()
    for name, value in _local_settings(master, memory, folder).items():
        conf.set(name, value)
    log = os.path.join(folder, "driver.log")
    try:
        with open(log, "wb") as sink, _environment(_started_with()):
            gateway = launch_gateway(conf, {"stdout": sink, "stderr": sink})
            context = SparkContext(conf=conf, gateway=gateway)
            spark = _pyspark().builder.getOrCreate()
    except Exception as e:
        reason = _reason(log) or first_line(e)
        shutil.rmtree(folder, ignore_errors=True)
        hint = "Check JAVA_HOME, SPARK_HOME and the memory that is free; SPARK_HOME is best not set."
        raise ExecutionError(f"Spark does not start: {reason}", code="spark-failed", hint=hint) from e
    atexit.register(_stop, context, gateway, folder)
    return spark


def _local_settings(master: str, memory: str | None, folder: str) -> dict[str, str]:
    """Return the settings of a local session: no UI, no progress bar, nothing in the working directory."""
    return {
        "spark.master": master,
        "spark.app.name": "kartosql",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": memory or "2g",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": os.path.join(folder, "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} -Djava.io.tmpdir={folder}",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Else each statement makes three threads until there are 2,000, each of which holds 0.1 MB. As many as for
        # broadcasts, as some wait for others.
        "spark.sql.shuffleExchange.maxThreadThreshold": "128",
        "spark.sql.resultQueryStage.maxThreadThreshold": "128",
        # Else the parser keeps what it has learnt of each statement: all of the memory after some 10,000 of them.
        "spark.sql.parser.manageParserCaches": "true",
        "spark.sql.parser.parserDfaCacheFlushRatio": "10",  # percent of the memory
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 2)),
        "spark.sql.files.openCostInBytes": str(256 << 10),  # to open a local file costs as much as to read so many
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **{k: v for k, v in SEMANTICS.items() if k != "spark.sql.caseSensitive"},
    }


def _started_with() -> dict[str, str]:
    """Let Python workers be this interpreter, unless the user chose another one, and names of files be UTF-8."""
    wanted = {} if "PYSPARK_PYTHON" in os.environ else {"PYSPARK_PYTHON": sys.executable}
    said = next((os.environ[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(n)), "")
    if sys.platform == "linux" and not said.lower().replace("-", "").endswith("utf8"):
        # In other locales Java does not find files whose names have letters beyond ASCII.
        wanted["LC_ALL"] = "C.UTF-8"
    return wanted


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _stop(context: Any, gateway: Any, folder: str) -> None:
    """End a session that was started here, and remove its files."""
    with contextlib.suppress(Exception):
        context.stop()
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        with contextlib.suppress(Exception):
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def check_java() -> None:
    """Raise ``missing-java`` or ``old-java`` unless Spark finds a Java that it runs on."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")

    def wrong(found: str, code: str = "missing-java") -> UsageError:
        return UsageError(f"Spark needs Java {JAVA_VERSION} or later, and {found}.", code=code, hint=_JAVA_HINT)

    if java is None:
        raise wrong("there is none")
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise wrong(f"{java!r} cannot be run") from None
    match = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    if match is None:
        raise wrong(f"{java!r} is none")
    if int(match[1]) < JAVA_VERSION:
        raise wrong(f"{java!r} is Java {match[1]}", code="old-java")


def _reason(path: str) -> str:
    """Return the first line of a log that says what went wrong."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            lines = [line.strip() for line in f.read(20_000).splitlines()]
    except OSError:
        return ""
    usual = ("at ", "WARNING:", "Using Spark's", "Setting default", "To adjust logging")
    told = (line for line in lines if line and not line.startswith(usual) and " WARN " not in line)
    return next(told, "")
