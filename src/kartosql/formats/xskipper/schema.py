"""What a part file of metadata says about itself: the schema that Spark keeps in its footer, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kartosql.errors import FormatError
from kartosql.formats.xskipper.domain import ColumnType, spark_type
from kartosql.formats.xskipper.naming import OBJECT_COLUMN, VIRTUAL, spelled

ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"
SPARK_VERSION = "org.apache.spark.version"
READING = "kartosql.reading"  # how texts were read, in a file of ours about files of text
ROW_BOUNDS = "kartosql.bounds"  # a file of ours, whose bounds are those of all rows, NaN included
SIZES = "kartosql.sizes"  # of the files that the rows of a file of ours are about, a JSON list in their order
PARTS = "kartosql.parts"  # of a metadata column of ours: the names in that of the index, where some hold dots
NEWEST = 4
MINMAX, VALUE_LIST, BLOOM, REGEX = "minmax", "valuelist", "bloomfilter", "regexvaluelist"
FPP, NDV, PATTERN = "index.bloom.fpp", "index.bloom.ndv", "plugins.regex.pattern."
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
    def shown(self) -> str:
        """The columns as text, names with dots in quotes."""
        return spelled(self.path or self.cols)

    @property
    def value_type(self) -> ColumnType | None:
        """The type of the indexed column, None where the index does not tell."""
        described = self.spark_type
        if not isinstance(described, dict):
            return None
        if self.name == MINMAX and described.get("type") == "struct":
            fields = described.get("fields")
            members = [f for f in fields if isinstance(f, dict)] if isinstance(fields, list) else []
            types = {str(f.get("name")): f.get("type") for f in members}
            return spark_type(types.get("min")) if types.get("min") == types.get("max") else None
        if self.name in (VALUE_LIST, REGEX) and described.get("type") == "array":
            return spark_type(described.get("elementType"))
        return None

    @property
    def is_object(self) -> bool:
        """Whether the cells are serialized Java objects."""
        return isinstance(self.spark_type, dict) and self.spark_type.get("type") == "udt"


@dataclass(frozen=True)
class FileSchema:
    """The schema of a part file.

    ``virtual`` are the types of partition columns by their names, ``spark_virtual`` as Spark has them.
    ``is_legacy`` tells that dates and times before 1900 may stand in another calendar or zone.
    ``bounds_are_exact`` tells that no bounds come from footers of Parquet files, which know nothing of NaN.
    ``reading`` tells for files of text how they were read, if the file is one of ours; ``sizes`` then are
    the bytes of the indexed files, row by row, None for those that are not known.
    """

    version: int
    table_identifiers: tuple[str, ...]
    indexes: tuple[Index, ...]
    virtual: Mapping[str, ColumnType | None]
    encryption: Mapping[str, str]
    is_legacy: bool
    bounds_are_exact: bool
    spark_virtual: Mapping[str, Any] = field(default_factory=dict)
    reading: str | None = None
    sizes: Sequence[int | None] | None = None


def read_schema(footer: Mapping[bytes, bytes] | None, source: str) -> FileSchema:
    """Return what the key-value metadata of a part file's footer says.

    Raises ``invalid-metadata`` if that is no metadata of Xskipper, and ``unsupported-version``
    for versions that are not known. ``source`` names the file.
    """
    found = {k: v for k, v in (footer or {}).items() if isinstance(k, bytes)}
    described = _json(found.get(ROW_METADATA.encode()), source)
    fields = described.get("fields") if isinstance(described, dict) else None
    if not isinstance(fields, list) or len(fields) > MAX_FIELDS:
        raise _odd(source, "its footer holds no schema of Spark")
    objects, indexes, virtual, raw = None, [], {}, {}
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
            virtual[name[len(VIRTUAL) :]] = spark_type(entry.get("type"))
            raw[name[len(VIRTUAL) :]] = entry.get("type")
    if objects is None:
        raise _odd(source, f"it has no column {OBJECT_COLUMN}")
    version = _version(objects.get("version", 0), source)
    if isinstance(objects.get("tableIdentifier"), str):
        tables = [objects["tableIdentifier"]]
    encryption = objects.get("encryption")
    return FileSchema(
        version,
        tuple(dict.fromkeys(tables)),
        tuple(indexes),
        virtual if version >= NEWEST else {},
        {k: v for k, v in encryption.items() if isinstance(v, str)} if isinstance(encryption, dict) else {},
        _is_legacy(found),
        _is_exact(indexes) or found.get(ROW_BOUNDS.encode()) == b"rows",
        raw if version >= NEWEST else {},
        found[READING.encode()].decode("utf-8", "replace") if READING.encode() in found else None,
        _sizes(found.get(SIZES.encode()), source),
    )


def _odd(source: str, problem: str) -> FormatError:
    return FormatError(
        f"{source}: {problem}.",
        code="invalid-metadata",
        hint="It is no metadata of Xskipper, or it is damaged; nothing is skipped by it.",
    )


def _json(raw: bytes | None, source: str) -> Any:
    if raw is None or len(raw) > MAX_JSON:
        raise _odd(source, "its footer holds no schema of Spark")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise _odd(source, "the schema in its footer is no JSON") from None


def _sizes(raw: bytes | None, source: str) -> list[int | None] | None:
    if raw is None:
        return None
    try:
        sizes = json.loads(raw)
    except (ValueError, RecursionError):
        sizes = None
    if not isinstance(sizes, list) or not all(size is None or type(size) is int for size in sizes):
        raise _odd(source, "the sizes in its footer are no list of numbers")
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
    return Index(
        name,
        tuple(c.lower() for c in cols),
        column,
        _params(meta.get("params")),
        key if isinstance(key, str) else None,
        type_,
        tuple(p.lower() for p in parts or ()),
    )


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
    """Return whether a Spark before 3.0, or one that was told so, wrote dates and times of the old calendar."""
    if b"org.apache.spark.legacyDateTime" in footer or b"org.apache.spark.legacyINT96" in footer:
        return True
    major = footer.get(SPARK_VERSION.encode(), b"").split(b".")[0]
    return not (major.isdigit() and int(major) >= 3)


def _is_exact(indexes: list[Index]) -> bool:
    """Return whether rows were read for the bounds: footers serve if all indexes are MinMax of native numbers."""
    for index in indexes:
        type_ = index.value_type
        if index.name != MINMAX or (type_ is not None and type_.family not in ("integer", "float", "double")):
            return True
    return False
