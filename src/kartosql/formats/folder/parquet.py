"""Schemas of the Parquet files of a folder, each different one parsed once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from kartosql.errors import FormatError, missing_file, reraise
from kartosql.formats.type_promotion import plain
from kartosql.parquet.footer import GEO, notes_of, schema_bytes
from kartosql.parquet.metadata import arrow_metadata
from kartosql.parquet.reader import FooterCache, read_footer
from kartosql.parquet.thrift import DAMAGE, Reader
from kartosql.store import Store
from kartosql.store.listing import ListedFile, list_files

# Fields of the union of logical types, and numbers of converted and physical ones.
_TIME, _JSON, _UUID, _VARIANT, _GEOMETRIES = 7, 12, 14, 16, {17, 18}
_CONVERTED_JSON, _CONVERTED_INTERVAL, _INT96 = 19, 21, 3
# Behind the schema: no rows, no row groups, nothing else. What Arrow notes there is for Arrow alone.
_REST = b"\x00\x19\x0c\x00"


class ParquetSchemas:
    """The schema of each file, read again only for files that changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._footers = FooterCache()
        self._schemas: dict[int, pa.Schema] = {}

    def read(self, files: Sequence[ListedFile]) -> list[pa.Schema]:
        """Return the schema of each file, the same object for the same one; raises ``corrupt-file``."""
        facts = self._footers.facts(self)
        unknown = [f for f in files if (f.name, f.state) not in facts.schemas]
        read = map(self._read, unknown) if self._store.is_local else self._store.map(self._read, unknown)
        found = {(f.name, f.state): number for f, number in zip(unknown, read, strict=True)}
        known = facts.schemas | found
        facts.schemas = {(f.name, f.state): known[f.name, f.state] for f in files}
        return [self._schemas[number] for number in facts.schemas.values()]

    def _footer(self, file: ListedFile) -> bytes | None:
        try:
            return read_footer(self._store, file.name, file.size)
        except KeyError:
            raise missing_file(f"{self._store.url}/{file.name}") from None
        except OSError:
            return None

    def _read(self, file: ListedFile) -> int:
        """Return the number of a file's schema, of the one that stands there now if it was replaced since."""
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
                schema = _parse(schema_bytes(footer) or footer, _geometries(footer), name)
                self._schemas[number] = next((s for s in self._schemas.values() if s.equals(schema)), schema)
        return number


def _parse(data: bytes, geometries: frozenset[str], name: str) -> pa.Schema:
    """Return the schema that the beginning of a footer describes."""
    last: Exception | None = None
    for footer in (data + _REST, data):
        try:
            schema = arrow_metadata(footer).schema.to_arrow_schema()
            units = iter(list(_units(Reader(footer).struct()[2])))
            types = {f.name: typed(f.name, f.type, units) for f in schema}
        except (pa.ArrowException, OSError, StopIteration, *DAMAGE) as e:
            reraise(e, f"Cannot read {name!r}")
            last = e
            continue
        if len(types) < len(schema):
            raise FormatError(f"{name}: a column name occurs twice", code="schema-conflict")
        types |= {c: pa.opaque(t, "GEOMETRY", "Parquet") for c, t in types.items() if c in geometries}
        return pa.schema(list(types.items()))
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
    """Return where the members of a group end."""
    while members:
        members += elements[at].get(5, 0) - 1
        at += 1
    return at


def typed(name: str, type_: pa.DataType, units: Iterator[dict[int, Any]]) -> pa.DataType:
    """Return a type as DuckDB reads it, given the one that Arrow reads and the columns of the schema."""
    t = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return typed(name, type_.storage_type, units)
    if t.is_struct(type_):
        if {f.name for f in type_} >= {"metadata", "value"}:
            ahead = next(units)
            if ahead[4].decode() == name and _VARIANT in ahead.get(10, ()):
                return pa.opaque(pa.binary(), "VARIANT", "Parquet")
            units = chain([ahead], units)
        return pa.struct([pa.field(f.name, typed(f.name, f.type, units)) for f in type_])
    if t.is_map(type_):
        return pa.map_(typed("key", type_.key_type, units), typed("value", type_.item_type, units))
    if t.is_nested(type_):
        return pa.list_(pa.field("item", typed(type_.value_field.name, type_.value_type, units)))
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
    """Return the columns that GeoParquet's note in a footer names."""
    try:
        return frozenset(json.loads(notes_of(footer, GEO)[-1])["columns"]) if GEO in footer else frozenset()
    except (*DAMAGE, RecursionError):
        return frozenset()


def _corrupt(name: str, reason: str) -> FormatError:
    return FormatError(
        f"{name}: {reason}",
        code="corrupt-file",
        hint="All files of an attached folder have to be of its type, but for names that begin with . or _.",
    )
