"""Metadata of version 4, written so that the original finds, queries and refreshes them."""

from __future__ import annotations

import io
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import UsageError
from kartosql.formats.arrays import array_of
from kartosql.formats.xskipper.bloom import DEFAULT_FPP, DEFAULT_NDV, MAX_WORDS, Shape, shape_for
from kartosql.formats.xskipper.naming import OBJECT_COLUMN, VIRTUAL, column_name, parts_of, spelled
from kartosql.formats.xskipper.segment import (
    BLOOM,
    FPP,
    MINMAX,
    NDV,
    NEWEST,
    PARTS,
    PATTERN,
    READING,
    REGEX,
    ROW_BOUNDS,
    ROW_METADATA,
    SIZES,
    SPARK_VERSION,
    VALUE_LIST,
    Index,
    encryption_factory,
)

UDT = "io.xskipper.metadatastore.parquet.ParquetBaseClauseTranslator$BloomFilterMetaDataTypeUDT"
WRITTEN = (MINMAX, VALUE_LIST, BLOOM, REGEX)
_PREFIX = "io.xskipper."
_WRITTEN_AS = "4.0.0"  # of Spark: dates and times are of the calendar that Spark 3 brought
_SPARK_NAMES = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    **{pa.type_for_alias(name): name for name in ("float", "double", "string", "binary")},
}
_KEPT_AS = {
    **{pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)},
    **{pa.large_string(): pa.string(), pa.string_view(): pa.string(), pa.date64(): pa.date32()},
}
TIME = pa.timestamp("us", "UTC")
_GROUP_BYTES = 16 << 20


@dataclass(frozen=True)
class IndexSpec:
    """An index to be: its kind, the column it is over, and its parameters.

    ``column`` has dots between members of structs; a name that holds dots itself stands in double
    quotes. ``fpp`` and ``ndv`` are the share of false positives and the number of distinct values that
    a Bloom filter is made for. ``key`` is the label of the key that encrypts it. ``is_twin`` tells that
    other names of the table read the same when dots join them. ``patterns`` are the regular
    expressions of which a list keeps the first groups.
    """

    name: str
    column: str
    fpp: float = DEFAULT_FPP
    ndv: int = DEFAULT_NDV
    key: str | None = None
    is_twin: bool = False
    patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be; raises ``invalid-argument``."""
        if self.name not in WRITTEN:
            raise UsageError(f"{self.name!r} is no kind of skipping index.", hint=f"There are {', '.join(WRITTEN)}.")
        if bool(self.patterns) != (self.name == REGEX):
            raise UsageError(f"An index of the kind {REGEX} has patterns, and no other one.")
        for pattern in self.patterns:
            of_java(pattern)
        if not self.column or "\0" in self.column:
            raise UsageError(f"{self.column!r} is no column.")
        if self.name == BLOOM:
            usable = isinstance(self.fpp, float) and 0 < self.fpp < 1
            usable = usable and isinstance(self.ndv, int) and 0 < self.ndv < 1 << 40
            if not usable or self.shape.bits > 64 * MAX_WORDS:
                raise UsageError(
                    f"A Bloom filter with fpp = {self.fpp} and ndv = {self.ndv} is not possible.",
                    hint="fpp lies between 0 and 1, ndv is the number of distinct values of a file.",
                )

    @property
    def shape(self) -> Shape:
        """The shape of the Bloom filters."""
        return shape_for(self.fpp, self.ndv)

    @property
    def path(self) -> tuple[str, ...]:
        """The column and the members of structs below it, in lower case."""
        return parts_of(self.column.lower())

    @property
    def metadata_column(self) -> str:
        """The name of the metadata column."""
        return column_name([spelled(self.path) if self.is_twin else ".".join(self.path)], self.name)

    def described(self) -> dict[str, Any]:
        """Return the index as it stands in the schema."""
        found: dict[str, Any] = {"cols": [".".join(self.path)], "name": self.name}
        if self.name == BLOOM:
            found["params"] = {_PREFIX + FPP: _java_double(self.fpp), _PREFIX + NDV: str(self.ndv)}
        if self.name == REGEX:
            found["params"] = {f"{_PREFIX}{PATTERN}r{at}": pattern for at, pattern in enumerate(self.patterns)}
        if self.key is not None:
            found["key_metadata"] = self.key
        return found


def _java_double(number: float) -> str:
    """Return a positive number as Java writes it."""
    if 1e-3 <= number < 1e7:
        return repr(float(number))
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    text = "".join(map(str, digits))
    return f"{text[0]}.{text[1:] or '0'}E{int(exponent) + len(text) - 1}"


@dataclass(frozen=True)
class Secrets:
    """What metadata are encrypted with: master keys by their labels, and the label of the footer's key."""

    keys: Mapping[str, bytes]
    footer: str
    plaintext_footer: bool = False


