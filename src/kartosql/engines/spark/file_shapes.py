"""What Parquet files hold, from their footers, and how Spark reads each column of them right."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from kartosql.engines.base import corrupt_file
from kartosql.engines.spark.types import quote, spark_type, stored_type, text_literal
from kartosql.errors import reraise
from kartosql.parquet import END, TAIL, FooterCache, arrow_metadata, read_footer
from kartosql.store import Files

SPARE = 1_024  # by so much footers of one table may differ before one is read twice


@dataclass(frozen=True)
class FileColumnType:
    """The type of a top-level column of a file: physical and logical where it is flat, and what Arrow makes of it."""

    physical: str | None
    logical: str  # as JSON
    arrow: pa.DataType


Shape = Mapping[str, FileColumnType]


@dataclass(frozen=True)
class Reading:
    """How Spark reads a column of files right: as ``type``, then with ``value``, an expression over it as ``{}``."""

    type: str
    value: str = "{}"

    def of(self, name: str) -> str:
        """Return the expression for the column ``name``."""
        return self.value.replace("{}", quote(name))


class FileShapes:
    """Remembers the schemas of files."""

    def __init__(self) -> None:
        self._cache = FooterCache()
        self._shapes: dict[int, Shape] = {}
        self._tail = TAIL

    def of(self, store: Files, table: object, files: Sequence[tuple[str, int]]) -> list[int]:
        """Return the number of the shape of each file of a table, given key and size; raises ``corrupt-file``."""
        with self._cache.lock:
            schemas = self._cache.facts(table).schemas
            missing = [f for f in dict.fromkeys(files) if f not in schemas]
            self._cache.make_room(len(missing))
            missing = [f for f in dict.fromkeys(files) if f not in schemas]
            read = partial(self._footer, store)
            # Local ones one by one, so that one is held at a time.
            footers: Iterable[bytes] = map(read, missing) if store.is_local else store.map(read, missing)
            for file, footer in zip(missing, footers, strict=True):
                schemas[file] = self._number(file[0], footer)
            return [schemas[f] for f in files]

    def shape(self, number: int) -> Shape:
        """Return the columns of files of a shape."""
        return self._shapes[number]

    def _number(self, key: str, footer: bytes) -> int:
        number = self._cache.recognise(footer)
        if number not in self._shapes:
            shape = _shape(key, footer)
            self._shapes[number] = next((known for known in self._shapes.values() if known == shape), shape)
        return number

    def _footer(self, store: Files, file: tuple[str, int]) -> bytes:
        key, size = file
        try:
            found = read_footer(store, key, size, self._tail)
        except OSError:
            raise corrupt_file(f"{key}: it cannot be read") from None
        if found is None:
            raise corrupt_file(f"{key}: it is torn or no Parquet file")
        self._tail = len(found) + END + SPARE
        return found


def _shape(key: str, footer: bytes) -> dict[str, FileColumnType]:
    try:
        schema = arrow_metadata(footer).schema
        arrow = schema.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError) as e:
        reraise(e, f"Cannot read {key!r}")
        raise corrupt_file(f"{key}: {str(e).splitlines()[0]}") from None
    found: dict[str, FileColumnType] = {}
    for field in arrow:
        if field.name in found:
            raise corrupt_file(f"{key}: the column {field.name!r} is there twice")
        found[field.name] = FileColumnType(None, "", field.type)
    for at in range(len(schema)):
        leaf = schema.column(at)
        if leaf.path in found and leaf.max_repetition_level == 0 and not pa.types.is_nested(found[leaf.path].arrow):
            found[leaf.path] = FileColumnType(leaf.physical_type, leaf.logical_type.to_json(), found[leaf.path].arrow)
    return found


# -- reading -------------------------------------------------------------------------------------


def is_void(column: FileColumnType) -> bool:
    """Return whether a column holds only NULL, written without a type."""
    return pa.types.is_null(column.arrow) or column.logical == '{"Type":"Null"}'


def reading(column: FileColumnType, declared: pa.DataType) -> Reading | None:
    """Return how Spark reads a column as ``declared``; None if it cannot, but Arrow can.

    Raises ValueError where values of the column are no values of the type.
    """
    if column.physical is None:
        return Reading(spark_type(declared), _members("{}", declared)) if _same_nested(column.arrow, declared) else None
    logical: dict[str, Any] = json.loads(column.logical)
    kind = logical["Type"]
    t = pa.types
    if t.is_integer(declared):
        return _integer(column, kind, logical, declared)
    if t.is_timestamp(declared):
        return _timestamp(column, kind, logical, declared)
    if t.is_decimal(declared):
        return _decimal(kind, logical, declared)
    for test, physical, kinds, type_ in _PLAIN:
        if test(declared):
            if column.physical in physical and kind in kinds:
                return Reading(type_, _unfiltered(type_) if t.is_floating(declared) else "{}")
            if t.is_floating(declared) and kind == "Float16":
                return None
            if t.is_floating(declared) and (column.physical, kind) == ("FLOAT", "None"):
                return Reading("FLOAT", f"CAST({_unfiltered('FLOAT')} AS {spark_type(declared)})")
            raise ValueError
    return None


def _unfiltered(type_: str) -> str:
    """Return a float as it is, in a form of which Spark makes no filter over statistics of files.

    These leave NaN out, and tell the two zeros apart.
    """
    return f"nanvl({{}}, CAST('NaN' AS {type_}))"


def _members(value: str, type_: pa.DataType) -> str:
    """Return a value as it is, in a form of which Spark makes no filter over floats inside of structs."""
    if pa.types.is_floating(type_):
        return _unfiltered(spark_type(type_)).replace("{}", value)
    if not pa.types.is_struct(type_):
        return value
    members = [(quote(f.name), f.name, _members(f"{value}.{quote(f.name)}", f.type)) for f in type_]
    if all(found == f"{value}.{quoted}" for quoted, _, found in members):
        return value
    listed = ", ".join(f"{text_literal(name)}, {found}" for _, name, found in members)
    return f"IF({value} IS NULL, NULL, named_struct({listed}))"


def _integer(column: FileColumnType, kind: str, logical: Mapping[str, Any], declared: pa.DataType) -> Reading | None:
    bits = {"INT32": 32, "INT64": 64}.get(column.physical or "")
    if bits is None or kind not in ("None", "Int"):
        raise ValueError
    signed, width = True, bits
    if kind == "Int":
        signed, width = logical["isSigned"], logical["bitWidth"]
    if signed != pa.types.is_signed_integer(declared):
        raise ValueError
    type_ = (_SIGNED if signed else _UNSIGNED)[width]
    wanted = spark_type(declared)
    if type_ == wanted:
        return Reading(type_)
    if signed and width < declared.bit_width:
        return Reading(wanted)  # Spark widens by itself, and keeps filters
    return Reading(type_, f"CAST({{}} AS {wanted})") if width < declared.bit_width else None


def _timestamp(column: FileColumnType, kind: str, logical: Mapping[str, Any], declared: pa.DataType) -> Reading | None:
    if column.physical == "INT96":
        return None
    if column.physical != "INT64" or kind != "Timestamp":
        raise ValueError
    # Without a logical type the flag is a guess, and such files hold what their schema says.
    told = not logical.get("is_from_converted_type")
    in_utc = bool(logical["isAdjustedToUTC"])
    has_zone = declared.tz is not None
    if told and in_utc != has_zone:
        raise ValueError
    wanted = spark_type(declared)
    if logical["timeUnit"] == "nanoseconds":
        exact = "IF({} % 1000 = 0, {}, CAST(raise_error('kartosql:nanoseconds') AS BIGINT))"
        zoned = f"timestamp_micros(({exact}) DIV 1000)"
        return Reading("BIGINT", zoned if has_zone else f"CAST({zoned} AS TIMESTAMP_NTZ)")
    type_ = "TIMESTAMP_LTZ" if in_utc else "TIMESTAMP_NTZ"
    return Reading(type_, "{}" if type_ == wanted else f"CAST({{}} AS {wanted})")


def _decimal(kind: str, logical: Mapping[str, Any], declared: pa.DataType) -> Reading:
    if kind != "Decimal":
        raise ValueError
    precision, scale = logical["precision"], logical["scale"]
    if scale > declared.scale or precision - scale > declared.precision - declared.scale:
        raise ValueError
    if (precision, scale) == (declared.precision, declared.scale):
        return Reading(spark_type(declared))
    return Reading(f"DECIMAL({precision},{scale})", f"CAST({{}} AS {spark_type(declared)})")


def _same_nested(found: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether Spark reads a nested type as it is: nothing in it needs another reading."""
    t = pa.types
    if t.is_struct(found) and t.is_struct(declared):
        names = [f.name for f in found]
        return names == [f.name for f in declared] and all(
            _same_nested(a.type, b.type) for a, b in zip(found, declared, strict=True)
        )
    if t.is_map(found) and t.is_map(declared):
        return _same_nested(found.key_type, declared.key_type) and _same_nested(found.item_type, declared.item_type)
    if t.is_list(found) and t.is_list(declared):
        return _same_nested(found.value_type, declared.value_type)
    if t.is_nested(found) or t.is_nested(declared):
        return False
    safe = (t.is_boolean, t.is_signed_integer, t.is_float32, t.is_float64, t.is_string, t.is_binary, t.is_date32)
    return found.equals(declared) and any(test(found) for test in safe) and stored_type(found).equals(declared)


_SIGNED = {8: "TINYINT", 16: "SMALLINT", 32: "INT", 64: "BIGINT"}
_UNSIGNED = {8: "SMALLINT", 16: "INT", 32: "BIGINT", 64: "DECIMAL(20,0)"}
_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_PLAIN = (
    (pa.types.is_boolean, ("BOOLEAN",), ("None",), "BOOLEAN"),
    (pa.types.is_float32, ("FLOAT",), ("None",), "FLOAT"),
    (pa.types.is_float64, ("DOUBLE",), ("None",), "DOUBLE"),
    (pa.types.is_string, ("BYTE_ARRAY",), ("String", "Enum", "JSON"), "STRING"),
    (pa.types.is_large_string, ("BYTE_ARRAY",), ("String", "Enum", "JSON"), "STRING"),
    (pa.types.is_binary, _BYTES, ("None",), "BINARY"),
    (pa.types.is_date, ("INT32",), ("Date",), "DATE"),
)
