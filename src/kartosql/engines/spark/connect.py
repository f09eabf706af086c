"""Scans in sessions of Spark Connect, which no JVM is in reach of: explicit paths, and temporary views.

Spark takes the values of partition columns from paths where it reads them right; elsewhere they are
joined to the paths of files. A view keeps the plan as it was analyzed, and so the settings that the
session had then: they are those of the user again when the plan runs.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import threading
import unicodedata
import uuid
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as percent_encoded

import pyarrow as pa

from kartosql.engines.spark.session import is_connect
from kartosql.engines.spark.types import FileColumn, quote, spark_type, stored_type
from kartosql.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATH = "__kartosql_path"
_HINT = "Use a classic session, or engine='duckdb'."
_lock = threading.RLock()  # settings of a session are those of one statement at a time
_scopes: list[list[str]] = []  # the views that are made in each scope, and dropped at its end
_unused: deque[tuple[Callable[[], Any], str]] = deque()  # views behind DataFrames that nobody has any more


@contextlib.contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Let a session of Spark Connect have other settings inside, and no view afterwards that was ``shown`` inside.

    A classic session stays as it is. Raises ``spark-connect`` if the server does not let settings be set.
    """
    if not is_connect(spark):
        yield
        return
    conf: Any = spark.conf
    with _lock:
        drop_unused()
        given = conf.getAll
        before = {name: given.get(name) for name in settings}
        changed = {name: value for name, value in settings.items() if before[name] != value}
        _scopes.append([])
        done: list[str] = []
        try:
            for name, value in changed.items():
                _set(conf, name, value)
                done.append(name)
            yield
        finally:
            for view in _scopes.pop():
                with contextlib.suppress(Exception):
                    spark.catalog.dropTempView(view)
            for name in done:
                _set(conf, name, before[name])


def _set(conf: Any, name: str, value: str | None) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of settings that a version of Spark calls deprecated
            conf.unset(name) if value is None else conf.set(name, value)
    except Exception as e:
        raise ExecutionError(
            f"The server of Spark Connect does not let {name} be {value!r}.", code="spark-connect", hint=_HINT
        ) from e


def shown(frame: Any, name: str) -> None:
    """Make a DataFrame a temporary view, in Spark Connect until the end of the scope."""
    frame.createOrReplaceTempView(name)
    if _scopes and is_connect(frame.sparkSession):
        _scopes[-1].append(name)


def moved(frame: Any, spark: SparkSession) -> DataFrame:
    """Return a DataFrame as it was analyzed, whatever settings and views the session will have."""
    name = f"kartosql_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    found: Any = spark.table(name)
    # DataFrames made of this one hold its plan.
    weakref.finalize(found._plan, _unused.append, (weakref.ref(spark), name)).atexit = False
    return found


def drop_unused() -> None:
    """Drop the views behind DataFrames that nobody has any more."""
    while _unused:
        session, name = _unused.popleft()
        with contextlib.suppress(Exception):  # a session that is stopped has no views
            session().catalog.dropTempView(name)


# -- files ---------------------------------------------------------------------------------------


def relation(
    spark: SparkSession,
    paths: Sequence[str],
    stored: Mapping[str, str] | None,
    columns: Sequence[FileColumn],
    options: Mapping[str, str],
    rows: str | None,
) -> DataFrame:
    """Return the rows of files as ``listing.relation`` does, with the number of each row in its file as ``rows``."""
    check_paths(paths)
    base, named = _folders(paths) if columns else ("", [])
    by_path = [i for i in range(len(paths)) if all(_is_read_right(c, named[i], i) for c in columns)] if named else []
    chosen = set(by_path)
    others = [i for i in range(len(paths)) if i not in chosen] if columns else list(range(len(paths)))
    found = []
    if by_path:
        types = {c.name: spark_type(c.type) for c in columns}
        keys = {name: types.get(name, "STRING") for name in named[0]}
        frame = _loaded(spark, [paths[i] for i in by_path], stored, keys, {**options, "basePath": base})
        found.append(frame.selectExpr(*_expressions(stored, rows), *(quote(c.name) for c in columns)))
    if others:
        frame = _loaded(spark, [paths[i] for i in others], stored, {}, options)
        frame = frame.selectExpr(*_expressions(stored, rows), *([f"_metadata.file_path AS {PATH}"] if columns else []))
        found.append(_joined(spark, frame, [paths[i] for i in others], others, columns) if columns else frame)
    return found[0] if len(found) == 1 else found[0].unionByName(found[1])


def check_paths(paths: Sequence[str]) -> None:
    """Raise ``spark-connect`` for paths that Spark leaves out, or does not find."""
    for path in paths:
        name = path.rpartition("/")[2]
        if name[:1] in ("_", ".") or name.endswith("._COPYING_"):
            raise ExecutionError(
                f"Spark leaves out files with names such as {name!r}.", code="spark-connect", hint=_HINT
            )
        if _GLOB.search(path) and ":" in path.partition("://")[2]:
            raise ExecutionError(f"Spark does not find the path {path!r}.", code="spark-connect", hint=_HINT)


_GLOB = re.compile(r"([][{}*?\\])")


