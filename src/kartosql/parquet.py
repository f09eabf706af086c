"""Footers of Parquet files: read with one request, two for a long one, and their contents, which are remembered.

Footers are read here, byte by byte. Arrow may be asked about columns of row groups only where ``column_sizes`` returns
their sizes: it ends the process over columns that are encrypted, or say that they are.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from mmap import mmap
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import FormatError, missing_file, reraise
from kartosql.store import Files

if TYPE_CHECKING:
    import pyarrow.parquet as pq


MAX_DEPTH = 16
_ALL = 1 << 16  # beyond the last field
_PLACES = 11  # the last field of a column's metadata that tells where pages are
_STOP, _TRUE, _FALSE, _BYTE, _EIGHT_BYTES, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
# What wrong types of values in damaged data lead to.
DAMAGE = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, struct.error)


class Reader:
    """Thrift's compact protocol as dictionaries of fields; raises IndexError for damaged bytes."""

    def __init__(self, data: bytes | mmap) -> None:
        self.data = data
        self.at = 0

    def number(self) -> int:
        """Return the next number without a sign."""
        data, at = self.data, self.at
        byte = data[at]
        at += 1
        if byte < 0x80:
            self.at = at
            return byte
        found, shift = byte & 0x7F, 7
        while byte & 0x80:
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if shift > 70:
                raise IndexError
        self.at = at
        return found

    def signed(self) -> int:
        """Return the next number with a sign."""
        found = self.number()
        return (found >> 1) ^ -(found & 1)

    def struct(self, depth: int = 0, field: int = 0, last: int = _ALL) -> dict[int, Any]:
        """Return the fields of the next struct by their numbers, those after ``field`` and up to ``last``."""
        if depth > MAX_DEPTH:
            raise IndexError
        found: dict[int, Any] = {}
        while True:
            head = self.data[self.at]
            self.at += 1
            kind = head & 15
            if kind == _STOP:
                return found
            field = field + (head >> 4) if head >> 4 else self.signed()
            if field > last:
                return found
            found[field] = self.value(kind, depth)

    def field(self, before: int) -> tuple[int, int]:
        """Return the number and the kind of the next field of a struct; raises IndexError behind the last one."""
        head = self.data[self.at]
        self.at += 1
        if head & 15 == _STOP:
            raise IndexError
        return (before + (head >> 4) if head >> 4 else self.signed()), head & 15

    def value(self, kind: int, depth: int = 0) -> Any:
        """Return the next value of a kind; floating-point numbers as None."""
        if 4 <= kind <= 6:
            return self.signed()
        if kind == _BINARY:
            length = self.number()
            start, self.at = self.at, self.at + length
            if self.at > len(self.data):
                raise IndexError
            return self.data[start : self.at]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in (_LIST, _SET):
            if depth > MAX_DEPTH:
                raise IndexError
            head = self.data[self.at]
            self.at += 1
            count = head >> 4 if head >> 4 != 15 else self.number()
            if count > len(self.data) - self.at:
                raise IndexError
            kind = head & 15
            if kind in (_TRUE, _FALSE):
                kind = _BYTE
            return [self.value(kind, depth + 1) for _ in range(count)]
        if kind == _BYTE:
            self.at += 1
            return self.data[self.at - 1]
        if kind == _EIGHT_BYTES:
            self.at += 8
            return None
        raise IndexError


