"""Partition columns in the paths of a folder: ``k=v`` components, typed by their values."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.formats.partition_table import PartitionTable, numbered

NULL = "__HIVE_DEFAULT_PARTITION__"
# Without leading zeros: 01 is a text, as nobody writes a number so.
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,18})")
_ANY_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?")
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
    match = _TIME.fullmatch(text)
    if match is None:
        return _microseconds(dt.datetime.combine(_date(text), dt.time()), "")
    return _microseconds(dt.datetime.fromisoformat(f"{match[1]}T{match[2]}"), match[3] or "")


def _microseconds(moment: dt.datetime, fraction: str) -> int:
    return (moment - _EPOCH) // dt.timedelta(microseconds=1) + int(fraction.ljust(6, "0") or 0)


_KINDS: tuple[tuple[pa.DataType, Callable[[str], Any]], ...] = (
    (pa.int64(), _integer),
    (pa.float64(), _number),
    (pa.date32(), _date),
    (pa.timestamp("us"), _time),
)
