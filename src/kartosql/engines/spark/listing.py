"""Explicit lists of files as relations of Spark, each file with values for partition columns, wherever it lies.

Spark takes the values of partition columns from paths, decodes them in its own way, and lists
paths that it is given once more. A file index of our own gives it both (``ListedFiles.java``), so
that partition filters, dynamic ones too, choose files, and values cost nothing per row.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sys
import threading
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.engines.spark import connect
from kartosql.engines.spark.session import is_connect, isolated, maker
from kartosql.engines.spark.types import FileColumn, quote, spark_type
from kartosql.errors import NotPortable, StoreError
from kartosql.store import Files, Store
from kartosql.store.store import Mounts
from kartosql.store.urls import protocols_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_EPOCH = dt.date(1970, 1, 1).toordinal()
# Whatever the session says: no file is left out, and dates are what they are.
OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
}


def relation(
    spark: SparkSession,
    root: str,
    paths: Sequence[str],
    sizes: Sequence[int],
    stored: Mapping[str, str] | None,
    columns: Sequence[FileColumn],
    options: Mapping[str, str] | None = None,
    rows: str | None = None,
) -> DataFrame:
    """Return the rows of files as a DataFrame: the columns ``stored`` in them (name to Spark type), then ``columns``.

    Without ``stored`` there is one row per file, with its bytes as ``content``. With ``rows`` a column of that name
    has the number of each row in its file. ``paths`` are URLs of Hadoop, not encoded.
    """
    given = {**OPTIONS, **(options or {})}
    if is_connect(spark):
        return connect.relation(spark, paths, stored, [_whole_microseconds(c) for c in columns], given, rows)
    from pyspark.sql import DataFrame

    partition = _struct({c.name: spark_type(c.type) for c in columns})
    data = None if stored is None else _struct(stored)
    texts = [text.encode() for pair in given.items() for text in pair]
    encoded = b"".join(
        [
            _texts(texts),
            _texts([p.encode() for p in paths]),
            _longs(sizes),
            *map(_encoded, map(_whole_microseconds, columns)),
        ]
    )
    # A call to Java takes its arguments as text, and the names of many files have much in common.
    made = maker(spark).relation(
        spark._jsparkSession, root, partition, data, len(given), len(paths), zlib.compress(encoded, 1), len(encoded)
    )
    found = DataFrame(made, spark)
    return found.selectExpr("*", f"_metadata.row_index AS {rows}") if rows else found


def moved(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Return a DataFrame of one session as one of another, which then runs it."""
    if is_connect(spark):
        return connect.moved(frame, spark)
    from pyspark.sql import DataFrame

    return DataFrame(maker(spark).moved(frame._jdf, spark._jsparkSession), spark)


