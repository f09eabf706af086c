"""One part file of metadata: the schema in its footer, the keys it is encrypted with, and its columns."""

from __future__ import annotations

import base64
import binascii
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import FormatError, UsageError, first_line, reraise
from kartosql.formats.xskipper.domain import ColumnType, OddCells, Values, Vanished, single_values, spark_type
from kartosql.formats.xskipper.naming import OBJECT_COLUMN, OWN, VIRTUAL, spelled
from kartosql.store import Store
from kartosql.text.types import type_name

ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"
SPARK_VERSION = "org.apache.spark.version"
READING = "kartosql.reading"  # how texts were read, in a file of ours about files of text
ROW_BOUNDS = "kartosql.bounds"  # a file of ours, whose bounds are those of all rows, NaN included
SIZES = "kartosql.sizes"  # of the files that the rows of a file of ours are about, a JSON list in their order
PARTS = "kartosql.parts"  # of a metadata column of ours: the names in that of the index, where some hold dots
NEWEST = 4
_PREFIXES = ("io.xskipper.", "spark.ibm.metaindex.")
MAX_FIELDS = 10_000
MAX_JSON = 64 << 20


@dataclass(frozen=True)
class Index:
    """One index of a metadata set.

    ``name`` is its kind (minmax, valuelist, bloomfilter, regexvaluelist, or what a plugin calls
    it), ``cols`` the lower-case names of the columns it is over, with dots between members of
    structs, ``column`` the metadata column that holds it, ``params`` its parameters without the
    prefix of their version, ``key_metadata`` the label of the key it is encrypted with, and
    ``spark_type`` the type of the metadata column as Spark's JSON has it. ``parts`` are given where a dot
    belongs to a name, which the original does not know.
    """

    name: str
    cols: tuple[str, ...]
    column: str
    params: Mapping[str, str] = field(default_factory=dict)
    key_metadata: str | None = None
    spark_type: Any = None
    parts: tuple[str, ...] = ()

    @property
    def path(self) -> tuple[str, ...]:
        """The one column of the index and the members of structs below it; empty for several columns."""
        return self.parts or (tuple(self.cols[0].split(".")) if len(self.cols) == 1 else ())

    @property
    def columns_text(self) -> str:
        """The columns as text, names with dots in quotes."""
        return spelled(self.path or self.cols)

    @property
    def value_type(self) -> ColumnType | None:
        """The type of the indexed column, or None if unknown."""
        described = self.spark_type
        if not isinstance(described, dict):
            return None
        if described.get("type") == "struct":
            fields = described.get("fields")
            members = [f for f in fields if isinstance(f, dict)] if isinstance(fields, list) else []
            types = {str(f.get("name")): f.get("type") for f in members}
            return spark_type(types.get("min")) if types.get("min") == types.get("max") else None
        return spark_type(described.get("elementType")) if described.get("type") == "array" else None

    @property
    def is_object(self) -> bool:
        """Whether the cells are serialized Java objects."""
        return isinstance(self.spark_type, dict) and self.spark_type.get("type") == "udt"


@dataclass(frozen=True)
class FileSchema:
    """The schema of a part file.

    ``virtual`` are the types of partition columns by their names, ``spark_virtual`` as Spark has them.
    ``is_legacy`` says that dates and times before 1900 may be in another calendar or zone.
    ``bounds_are_of_rows`` says of a file of ours that no bounds come from footers of Parquet files, which know
    nothing of NaN.
    ``reading`` says for files of text how they were read, if the file is one of ours; ``sizes`` then are
    the bytes of the indexed files, row by row, None for those that are not known.
    """

    version: int
    table_identifiers: tuple[str, ...]
    indexes: tuple[Index, ...]
    virtual: Mapping[str, ColumnType | None]
    encryption: Mapping[str, str]
    is_legacy: bool
    bounds_are_of_rows: bool
    spark_virtual: Mapping[str, Any] = field(default_factory=dict)
    reading: str | None = None
    sizes: Sequence[int | None] | None = None


