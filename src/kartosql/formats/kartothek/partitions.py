"""Partition values: read from file paths, typed by the schema of the table."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from kartosql.errors import FormatError, shorten
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.metadata import many_objects
from kartosql.formats.partition_table import PartitionTable, numbered

_INT = re.compile(rb"[+-]?[0-9]+")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:?\d\d)?")
_TRUTH = {"True": True, "False": False, "true": True, "false": False, "1": True, "0": False}


def partition_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which values of a partition key of schema type ``type_`` are exposed."""
    return pa.string() if pa.types.is_null(type_) else type_


def parse_partitions(
    file_keys: Sequence[str], uuid: str, table: str, partition_keys: tuple[str, ...], types: Sequence[pa.DataType]
) -> PartitionTable:
    """Read the partition values of ``file_keys`` from their paths.

    Raises ``invalid-partition-value`` for a file whose path lacks a key or holds a value that
    is not of the key's type.
    """
    exposed = tuple(partition_type(t) for t in types)
    if not partition_keys:
        return PartitionTable((), (), (), min(1, len(file_keys)), (0,) * len(file_keys))
    with many_objects():
        head = len(uuid) + len(table) + 2
        folders = [key[head : key.rfind("/")] for key in file_keys]
        different, part_of_file = numbered(folders)
        columns = _plain_columns(different, partition_keys, exposed)
        if columns is None:
            columns = _columns(
                different, dict(zip(reversed(folders), reversed(file_keys), strict=True)), partition_keys, exposed
            )
    return PartitionTable(partition_keys, exposed, tuple(columns), len(different), part_of_file)


def _plain_columns(
    folders: list[str], partition_keys: tuple[str, ...], types: tuple[pa.DataType, ...]
) -> list[Sequence[Any]] | None:
    """Return the values per partition key if all folders are plainly ``k1=v1/k2=v2``, else None.

    This is the short way for datasets with many partitions; whatever it does not take, such
    as percent-encoded names, is read folder by folder.
    """
    each = len(partition_keys)
    if {folder.count("/") for folder in folders} != {each - 1}:
        return None
    joined = "/".join(folders)
    # With each key at its place, as many equal signs as keys: no value holds one.
    if joined.count("=") != each * len(folders):
        return None
    components = joined.split("/")
    columns = []
    for at, (key, type_) in enumerate(zip(partition_keys, types, strict=True)):
        prefix = f"{key}="
        texts = components[at::each]
        if not all(map(str.startswith, texts, repeat(prefix))):
            return None
        column = _plain_values([text[len(prefix) :] for text in texts], type_)
        if column is None:
            return None
        columns.append(column)
    return columns


def _plain_values(texts: list[str], type_: pa.DataType) -> Sequence[Any] | None:
    joined = "".join(texts)
    if "%" not in joined:
        if pa.types.is_string(type_):
            return texts
        shortest, longest = min(map(len, texts), default=0), max(map(len, texts), default=0)
        if pa.types.is_integer(type_) and 0 < shortest <= longest <= 18 and joined.isascii() and joined.isdigit():
            return list(map(int, texts))
    parse = value_parser(type_)
    try:
        known = {text: parse(naming.unquote(text) if "%" in text else text.encode()) for text in set(texts)}
    except (ValueError, OverflowError, KeyError):
        return None
    return [known[text] for text in texts]


def _columns(
    folders: list[str], first: Mapping[str, str], partition_keys: tuple[str, ...], types: tuple[pa.DataType, ...]
) -> list[Sequence[Any]]:
    """Return the values per partition key, read folder by folder; ``first`` is a file of each, for errors."""
    parsers = [value_parser(t) for t in types]
    rows = [_parse_folder(folder, first[folder], partition_keys, parsers, types) for folder in folders]
    return list(zip(*rows, strict=True)) if rows else [()] * len(partition_keys)


def _parse_folder(
    folder: str,
    key: str,
    partition_keys: tuple[str, ...],
    parsers: Sequence[Callable[[bytes], Any]],
    types: Sequence[pa.DataType],
) -> tuple[Any, ...]:
    raw = naming.split_folder(folder, partition_keys)
    row = []
    for name, parse, type_ in zip(partition_keys, parsers, types, strict=True):
        if name not in raw:
            raise FormatError(
                f"{shorten(key)}: the path has no value for the partition key {name!r}", code="invalid-partition-value"
            )
        try:
            row.append(parse(raw[name]))
        except (ValueError, OverflowError, KeyError):
            shown = raw[name][:60].decode("utf-8", "backslashreplace")
            raise FormatError(
                f"{shorten(key)}: the value {shown!r} of the partition key {name!r} is no {type_}",
                code="invalid-partition-value",
                hint="Partition values are read from the path and typed by _common_metadata.",
            ) from None
    return tuple(row)


def value_parser(type_: pa.DataType) -> Callable[[bytes], Any]:
    """Return the function that turns the decoded bytes of a path component into a value."""
    t = pa.types
    if t.is_string(type_):
        return lambda raw: raw.decode("utf-8")
    if t.is_binary(type_):
        return lambda raw: raw
    if t.is_integer(type_):
        low, high = (0, 2**64 - 1) if t.is_unsigned_integer(type_) else (-(2**63), 2**63 - 1)
        return lambda raw: _parse_int(raw, low, high)
    if t.is_floating(type_):
        return _parse_float
    if t.is_boolean(type_):
        return lambda raw: _TRUTH[raw.decode("ascii")]
    if t.is_date32(type_):
        return _parse_date
    if t.is_timestamp(type_):
        return lambda raw: _parse_timestamp(raw, type_.unit, type_.tz is not None)
    return _unsupported


def _parse_int(raw: bytes, low: int, high: int) -> int:
    if len(raw) > 40 or not (raw.isdigit() or _INT.fullmatch(raw)) or not low <= (value := int(raw)) <= high:
        raise ValueError(raw)
    return value


def _parse_float(raw: bytes) -> float:
    text = raw.decode("ascii")
    if "_" in text or text != text.strip():
        raise ValueError(text)
    return float(text)


def _parse_date(raw: bytes) -> dt.date:
    match = _TIMESTAMP.fullmatch(raw.decode("ascii"))
    if not match or match[2] not in (None, "00:00", "00:00:00") or match[4]:
        raise ValueError(raw)
    return dt.date.fromisoformat(match[1])


def _parse_timestamp(raw: bytes, unit: str, has_zone: bool) -> int:
    match = _TIMESTAMP.fullmatch(raw.decode("ascii"))
    if not match or (match[4] and not has_zone):
        raise ValueError(raw)
    zone = match[4] or "+00:00"
    moment = dt.datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00:00'}{'+00:00' if zone == 'Z' else zone}")
    delta = moment - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    nanoseconds = (delta.days * 86400 + delta.seconds) * 10**9 + int((match[3] or "0").ljust(9, "0"))
    value = nanoseconds if unit == "ns" else nanoseconds // 1000
    if not -(2**63) <= value < 2**63:
        raise OverflowError(raw)
    return value


def _unsupported(raw: bytes) -> Any:
    raise ValueError(raw)
