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
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as percent_encoded

import pyarrow as pa

from kartosql.engines.spark.session import is_connect
from kartosql.engines.spark.types import FileColumn, quote, spark_type, stored_type, text_literal
from kartosql.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATH = "__kartosql_path"
_HINT = "Use a classic session, or engine='duckdb'."
_lock = threading.RLock()  # settings of a session are those of one statement at a time
_unused: deque[tuple[Callable[[], Any], str]] = deque()  # views behind DataFrames that nobody has any more


@dataclass
class _Scope:
    """What a session has while a statement is planned in it: settings, and DataFrames by the names of queries."""

    settings: Mapping[str, str | None]
    is_own: bool  # whether it set any
    frames: dict[str, Any] = field(default_factory=dict)
    views: list[str] = field(default_factory=list)  # dropped at its end


_scopes: list[_Scope] = []


@contextlib.contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Let a session of Spark Connect have other settings inside, and no view afterwards that was ``shown`` inside.

    A classic session stays as it is. Raises ``spark-connect`` if the server does not let settings be set.
    """
    if not is_connect(spark):
        yield
        return
    with _lock:
        before = _scopes[-1].settings if _scopes else spark.conf.getAll
        changed = {name: value for name, value in settings.items() if before.get(name) != value}
        scope = _Scope({**before, **changed}, bool(changed))
        _scopes.append(scope)
        done: list[str] = []
        try:
            _set(spark, changed, done)
            yield
        finally:
            _scopes.pop()
            for view in scope.views:
                _drop(spark, view)
            _set(spark, {name: before.get(name) for name in done}, [])


def _set(spark: Any, settings: Mapping[str, str | None], done: list[str]) -> None:
    """Set settings, or take those back that are None, all of a kind in one call; note what was set as ``done``."""
    conf = spark.conf
    taken_back = [name for name, value in settings.items() if value is None]
    given = {name: value for name, value in settings.items() if value is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of settings that a version of Spark calls deprecated
        try:
            if given:
                conf._set_all(given, silent=False)
            if taken_back:
                _unset(spark, taken_back)
            done.extend(settings)
        except Exception:  # noqa: BLE001 - one by one it shows which of them it is, in any client
            for name, value in settings.items():
                try:
                    conf.unset(name) if value is None else conf.set(name, value)
                except Exception as e:
                    raise ExecutionError(
                        f"The server of Spark Connect does not let {name} be {value!r}.",
                        code="spark-connect",
                        hint=_HINT,
                    ) from e
                done.append(name)


def _unset(spark: Any, names: Sequence[str]) -> None:
    from pyspark.sql.connect import proto

    spark.client.config(proto.ConfigRequest.Operation(unset=proto.ConfigRequest.Unset(keys=names)))


def register_view(frame: Any, name: str) -> None:
    """Let queries say ``name`` for a DataFrame: as a temporary view, in Spark Connect by what ``queried`` sends."""
    if is_connect(frame.sparkSession):
        _scopes[-1].frames[name] = frame
    else:
        frame.createOrReplaceTempView(name)


def queried(spark: Any, text: str) -> Any:
    """Return the DataFrame of a query over what was ``shown``, which Spark Connect is told together with it."""
    if not is_connect(spark):
        return spark.sql(text)
    scope, words = _scopes[-1], {*re.findall(r"\w+", text)}
    used = {name: frame for name, frame in scope.frames.items() if name in words}
    try:
        from pyspark.sql.connect.dataframe import DataFrame
        from pyspark.sql.connect.plan import SQL, SubqueryAlias

        return DataFrame(SQL(text, [], {}, [SubqueryAlias(f._plan, name) for name, f in used.items()]), spark)
    except (ImportError, AttributeError, TypeError):  # a client whose plans are others has views all the same
        for name, frame in used.items():
            frame.createOrReplaceTempView(name)
        _scopes[0].views += used  # the plan is read once more where it is used
        return spark.sql(text)


def moved(frame: Any, spark: SparkSession) -> DataFrame:
    """Return a DataFrame as it was analyzed, whatever settings and views the session will have."""
    if len(_scopes) > 1 and not _scopes[-1].is_own:
        return frame  # those around it are the same
    name = _unused_view(spark) or f"kartosql_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    found: Any = spark.table(name)
    # DataFrames made of this one hold its plan.
    weakref.finalize(found._plan, _unused.append, (weakref.ref(spark), name)).atexit = False
    drop_unused()
    return found


def _unused_view(spark: SparkSession) -> str | None:
    """Return the name of a view behind a DataFrame that nobody has any more, to be replaced."""
    for _ in range(len(_unused)):
        session, name = _unused.popleft()
        if session() is spark:
            return name
        _unused.append((session, name))
    return None


def drop_unused() -> None:
    """Drop the views behind DataFrames that nobody has any more."""
    while _unused:
        session, name = _unused.popleft()
        _drop(session(), name)


def _drop(spark: Any, view: str) -> None:
    with contextlib.suppress(Exception):  # a session that is stopped has no views
        spark.catalog.dropTempView(view)


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
    alike = _alike(others, columns)
    for literals, files in alike.items() if len(alike) <= MAX_ALIKE else ():
        frame = _loaded(spark, [paths[i] for i in files], stored, {}, options)
        found.append(frame.selectExpr(*_expressions(stored, rows), *literals))
    if len(alike) > MAX_ALIKE:
        frame = _loaded(spark, [paths[i] for i in others], stored, {}, options)
        found.append(_joined(spark, frame, [paths[i] for i in others], others, columns, stored, rows))
    return reduce(lambda a, b: a.unionByName(b), found)


MAX_ALIKE = 8  # different values of files that are written out, and not joined to their paths


def _alike(files: Sequence[int], columns: Sequence[FileColumn]) -> dict[tuple[str, ...], list[int]]:
    """Return files by the values of their columns, as expressions with names; not all of them if there are many."""
    found: dict[tuple[str, ...], list[int]] = {}
    for file in files:
        values = tuple(f"{_literal(c.values[file], c.type)} AS {quote(c.name)}" for c in columns)
        found.setdefault(values, []).append(file)
        if len(found) > MAX_ALIKE:
            break
    return found


def _literal(value: Any, type_: pa.DataType) -> str:
    wanted = spark_type(type_)
    if value is None:
        text = "NULL"
    elif pa.types.is_timestamp(type_):
        text = f"timestamp_micros({value // 1000 if type_.unit == 'ns' else value})"  # whole ones, as was checked
    elif pa.types.is_date(type_):
        text = f"date_from_unix_date({value.toordinal() - _EPOCH})"
    elif isinstance(value, bytes):
        text = f"X'{value.hex()}'"
    else:
        text = text_literal(str(value))
    return f"CAST({text} AS {wanted})"


_EPOCH = dt.date(1970, 1, 1).toordinal()


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
    columns = dict(_BINARY if stored is None else stored) | dict(keys)
    ddl = ", ".join(f"{quote(n)} {t}" for n, t in columns.items())
    reader = spark.read.options(**options).format("binaryFile" if stored is None else "parquet")
    # Without any column there is none to name.
    return reader.schema(ddl or "__kartosql_none INT").load([_GLOB.sub(r"\\\1", path) for path in paths])


_BINARY = {"path": "STRING", "modificationTime": "TIMESTAMP_LTZ", "length": "BIGINT", "content": "BINARY"}


def _expressions(stored: Mapping[str, str] | None, rows: str | None) -> list[str]:
    found = [quote(name) for name in (_BINARY if stored is None else stored)]
    return [*found, f"_metadata.row_index AS {rows}"] if rows else found or ["NULL AS __kartosql_none"]


def _joined(
    spark: Any,
    frame: Any,
    paths: Sequence[str],
    at: Sequence[int],
    columns: Sequence[FileColumn],
    stored: Mapping[str, str] | None,
    rows: str | None,
) -> Any:
    """Return rows with the values that belong to their files; a file that is not known fails."""
    known = {PATH: pa.array(map(_as_spark_says, paths), pa.string())}
    for number, column in enumerate(columns):
        type_ = stored_type(column.type)
        known[f"v{number}"] = _array([column.values[i] for i in at], column, type_)
    frame_name, known_name = f"kartosql_{uuid.uuid4().hex}", f"kartosql_{uuid.uuid4().hex}"
    register_view(frame.selectExpr(*_expressions(stored, rows), f"_metadata.file_path AS {PATH}"), frame_name)
    register_view(spark.createDataFrame(pa.table(known)), known_name)
    failed = f"raise_error(concat('no such file of the scan: ', f.{PATH}))"
    values = [
        f"IF(k.{PATH} IS NULL, CAST({failed} AS {spark_type(c.type)}), k.v{n}) AS {quote(c.name)}"
        for n, c in enumerate(columns)
    ]
    names = [quote(n) for n in (_BINARY if stored is None else stored)]
    names += [rows] if rows else [] if names else ["__kartosql_none"]
    listed = ", ".join([*(f"f.{n}" for n in names), *values])
    return queried(
        spark,
        f"SELECT /*+ BROADCAST(k) */ {listed} FROM {frame_name} f LEFT JOIN {known_name} k ON f.{PATH} = k.{PATH}",
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
    found = any(test(column.type) and spelled == spell(value) for test, spell in _SPELLED)
    return found and text != "__HIVE_DEFAULT_PARTITION__"


_SPELLED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str | None]], ...] = (
    (pa.types.is_string, str),
    (pa.types.is_int32, str),
    (pa.types.is_int64, str),
    (pa.types.is_date32, lambda v: v.isoformat() if isinstance(v, dt.date) and v.year >= 1000 else None),
)