@dataclass(frozen=True)
class Layout:
    """The columns of metadata to be: the table, the indexes with the types of their columns, and partition columns.

    Types are those of the values as they are written; ``value_type`` tells them. ``reading`` tells how
    texts are read, where the files are text.
    """

    table: str
    indexes: Sequence[tuple[IndexSpec, pa.DataType]]
    partitions: Mapping[str, pa.DataType]
    secrets: Secrets | None = None
    reading: str | None = None

    def __post_init__(self) -> None:
        """Refuse indexes that are there twice, and keys that are not given; raises ``invalid-argument``."""
        names = [spec.metadata_column for spec, _ in self.indexes]
        if len(set(names)) < len(names):
            raise UsageError("An index is there twice.", hint="One index of a kind for each column.")
        labels = {spec.key for spec, _ in self.indexes if spec.key is not None}
        if bool(labels) != (self.secrets is not None):
            raise UsageError("Encrypted indexes need a key for the footer, and the other way round.")
        if self.secrets is not None and not {*labels, self.secrets.footer} <= set(self.secrets.keys):
            raise UsageError("A key that is named is not given.")

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns as Arrow writes them."""
        fields = [pa.field(OBJECT_COLUMN, pa.string())]
        fields += [pa.field(VIRTUAL + name, type_) for name, type_ in self.partitions.items()]
        fields += [pa.field(spec.metadata_column, _cell(spec, type_)[0]) for spec, type_ in self.indexes]
        return pa.schema(fields)

    def described(self) -> dict[str, Any]:
        """Return the schema that Spark keeps in the footer, as JSON values."""
        head: dict[str, Any] = {"version": NEWEST, "tableIdentifier": self.table}
        if self.secrets is not None:
            columns = self.column_keys(self.secrets).items()
            keys = ";".join(f"{label}:{','.join(names)}" for label, names in columns)
            head["encryption"] = {"encryption.column.keys": keys, "encryption.footer.key": self.secrets.footer}
            if self.secrets.plaintext_footer:
                head["encryption"]["encryption.plaintext.footer"] = "true"
        fields = [_field(OBJECT_COLUMN, "string", head)]
        fields += [_field(VIRTUAL + name, spark_name(type_), {}) for name, type_ in self.partitions.items()]
        for spec, type_ in self.indexes:
            about: dict[str, Any] = {"index": spec.described()}
            if any("." in part for part in spec.path):
                about[PARTS] = list(spec.path)
            fields.append(_field(spec.metadata_column, _cell(spec, type_)[1], about))
        return {"type": "struct", "fields": fields}

    def column_keys(self, secrets: Secrets) -> dict[str, list[str]]:
        """Return the encrypted Parquet columns by the label of their key."""
        found: dict[str, list[str]] = {}
        for spec, _ in self.indexes:
            if spec.key is not None:
                tails = {MINMAX: (".min", ".max"), BLOOM: ("",)}.get(spec.name, (".list.element",))
                found.setdefault(spec.key, []).extend(spec.metadata_column + tail for tail in tails)
        found.setdefault(secrets.footer, []).extend([OBJECT_COLUMN, *(VIRTUAL + n for n in self.partitions)])
        return found


def layout_for(
    table: str,
    specs: Sequence[IndexSpec],
    columns: Mapping[str, pa.DataType],
    partitions: Mapping[str, pa.DataType] | None = None,
    secrets: Secrets | None = None,
    existing: Iterable[Index] = (),
) -> Layout:
    """Return the layout of indexes over columns of known types, by names as ``IndexSpec`` has them.

    ``existing`` are the indexes that there are already; among them those of bytes are kept. Raises
    ``unknown-column``, and ``unsupported-type`` for columns that a kind of index cannot be over.
    """
    typed = []
    known = {(index.name, index.path) for index in existing}
    by_name = {name.lower(): type_ for name, type_ in columns.items()}
    joined = Counter(".".join(parts_of(name)) for name in by_name)
    for spec in resolved(specs, columns):
        spec = replace(spec, is_twin=joined[".".join(spec.path)] > 1 and spelled(spec.path) != ".".join(spec.path))
        type_ = by_name.get(spec.column.lower())
        if type_ is None:
            raise UsageError(
                f"There is no column {spec.column!r} to index.",
                code="unknown-column",
                hint="Columns of partitions need no index; members of structs are named with dots, "
                "names that hold dots stand in double quotes. Names that differ in case alone cannot be indexed.",
            )
        kept = value_type(type_, spec.name)
        if kept is None and type_ == pa.binary() and (spec.name, spec.path) in known:
            kept = type_
        if kept is None:
            raise UsageError(
                f"A {spec.name} index cannot be over {spec.column!r}, which is of the type {type_}.",
                code="unsupported-type",
                hint="MinMax and ValueList take numbers, text, booleans, dates, times; filters integers and text; "
                "lists of what patterns find text.",
            )
        typed.append((spec, kept))
    kinds = {name: value_type(type_, MINMAX) for name, type_ in (partitions or {}).items()}
    return Layout(table, typed, {name: type_ for name, type_ in kinds.items() if type_ is not None}, secrets)


def resolved(specs: Iterable[IndexSpec], columns: Iterable[str]) -> list[IndexSpec]:
    """Return indexes over columns as they are spelled in ``columns``: a dot may be between names, or within one."""
    by_text: dict[str, list[str]] = {}
    known = [name.lower() for name in columns]
    for name in known:
        by_text.setdefault(".".join(parts_of(name)), []).append(name)
    found = []
    for spec in specs:
        column = spec.column.lower()
        meant = by_text.get(column, [])
        found.append(spec if column in known or len(meant) != 1 else replace(spec, column=meant[0]))
    return found


def value_type(type_: pa.DataType, index: str) -> pa.DataType | None:
    """Return the type in which an index keeps values of a column, None where it cannot be over such a column."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    type_ = TIME if pa.types.is_timestamp(type_) else _KEPT_AS.get(type_, type_)
    if index == REGEX:
        return type_ if type_ == pa.string() else None
    if index == BLOOM:
        return pa.int64() if pa.types.is_integer(type_) else type_ if type_ == pa.string() else None
    if type_ == pa.binary():
        return None  # the original has no order for bytes
    return type_ if spark_name(type_) else None