def _whole_microseconds(column: FileColumn) -> FileColumn:
    """Return a column whose times are whole microseconds; raises ``not-portable``."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns" and any((v or 0) % 1000 for v in column.values):
        message = f"Spark has no nanoseconds, and the partition key {column.name!r} does."
        raise NotPortable(message, hint="Use engine='duckdb'.")
    return column


def _struct(columns: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'{quote(n)}: {t}' for n, t in columns.items())}>"


# -- values --------------------------------------------------------------------------------------


def _encoded(column: FileColumn) -> bytes:
    """Return which values there are, a byte for each file, and then the values, with a filler in the place of NULL."""
    given = bytes([value is not None for value in column.values])
    if 0 not in given:
        return given + _values(column, column.values)
    fillers = {pa.string(): "", pa.binary(): b"", pa.date32(): dt.date(1970, 1, 1)}
    filler = fillers.get(column.type, 0)
    return given + _values(column, [filler if value is None else value for value in column.values])


def _values(column: FileColumn, values: Sequence[Any]) -> bytes:
    t = pa.types
    type_ = column.type
    if t.is_string(type_):
        return _texts([v.encode() for v in values])
    if t.is_binary(type_):
        return _texts(values)
    if t.is_uint64(type_):
        return _texts([str(v).encode() for v in values])
    if t.is_floating(type_):
        return _big_endian(array("d", values))
    if t.is_date32(type_):
        return _longs([v.toordinal() - _EPOCH for v in values])
    if t.is_timestamp(type_):
        return _longs([v // 1000 for v in values] if type_.unit == "ns" else values)
    return _longs(values)


def _texts(values: Sequence[bytes]) -> bytes:
    return _longs(list(map(len, values))) + b"".join(values)


def _longs(values: Sequence[int]) -> bytes:
    return _big_endian(array("q", values))


def _big_endian(values: array[Any]) -> bytes:
    if sys.byteorder == "little":
        values.byteswap()
    return values.tobytes()


@contextlib.contextmanager
def warming(spark: SparkSession) -> Iterator[None]:
    """Let Java load what a scan needs while Python plans one, unless that was done before."""
    # Else threads of Java are those of several threads of Python, with their active sessions.
    has_threads = os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"
    if is_connect(spark) or hasattr(spark._sc, "_kartosql_warm") or not has_threads:
        yield
        return
    spark._sc._kartosql_warm = True
    thread = threading.Thread(target=_warm, args=(spark,), name="kartosql-warming", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _warm(spark: SparkSession) -> None:
    """Do what a scan does, over no file; whoever does it next meets the same error, and tells it."""
    with contextlib.suppress(Exception):
        session = isolated(spark)
        frame = relation(session, "file:///", [], [], {"x": "INT"}, [FileColumn("p", pa.string(), [])])
        frame.createOrReplaceTempView("rows")
        session.sql("SELECT p0.x AS x FROM (SELECT x, p FROM rows) p0 WHERE p0.p = 'a'")
        session.catalog.tableExists("rows")


# -- where files lie: fsspec's URLs and options as those of Hadoop -----------------------------------

_S3 = {"s3", "s3a", "s3n"}
_AZURE = {"abfs", "abfss", "az"}
_GOOGLE = {"gs", "gcs"}
_SAME = {"hdfs", "viewfs", "webhdfs", "oss", "obs", "cosn", "o3fs", "ofs"}  # what Hadoop calls the same


@dataclass(frozen=True)
class Location:
    """A store as Hadoop knows it: the URL that keys follow, and options for its filesystem.

    ``options`` may hold credentials, so they are never shown.
    """

    root: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def path(self, key: str) -> str:
        """Return the URL of ``key``, not encoded."""
        return f"{self.root}/{key}"


def location(store: Store) -> Location:
    """Return where Spark finds a store; raises ``store-unreachable`` for stores in memory and the like."""
    if store.is_local:
        return Location(f"file://{store.local_path('').rstrip('/')}")
    protocols = protocols_of(store.fs)
    options: Mapping[str, Any] = getattr(store.fs, "storage_options", None) or {}
    if _S3 & {*protocols}:
        return Location(f"s3a://{store.root}", _s3(store.root.split("/")[0], options))
    if _AZURE & {*protocols}:
        return _azure(store, options)
    if _GOOGLE & {*protocols}:
        return Location(f"gs://{store.root}", _google(options))
    if _SAME & {*protocols}:
        return Location(store.address[0].rstrip("/"))
    raise StoreError(
        f"Spark cannot read the store {store.url!r}: its workers are other processes, perhaps on other machines.",
        code="store-unreachable",
        hint="Use a folder, s3://, abfs://, gs:// or hdfs://, or engine='duckdb'.",
    )


def _s3(bucket: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of S3A for one bucket, so that others keep theirs."""
    prefix = f"fs.s3a.bucket.{bucket}."
    client: Mapping[str, Any] = options.get("client_kwargs") or {}
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    found = {
        "access.key": options.get("key") or options.get("username") or client.get("aws_access_key_id"),
        "secret.key": options.get("secret") or options.get("password") or client.get("aws_secret_access_key"),
        "session.token": options.get("token") or client.get("aws_session_token"),
        "endpoint": endpoint,
        "endpoint.region": client.get("region_name"),
    }
    if found["session.token"]:
        found["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
    if options.get("anon"):
        found["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    if endpoint:
        # Whatever is not Amazon's own names buckets in the path.
        found["path.style.access"] = "true"
        found["connection.ssl.enabled"] = "false" if str(endpoint).startswith("http://") else "true"
    return {prefix + name: str(value) for name, value in found.items() if value}


def _azure(store: Store, options: Mapping[str, Any]) -> Location:
    account = options.get("account_name") or getattr(store.fs, "account_name", None)
    container, _, folder = store.root.partition("/")
    if not account:
        raise StoreError(
            f"The URL {store.url!r} does not name the storage account.",
            code="store-unreachable",
            hint="Give account_name as storage option; Spark's URLs hold it.",
        )
    host = f"{account}.dfs.core.windows.net"
    found: dict[str, Any] = {}
    if options.get("account_key"):
        found = {"account.key": options["account_key"]}
    elif options.get("sas_token"):
        found = {"account.auth.type": "SAS", "sas.fixed.token": str(options["sas_token"]).lstrip("?")}
    elif options.get("client_id") and options.get("client_secret") and options.get("tenant_id"):
        found = {
            "account.auth.type": "OAuth",
            "account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
            "account.oauth2.client.id": options["client_id"],
            "account.oauth2.client.secret": options["client_secret"],
            "account.oauth2.client.endpoint": f"https://login.microsoftonline.com/{options['tenant_id']}/oauth2/token",
        }
    root = f"abfss://{container}@{host}" + (f"/{folder}" if folder else "")
    return Location(root, {f"fs.azure.{name}.{host}": str(value) for name, value in found.items()})


def _google(options: Mapping[str, Any]) -> dict[str, str]:
    token = options.get("token")
    if token == "anon":
        return {"fs.gs.auth.type": "UNAUTHENTICATED"}
    if isinstance(token, str) and token.endswith(".json"):
        return {"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "fs.gs.auth.service.account.json.keyfile": token}
    return {}


class Places:
    """Where Spark finds the files of several stores."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known = {id(files): location(files)} if isinstance(files, Store) else {}

    def of(self, key: str) -> tuple[Location, str]:
        """Return the place of the store of a key, and the key in it; raises ``store-unreachable``."""
        store, rest = self._files.place(key) if isinstance(self._files, Mounts) else (self._files, key)
        assert isinstance(store, Store)
        if id(store) not in self._known:
            self._known[id(store)] = location(store)
        return self._known[id(store)], rest