def read_schema(footer: Mapping[bytes, bytes] | None, source: str) -> FileSchema:
    """Return what the key-value metadata of a part file's footer says.

    Raises ``invalid-metadata`` if that is no metadata of Xskipper, and ``unsupported-version``
    for versions that are not known. ``source`` names the file.
    """
    found = {k: v for k, v in (footer or {}).items() if isinstance(k, bytes)}
    raw_schema = found.get(ROW_METADATA.encode())
    described = None
    if raw_schema is not None and len(raw_schema) <= MAX_JSON:
        described = _json(raw_schema, source, "the schema in its footer is no JSON")
    fields = described.get("fields") if isinstance(described, dict) else None
    if not isinstance(fields, list) or len(fields) > MAX_FIELDS:
        raise _odd(source, "its footer holds no schema of Spark")
    objects, indexes, virtual = None, [], {}
    tables: list[str] = []
    for entry in fields:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise _odd(source, "a field of its schema has no name")
        name, meta = entry["name"], entry.get("metadata")
        meta = meta if isinstance(meta, dict) else {}
        if name == OBJECT_COLUMN:
            objects = meta
        elif isinstance(meta.get("index"), dict):
            index = _index(name, entry.get("type"), meta["index"], meta.get(PARTS))
            if index is not None:
                indexes.append(index)
            tables += [t for t in (meta["index"].get("tableIdentifier"),) if isinstance(t, str)]
        elif name.startswith(VIRTUAL):
            virtual[name[len(VIRTUAL) :]] = entry.get("type")
    if objects is None:
        raise _odd(source, f"it has no column {OBJECT_COLUMN}")
    version = _version(objects.get("version", 0), source)
    virtual = virtual if version >= NEWEST else {}
    if isinstance(objects.get("tableIdentifier"), str):
        tables = [objects["tableIdentifier"]]
    encryption = objects.get("encryption")
    return FileSchema(
        version,
        tuple(dict.fromkeys(tables)),
        tuple(indexes),
        {name: spark_type(type_) for name, type_ in virtual.items()},
        {k: v for k, v in encryption.items() if isinstance(v, str)} if isinstance(encryption, dict) else {},
        _is_legacy(found),
        found.get(ROW_BOUNDS.encode()) == b"rows",
        virtual,
        found[READING.encode()].decode("utf-8", "replace") if READING.encode() in found else None,
        _sizes(found.get(SIZES.encode()), source),
    )


def _odd(source: str, problem: str) -> FormatError:
    hint = "It is no metadata of Xskipper, or it is damaged; nothing is skipped by it."
    return FormatError(f"{source}: {problem}.", code="invalid-metadata", hint=hint)


