"""Folders of files without a document: partition columns in paths, typed by values, and schemas of Parquet files."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from kartosql.errors import FormatError, missing_file, reraise
from kartosql.formats.partition_table import PartitionTable, numbered
from kartosql.formats.type_promotion import plain
from kartosql.parquet import DAMAGE, GEO, FooterCache, Reader, arrow_metadata, notes_of, read_footer, schema_bytes
from kartosql.store import Store
from kartosql.store.listing import ListedFile, list_files

NULL = "__HIVE_DEFAULT_PARTITION__"
# Without leading zeros: 01 is a text, as nobody writes a number so.
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,18})")
_ANY_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?)?")
_EPOCH = dt.datetime(1970, 1, 1)


def unescape(text: str) -> str:
    """Return the text that a percent-encoded path component stands for.

    Bytes that are no UTF-8 are characters of their own, as Spark reads them.
    """
    if "%" not in text:
        return text
    raw = unquote_to_bytes(text)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return re.sub("%([0-9A-Fa-f]{2})", lambda m: chr(int(m[1], 16)), text)


def partitions_of(names: Sequence[str], source: str, *, typed: bool = True) -> PartitionTable:
    """Return the partition values of the files ``names``, paths below the folder ``source``.

    A column is BIGINT, DOUBLE, DATE or TIMESTAMP if all of its values are written so, else
    text; NULL is ``__HIVE_DEFAULT_PARTITION__``. Raises ``partition-mismatch`` unless all
    files have the same columns.
    """
    folders = [name.rpartition("/")[0] for name in names]
    different, part_of_file = numbered(folders)
    rows = {folder: _components(folder) for folder in different}
    keys = tuple(name for name, _ in rows[different[0]]) if different else ()
    for folder, row in rows.items():
        found = tuple(name for name, _ in row)
        if found != keys:
            shown = [", ".join(ks) or "none" for ks in (keys, found)]
            raise FormatError(
                f"{source}: the partition columns are {shown[0]} in {different[0]!r}, but {shown[1]} in {folder!r}",
                code="partition-mismatch",
                hint="All files have to lie at the same depth of k=v folders; attach a folder below, or "
                "use the option HIVE_PARTITIONING false.",
            )
    if len({key.lower() for key in keys}) < len(keys):
        raise FormatError(f"{source}: a partition column occurs twice in {different[0]!r}", code="partition-mismatch")
    types, columns = [], []
    for at in range(len(keys)):
        type_, values = typed_values([rows[f][at][1] for f in different], typed=typed)
        types.append(type_)
        columns.append(values)
    return PartitionTable(keys, tuple(types), tuple(columns), len(different), part_of_file)


def _components(folder: str) -> list[tuple[str, str | None]]:
    """Return names and values of the ``k=v`` components of a folder; other components mean nothing."""
    found = []
    for part in folder.split("/"):
        name, separator, value = part.partition("=")
        if separator and name:
            found.append((unescape(name), None if value == NULL else unescape(value)))
    return found


def typed_values(texts: Sequence[str | None], *, typed: bool = True) -> tuple[pa.DataType, list[Any]]:
    """Return the type that all texts but None are written in, and their values."""
    given = [t for t in texts if t is not None]
    for type_, parse in _KINDS if typed and given else ():
        try:
            known = {t: parse(t) for t in set(given)}
        except (ValueError, OverflowError):
            continue
        return type_, [None if t is None else known[t] for t in texts]
    return pa.string(), list(texts)


def spark_values(type_: pa.DataType, values: Sequence[Any]) -> tuple[pa.DataType, list[Any]]:
    """Return the type that Spark infers for a partition column, and its values in it.

    ``values`` are those of paths in ``type_``; unlike there, 01 is a number, and a truth value is text.
    """
    found = list(values)
    if pa.types.is_boolean(type_):
        return pa.string(), [None if v is None else str(v) for v in found]
    if pa.types.is_string(type_):
        type_, found = typed_values(found)
        given = [v for v in found if v is not None]
        if pa.types.is_string(type_) and given and all(map(_ANY_INTEGER.fullmatch, given)):
            type_, found = pa.int64(), [None if v is None else int(v) for v in found]
    if not pa.types.is_integer(type_):
        return type_, found
    for bits, narrow in ((32, pa.int32()), (64, pa.int64())):
        if all(v is None or -(2 ** (bits - 1)) <= v < 2 ** (bits - 1) for v in found):
            return narrow, found
    return pa.decimal128(20, 0), [None if v is None else Decimal(v) for v in found]


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text) or not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError(text)
    return value


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text) or abs(value := float(text)) == float("inf"):
        raise ValueError(text)
    return value


def _date(text: str) -> dt.date:
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    return dt.date.fromisoformat(text)


def _time(text: str) -> int:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    moment = dt.datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00:00'}")
    return (moment - _EPOCH) // dt.timedelta(microseconds=1) + int((match[3] or "").ljust(6, "0"))


_KINDS: tuple[tuple[pa.DataType, Callable[[str], Any]], ...] = (
    (pa.int64(), _integer),
    (pa.float64(), _number),
    (pa.date32(), _date),
    (pa.timestamp("us"), _time),
)


# Fields of the union of logical types, and numbers of converted and physical ones.
_TIME, _JSON, _UUID, _VARIANT, _GEOMETRIES = 7, 12, 14, 16, {17, 18}
_CONVERTED_JSON, _CONVERTED_INTERVAL, _INT96 = 19, 21, 3
# Behind the schema: no rows, no row groups, nothing else. What Arrow notes there is for Arrow alone.
_REST = b"\x00\x19\x0c\x00"


class ParquetSchemas:
    """The schema of each file, read again only for files that changed."""

    def __init__(self, store: Store, *, with_ids: bool = False) -> None:
        self._store = store
        self._with_ids = with_ids  # whether fields keep the numbers that files give them
        self._footers = FooterCache()
        self._numbers: dict[tuple[str, Any], int] = {}
        self._schemas: dict[int, pa.Schema] = {}

    def read(self, files: Sequence[ListedFile], *, some: bool = False) -> list[pa.Schema]:
        """Return the schema of each file, the same object for the same one; raises ``corrupt-file``.

        Others are forgotten, unless these are only ``some`` of the files.
        """
        unknown = [f for f in files if (f.name, f.state) not in self._numbers]
        read = map(self._read, unknown) if self._store.is_local else self._store.map(self._read, unknown)
        found = {(f.name, f.state): number for f, number in zip(unknown, read, strict=True)}
        known = self._numbers | found
        self._numbers = known if some else {(f.name, f.state): known[f.name, f.state] for f in files}
        return [self._schemas[known[f.name, f.state]] for f in files]

    def _footer(self, file: ListedFile) -> bytes | None:
        try:
            return read_footer(self._store, file.name, file.size)
        except KeyError:
            raise missing_file(f"{self._store.url}/{file.name}") from None
        except OSError:
            return None

    def _read(self, file: ListedFile) -> int:
        """Return the number of a file's schema, of the one that is there now if it was replaced since."""
        name = f"{self._store.url}/{file.name}"
        while (footer := self._footer(file)) is None:
            now = list_files(self._store, file.name)
            if not now:
                raise missing_file(name)
            if now == [file]:
                raise _corrupt(name, "it has no footer of a Parquet file")
            (file,) = now
        number = self._footers.recognise(footer)
        with self._footers.lock:
            if number not in self._schemas:
                schema = _parse(schema_bytes(footer) or footer, _geometries(footer), name, self._with_ids)
                same = (s for s in self._schemas.values() if s.equals(schema, check_metadata=True))
                self._schemas[number] = next(same, schema)
        return number