MAGIC = b"PAR1"
GEO = b"geo"  # the key of GeoParquet's note
END = len(MAGIC) + 4  # behind the footer: its length, and the magic bytes
_SCHEMA, _ROWS = 2, 3  # fields of FileMetaData
INDEXES = 0  # stands for the fields of a column behind its metadata
ROWS_FOLLOW, GROUPS_FOLLOW = 0x16, 0x19  # the next field is a number of 64 bits, or a list
_BOUNDS = (1, 2, 5, 6)  # fields of Statistics
_SHORT_TEXT = 32  # bytes; writers that cut texts in statistics keep at least so many
_BOOLEAN, _INT32, _INT64, _FLOAT, _DOUBLE, _BYTE_ARRAY, _FIXED = 0, 1, 2, 4, 5, 6, 7  # physical types
# The largest finite numbers: Arrow up to version 24 says one of them of rows that are infinite or NaN, beside infinity.
_LARGEST = {_FLOAT: frozenset([(2 - 2.0**-23) * 2.0**127]), _DOUBLE: frozenset([sys.float_info.max])}
_PHYSICAL = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_LENGTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, _BYTE_ARRAY: None}  # of values, by physical type
_UTF8, _DATE, _DECIMAL, _TIME_MILLIS, _TIME_MICROS, _MILLIS, _MICROS = 0, 6, 5, 7, 8, 9, 10  # converted types
_UNSIGNED, _SIGNED = (11, 12, 13, 14), (15, 16, 17, 18)
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def footer_of(tail: bytes) -> bytes | None:
    """Return the footer, given the last bytes of a file; None if they do not hold it, or it is encrypted."""
    length = _length_of(tail)
    return tail[-length:-END] if length is not None and length <= len(tail) else None


def _length_of(tail: bytes) -> int | None:
    """Return how many bytes the footer of a file and its end take, given at least that end; None if it has none."""
    if len(tail) < END or not tail.endswith(MAGIC):
        return None
    return int.from_bytes(tail[-END : -len(MAGIC)], "little") + END


def schema_bytes(footer: bytes) -> bytes | None:
    """Return the first bytes of a footer, up to where the number of rows begins; None for unusual footers.

    These are the version and the schema, in Thrift's compact protocol, which is read from
    the left: every footer that begins with the same bytes has the same schema.
    """
    reader, field = Reader(footer), 0
    try:
        while field < _SCHEMA:
            field, kind = reader.field(field)
            reader.value(kind)
        following, _ = reader.field(field)
    except IndexError:
        return None
    return footer[: reader.at] if (field, following) == (_SCHEMA, _ROWS) else None


def notes_of(footer: bytes, key: bytes) -> list[bytes]:
    """Return what a footer notes behind the schema under a key; raises what is in ``DAMAGE``."""
    return [pair.get(2, b"") for pair in Reader(footer).struct().get(5, ()) if pair[1] == key]


@dataclass(frozen=True)
class Leaf:
    """A column: its types, the length of its values if that is fixed, its greatest levels and its scale."""

    physical: int
    length: int | None
    definition: int
    repetition: int
    converted: int | None
    logical: dict[int, Any]
    scale: int


@dataclass(frozen=True)
class GroupBounds:
    """What a row group says of a column: bounds, whether these are values of it, and its NULLs (-1: not known).

    Both bounds are None if it holds nothing but NULL.
    """

    low: Any
    high: Any
    exact: bool
    nulls: int
    rows: int


def _is_long(*texts: str) -> bool:
    return any(len(text.encode()) >= _SHORT_TEXT for text in texts)


def group_bounds(meta: dict[int, Any], leaf: Leaf, decode: Callable[[bytes], Any]) -> GroupBounds | None:
    """Return the bounds in the metadata of a column in a row group, or None; raises what is in ``DAMAGE``."""
    stats, rows = meta.get(12, {}), meta[5]
    nulls = 0 if leaf.definition == 0 else stats.get(3, -1)
    if not -1 <= nulls <= rows:
        return None
    if nulls == rows:
        return GroupBounds(None, None, True, nulls, rows)
    older = has_older_bounds(leaf)
    low = stats.get(6, stats.get(2) if older else None)
    high = stats.get(5, stats.get(1) if older else None)
    if low is None or high is None:
        return None
    least, greatest = decode(low), decode(high)
    if least > greatest:
        return None
    said = stats.get(7), stats.get(8)
    may_be_cut = isinstance(least, str) and _is_long(least, greatest)
    exact = said == (True, True) or not (False in said or may_be_cut)
    if leaf.physical in _LARGEST and not _LARGEST[leaf.physical].isdisjoint((abs(least), abs(greatest))):
        exact = False
    return GroupBounds(least, greatest, exact, nulls, rows)


