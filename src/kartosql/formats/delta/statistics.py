"""Statistics of files in the log of a Delta table: row counts, NULLs and bounds of columns."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import reraise
from kartosql.formats.arrays import array_of, constant
from kartosql.formats.delta.log import PARSED
from kartosql.formats.delta.schema import PHYSICAL, WAS_FLOAT, value_reader

_BOUNDS, _NULLS = ("minValues", "maxValues"), "nullCount"
_BAD = (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)
_TWO = r"\}\s*\{"  # what may be two objects in one text


class FileStatistics:
    """Statistics of ``files``, of which those ``kept`` of ``before`` come first; it is read when it is asked for."""

    def __init__(
        self,
        files: pa.Table,
        columns: Iterable[pa.Field],
        before: FileStatistics | None = None,
        kept: pa.ChunkedArray | None = None,
    ) -> None:
        t = pa.types
        tests = (t.is_integer, t.is_floating, t.is_decimal, t.is_string, t.is_date32, t.is_timestamp)
        # The digits of a FLOAT are not those of the DOUBLE that it became.
        told = [f for f in columns if any(test(f.type) for test in tests) and WAS_FLOAT not in f.metadata]
        self._columns = {f.name: (f.metadata[PHYSICAL].decode(), f.type) for f in told}
        self._files = files
        self._told: dict[str, pa.Table] = {}
        if before is not None and kept is not None and before._columns == self._columns:
            for name, known in before._told.items():
                stays = known.filter(kept)
                self._told[name] = pa.concat_tables([stays, self._read(files.slice(stays.num_rows), name)])

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def of(self, column: str) -> pa.Table:
        """Return ``rows``, ``tight``, ``low``, ``high`` and ``nulls`` of a column in each file; for "" the first two.

        What is garbage, or of another type than the column, is NULL.
        """
        if column not in self._told:
            if not column and self._told:
                return next(iter(self._told.values()))
            self._told[column] = self._read(self._files, column)
        return self._told[column]

    def _read(self, files: pa.Table, column: str) -> pa.Table:
        name, type_ = self._columns.get(column, ("", pa.null()))
        schema = pa.schema(zip(("rows", "tight", "low", "high", "nulls"), _types(type_), strict=True))
        if not files.num_rows:
            return pa.table([pa.nulls(0, t) for t in schema.types], schema=schema)
        texts = files["stats"].combine_chunks()
        try:
            found = _members(_at_once(texts, name, type_), name, schema)
        except _BAD as e:
            reraise(e)
            rows = [_statistics_of_one(text, name, type_) for text in texts.to_pylist()]
            found = [array_of(v, t) for v, t in zip(zip(*rows, strict=True), schema.types, strict=True)]
        if PARSED in files.column_names:
            with contextlib.suppress(*_BAD):
                told = _members(files[PARSED].combine_chunks(), name, schema)
                found = [pc.coalesce(one, other) for one, other in zip(found, told, strict=True)]
        return pa.table(found, schema=schema)


def _types(type_: pa.DataType) -> Sequence[pa.DataType]:
    return pa.int64(), pa.bool_(), type_, type_, pa.int64()


def _at_once(texts: pa.Array, name: str, type_: pa.DataType) -> pa.StructArray:
    """Read all texts together; raises what is in ``_BAD`` unless each is one object with values as they should be."""
    import pyarrow.json as pj

    lines = pa.concat_arrays([pc.fill_null(texts, constant("{}", pa.string()))])
    if not pc.all(pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))).as_py():
        raise ValueError("some are no objects")
    if pc.any(pc.match_substring_regex(lines, _TWO)).as_py():
        raise ValueError("some may be two objects")
    t = pa.types
    is_kept = t.is_decimal(type_) or t.is_string(type_) or t.is_null(type_)
    bound = type_ if is_kept else pa.int64() if t.is_integer(type_) else pa.float64()
    bound = pa.string() if t.is_temporal(type_) else bound
    parts = [(part, pa.struct([(name, pa.int64() if part == _NULLS else bound)])) for part in (*_BOUNDS, _NULLS)]
    schema = pa.schema([("numRecords", pa.int64()), ("tightBounds", pa.bool_()), *(parts if name else ())])
    data = lines.buffers()[2]  # one behind the other
    table = pj.read_json(
        pa.BufferReader(data),
        pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    ).combine_chunks()
    if table.num_rows != len(texts):
        raise ValueError("objects are not one by one")
    return pa.StructArray.from_arrays([c.chunk(0) for c in table.columns], table.column_names)


def _members(told: pa.StructArray, name: str, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of a ``schema`` from objects as the log has them; raises what is in ``_BAD``."""
    paths = [["numRecords"], ["tightBounds"], *([part, name] for part in (*_BOUNDS, _NULLS))]
    return [_member(told, path, type_) for path, type_ in zip(paths, schema.types, strict=True)]


def _member(values: pa.Array, path: Sequence[str], type_: pa.DataType) -> pa.Array:
    for name in path:
        if not pa.types.is_struct(values.type) or values.type.get_field_index(name) < 0:
            return pa.nulls(len(values), type_)
        values = pc.struct_field(values, [name])
    return values.cast(type_)


def _statistics_of_one(text: str | None, name: str, type_: pa.DataType) -> tuple[Any, ...]:
    """Return what one text says; what is odd about it is None."""
    try:
        found = json.loads(text or "{}", parse_float=Decimal)
        rows, tight = found.get("numRecords"), found.get("tightBounds")
        lows, highs, nulls = (p.get(name) if isinstance(p := found.get(k), dict) else None for k in (*_BOUNDS, _NULLS))
    except _BAD as e:
        reraise(e)
        return (None,) * 5
    bounds = (_value(lows, type_), _value(highs, type_))
    return _count(rows), tight if tight in (True, False) else None, *bounds, _count(nulls)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _value(value: Any, type_: pa.DataType) -> Any:
    """Return a bound as a value of a type, or None."""
    t = pa.types
    is_number = type(value) in (int, Decimal)
    is_right = is_number if t.is_floating(type_) or t.is_decimal(type_) else isinstance(value, str)
    if not (type(value) is int if t.is_integer(type_) else is_right):
        return None
    try:
        if t.is_floating(type_):
            return float(value)
        found = value_reader(type_)(str(value))
        if isinstance(found, str):
            found.encode()  # a half of a pair has no bytes
        return found
    except _BAD:
        return None