def _parse(data: bytes, geometries: frozenset[str], name: str, with_ids: bool) -> pa.Schema:
    last: Exception | None = None
    for footer in (data + _REST, data):
        try:
            schema = arrow_metadata(footer).schema.to_arrow_schema()
            units = iter(list(_units(Reader(footer).struct()[2])))
            types = {f.name: typed(f.name, f.type, units, with_ids) for f in schema}
        except (pa.ArrowException, OSError, StopIteration, *DAMAGE) as e:
            reraise(e, f"Cannot read {name!r}")
            last = e
            continue
        if len(types) < len(schema):
            raise FormatError(f"{name}: a column name occurs twice", code="schema-conflict")
        types |= {c: pa.opaque(t, "GEOMETRY", "Parquet") for c, t in types.items() if c in geometries}
        return pa.schema(
            [pa.field(c, t, metadata=schema.field(c).metadata if with_ids else None) for c, t in types.items()]
        )
    raise _corrupt(name, (str(last).splitlines() or ["its footer is damaged"])[0])


def _units(elements: list[dict[int, Any]]) -> Iterator[dict[int, Any]]:
    """Yield what has a type of its own: the columns of a schema, and the groups that are one VARIANT."""
    at = 1
    while at < len(elements):
        element = elements[at]
        at += 1
        if _VARIANT in element.get(10, ()):
            at = _end(elements, at, element.get(5, 0))
            yield element
        elif not element.get(5):
            yield element