def has_older_bounds(leaf: Leaf) -> bool:
    """Return whether the older fields for bounds count, whose order is certain of signed numbers alone."""
    return leaf.physical in (_INT32, _INT64) and not _is_unsigned(leaf)


def column_sizes(footer: bytes, schema: Any = None) -> list[list[tuple[str, int]]] | None:
    """Return the dotted path and the compressed bytes of each column in each row group.

    None if the metadata of a column are encrypted, left out or damaged. Arrow must not be asked about
    such columns, as it ends the process; who wants to ask it hands over its ``schema`` of the file,
    which has to agree.
    """
    try:
        found = Reader(footer).struct()
        groups = [group[1] for group in found[4]]
        known = [_leaf(element, *levels) for _, element, *levels in _leaves_of(found[2])]
        leaves = [(leaf.physical, leaf.length, leaf.definition, leaf.repetition) for leaf in known]
        if schema is not None and leaves != [_physical_layout(schema.column(at)) for at in range(len(schema))]:
            return None
        if any(len(chunks) != len(leaves) for chunks in groups):
            return None
        return [[_column(*pair) for pair in zip(chunks, known, strict=True)] for chunks in groups]
    except DAMAGE:
        return None


def _leaves_of(elements: list[dict[int, Any]]) -> Iterator[tuple[str, dict[int, Any], int, int]]:
    """Yield the columns of a schema in order: dotted path, element, and the levels of definition and repetition.

    Raises what is in ``DAMAGE`` for what is no schema.
    """
    at = 1
    # Path, members left and levels of the groups around.
    around: list[list[Any]] = [["", elements[0].get(5, 0), 0, 0]]
    while around:
        if not around[-1][1]:
            around.pop()
            continue
        around[-1][1] -= 1
        before, _, definition, repetition = around[-1]
        element = elements[at]
        at += 1
        name = element[4].decode()
        path = f"{before}.{name}" if before else name
        definition += element.get(3) in (1, 2)
        repetition += element.get(3) == 2
        if element.get(5):
            around.append([path, element[5], definition, repetition])
        else:
            yield path, element, definition, repetition


def _leaf(element: dict[int, Any], definition: int, repetition: int) -> Leaf:
    physical, logical = element[1], element.get(10, {})
    length = element.get(2, 0) if physical == _FIXED else _LENGTHS[physical]
    scale = logical.get(5, {}).get(1, element.get(7, 0)) if 5 in logical else element.get(7, 0)
    return Leaf(physical, length, definition, repetition, element.get(6), logical, scale)


def _physical_layout(column: Any) -> tuple[int, int | None, int, int]:
    physical = _PHYSICAL.index(column.physical_type)
    length = column.length if physical == _FIXED else _LENGTHS[physical]
    return physical, length, column.max_definition_level, column.max_repetition_level


def _column(chunk: dict[int, Any], leaf: Leaf) -> tuple[str, int]:
    """Return the path and the size of a column in a row group; raises ValueError where Arrow would, for good."""
    if 8 in chunk or 9 in chunk:
        raise ValueError("encrypted")
    meta = chunk[3]
    size, sizes = meta[7], meta.get(16, {})
    if meta[1] != leaf.physical or not isinstance(size, int) or size < 0:
        raise ValueError("damaged")
    for at, level in ((2, leaf.repetition), (3, leaf.definition)):
        if len(sizes.get(at, ())) not in (0, level + 1):
            raise ValueError("damaged")
    if 1 in sizes and leaf.physical != _BYTE_ARRAY:
        raise ValueError("damaged")
    if leaf.length is not None and any(
        len(meta.get(12, {}).get(f, b" " * leaf.length)) != leaf.length for f in _BOUNDS
    ):
        raise ValueError("damaged")
    return ".".join(name.decode() for name in meta[3]), size


