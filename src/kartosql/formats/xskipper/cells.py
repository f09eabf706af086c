"""The cells of metadata columns, and which of them may hold a value that passes a test.

Each answer is one Boolean per row of a part file: False only where no value of that file can pass.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.arrays import array_of, constant
from kartosql.formats.xskipper.domain import ColumnType, Key, Outside, Prefixed, Range, Test

_COMPARE = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}
_TRUE, _FALSE = constant(True, pa.bool_()), constant(False, pa.bool_())
_ZERO, _INTEGER_ZERO = constant(0.0, pa.float64()), constant(0, pa.int64())
_SIGN, _NAN = constant(0x7FFFFFFFFFFFFFFF, pa.int64()), constant(0x7FF8000000000000, pa.int64())
_FEW = 8  # constants that are compared with bounds one by one
_OLD_DAY, _OLD_TIME = -25_567, -2_208_988_800_000_000  # 1900-01-01


class OddCells(ValueError):
    """Cells that are not what the schema of their file promises."""


class Vanished(OddCells):
    """The cells of a part file that somebody removed since it was opened."""


def everything(rows: int) -> pa.BooleanArray:
    """Return True for each of some rows."""
    return _repeated(True, rows)


def nothing(rows: int) -> pa.BooleanArray:
    """Return False for each of some rows."""
    return _repeated(False, rows)


def _repeated(value: bool, rows: int) -> pa.BooleanArray:
    data = (b"\xff" if value else b"\0") * (rows // 8 + 1)
    return pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(data)])


def filled(flags: pa.BooleanArray, value: bool) -> pa.BooleanArray:
    """Return flags with a value in place of NULL."""
    return pc.coalesce(flags, _TRUE if value else _FALSE) if flags.null_count else flags


def keys_of(array: pa.Array, type_: ColumnType) -> pa.Array:
    """Return values as the keys that tests compare with; raises OddCells for values of another type."""
    family, arrow = type_.family, array.type
    if family in ("string", "binary"):
        if not (pa.types.is_string(arrow) or pa.types.is_binary(arrow)):
            raise OddCells(f"values of type {arrow} where {family} is expected")
        try:
            array.validate(full=True)  # text from strangers may be no UTF-8
        except pa.ArrowInvalid as e:
            raise OddCells(str(e)) from None
        return array.cast(pa.binary())
    if family == "decimal":
        if not pa.types.is_decimal(arrow) or (arrow.precision, arrow.scale) != (type_.precision, type_.scale):
            raise OddCells(f"values of type {arrow} where a decimal is expected")
        return array
    if family in ("float", "double"):
        if not pa.types.is_floating(arrow):
            raise OddCells(f"values of type {arrow} where {family} is expected")
        return _order_keys(array.cast(pa.float64()))
    tests = {
        "integer": pa.types.is_signed_integer,
        "boolean": pa.types.is_boolean,
        "date": pa.types.is_date32,
        "timestamp": lambda t: pa.types.is_timestamp(t) and t.unit in ("us", "ms", "s"),
    }
    if family not in tests or not tests[family](arrow):
        raise OddCells(f"values of type {arrow} where {family} is expected")
    try:
        if family == "date":
            array = array.view(pa.int32())
        elif family == "timestamp":
            array = array.cast(pa.timestamp("us", arrow.tz)).view(pa.int64())
        return array.cast(pa.int64())
    except pa.ArrowInvalid as e:
        raise OddCells(str(e)) from None


def _order_keys(array: pa.Array) -> pa.Array:
    """Return floating-point numbers as integers of the same order: NaN is greatest, and both zeros are one."""
    array = pc.if_else(pc.equal(array, _ZERO), _ZERO, array)
    bits = pc.if_else(pc.is_nan(array), _NAN, array.view(pa.int64()))
    return pc.if_else(pc.less(bits, _INTEGER_ZERO), pc.bit_wise_xor(bits, _SIGN), bits)


def is_old(keys: pa.Array, type_: ColumnType) -> pa.Array | None:
    """Return which dates and times lie before 1900, None for other types."""
    if type_.family not in ("date", "timestamp"):
        return None
    limit = constant(_OLD_DAY if type_.family == "date" else _OLD_TIME, pa.int64())
    return filled(pc.less(keys, limit), False)


def _scalar(key: Key, array: pa.Array) -> pa.Scalar:
    return constant(key, array.type)


def _after(prefix: bytes) -> bytes | None:
    """Return the first bytes behind all that begin with ``prefix``, None if there are none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None