def _end(elements: list[dict[int, Any]], at: int, members: int) -> int:
    while members:
        members += elements[at].get(5, 0) - 1
        at += 1
    return at


def typed(name: str, type_: pa.DataType, units: Iterator[dict[int, Any]], with_ids: bool = False) -> pa.DataType:
    """Return a type as DuckDB reads it, given the one that Arrow reads and the columns of the schema.

    ``with_ids`` members keep what is noted of them, such as the number that the file gives them.
    """
    t = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return typed(name, type_.storage_type, units, with_ids)
    if t.is_struct(type_):
        if {f.name for f in type_} >= {"metadata", "value"}:
            ahead = next(units)
            if ahead[4].decode() == name and _VARIANT in ahead.get(10, ()):
                return pa.opaque(pa.binary(), "VARIANT", "Parquet")
            units = chain([ahead], units)
        inner = [(f, typed(f.name, f.type, units, with_ids)) for f in type_]
        return pa.struct([pa.field(f.name, found, metadata=f.metadata if with_ids else None) for f, found in inner])
    if t.is_map(type_):
        return pa.map_(
            *(typed(n, v, units, with_ids) for n, v in (("key", type_.key_type), ("value", type_.item_type)))
        )
    if t.is_nested(type_):
        return pa.list_(pa.field("item", typed(type_.value_field.name, type_.value_type, units, with_ids)))
    element = next(units)
    logical = element.get(10) or {}
    if element.get(1) == _INT96:
        return pa.timestamp("us")  # as by DuckDB, whatever the year
    if _UUID in logical:
        return pa.uuid()
    if _JSON in logical or element.get(6) == _CONVERTED_JSON:
        return pa.json_()
    if element.get(6) == _CONVERTED_INTERVAL:
        return pa.month_day_nano_interval()
    if logical.get(_TIME, {}).get(1):
        return pa.opaque(pa.time64("us"), "TIME WITH TIME ZONE", "Parquet")
    if t.is_timestamp(type_) and type_.unit == "ns" and type_.tz is not None:
        return pa.opaque(pa.int64(), "TIMESTAMPTZ_NS", "Parquet")
    if t.is_timestamp(type_) and type_.unit != "ns":
        return pa.timestamp("us", type_.tz)
    return pa.opaque(pa.binary(), "GEOMETRY", "Parquet") if logical.keys() & _GEOMETRIES else plain(type_)


def _geometries(footer: bytes) -> frozenset[str]:
    try:
        return frozenset(json.loads(notes_of(footer, GEO)[-1])["columns"]) if GEO in footer else frozenset()
    except (*DAMAGE, RecursionError):
        return frozenset()


def _corrupt(name: str, reason: str) -> FormatError:
    hint = "All files of an attached folder have to be of its type, but for names that begin with . or _."
    return FormatError(f"{name}: {reason}", code="corrupt-file", hint=hint)