def _is_unsigned(leaf: Leaf) -> bool:
    return leaf.converted in _UNSIGNED or (10 in leaf.logical and leaf.logical[10].get(2) is False)


_TOLD = (
    *(pa.types.is_signed_integer, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_string),
    *(pa.types.is_boolean, pa.types.is_decimal128),
)


def decoder(leaf: Leaf, type_: pa.DataType, *, clock: bool | None = True) -> Callable[[bytes], Any] | None:
    """Return what reads a bound of a column as a value of a type, None for other columns and types.

    Dates, times and decimals are the integers that Arrow stores for them. The bounds of what engines read as another
    value, such as infinity, raise ValueError. With ``clock`` a time has to be of a clock or an instant, as the type is.
    """
    types, logical, converted = pa.types, leaf.logical, leaf.converted
    plain = {_INT32: "<i", _INT64: "<q"}.get(leaf.physical, "")
    if leaf.repetition:
        return None
    if types.is_integer(type_):
        unsigned, kinds = types.is_unsigned_integer(type_), (_UNSIGNED if _is_unsigned(leaf) else _SIGNED)
        numeric = (not logical or 10 in logical) and (converted is None or converted in kinds)
        if plain and numeric and unsigned == _is_unsigned(leaf):
            least = 0 if unsigned else -(1 << (type_.bit_width - 1))
            return _number(plain.upper() if unsigned else plain, least, least + (1 << type_.bit_width) - 1)
    elif types.is_date32(type_):
        if leaf.physical == _INT32 and (6 in logical or converted == _DATE):
            return _number("<i", 2 - (1 << 31), (1 << 31) - 2)
    elif types.is_timestamp(type_):
        if leaf.physical == _INT64 and (clock is None or bool(logical.get(8, {}).get(1)) == (type_.tz is not None)):
            return _moment(leaf, 8, type_)
    elif types.is_time(type_):
        return _moment(leaf, 7, type_) if plain and not logical.get(7, {}).get(1) else None
    elif types.is_string(type_) or types.is_large_string(type_):
        if leaf.physical == _BYTE_ARRAY and (1 in logical or converted == _UTF8):
            return bytes.decode
    elif types.is_boolean(type_):
        if leaf.physical == _BOOLEAN:
            return lambda raw: bool(struct.unpack("<?", raw)[0])
    elif types.is_floating(type_):
        letter = {_FLOAT: "<f", _DOUBLE: "<d"}.get(leaf.physical)
        if letter and not logical and converted is None and (type_.bit_width == 64 or leaf.physical == _FLOAT):
            return _real(letter) if type_.bit_width > 16 else None
    elif types.is_decimal128(type_) and (5 in logical or converted == _DECIMAL):
        return _decimal(leaf, plain, type_)
    return None


def _number(letter: str, least: int, most: int) -> Callable[[bytes], int]:
    unpack = struct.Struct(letter).unpack

    def decode(raw: bytes) -> int:
        value: int = unpack(raw)[0]
        if not least <= value <= most:
            raise ValueError
        return value

    return decode


def _real(letter: str) -> Callable[[bytes], float]:
    def decode(raw: bytes) -> float:
        value: float = struct.unpack(letter, raw)[0]
        if value != value:  # NaN
            raise ValueError
        return value

    return decode


def _moment(leaf: Leaf, kind: int, type_: pa.DataType) -> Callable[[bytes], int] | None:
    """Return what reads times as integers in the unit of a type; ``kind`` is the logical type."""
    unit = leaf.logical[kind].get(2, {}) if kind in leaf.logical else {}
    millis, micros = (_MILLIS, _MICROS) if kind == 8 else (_TIME_MILLIS, _TIME_MICROS)
    legacy = None if leaf.logical else {millis: 1, micros: 2}.get(leaf.converted or 0)
    digits = 3 * next((number for number in (1, 2, 3) if number in unit or number == legacy), 0)
    if not digits:
        return None
    times, parts = 10 ** max(0, _DIGITS[type_.unit] - digits), 10 ** max(0, digits - _DIGITS[type_.unit])
    letter, most = ("<i" if leaf.physical == _INT32 else "<q"), (1 << 63) - 2

    def decode(raw: bytes) -> int:
        value, rest = divmod(struct.unpack(letter, raw)[0] * times, parts)
        if rest or not -most <= value <= most:
            raise ValueError
        return int(value)

    return decode


