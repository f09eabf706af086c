"""Footers of Parquet files: read with one request, two for a long one, and what they tell, which is remembered.

Footers are read here, byte by byte. Arrow may be asked about columns of row groups only where ``column_sizes`` tells
their sizes: it ends the process over columns that are encrypted, or say that they are.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import weakref
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError, missing_file, reraise
from kartosql.store import Files, Store

if TYPE_CHECKING:
    import pyarrow.parquet as pq


MAX_DEPTH = 16
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
# What wrong types of values in damaged data lead to.
DAMAGE = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)


class Reader:
    """Thrift's compact protocol as dictionaries of fields; raises IndexError for what is none."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self) -> int:
        """Return the next number without a sign."""
        data, at = self.data, self.at
        byte = data[at]
        at += 1
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

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of the next struct by their numbers."""
        if depth > MAX_DEPTH:
            raise IndexError
        found: dict[int, Any] = {}
        field = 0
        while True:
            head = self.data[self.at]
            self.at += 1
            kind = head & 15
            if kind == _STOP:
                return found
            field = field + (head >> 4) if head >> 4 else self.signed()
            found[field] = self.value(kind, depth)

    def field(self, before: int) -> tuple[int, int]:
        """Return the number and the kind of the next field of a struct; raises IndexError where there is none."""
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
        if kind == _DOUBLE:
            self.at += 8
            return None
        raise IndexError


MAGIC = b"PAR1"
GEO = b"geo"  # the key of GeoParquet's note
END = len(MAGIC) + 4  # behind the footer: its length, and the magic bytes
_SCHEMA, _ROWS = 2, 3  # fields of FileMetaData
_BOUNDS = (1, 2, 5, 6)  # fields of Statistics
_SHORT_TEXT = 32  # bytes; writers that cut texts in statistics keep at least so many
_BOOLEAN, _INT32, _INT64, _BYTE_ARRAY, _FIXED = 0, 1, 2, 6, 7  # physical types
_PHYSICAL = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_LENGTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, _BYTE_ARRAY: None}  # of values, by physical type
_UTF8, _DATE, _DECIMAL, _MILLIS, _MICROS = 0, 6, 5, 9, 10  # converted types
_SIGNED = (15, 16, 17, 18)
_BAD = (*DAMAGE, struct.error)


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


class Footer:
    """The footer of one file; raises ValueError if it is none that can be read."""

    def __init__(self, data: bytes) -> None:
        try:
            found = Reader(data).struct()
            self.groups: list[dict[int, Any]] = found[4]
            self.leaves: list[Leaf] = []
            self._places: dict[str, int] = {}
            self._unsure: set[str] = set()
            for place, (path, element, definition, repetition) in enumerate(_leaves_of(found[2])):
                name = path.lower()
                # Of two columns that differ in case only, it is not known which is meant.
                if name in self._places:
                    self._unsure.add(name)
                self._places[name] = place
                self.leaves.append(_leaf(element, definition, repetition))
        except _BAD:
            raise ValueError("the footer is damaged") from None

    def bounds(self, column: str, type_: pa.DataType) -> tuple[Any, Any] | None:
        """Return the least and greatest value of a column, both None if it has none but NULL.

        Dates and times are days and microseconds since 1970. None, where the footer does not tell:
        floating-point numbers may be NaN, of which statistics know nothing, and texts may be cut.
        """
        name = column.lower()
        if name not in self._places or name in self._unsure:
            return None
        try:
            return self._bounds(self._places[name], type_)
        except _BAD:
            return None

    def _bounds(self, place: int, type_: pa.DataType) -> tuple[Any, Any] | None:
        leaf, lows, highs = self.leaves[place], [], []
        decode = _decoder(leaf, type_)
        if decode is None:
            return None
        for group in self.groups:
            chunk = group[1][place]
            if 8 in chunk or 9 in chunk:
                return None  # encrypted
            meta = chunk[3]
            if meta[1] != leaf.physical:
                return None
            stats = meta.get(12, {})
            if stats.get(3) == meta[5]:
                continue
            # The older fields are in an order that only signed numbers have for certain.
            older = leaf.physical in (_INT32, _INT64)
            low = stats.get(6, stats.get(2) if older else None)
            high = stats.get(5, stats.get(1) if older else None)
            if low is None or high is None or stats.get(7) is False or stats.get(8) is False:
                return None
            found = decode(low), decode(high)
            if found[0] > found[1]:
                return None
            lows.append(found[0])
            highs.append(found[1])
        return (min(lows), max(highs)) if lows else (None, None)


def column_sizes(footer: bytes, schema: Any = None) -> list[list[tuple[str, int]]] | None:
    """Return the dotted path and the compressed bytes of each column in each row group.

    None if what tells about a column is encrypted, left out or damaged. Arrow must not be asked about
    such columns, as it ends the process; who wants to ask it hands over its ``schema`` of the file,
    which has to agree.
    """
    try:
        found = Footer(footer)
        groups = [group[1] for group in found.groups]
        leaves = [(leaf.physical, leaf.length, leaf.definition, leaf.repetition) for leaf in found.leaves]
        if schema is not None and leaves != [_told(schema.column(at)) for at in range(len(schema))]:
            return None
        if any(len(chunks) != len(leaves) for chunks in groups):
            return None
        return [[_column(*pair) for pair in zip(chunks, found.leaves, strict=True)] for chunks in groups]
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


def _told(column: Any) -> tuple[int, int | None, int, int]:
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


def _decoder(leaf: Leaf, type_: pa.DataType) -> Callable[[bytes], Any] | None:
    """Return what reads a statistic of a column as a value of a type, None for other columns and types."""
    types, logical, converted = pa.types, leaf.logical, leaf.converted
    plain = {_INT32: "<i", _INT64: "<q"}.get(leaf.physical, "")
    if leaf.repetition:
        return None
    if types.is_signed_integer(type_):
        signed = not logical or (10 in logical and logical[10].get(2) is True)
        if plain and signed and (converted is None or converted in _SIGNED):
            return lambda raw: struct.unpack(plain, raw)[0]
    elif types.is_date32(type_):
        if leaf.physical == _INT32 and (6 in logical or converted == _DATE):
            return lambda raw: struct.unpack("<i", raw)[0]
    elif types.is_timestamp(type_):
        factor = _factor(leaf)
        if factor:
            return lambda raw: struct.unpack("<q", raw)[0] * factor
    elif types.is_string(type_):
        if leaf.physical == _BYTE_ARRAY and (1 in logical or converted == _UTF8):
            return _text
    elif types.is_boolean(type_):
        if leaf.physical == _BOOLEAN:
            return lambda raw: bool(struct.unpack("<?", raw)[0])
    elif types.is_decimal128(type_) and (5 in logical or converted == _DECIMAL) and leaf.scale == type_.scale:
        if plain:
            # Exactly; Decimal's own arithmetic rounds to the digits of its context.
            return lambda raw: Decimal(f"{struct.unpack(plain, raw)[0]}E{-leaf.scale}")
        if leaf.physical in (_BYTE_ARRAY, _FIXED):
            return lambda raw: _decimal(raw, leaf.scale)
    return None


def _factor(leaf: Leaf) -> int:
    """Return by what times have to be multiplied to be microseconds, 0 where they cannot."""
    if leaf.physical != _INT64:
        return 0
    unit = leaf.logical.get(8, {}).get(2, {}) if 8 in leaf.logical else {}
    if 1 in unit or (not leaf.logical and leaf.converted == _MILLIS):
        return 1000
    return 1 if 2 in unit or (not leaf.logical and leaf.converted == _MICROS) else 0


def _text(raw: bytes) -> str:
    if len(raw) >= _SHORT_TEXT:
        raise ValueError
    return raw.decode()


def _decimal(raw: bytes, scale: int) -> Decimal:
    if not 0 < len(raw) <= 16:
        raise ValueError
    return Decimal(f"{int.from_bytes(raw, 'big', signed=True)}E{-scale}")


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


def open_footer(store: Store, key: str) -> Footer | None:
    """Return the footer of a file for what it tells of columns, None where it cannot be read."""
    try:
        found = read_footer(store, key, store.size(key) or 0, 2 * TAIL, MAX_FOOTER)
        return Footer(found) if found is not None else None
    except (KartosqlError, OSError, KeyError, ValueError):
        return None


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


@dataclass
class Facts:
    """What the footers of one table's files tell.

    ``schemas`` are the numbers of the schemas of files, by their keys and what tells their contents apart, such as
    their size; ``rows`` are row counts by key; ``statistics`` is what an engine keeps of columns.
    """

    table: weakref.ref[Any]
    schemas: dict[tuple[str, Any], int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    statistics: Any = None

    def __len__(self) -> int:
        return max(len(self.schemas), len(self.rows), len(self.statistics or ()))


class FooterCache:
    """Keeps facts with the table object whose metadata name the files, and forgets them with it.

    Other programs may write a dataset anew under its old labels, but a data file does not change before the metadata
    that name it. Schemas that are the same have the same number, of all tables.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._facts: dict[int, Facts] = {}
        self._numbers: dict[Hashable, int] = {}
        self._recent: dict[bytes, int] = {}  # beginning of a footer -> number of its schema

    def facts(self, table: object) -> Facts:
        """Return what is known of the files of a table."""
        found = self._facts.get(id(table))
        if found is None or found.table() is not table:
            self._facts = {n: f for n, f in self._facts.items() if f.table() is not None}
            found = self._facts[id(table)] = Facts(weakref.ref(table))
        return found

    def make_room(self, coming: int) -> None:
        """Forget everything if so many more files are too many."""
        if sum(map(len, self._facts.values())) + coming > MAX_FILES:
            for facts in self._facts.values():
                facts.schemas.clear()
                facts.rows.clear()
                facts.statistics = None

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
                        del self._recent[next(iter(self._recent))]
                    self._recent[prefix] = number
            # What GeoParquet notes behind the schema gives columns another type.
            notes = _geo_notes(footer) if GEO in footer else ()
            return self.number((number, notes)) if notes else number


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
    """Return whether a top-level column of a file holds NULL, as far as its footer ``with_columns`` tells."""
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    found = [chunk.statistics for group in groups for chunk in _chunks(group) if chunk.path_in_schema == column]
    return any(stats is None or not stats.has_null_count or stats.null_count > 0 for stats in found)


def extremes(group: Any, column: str) -> tuple[Any, Any] | None:
    """Return the least and greatest value that a row group tells of a column, None where it does not."""
    stats = next((chunk.statistics for chunk in _chunks(group) if chunk.path_in_schema == column), None)
    return (stats.min, stats.max) if stats is not None and stats.has_min_max else None