def _json(raw: bytes, source: str, problem: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise _odd(source, problem) from None


def _sizes(raw: bytes | None, source: str) -> list[int | None] | None:
    problem = "the sizes in its footer are no list of numbers"
    sizes = None if raw is None else _json(raw, source, problem)
    if raw is not None and not (isinstance(sizes, list) and all(s is None or type(s) is int for s in sizes)):
        raise _odd(source, problem)
    return sizes


def _version(raw: Any, source: str) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 0:
        raise _odd(source, f"its version is {raw!r}")
    if raw > NEWEST:
        raise FormatError(
            f"{source}: metadata of version {raw} are not known, the newest is {NEWEST}.",
            code="unsupported-version",
            hint="A newer Xskipper wrote it; nothing is skipped by it.",
        )
    return raw


def _index(column: str, type_: Any, meta: dict[str, Any], parts: Any) -> Index | None:
    name, cols, key = meta.get("name"), meta.get("cols"), meta.get("key_metadata")
    if not isinstance(name, str) or not isinstance(cols, list) or not all(isinstance(c, str) for c in cols):
        return None
    told = isinstance(parts, list) and all(isinstance(p, str) and p for p in parts)
    if parts is not None and not (told and [".".join(parts)] == cols):
        return None  # which column it is about is not known
    columns, parts = tuple(c.lower() for c in cols), tuple(p.lower() for p in parts or ())
    label = key if isinstance(key, str) else None
    return Index(name, columns, column, _params(meta.get("params")), label, type_, parts)


def _params(raw: Any) -> dict[str, str]:
    """Return parameters without the prefix of their version: objects, or lists of ``key:value``."""
    if isinstance(raw, list):
        pairs = [p.split(":", 1) for p in raw if isinstance(p, str) and ":" in p]
    else:
        pairs = [[k, v] for k, v in raw.items() if isinstance(v, str)] if isinstance(raw, dict) else []
    found = {}
    for key, value in pairs:
        for prefix in _PREFIXES:
            key = key.removeprefix(prefix)
        found[key] = value
    return found


def _is_legacy(footer: Mapping[bytes, bytes]) -> bool:
    """Return whether a Spark before 3.0, or one with that setting, wrote dates and times of the old calendar."""
    if b"org.apache.spark.legacyDateTime" in footer or b"org.apache.spark.legacyINT96" in footer:
        return True
    major = footer.get(SPARK_VERSION.encode(), b"").split(b".")[0]
    return not (major.isdigit() and int(major) >= 3)


Keys = Mapping[str, "str | bytes"]
_NONCE = 12


def checked_keys(keys: Keys | None) -> dict[str, bytes]:
    """Return master keys by their labels as bytes; text counts as base64.

    Raises ``invalid-argument`` for what is no key of 16, 24 or 32 bytes.
    """
    found = {}
    for label, key in (keys or {}).items():
        try:
            raw = base64.b64decode(key, validate=True) if isinstance(key, str) else bytes(key)
        except (binascii.Error, ValueError, TypeError):
            raw = b""
        if len(raw) not in (16, 24, 32):
            raise UsageError(
                f"The key {label!r} is no AES key.", hint="A key has 16, 24 or 32 bytes, as bytes or as base64 text."
            )
        found[str(label)] = raw
    return found


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        hint = "Install the extra: pip install 'kartosql[encryption]'."
        raise UsageError("Encrypted metadata need the package cryptography.", code="missing-extra", hint=hint) from None
    return AESGCM(key)


def encryption_factory(keys: Mapping[str, bytes]) -> tuple[Any, Any]:
    """Return Arrow's factory of encryption properties over some master keys, and its connection to them.

    Keys are wrapped as parquet-mr does it, in base64.
    """
    import pyarrow.parquet.encryption as pe

    def cipher_of(label: str) -> Any:
        if label not in keys:
            raise ValueError(f"the key {label!r} is not given")
        return _cipher(keys[label])

    class Keeper(pe.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key: bytes, label: str) -> bytes:
            nonce = os.urandom(_NONCE)
            return base64.b64encode(nonce + cipher_of(label).encrypt(nonce, key, label.encode()))

        def unwrap_key(self, wrapped: bytes | str, label: str) -> bytes:
            cipher = cipher_of(label)
            from cryptography.exceptions import InvalidTag

            try:
                raw = base64.b64decode(wrapped, validate=True)
                plain: bytes = cipher.decrypt(raw[:_NONCE], raw[_NONCE:], label.encode())
            except (InvalidTag, ValueError):
                raise ValueError(f"the key {label!r} does not open what it should") from None
            return plain

    return pe.CryptoFactory(lambda _: Keeper()), pe.KmsConnectionConfig()


def _decryption(keys: Mapping[str, bytes]) -> Any:
    """Return Arrow's properties to read files with some master keys, None without keys."""
    if not keys:
        return None
    _cipher(next(iter(keys.values())))  # a missing package is told before a file is opened
    made, connection = encryption_factory(keys)
    import pyarrow.parquet.encryption as pe

    # The factory has to live as long as the properties: they call it for each column.
    return made, made.file_decryption_properties(connection, pe.DecryptionConfiguration())


MAX_ROWS = 10_000_000
MAX_COLUMN_BYTES = 2 << 30  # of one column but filters in memory
_BATCH = 4_096
_BAD = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError, RecursionError)
_T = TypeVar("_T")