def _decimal(leaf: Leaf, plain: str, type_: pa.DataType) -> Callable[[bytes], int] | None:
    more = type_.scale - leaf.scale
    if more < 0 or not (plain or leaf.physical in (_BYTE_ARRAY, _FIXED)):
        return None
    factor, most = 10**more, 10**type_.precision

    def decode(raw: bytes) -> int:
        if not 0 < len(raw) <= 16:
            raise ValueError
        value = struct.unpack(plain, raw)[0] if plain else int.from_bytes(raw, "big", signed=True)
        value *= factor
        if abs(value) >= most:
            raise ValueError
        return int(value)

    return decode


class FooterLayout:
    """What footers with the same schema have in common: their columns, and how row groups describe them.

    Made of the bytes that ``schema_bytes`` returns; raises what is in ``DAMAGE`` where they are no schema.
    """

    def __init__(self, schema: bytes) -> None:
        if schema[-1] != ROWS_FOLLOW:
            raise ValueError("the footer is unusual")
        self.schema = schema
        self.paths: list[str] = []  # of all columns, in order
        self._start = len(schema)
        self.names: set[str] = set()  # of columns, lower case
        self._columns: dict[str, tuple[bytes, Leaf] | None] = {}
        for path, element, definition, repetition in _leaves_of(Reader(schema[:-1] + b"\0").struct()[_SCHEMA]):
            name = path.lower()
            self.paths.append(path)
            around = [name[:at] for at, letter in enumerate(name) if letter == "."]
            self.names.update(around)
            self._columns.update(dict.fromkeys(around))
            # Of two columns that differ in case only, it is not known which is meant.
            is_sure = element[4].decode() == path and name not in self.names
            self._columns[name] = (element[4], _leaf(element, definition, repetition)) if is_sure else None
            self.names.add(name)

    def column(self, name: str) -> tuple[bytes, Leaf] | None:
        """Return the name and the leaf of a top-level column that is not nested, None where there is no such one."""
        found = self._columns.get(name.lower())
        return found if found is not None and found[0] == name.encode() else None

    def leaf(self, name: str) -> Leaf:
        """Return the leaf of a top-level column with one value in each row; raises ValueError for all others."""
        found = self.column(name)
        if found is None or found[1].repetition:
            raise ValueError("a column of another kind")
        return found[1]

    def rows(self, footer: bytes) -> int:
        """Return the number of rows; raises what is in ``DAMAGE``."""
        reader = Reader(footer)
        reader.at = self._start
        return reader.signed()

    def chunks(
        self, footer: bytes, name: bytes, wanted: Container[int] | None = None, *, places_only: bool = False
    ) -> list[dict[int, Any]] | None:
        """Return the entries of row groups about a top-level column behind its path, by default all of them.

        With ``places_only`` these are what tells where its pages are; else INDEXES has the places of indexes of these.
        Raises what is in ``DAMAGE``.
        Each row group names the path once, so if these bytes occur so often, they occur nowhere else, and nothing
        before them has to be read. None, if they occur more or less often, or if the column is encrypted.
        """
        reader = Reader(footer)
        reader.at = self._start
        reader.signed()
        if footer[reader.at] != GROUPS_FOLLOW:
            return None
        head = footer[reader.at + 1]
        reader.at += 2
        count = head >> 4 if head >> 4 != 15 else reader.number()
        path, at = path_field(name), reader.at
        if footer.count(path, at) != count:
            return None
        found = []
        for number in range(count):
            at = reader.at = footer.index(path, at) + len(path)
            if wanted is not None and number not in wanted:
                continue
            found.append(reader.struct(2, 3, _PLACES if places_only else _ALL))
            if places_only:
                continue
            found[-1][INDEXES] = rest = reader.struct(1, 3)
            if 8 in rest or 9 in rest:
                return None
        return found

    def bounds(self, footer: bytes, column: str, type_: pa.DataType) -> tuple[Any, Any] | None:
        """Return the least and greatest value of a top-level column, both None if it has none but NULL.

        Dates and times are days and microseconds since 1970. None, where the footer does not say:
        floating-point numbers may be NaN, of which statistics know nothing, and texts may be cut.
        """
        name, leaf = self.column(column) or (b"", None)
        if leaf is None or not any(test(type_) for test in _TOLD):
            return None
        is_decimal = pa.types.is_decimal128(type_)
        decode = decoder(leaf, pa.timestamp("us", type_.tz) if pa.types.is_timestamp(type_) else type_, clock=None)
        groups = self.groups(footer, name, leaf, decode) if decode is not None else None
        # Metadata made of bounds outlive this process: texts that some writers cut are left out, whatever is said.
        if groups is None or not all(
            g.exact and not (isinstance(g.low, str) and _is_long(g.low, g.high)) for g in groups
        ):
            return None
        known = [g for g in groups if g.low is not None]
        if not known:
            return None, None
        ends = min(g.low for g in known), max(g.high for g in known)
        # Exactly; Decimal's own arithmetic rounds to the digits of its context.
        return (Decimal(f"{ends[0]}E{-type_.scale}"), Decimal(f"{ends[1]}E{-type_.scale}")) if is_decimal else ends

    def groups(
        self, footer: bytes, name: bytes, leaf: Leaf, decode: Callable[[bytes], Any]
    ) -> list[GroupBounds] | None:
        """Return the bounds of a column in all row groups, or None if one has none."""
        try:
            chunks = self.chunks(footer, name)
            told = [group_bounds(chunk, leaf, decode) for chunk in chunks] if chunks is not None else [None]
        except DAMAGE:
            return None
        return None if None in told else told  # type: ignore[return-value]