def spark_name(type_: pa.DataType) -> str:
    """Return Spark's name of a type, empty for types that have none."""
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})" if 0 <= type_.scale <= type_.precision else ""
    return "timestamp" if type_ == TIME else _SPARK_NAMES.get(type_, "")


def _cell(spec: IndexSpec, type_: pa.DataType) -> tuple[pa.DataType, Any]:
    """Return the type of the cells of an index as Arrow and as Spark's JSON have it."""
    name = spark_name(type_)
    if spec.name == MINMAX:
        described = {"type": "struct", "fields": [_field(end, name, {}) for end in ("min", "max")]}
        return pa.struct([pa.field("min", type_), pa.field("max", type_)]), described
    if spec.name in (VALUE_LIST, REGEX):
        return pa.list_(pa.field("element", type_)), {"type": "array", "elementType": name, "containsNull": True}
    return pa.binary(), {"type": "udt", "class": UDT, "pyClass": None, "sqlType": "binary"}


def _field(name: str, type_: Any, metadata: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata}


def part_name() -> str:
    """Return a name for a part file, as Spark gives them."""
    return f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"


def part_file(
    rows: pa.Table,
    layout: Layout,
    *,
    bounds_are_exact: bool,
    reading: str | None = None,
    sizes: Sequence[int | None] = (),
) -> bytes:
    """Return a part file with rows in the columns of ``layout.arrow_schema``.

    ``bounds_are_exact`` tells that the bounds are those of all rows, NaN included; the original
    cannot say so, and its bounds of floating-point numbers are trusted less. ``reading`` is how texts
    were read for these rows, if that is known. ``sizes`` are the bytes of the files that the rows are about;
    the original knows their times alone.
    """
    sink = io.BytesIO()
    properties = None
    if layout.secrets is not None:
        import pyarrow.parquet.encryption as pe

        made, connection = encryption_factory(layout.secrets.keys)
        configuration = pe.EncryptionConfiguration(
            footer_key=layout.secrets.footer,
            column_keys=layout.column_keys(layout.secrets),
            plaintext_footer=layout.secrets.plaintext_footer,
        )
        properties = made.file_encryption_properties(connection, configuration)
    filters = [spec.metadata_column for spec, _ in layout.indexes if spec.name == BLOOM]
    with pq.ParquetWriter(
        sink,
        layout.arrow_schema,
        compression="zstd",  # filters are large, and mostly zeros
        compression_level=1,
        store_schema=False,
        use_dictionary=[n for n in layout.arrow_schema.names if n not in filters],
        write_statistics=False,
        encryption_properties=properties,
        # The names of the lists' elements are those of the format's own rules.
        use_compliant_nested_type=True,
    ) as writer:
        about = {ROW_METADATA: json.dumps(layout.described(), separators=(",", ":")), SPARK_VERSION: _WRITTEN_AS}
        if bounds_are_exact:
            about[ROW_BOUNDS] = "rows"
        if reading is not None:
            about[READING] = reading
        if any(size is not None for size in sizes):
            about[SIZES] = json.dumps(list(sizes), separators=(",", ":"))
        writer.add_key_value_metadata(about)
        # Readers that look for filters of some files leave out row groups of others.
        writer.write_table(rows, max(1, _GROUP_BYTES * rows.num_rows // max(1, rows.nbytes)))
    return sink.getvalue()


_ESCAPE = r"\\(?:[dDwWsSntrf]|[!-/:-@\[-`{-~])"
# What Java, RE2 and Python read alike, but for dots and ends of lines, which are replaced below.
_TOKEN = re.compile(
    rf"{_ESCAPE}|\[\^?(?:[^\[\]\\&^]|{_ESCAPE})+\]|\((?:\?:|(?!\?))|\)|[*+?]\??|\{{\d+(?:,\d*)?\}}\??|[^\\\[\]{{}}(]"
)
_ENDS = "\n\r\x85\u2028\u2029"
_OF_JAVA = {".": f"[^{_ENDS}]", "$": rf"(?=(?:\r\n|(?<!\r)\n|[{_ENDS[1:]}])?\Z)"}
_IGNORE_CASE = "(?i)"


def of_java(pattern: str) -> re.Pattern[str]:
    """Return a pattern as Java reads it; raises ``invalid-argument`` for what engines may read in different ways."""
    rest = pattern.removeprefix(_IGNORE_CASE)
    tokens = [m[0] for m in _TOKEN.finditer(rest)]
    try:
        if "".join(tokens) != rest:
            raise ValueError("only what Java and DuckDB read alike is possible")
        flags = re.ASCII | (re.IGNORECASE if rest != pattern else 0)
        found = re.compile("".join(_OF_JAVA.get(t, t) for t in tokens), flags)
        pc.match_substring_regex(array_of([""], pa.string()), pattern)
    except (ValueError, re.error, OverflowError, RecursionError, pa.ArrowInvalid) as e:
        raise _refused(pattern, str(e).splitlines()[0]) from None
    if not found.groups:
        raise _refused(pattern, "it has no group in brackets, which is what is kept")
    return found


def extracted(values: pa.Array, pattern: str) -> pa.Array:
    """Return first groups of a pattern in texts: of the first match as DuckDB has it, of all as Java has them."""
    java = of_java(pattern)
    matching = values.filter(pc.match_substring_regex(values, pattern))
    first = pc.replace_substring_regex(matching, rf"\A(?s:.*?)(?:{pattern})(?s:.*)\z", r"\1")
    every = {m[1] for text in values.to_pylist() for m in java.finditer(text) if m[1] is not None}
    return pc.unique(pa.concat_arrays([first, array_of(sorted(every), pa.string())]))


def _refused(pattern: str, reason: str) -> UsageError:
    return UsageError(
        f"{pattern!r} is no pattern for an index: {reason}.",
        hint="Groups, classes, quantifiers, alternatives, ^, $, and (?i) in front are possible.",
    )
