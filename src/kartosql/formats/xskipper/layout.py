"""The columns of metadata to be: indexes that are asked for, over columns of known types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from kartosql.errors import UsageError
from kartosql.formats.xskipper.kinds import MIN_MAX, IndexSpec, schema_field, spark_name
from kartosql.formats.xskipper.naming import OBJECT_COLUMN, VIRTUAL, parts_of, spelled
from kartosql.formats.xskipper.segment import NEWEST, PARTS, Index
from kartosql.text.types import type_name


@dataclass(frozen=True)
class Secrets:
    """What metadata are encrypted with: master keys by their labels, and the label of the footer's key."""

    keys: Mapping[str, bytes]
    footer: str
    plaintext_footer: bool = False


@dataclass(frozen=True)
class IndexLayout:
    """The columns of metadata to be: the table, the indexes with the types of their columns, and partition columns.

    Types are those of the values as they are written, as ``Kind.value_type`` returns them. ``reading`` says how
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
        fields += [pa.field(spec.metadata_column, spec.kind.cell_type(type_)[0]) for spec, type_ in self.indexes]
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
        fields = [schema_field(OBJECT_COLUMN, "string", head)]
        fields += [schema_field(VIRTUAL + name, spark_name(type_), {}) for name, type_ in self.partitions.items()]
        for spec, type_ in self.indexes:
            about: dict[str, Any] = {"index": spec.described()}
            if any("." in part for part in spec.path):
                about[PARTS] = list(spec.path)
            fields.append(schema_field(spec.metadata_column, spec.kind.cell_type(type_)[1], about))
        return {"type": "struct", "fields": fields}

    def column_keys(self, secrets: Secrets) -> dict[str, list[str]]:
        """Return the encrypted Parquet columns by the label of their key."""
        found: dict[str, list[str]] = {}
        for spec, _ in self.indexes:
            if spec.key is not None:
                found.setdefault(spec.key, []).extend(spec.metadata_column + leaf for leaf in spec.kind.leaves)
        found.setdefault(secrets.footer, []).extend([OBJECT_COLUMN, *(VIRTUAL + n for n in self.partitions)])
        return found


def layout_for(
    table: str,
    specs: Sequence[IndexSpec],
    columns: Mapping[str, pa.DataType],
    partitions: Mapping[str, pa.DataType] | None = None,
    secrets: Secrets | None = None,
    existing: Iterable[Index] = (),
) -> IndexLayout:
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
        kept = spec.kind.value_type(type_)
        if kept is None and type_ == pa.binary() and (spec.name, spec.path) in known:
            kept = type_
        if kept is None:
            raise UsageError(
                f"A {spec.name} index cannot be over {spec.column!r}, which is of the type {type_name(type_)}.",
                code="unsupported-type",
                hint=f"Such an index takes {spec.kind.takes}.",
            )
        typed.append((spec, kept))
    kinds = {name: MIN_MAX.value_type(type_) for name, type_ in (partitions or {}).items()}
    return IndexLayout(table, typed, {name: type_ for name, type_ in kinds.items() if type_ is not None}, secrets)


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