class Segment:
    """A part file. What is read of it stays in memory, but for filters."""

    def __init__(self, store: Store, key: str, keys: Mapping[str, bytes], report: Callable[[str], None]) -> None:
        """Read the footer; raises ``invalid-metadata``, ``unsupported-version`` and what the store raises.

        That is a KeyError for a file that is not there any more.
        """
        self.source = key
        self.is_own = key.rpartition("/")[2].startswith(OWN)  # of kinds that the original does not know
        self._keys = keys
        self.report = report
        self.is_gone = False  # somebody removed the file meanwhile
        self._lock = threading.RLock()
        self._known: dict[tuple[str, str], Any] = {}
        self._data: Any = store.local_path(key) if store.is_local else pa.BufferReader(store.read_metadata(key))
        try:
            with self._open() as file:
                metadata = file.metadata
                self.rows: int = metadata.num_rows
                groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
                self.row_groups: list[int] = [group.num_rows for group in groups]
                self.bytes: int = sum(group.total_byte_size for group in groups)  # before compression
                self.schema: FileSchema = read_schema(metadata.metadata, key)
                # What a footer says of columns is not asked for: for damaged ones Arrow ends the process.
                self._texts = _texts(metadata.schema)
        except FileNotFoundError:
            raise KeyError(key) from None
        except _BAD as e:
            _reraise(e, key)
            raise FormatError(
                f"{key}: the file cannot be opened: {first_line(e)[:200]}",
                code="invalid-metadata",
                hint="If the metadata are encrypted, hand over the keys. Nothing is skipped by it.",
            ) from None
        if self.rows > MAX_ROWS:
            raise FormatError(f"{key}: {self.rows:,} rows are more than {MAX_ROWS:,}.", code="too-large")
        if self.schema.sizes is not None and len(self.schema.sizes) != self.rows:
            raise _odd(key, f"its footer has sizes of {len(self.schema.sizes):,} files for {self.rows:,} rows")

    def _open(self, texts: Sequence[str] = ()) -> pq.ParquetFile:
        secrets = _decryption(self._keys)
        if isinstance(self._data, pa.BufferReader):
            self._data.seek(0)
        file = pq.ParquetFile(
            self._data,
            memory_map=isinstance(self._data, str),
            # As nanoseconds, times outside of 1677 to 2262 would be others, silently.
            coerce_int96_timestamp_unit="us",
            decryption_properties=secrets[1] if secrets else None,
            arrow_extensions_enabled=False,
            # A value that a page has once may stand in all rows: it is counted before it is repeated.
            read_dictionary=texts or None,
        )
        file.kartosql_secrets = secrets
        return file

    # -- columns ---------------------------------------------------------------------------

    def batches(
        self, column: str, size: int = _BATCH, groups: list[int] | None = None, *, is_large: bool = False
    ) -> Iterator[pa.Array]:
        """Yield the cells of a column bit by bit; in a large column no two are alike. Raises OddCells."""
        try:
            with self._open(() if is_large else self._texts.get(column, ())) as file:
                for batch in file.iter_batches(size, columns=[column], row_groups=groups, use_threads=False):
                    if batch.schema.names != [column]:
                        raise OddCells(f"there is no one column {column}")
                    yield _repeated(batch.column(0))
        except OddCells:
            raise
        except FileNotFoundError as e:
            self.is_gone = True
            raise Vanished(str(e)) from None
        except _BAD as e:
            _reraise(e, self.source)
            raise OddCells(first_line(e)[:200]) from None

    def column(self, column: str, *, is_large: bool = False) -> pa.Array:
        """Return a column; raises OddCells."""
        found, size = [], 0
        for array in self.batches(column, is_large=is_large):
            size += array.nbytes
            if size > MAX_COLUMN_BYTES:
                raise OddCells(f"it has more than {MAX_COLUMN_BYTES:,} bytes")
            found.append(array)
        if not found:
            raise OddCells("it has no rows")
        joined = found[0] if len(found) == 1 else pa.concat_arrays(found)
        if len(joined) != self.rows:
            raise OddCells("it has another number of rows than its file says")
        return joined

    def objects(self, column: str) -> list[bytes | None]:
        """Return the cells of a column of serialized Java objects; raises OddCells."""
        array = self.column(column)
        if pa.types.is_struct(array.type) and array.type.num_fields == 1:
            array = array.flatten()[0]
        if not pa.types.is_binary(array.type):
            raise OddCells(f"cells of type {type_name(array.type)} where objects are expected")
        return list(array.to_pylist())

    def once(self, kind: str, column: str, make: Callable[[], _T]) -> _T | None:
        """Return what ``make`` returns, remembered; None for columns that cannot be used, which is reported."""
        with self._lock:
            if (kind, column) not in self._known:
                try:
                    self._known[kind, column] = make()
                except Vanished:
                    self._known[kind, column] = None
                except _BAD as e:
                    _reraise(e, self.source)
                    self._known[kind, column] = None
                    self.report(f"{self.source}: the column {column} is not used: {first_line(e)[:200]}")
            found: _T | None = self._known[kind, column]
            return found

    def ids(self) -> list[str]:
        """Return the names of the indexed objects; none where they cannot be read."""

        def read() -> list[str]:
            array = self.column(OBJECT_COLUMN)
            if not pa.types.is_string(array.type) or array.null_count:
                raise OddCells("it does not hold the names of objects")
            return list(array.to_pylist())

        return (self.once("ids", OBJECT_COLUMN, read) if self.rows else None) or []

    def sizes(self) -> Sequence[int | None]:
        """Return the bytes of the indexed objects in the order of their names, None for those not known."""
        ids, sizes = self.ids(), self.schema.sizes
        return sizes if ids and sizes is not None else [None] * len(ids)

    def partition(self, name: str) -> tuple[Values, ColumnType] | None:
        """Return the values of a partition column with their type, None where they cannot be used."""
        type_ = self.schema.virtual[name]
        if type_ is None:
            return None
        return self.once("partition", name, lambda: (single_values(self.column(VIRTUAL + name), type_), type_))