def _loaded(
    spark: Any,
    paths: Sequence[str],
    stored: Mapping[str, str] | None,
    keys: Mapping[str, str],
    options: Mapping[str, str],
) -> Any:
    reader = spark.read.options(**options)
    columns = dict(_BINARY if stored is None else stored) | dict(keys)
    ddl = ", ".join(f"{quote(n)} {t}" for n, t in columns.items())
    reader = reader.format("binaryFile" if stored is None else "parquet")
    # Without any column there is none to name.
    return reader.schema(ddl or "__kartosql_none INT").load([_GLOB.sub(r"\\\1", path) for path in paths])


_BINARY = {"path": "STRING", "modificationTime": "TIMESTAMP_LTZ", "length": "BIGINT", "content": "BINARY"}


def _expressions(stored: Mapping[str, str] | None, rows: str | None) -> list[str]:
    found = [quote(name) for name in (_BINARY if stored is None else stored)]
    return [*found, f"_metadata.row_index AS {rows}"] if rows else found or ["NULL AS __kartosql_none"]


def _joined(spark: Any, frame: Any, paths: Sequence[str], at: Sequence[int], columns: Sequence[FileColumn]) -> Any:
    """Return rows with the values that belong to their files; a file that is not known fails."""
    known = {PATH: pa.array(map(_as_spark_says, paths), pa.string())}
    for number, column in enumerate(columns):
        type_ = stored_type(column.type)
        known[f"v{number}"] = _array([column.values[i] for i in at], column, type_)
    frame_name, known_name = f"kartosql_{uuid.uuid4().hex}", f"kartosql_{uuid.uuid4().hex}"
    shown(frame, frame_name)
    shown(spark.createDataFrame(pa.table(known)), known_name)
    failed = f"raise_error(concat('no such file of the scan: ', f.{PATH}))"
    values = [
        f"IF(k.{PATH} IS NULL, CAST({failed} AS {spark_type(c.type)}), k.v{n}) AS {quote(c.name)}"
        for n, c in enumerate(columns)
    ]
    names = ", ".join([*(f"f.{quote(n)}" for n in frame.columns if n != PATH), *values])
    return spark.sql(
        f"SELECT /*+ BROADCAST(k) */ {names} FROM {frame_name} f LEFT JOIN {known_name} k ON f.{PATH} = k.{PATH}"
    )


def _array(values: Sequence[Any], column: FileColumn, type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        values = [None if v is None else v // 1000 for v in values]  # whole ones, as was checked
    if pa.types.is_decimal(type_):
        return pa.array(values, pa.uint64()).cast(type_)
    return pa.array(values, type_)


def _as_spark_says(path: str) -> str:
    """Return the URL of a file as ``_metadata.file_path`` has it: as Java encodes URIs."""
    scheme, _, rest = path.partition("://")
    rest = rest if _PLAIN.fullmatch(rest) else "".join(map(_encoded, rest))
    return f"{scheme}:{rest}" if rest.startswith("/") else f"{scheme}://{rest}"


_PLAIN = re.compile(r"[A-Za-z0-9_\-!.~'()*,;:$&+=@/]*")


def _encoded(char: str) -> str:
    is_kept = _PLAIN.fullmatch(char) or (char > "\x80" and unicodedata.category(char) not in ("Zs", "Zl", "Zp", "Cc"))
    return char if is_kept else percent_encoded(char, safe="")


# -- values in paths -------------------------------------------------------------------------------

_KEY = re.compile(r"([A-Za-z0-9_]+)=([^/]+)")


def _folders(paths: Sequence[str]) -> tuple[str, list[dict[str, str]]]:
    """Return the folder above the partitions of files, and the texts of their values; nothing where they disagree."""
    found, base, keys = [], None, None
    for path in paths:
        segments = path.split("/")[:-1]
        values: dict[str, str] = {}
        while segments and (match := _KEY.fullmatch(segments[-1])) and match[1] not in values:
            values[match[1]] = match[2]
            segments.pop()
        above, names = "/".join(segments), list(values)
        if base is None:
            base, keys = above, names
        if (above, names) != (base, keys) or not names or len({n.lower() for n in names}) < len(names):
            return "", []
        found.append(values)
    return base or "", found


def _is_read_right(column: FileColumn, texts: Mapping[str, str], at: int) -> bool:
    text, value = texts.get(column.name), column.values[at]
    if text is None or value is None:
        return text == "__HIVE_DEFAULT_PARTITION__" and value is None
    # Spark takes an encoded byte for a letter.
    spelled = re.sub("%([0-9A-Fa-f]{2})", lambda m: chr(int(m[1], 16)), text)
    if text == "__HIVE_DEFAULT_PARTITION__":
        return False
    for test, spell in _SPELLED:
        if test(column.type):
            return spelled == spell(value)
    return False


_SPELLED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str | None]], ...] = (
    (pa.types.is_string, str),
    (pa.types.is_int32, str),
    (pa.types.is_int64, str),
    (pa.types.is_date32, lambda v: v.isoformat() if isinstance(v, dt.date) and v.year >= 1000 else None),
)
