"""Conditions against the indexes of one part file: which of its rows may stand for files with a match."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.arrays import array_of
from kartosql.formats.xskipper.bloom import MAX_VALUES, Filters
from kartosql.formats.xskipper.cells import OddCells, Vanished, everything, nothing
from kartosql.formats.xskipper.domain import Among, ColumnType, Test, as_tests
from kartosql.formats.xskipper.naming import path_of
from kartosql.formats.xskipper.schema import BLOOM, MINMAX, PATTERN, REGEX, VALUE_LIST, Index
from kartosql.formats.xskipper.segment import Segment
from kartosql.predicate.tree import (
    Comparison,
    Constant,
    Extracted,
    Group,
    In,
    Leaf,
    Opaque,
    Path,
    Predicate,
)
from kartosql.predicate.values import Value

PARTITION = "partition key"
# In the order in which they are asked: a kind is asked only about files that the ones before it leave.
KINDS = (PARTITION, MINMAX, VALUE_LIST, REGEX, BLOOM)
INDEX_KINDS = KINDS[1:]  # for planners, which asked for partition values before
Types = Mapping[Path, ColumnType]


@dataclass(frozen=True)
class Session:
    """What conditions mean: the time zone of the session, and the types of columns where they are known.

    With ``types``, an index is used only for a column in it, and only if it agrees on the type.
    ``kinds`` are the kinds of indexes that are used.
    """

    zone: str = "UTC"
    types: Types | None = None
    kinds: tuple[str, ...] = KINDS


class Clauses:
    """The indexes of a part file, as answers to conditions; what they answer is remembered for one statement."""

    def __init__(self, segment: Segment, filters: Callable[[Segment, Index], Filters], session: Session) -> None:
        self._segment = segment
        self._filters = filters
        self._session = session
        self._found: dict[tuple[str, Leaf], pa.BooleanArray | None] = {}
        self._everything = everything(segment.rows)
        self.asked: set[str] = set()  # the kinds of indexes that had an answer

    def stages(self, condition: Predicate) -> list[tuple[str, pa.BooleanArray]]:
        """Return which rows are left after each kind of index was asked; a row that is left once more stays out."""
        left, found = self._everything, []
        for number in range(len(KINDS)):
            asked = KINDS[: number + 1]
            if KINDS[number] not in self._session.kinds:
                continue
            passes = self._may_hold(condition, asked, left)
            if passes is not None:
                left = pc.and_(left, passes)
                self.asked |= {kind for (kind, _), flags in self._found.items() if flags is not None}
            found.append((KINDS[number], left))
        return found

    def _may_hold(self, condition: Predicate, kinds: Collection[str], alive: pa.BooleanArray) -> pa.BooleanArray | None:
        """Return which rows may stand for files with a match, None for all of them."""
        if isinstance(condition, Constant):
            return None if condition.holds else nothing(self._segment.rows)
        if isinstance(condition, Opaque):
            return None
        if not isinstance(condition, Group):
            return self._leaf(condition, kinds, alive)
        parts = [self._may_hold(item, kinds, alive) for item in condition.items]
        if condition.op == "OR":
            if any(p is None for p in parts):
                return None
            joined = pc.or_
        else:
            parts = [p for p in parts if p is not None]
            joined = pc.and_
        result = None
        for part in parts:
            result = part if result is None else joined(result, part)
        return result

    def _leaf(self, leaf: Leaf, kinds: Collection[str], alive: pa.BooleanArray) -> pa.BooleanArray | None:
        result = None
        for kind in kinds:
            if kind not in self._session.kinds:
                continue
            if (kind, leaf) not in self._found:
                # Answers of filters hold for rows that are alive; from stage to stage there are fewer of them.
                self._found[kind, leaf] = self._asked(kind, leaf, alive)
            found = self._found[kind, leaf]
            if found is not None:
                result = found if result is None else pc.and_(result, found)
        return result

    def _asked(self, kind: str, leaf: Leaf, alive: pa.BooleanArray) -> pa.BooleanArray | None:
        if kind == PARTITION:
            return self._by_partition(leaf)
        result = None
        for index in self._segment.schema.indexes:
            if index.name != kind or index.path != leaf.path:
                continue
            if kind == MINMAX:
                found = self._by_bounds(index, leaf)
            elif kind == VALUE_LIST:
                found = self._by_values(index, leaf)
            elif kind == REGEX:
                found = self._by_pattern(index, leaf)
            else:
                found = self._by_filters(index, leaf, alive)
            if found is not None:
                result = found if result is None else pc.and_(result, found)
        return result

    # -- kinds -----------------------------------------------------------------------------

    def _tests(self, leaf: Leaf, type_: ColumnType) -> tuple[Test, ...] | None:
        """Return the tests of a leaf on a column that an index holds as some type; None, if it is another one."""
        if self._session.types is not None:
            known = self._session.types.get(leaf.path)
            if known is None or not _agree(known, type_):
                return None
            type_ = known
        return as_tests(leaf, type_, self._session.zone)

    def _by_partition(self, leaf: Leaf) -> pa.BooleanArray | None:
        result = None
        for name in self._segment.schema.virtual:
            if (name.lower(),) == leaf.path and (found := self._segment.partition(name)) is not None:
                values, type_ = found
                tests = self._tests(leaf, type_)
                part = None if tests is None else _any(values.may_pass, tests, self._segment.rows)
                if part is not None:
                    result = part if result is None else pc.or_(result, part)
        return result

    def _by_bounds(self, index: Index, leaf: Leaf) -> pa.BooleanArray | None:
        found = self._segment.bounds(index)
        if found is None:
            return None
        bounds, type_ = found
        tests = self._tests(leaf, type_)
        if tests is None:
            return None
        passes = _any(bounds.may_pass, tests, self._segment.rows)
        if type_.family in ("float", "double") and not self._segment.schema.bounds_are_exact:
            # Footers of Parquet files know nothing of NaN: such bounds prove nothing. Other formats have none.
            passes = pc.or_(passes, array_of([not _has_no_footer(i) for i in self._segment.ids()], pa.bool_()))
        return passes

    def _by_values(self, index: Index, leaf: Leaf) -> pa.BooleanArray | None:
        found = self._segment.values(index)
        if found is None:
            return None
        values, type_ = found
        tests = self._tests(leaf, type_)
        return None if tests is None else _any(values.may_pass, tests, self._segment.rows)

    def _by_pattern(self, index: Index, leaf: Leaf) -> pa.BooleanArray | None:
        if not isinstance(leaf, Extracted) or "" in leaf.values:
            return None  # what does not match is extracted as an empty text, and that is in no list
        stored = [v for k, v in index.params.items() if k.startswith(PATTERN)]
        found = self._segment.values(index) if leaf.pattern in stored else None
        if found is None or found[1].family != "string":
            return None
        test = Among(frozenset(v.encode("utf-8", "surrogatepass") for v in leaf.values))
        return found[0].may_pass(test)

    def _by_filters(self, index: Index, leaf: Leaf, alive: pa.BooleanArray) -> pa.BooleanArray | None:
        values = self._hashed(index, leaf)
        if values is None or len(values) > MAX_VALUES:
            return None
        try:
            found = self._filters(self._segment, index).may_hold(values, alive.to_pylist())
        except Vanished:
            return None
        except OddCells as e:
            self._segment.report(f"{self._segment.source}: the column {index.column} is not used: {e}")
            return None
        return array_of(found, pa.bool_())

    def _hashed(self, index: Index, leaf: Leaf) -> list[int | str] | None:
        """Return the values of which a file must hold one, None if they are not certain."""
        if isinstance(leaf, Comparison) and leaf.op == "=":
            constants: tuple[Value, ...] | None = (leaf.value,)
        elif isinstance(leaf, In) and not leaf.negated:
            constants = leaf.values
        else:
            return None
        type_ = self._type_of(index)
        if constants is None:
            return None
        if type_ is None:
            return _untyped(constants)
        tests = as_tests(In(leaf.path, constants), type_, self._session.zone)
        if tests is None or len(tests) != 1 or not isinstance(tests[0], Among):
            return None
        if type_.family == "integer":
            return [k for k in tests[0].keys if isinstance(k, int)]
        return [k.decode() for k in tests[0].keys if isinstance(k, bytes)] if type_.family == "string" else None

    def _type_of(self, index: Index) -> ColumnType | None:
        """Return the type of a column; filters do not tell it, but indexes on the same column may."""
        if self._session.types is not None:
            return self._session.types.get(index.path, ColumnType("unknown"))
        for other in self._segment.schema.indexes:
            if other.path == index.path and other.name in (MINMAX, VALUE_LIST) and other.value_type is not None:
                return other.value_type
        return None


def _any(may_pass: Callable[[Test], pa.BooleanArray], tests: Sequence[Test], rows: int) -> pa.BooleanArray:
    result = None
    for test in tests:
        found = may_pass(test)
        result = found if result is None else pc.or_(result, found)
    return nothing(rows) if result is None else result


def _agree(known: ColumnType, indexed: ColumnType) -> bool:
    return known.family == indexed.family and (known.precision, known.scale) == (indexed.precision, indexed.scale)


def _untyped(constants: Sequence[Value]) -> list[int | str] | None:
    """Return what constants may be in a column of integers and in one of texts, which is not known."""
    found: list[int | str] = []
    for constant in constants:
        raw = constant.value
        if constant.kind == "integer" and isinstance(raw, int):
            number: int | None = raw
        elif constant.kind in ("string", "text") and isinstance(raw, str):
            number = _number(raw)
        else:
            return None
        found.append(str(raw))
        if number is not None and -(1 << 63) <= number < 1 << 63:
            found.append(number)
    return found


def _number(text: str) -> int | None:
    try:
        return round(float(text)) if len(text) < 40 else None
    except (ValueError, OverflowError):
        return None


_FORMATS = (".csv", ".json", ".orc")
_PACKED = (".gz", ".bz2", ".snappy", ".lz4", ".zst", ".zstd", ".deflate")


def _has_no_footer(object_name: str) -> bool:
    """Return whether the name of an object tells that it is no Parquet file."""
    name = path_of(object_name).rsplit("/", 1)[-1].lower()
    for suffix in _PACKED:
        name = name.removesuffix(suffix)
    return name.endswith(_FORMATS)