def lows(data: bytes, column: str, type_: pa.DataType) -> list[Any] | None:
    """Return the least value of a column in each row group of a file.

    None unless those of each are above all before, and not NULL.
    """
    return _lows(footer_of(data) or b"", column, type_)


@lru_cache(2)  # whoever finds files in an index changes it next
def _lows(footer: bytes, column: str, type_: pa.DataType) -> list[Any] | None:
    try:
        layout = FooterLayout(schema_bytes(footer) or b"")
        leaf = layout.leaf(column)
        decode = decoder(leaf, type_)
        found = layout.groups(footer, column.encode(), leaf, decode) if decode is not None else None
    except DAMAGE:
        return None
    if not found or any(g.low is None or g.nulls for g in found) or any(a.high >= b.low for a, b in pairwise(found)):
        return None
    return [g.low for g in found]


def path_field(name: bytes) -> bytes:
    """Return the field of a column's metadata that holds the path of a top-level column."""
    return b"\x19\x18" + varint(len(name)) + name


def varint(number: int) -> bytes:
    """Return a number without a sign as Thrift's compact protocol has it; twice a number is that with a sign."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


TAIL = 32_768  # bytes at the end of a file that are read for its footer, at first
MAX_FOOTER = 64 << 20  # of files about which nothing has to be known
AT_ONCE = 256  # footers that are read before their sizes are looked at


def read_footer(files: Files, key: str, size: int, tail: int = TAIL, most: int | None = None) -> bytes | None:
    """Return the footer of a file; None if it has none, or it has more than ``most`` bytes, or is encrypted.

    At first ``tail`` bytes are read, and all of a longer footer then. Raises OSError where a local file cannot be
    read, and otherwise what the store raises, which is a KeyError for a file that is not there.
    """
    if files.is_on_disk(key):
        return local_footer(files.local_path(key), size, tail, most)
    return _footer(lambda length: files.read(key, start=max(0, size - length), end=size), size, tail, most)


def local_footer(path: str, size: int, tail: int = TAIL, most: int | None = None) -> bytes | None:
    """Return what ``read_footer`` returns for a local file, given its path."""

    def read(length: int) -> bytes:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            start = max(0, size - length)
            if start:
                os.lseek(number, start, os.SEEK_SET)
            return os.read(number, size - start)
        finally:
            os.close(number)

    return _footer(read, size, tail, most)


def _footer(read: Callable[[int], bytes], size: int, tail: int, most: int | None) -> bytes | None:
    end = read(tail)
    found = footer_of(end)
    if found is None and (length := _length_of(end)) is not None and length <= min(size, most or size):
        found = footer_of(read(length))
    return found


def bytes_of_columns(
    files: Files, sized: Sequence[tuple[str, int]], columns: frozenset[str] | None, enough: int
) -> int:
    """Return how many bytes top-level columns take in files, given keys and sizes; all columns if it is None.

    Once it is more than ``enough``, the other files are not looked at. Raises ``corrupt-file``.
    """
    if columns is None:
        return sum(size for _, size in sized)
    total = 0
    for first in range(0, len(sized), AT_ONCE):
        some = sized[first : first + AT_ONCE]
        if files.is_local:
            total += sum(_bytes_of(files, file, columns) for file in some)
        else:
            total += sum(files.map(lambda file: _bytes_of(files, file, columns), some))
        if total > enough:
            break
    return total


def _bytes_of(files: Files, file: tuple[str, int], columns: frozenset[str]) -> int:
    try:
        footer = read_footer(files, *file)
    except (KeyError, OSError):
        footer = None
    groups = None if footer is None else column_sizes(footer)
    if groups is None:
        raise FormatError(f"{file[0]}: its columns cannot be read, or are encrypted", code="corrupt-file")
    return sum(size for group in groups for path, size in group if path.split(".")[0] in columns)


MAX_FILES = 200_000
MAX_PREFIXES = 16  # beginnings of footers with which others are compared before they are read


class FooterCache:
    """Keeps the schemas of files with the table object whose metadata name these, and forgets them with it.

    Other programs may write a dataset anew under its old labels, but a data file does not change before the metadata
    that name it. Schemas that are the same have the same number, of all tables.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._schemas: weakref.WeakKeyDictionary[Any, dict[tuple[str, Any], int]] = weakref.WeakKeyDictionary()
        self._numbers: dict[Hashable, int] = {}
        self._recent: dict[bytes, int] = {}  # beginning of a footer -> number of its schema
        self._layouts: dict[bytes, FooterLayout] = {}  # by beginnings, of recent ones

    def schemas(self, table: object) -> dict[tuple[str, Any], int]:
        """Return the numbers of the schemas of a table's files, by their keys and what tells their contents."""
        return self._schemas.setdefault(table, {})

    def make_room(self, coming: int) -> None:
        """Forget everything if so many more files are too many."""
        held = list(self._schemas.values())
        if sum(map(len, held)) + coming > MAX_FILES:
            for schemas in held:
                schemas.clear()

    def number(self, schema: Hashable) -> int:
        """Return the number of a schema, the same for the same one."""
        return self._numbers.setdefault(schema, len(self._numbers))

    def recognise(self, footer: bytes) -> int:
        """Return the number of the schema of a footer."""
        with self.lock:
            number = next((n for prefix, n in self._recent.items() if footer.startswith(prefix)), None)
            if number is None:
                prefix = schema_bytes(footer)
                number = self.number(prefix or hashlib.sha256(footer).digest())
                if prefix is not None:
                    while len(self._recent) >= MAX_PREFIXES:
                        oldest = next(iter(self._recent))
                        del self._recent[oldest]
                        self._layouts.pop(oldest, None)
                    self._recent[prefix] = number
            # What GeoParquet notes behind the schema gives columns another type.
            notes = _geo_notes(footer) if GEO in footer else ()
            return self.number((number, notes)) if notes else number

    def layout(self, footer: bytes) -> FooterLayout:
        """Return the layout of a footer that was recognised just now; raises what is in ``DAMAGE`` if it has none."""
        with self.lock:
            prefix = next((p for p in self._recent if footer.startswith(p)), None)
            if prefix is None:
                raise ValueError("the footer is unusual")
            if prefix not in self._layouts:
                self._layouts[prefix] = FooterLayout(prefix)
            return self._layouts[prefix]