def _texts(schema: Any) -> dict[str, list[str]]:
    """Return the paths of the leaves of bytes by the columns that they are in."""
    found: dict[str, list[str]] = {}
    for name, leaf in ((leaf.path.split(".")[0], leaf) for leaf in map(schema.column, range(len(schema)))):
        for column in {name, leaf.path}:
            if leaf.physical_type == "BYTE_ARRAY":
                found.setdefault(column, []).append(leaf.path)
    return found


def _repeated(array: pa.Array) -> pa.Array:
    """Return cells whose values are no references any more; raises OddCells if these are too many bytes."""
    if pa.types.is_string(array.type) or pa.types.is_primitive(array.type):
        return array
    size, pending = 0, [array]
    while pending:
        part = pending.pop()
        if pa.types.is_dictionary(part.type):
            if part.dictionary.nbytes * len(part) < MAX_COLUMN_BYTES >> 8:
                continue  # which is the rule, and sooner known
            lengths = pc.binary_length(part.dictionary).cast(pa.int64())
            size += pc.sum(lengths.take(part.indices)).as_py() or 0
        elif pa.types.is_nested(part.type):
            pending += part.flatten() if pa.types.is_struct(part.type) else [part.flatten()]
    if size > MAX_COLUMN_BYTES:
        raise OddCells(f"it has more than {MAX_COLUMN_BYTES:,} bytes")
    type_ = _plain(array.type)
    return array if type_ == array.type else array.cast(type_)


def _plain(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type_):
        return type_.value_type
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(_plain(f.type)) for f in type_])
    return pa.list_(type_.value_field.with_type(_plain(type_.value_type))) if pa.types.is_list(type_) else type_


def _reraise(error: BaseException, source: str) -> None:
    """Raise what the machine refused; memory that runs out may be due to the contents of the file."""
    if not isinstance(error, MemoryError):
        reraise(error, f"Cannot read {source!r}")