# -- bounds ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bounds:
    """The least and greatest keys of the files, NULL where they are not known.

    ``empty`` tells the files that have no value but NULL.
    """

    low: pa.Array
    high: pa.Array
    empty: pa.BooleanArray

    def may_pass(self, test: Test) -> pa.BooleanArray:
        """Return which files may hold a value that passes a test."""
        if isinstance(test, Range):
            passes = self._compare(test.op, test.key)
        elif isinstance(test, Prefixed):
            passes = self._compare(">=", test.prefix)
            after = _after(test.prefix)
            if after is not None:
                passes = pc.and_(passes, self._compare("<", after))
        elif isinstance(test, Outside):
            passes = self._outside(test.keys)
        else:
            passes = self._among(sorted(test.keys))
        return pc.and_not(passes, self.empty)

    def _compare(self, op: str, key: Key) -> pa.BooleanArray:
        side = self.low if op.startswith("<") else self.high
        return filled(_COMPARE[op](side, _scalar(key, side)), True)

    def _outside(self, keys: Iterable[Key]) -> pa.BooleanArray:
        known = array_of(list(keys), self.low.type)
        if not len(known):
            return everything(len(self.low))
        one = pc.and_(pc.equal(self.low, self.high), pc.is_in(self.low, value_set=known))
        return pc.invert(filled(one, False))

    def _among(self, keys: Sequence[Any]) -> pa.BooleanArray:
        if len(keys) > _FEW:
            return array_of(self._among_many(keys), pa.bool_())
        passes = nothing(len(self.low))
        for key in keys:
            passes = pc.or_(passes, pc.and_(self._compare(">=", key), self._compare("<=", key)))
        return passes

    def _among_many(self, keys: Sequence[Any]) -> list[bool]:
        found = []
        for low, high in zip(self.low.to_pylist(), self.high.to_pylist(), strict=True):
            at = 0 if low is None else bisect.bisect_left(keys, low)
            found.append(at < len(keys) and (high is None or keys[at] <= high))
        return found


# UTF-16, by whose order the bounds of text were found, puts these characters the other way round.
_SUPPLEMENTARY, _BEHIND_SURROGATES = rb"[\xf0-\xf4]", rb"[\xee\xef]"


def bounds_of(low: pa.Array, high: pa.Array, type_: ColumnType, *, is_legacy: bool) -> Bounds:
    """Return the bounds in columns of least and greatest values; raises OddCells."""
    empty = pc.and_(low.is_null(), high.is_null())
    low_keys, high_keys = keys_of(low, type_), keys_of(high, type_)
    if type_.family == "string":
        low_keys = _without(low_keys, pc.match_substring_regex(low_keys, _SUPPLEMENTARY))
        high_keys = _without(high_keys, pc.match_substring_regex(high_keys, _BEHIND_SURROGATES))
    if type_.family == "binary":
        # Xskipper has no order of its own for bytes.
        differs = pc.not_equal(low_keys, high_keys)
        low_keys, high_keys = _without(low_keys, differs), _without(high_keys, differs)
    if is_legacy:
        old = is_old(low_keys, type_)
        if old is not None:
            low_keys = _without(low_keys, old)
            high_keys = _without(high_keys, pc.or_(is_old(high_keys, type_), old))
    # Bounds the wrong way round bound nothing.
    wrong = pc.greater(low_keys, high_keys)
    return Bounds(_without(low_keys, wrong), _without(high_keys, wrong), empty)


def _without(keys: pa.Array, unusable: pa.BooleanArray) -> pa.Array:
    return pc.if_else(filled(unusable, False), pa.nulls(1, keys.type)[0], keys)


# -- values ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """All keys of the files: ``keys`` one after the other, and the ``rows`` they belong to.

    ``unknown`` are the rows of which not all are known.
    """

    keys: pa.Array
    rows: pa.Array
    unknown: pa.BooleanArray

    def may_pass(self, test: Test) -> pa.BooleanArray:
        """Return which files may hold a value that passes a test."""
        if isinstance(test, Range):
            passes = _COMPARE[test.op](self.keys, _scalar(test.key, self.keys))
        elif isinstance(test, Prefixed):
            passes = pc.starts_with(self.keys, test.prefix) if test.prefix else pc.is_valid(self.keys)
        else:
            known = array_of(list(test.keys), self.keys.type)
            passes = pc.is_in(self.keys, value_set=known)
            if isinstance(test, Outside):
                passes = pc.and_(pc.invert(passes), pc.is_valid(self.keys))
        rows = self.rows.filter(filled(passes, False))
        return pc.or_(flags(rows, len(self.unknown)), self.unknown)


def flags(rows: pa.Array, count: int) -> pa.BooleanArray:
    """Return True for those of ``count`` rows that are listed."""
    found = bytearray(count)
    for row in rows.unique().to_pylist():
        found[row] = 1
    return pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(bytes(found))]).cast(pa.bool_())


def values_of(lists: pa.Array, type_: ColumnType, *, is_legacy: bool) -> Values:
    """Return the values in a column of lists; raises OddCells."""
    if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        raise OddCells(f"cells of type {lists.type} where lists are expected")
    keys = keys_of(lists.flatten(), type_)
    rows = pc.list_parent_indices(lists)
    unknown = nothing(len(lists))
    old = is_old(keys, type_) if is_legacy else None
    if old is not None:
        unknown = flags(rows.filter(old), len(lists))
    return Values(keys, rows, unknown)


def single_values(array: pa.Array, type_: ColumnType) -> Values:
    """Return the values of a column that has one for each file; raises OddCells."""
    rows = array_of(range(len(array)), pa.int64())
    return Values(keys_of(array, type_), rows, nothing(len(array)))