def _geo_notes(footer: bytes) -> tuple[bytes, ...]:
    """Return digests of GeoParquet's notes in a footer; that of the whole footer, where it cannot be read."""
    try:
        notes = notes_of(footer, GEO)
    except DAMAGE:
        notes = [footer]
    return tuple(hashlib.sha256(note).digest() for note in notes)


def arrow_metadata(footer: bytes) -> pq.FileMetaData:
    """Return what Arrow makes of a footer; only about its schema and its rows it may be asked without further checks.

    Raises pyarrow.ArrowException, OSError and ValueError.
    """
    import pyarrow.parquet as pq

    return pq.read_metadata(pa.BufferReader(MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC))


def file_metadata(files: Files, key: str, *, with_columns: bool = False) -> tuple[pq.FileMetaData, int]:
    """Return the metadata of a data file by Arrow, and the size of the file in bytes.

    Only ``with_columns`` may they be asked about the columns of row groups. Raises ``missing-file`` and
    ``corrupt-file``.
    """
    try:
        size = files.size(key) or 0
        try:
            footer = read_footer(files, key, size)
        except OSError:
            footer = footer_of(files.read(key))  # which raises an error of our own
        if footer is None:
            raise FormatError(f"{files.display_name(key)}: it is no Parquet file", code="corrupt-file")
        found = arrow_metadata(footer)
        if with_columns and column_sizes(footer, found.schema) is None:
            raise FormatError(f"{files.display_name(key)}: columns of it are encrypted or damaged", code="corrupt-file")
        return found, size
    except KeyError:
        raise missing_file(files.display_name(key)) from None
    except (pa.ArrowException, OSError) as e:
        reraise(e, f"Cannot read {files.display_name(key)!r}")
        raise FormatError(f"{files.display_name(key)}: {e}", code="corrupt-file") from None


