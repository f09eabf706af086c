"""The columns of an ODF dataset: those of its files and of its schemas, with the names of its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.formats.odf.chain import Chain
from kartosql.formats.type_promotion import plain, united

_MOMENT = pa.timestamp("ms", "UTC")


@dataclass(frozen=True)
class Columns:
    """The columns of all records, and those that say what each record is."""

    types: dict[str, pa.DataType]
    offset: str
    op: str
    system_time: str
    event_time: str

    @property
    def system(self) -> tuple[str, str, str]:
        """The columns that a correction does not repeat."""
        return self.offset, self.op, self.system_time

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns that a retraction repeats from the record that it retracts."""
        return tuple(c for c in self.types if c not in self.system)


def columns_of(chain: Chain, files: Sequence[pa.Schema], names: Sequence[str], source: str) -> Columns:
    """Return the columns of a dataset whose data ``files``, called ``names``, have these schemas.

    Columns are those of the newest schema, then what only older ones have. Types widen exactly,
    else ``schema-conflict`` names column, types and file. Offsets may be integers of any type and are BIGINT,
    operations INTEGER.
    """
    vocab = chain.vocab
    fixed = {vocab.offset_column: pa.int64(), vocab.operation_type_column: pa.int32()}
    if chain.primary_key:
        _check_offsets(files, names, vocab.offset_column, source)
    reduced = {id(s): _without_fixed(s, fixed, source, n) for s, n in zip(files, names, strict=True)}
    declared = [pa.schema([pa.field(f.name, plain(f.type)) for f in v.arrow]) for v in chain.schemas]
    shown = [f"schema {v.number} ({v.link})" for v in chain.schemas]
    known = [_without_fixed(s, fixed, source, n) for s, n in zip(declared, shown, strict=True)]
    found = united([*(reduced[id(s)] for s in files), *known], [*names, *shown], source)
    default = [vocab.system_time_column, vocab.event_time_column]
    order = [*fixed, *default, *(declared[-1].names if declared else ()), *found]
    types = {**dict.fromkeys(default, _MOMENT), **found, **fixed}
    return Columns({name: types[name] for name in dict.fromkeys(order)}, *fixed, *default)


def _check_offsets(files: Sequence[pa.Schema], names: Sequence[str], column: str, source: str) -> None:
    """Refuse files without offsets: nothing else tells which record about a key is the last one."""
    for schema, name in zip(files, names, strict=True):
        if schema.get_field_index(column) < 0:
            raise FormatError(
                f"{source}: {name} has no column {column!r}",
                code="schema-conflict",
                hint="Records about one key count in the order of their offsets.",
            )


def _without_fixed(schema: pa.Schema, fixed: dict[str, pa.DataType], source: str, name: str) -> pa.Schema:
    """Return a schema without the columns whose type is known; raises ``schema-conflict`` for other types."""
    for column in fixed:
        at = schema.get_field_index(column)
        if at >= 0 and not pa.types.is_integer(schema.field(at).type):
            raise FormatError(
                f"{source}: the column {column!r} is {schema.field(at).type} in {name}, but has to be an integer",
                code="schema-conflict",
                hint="It numbers the records or tells what each of them does.",
            )
    return pa.schema([f for f in schema if f.name not in fixed])