def column_bytes(footer: pq.FileMetaData, columns: Iterable[str] | None = None) -> int:
    """Return the compressed bytes of top-level columns of a file, by default of all."""
    wanted = None if columns is None else set(columns)
    return sum(group_bytes(footer.row_group(at), wanted) for at in range(footer.num_row_groups))


def group_bytes(group: Any, columns: Container[str] | None = None) -> int:
    """Return the compressed bytes of top-level columns of a row group, by default of all."""
    return sum(
        chunk.total_compressed_size
        for chunk in _chunks(group)
        if columns is None or chunk.path_in_schema.split(".")[0] in columns
    )


def _chunks(group: Any) -> Iterator[Any]:
    return map(group.column, range(group.num_columns))


def may_hold_null(footer: pq.FileMetaData, column: str) -> bool:
    """Return whether a top-level column of a file holds NULL, or is lacking, according to its footer."""
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    found = [chunk.statistics for group in groups for chunk in _chunks(group) if chunk.path_in_schema == column]
    return (not found and footer.num_rows > 0) or any(
        stats is None or not stats.has_null_count or stats.null_count > 0 for stats in found
    )


def extremes(group: Any, column: str) -> tuple[Any, Any] | None:
    """Return the least and greatest value of a column in a row group, or None if unknown."""
    stats = next((chunk.statistics for chunk in _chunks(group) if chunk.path_in_schema == column), None)
    return (stats.min, stats.max) if stats is not None and stats.has_min_max else None
