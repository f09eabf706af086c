"""The kinds of indexes: what each keeps of the rows of a file, how it is stored, and which conditions it answers.

A new kind is a subclass of ``Kind`` and its place in ``KINDS``: the statements that make, refresh and advise indexes,
readers and writers of part files ask that table alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial, reduce
from itertools import accumulate
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import FormatError, UsageError
from kartosql.formats.arrays import array_of
from kartosql.formats.xskipper.bloom import (
    DEFAULT_FPP,
    DEFAULT_NDV,
    MAX_VALUES,
    MAX_WORDS,
    FilterBuilder,
    Filters,
    Shape,
    cell_of,
    filters_of,
    prepared,
    shape_for,
    words_of,
)
from kartosql.formats.xskipper.domain import (
    ANY,
    Among,
    Bounds,
    ColumnType,
    Containing,
    OddCells,
    Outside,
    Range,
    Test,
    Values,
    Vanished,
    as_tests,
    bounds_of,
    repeated,
    values_of,
)
from kartosql.formats.xskipper.grams import SIZE, PieceSet, Wanted, may_hold, pieces_of
from kartosql.formats.xskipper.java import JavaStreamError, old_bounds, old_values
from kartosql.formats.xskipper.java_patterns import extracted, of_java
from kartosql.formats.xskipper.naming import column_name, parts_of, path_of, spelled
from kartosql.formats.xskipper.segment import FileSchema, Index, Segment
from kartosql.predicate.tree import Contains, ContainsFolded, Extracted, In, Leaf, Path, Value, alternatives

UDT = "io.xskipper.metadatastore.parquet.ParquetBaseClauseTranslator$BloomFilterMetaDataTypeUDT"
TIME = pa.timestamp("us", "UTC")
_PREFIX = "io.xskipper."
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
PARTITION = "partition key"
DEFAULT_LENGTH, MAX_LENGTH = 8, 1_000  # characters of a prefix
Types = Mapping[Path, ColumnType]
Flags: TypeAlias = pa.BooleanArray  # of the rows of a part file


def spark_name(type_: pa.DataType) -> str:
    """Return Spark's name of a type, empty for types that have none."""
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})" if 0 <= type_.scale <= type_.precision else ""
    return "timestamp" if type_ == TIME else _SPARK_NAMES.get(type_, "")


def schema_field(name: str, type_: Any, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return a field of a schema as Spark's JSON has it."""
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata}


def stored(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return values as an array; dates are given as numbers, as times are."""
    plain = array_of(values, pa.int32() if pa.types.is_date32(type_) else type_)
    return plain if plain.type == type_ else plain.view(type_)


def joined_flags(join: Callable[..., Any], flags: Iterable[Flags | None]) -> Flags | None:
    """Return known flags joined, or None."""
    known = [f for f in flags if f is not None]
    return reduce(join, known) if known else None


@dataclass(frozen=True)
class IndexSpec:
    """An index to be: its kind, the column it is over, and its parameters.

    ``column`` has dots between members of structs; a name that holds dots itself is in double
    quotes. ``fpp`` and ``ndv`` are the share of false positives and the number of distinct values that
    a Bloom filter is made for. ``key`` is the label of the key that encrypts it. ``is_twin`` says that
    other names of the table read the same when dots join them. ``patterns`` are the regular
    expressions of which a list keeps the first groups. ``length`` are the characters of a prefix.
    """

    name: str
    column: str
    fpp: float = DEFAULT_FPP
    ndv: int = DEFAULT_NDV
    key: str | None = None
    is_twin: bool = False
    patterns: tuple[str, ...] = ()
    length: int = DEFAULT_LENGTH

    def __post_init__(self) -> None:
        """Refuse what cannot be; raises ``invalid-argument``."""
        if self.name not in KINDS:
            raise UsageError(f"{self.name!r} is no kind of skipping index.", hint=f"There are {', '.join(KINDS)}.")
        if bool(self.patterns) != ("pattern" in self.kind.parameters):
            raise UsageError(f"An index of the kind {RegexValueList.name} has patterns, and no other one.")
        if not self.column or "\0" in self.column:
            raise UsageError(f"{self.column!r} is no column.")
        self.kind.check(self)

    @property
    def kind(self) -> Kind:
        """The kind of the index."""
        return KINDS[self.name]

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
        return column_name(spelled(self.path) if self.is_twin else ".".join(self.path), self.name)

    def described(self) -> dict[str, Any]:
        """Return the index as the schema has it."""
        found: dict[str, Any] = {"cols": [".".join(self.path)], "name": self.name}
        if parameters := self.kind.described(self):
            found["params"] = {_PREFIX + name: value for name, value in parameters.items()}
        if self.key is not None:
            found["key_metadata"] = self.key
        return found


@dataclass(frozen=True)
class Evidence:
    """A part file, and the session of the conditions that its indexes are asked about."""

    segment: Segment
    session: Session
    filters: Callable[[Segment, Index], Filters]

    def may_pass(
        self,
        found: tuple[Bounds | Values, ColumnType] | None,
        leaf: Leaf,
        weaker: Callable[[Test], Test] = lambda test: test,
    ) -> Flags | None:
        """Return which rows have bounds or values that may pass, None if that is not known.

        ``weaker`` returns a test that what is kept of a value passes, if the value passes the one of the leaf.
        """
        if found is None:
            return None
        held, type_ = found
        if self.session.types is not None:
            known = self.session.types.get(leaf.path)
            if known is None or replace(known, clock=None) != replace(type_, clock=None):
                return None
            type_ = known
        tests = as_tests(leaf, type_, self.session.zone)
        if tests is None:
            return None
        return reduce(pc.or_, (held.may_pass(weaker(t)) for t in tests), repeated(False, self.segment.rows))


class Kind:
    """One kind of index; what most of them do is done here, for lists of values."""

    name: ClassVar[str]
    takes: ClassVar[str] = "numbers, text, booleans, dates and times"  # the types of columns, for errors
    parameters: ClassVar[Mapping[str, type]] = {}  # of statements; texts are given once or several times
    leaves: ClassVar[tuple[str, ...]] = (".list.element",)  # the Parquet columns of its cells
    has_large_cells: ClassVar[bool] = False  # of which no two are alike
    is_of_bounds: ClassVar[bool] = False  # whether the least and the greatest value are enough
    is_for_executors: ClassVar[bool] = True  # whether those of Spark may collect the cells
    is_own: ClassVar[bool] = False  # whether the original does not know it, and must not meet it

    # -- what is asked for -----------------------------------------------------------------

    def check(self, spec: IndexSpec) -> None:
        """Refuse parameters that are not possible; raises ``invalid-argument``."""

    def described(self, spec: IndexSpec) -> dict[str, str]:
        """Return parameters as the schema has them."""
        return {}

    def parameters_of(self, index: Index) -> dict[str, Any] | None:
        """Return what an index was made with, None if it cannot be made again; raises ``invalid-metadata``."""
        return {}

    def value_type(self, type_: pa.DataType) -> pa.DataType | None:
        """Return the type in which values of a column are kept, None where the index cannot be over such a column."""
        if pa.types.is_dictionary(type_):
            type_ = type_.value_type
        type_ = TIME if pa.types.is_timestamp(type_) else _KEPT_AS.get(type_, type_)
        # The original has no order for bytes.
        return type_ if spark_name(type_) and type_ != pa.binary() else None

    # -- what is written -------------------------------------------------------------------

    def cell_type(self, type_: pa.DataType) -> tuple[pa.DataType, Any]:
        """Return the type of the cells over values of a type as Arrow and as Spark's JSON have it."""
        described = {"type": "array", "elementType": spark_name(type_), "containsNull": True}
        return pa.list_(pa.field("element", type_)), described

    def collector(self, spec: IndexSpec, type_: pa.DataType) -> Any:
        """Return what collects one file: it can ``add`` values in the type of the index, and makes a ``cell``."""
        return _ValueSet(type_)

    def size(self, cell: Any, spec: IndexSpec) -> int:
        """Return about how many bytes a cell takes."""
        return int(cell.nbytes) if isinstance(cell, pa.Array) else 16

    def encode(self, cells: Sequence[Any], spec: IndexSpec, type_: pa.DataType) -> pa.Array:
        """Return what collectors found as the column of a part file."""
        offsets = list(accumulate(map(len, cells), initial=0))
        values = pa.concat_arrays([pa.nulls(0, type_), *cells])
        return pa.ListArray.from_arrays(array_of(offsets, pa.int32()), values, type=self.cell_type(type_)[0])

    def recoded(self, cells: pa.Array, index: Index) -> pa.Array:
        """Return cells of an older version as they are written now; raises JavaStreamError if they cannot be."""
        return cells

    # -- what is read ----------------------------------------------------------------------

    def may_match(self, evidence: Evidence, index: Index, leaf: Leaf, alive: Flags) -> Flags | None:
        """Return which rows may stand for files with a match, None if nothing is known; others than ``alive`` may not.

        Whatever is wrong with the cells is reported to the part file, and None.
        """
        return evidence.may_pass(listed(evidence.segment, index), leaf)


def listed(segment: Segment, index: Index) -> tuple[Values, ColumnType] | None:
    """Return the values of an index of lists with their type, None where they cannot be used."""

    def read() -> tuple[Values, ColumnType]:
        if index.is_object:
            return old_values(segment.objects(index.column))
        if index.value_type is None:
            raise OddCells("its type is not that of values")
        lists = segment.column(index.column)
        return values_of(lists, index.value_type, is_legacy=segment.schema.is_legacy), index.value_type

    return segment.once("values", index.column, read)


class MinMax(Kind):
    """The least and greatest value of a file; NaN is greatest."""

    name = "minmax"
    leaves = (".min", ".max")
    is_of_bounds = True

    def cell_type(self, type_: pa.DataType) -> tuple[pa.DataType, Any]:
        """Return a struct of both values."""
        fields = [schema_field(end, spark_name(type_), {}) for end in ("min", "max")]
        return pa.struct([pa.field("min", type_), pa.field("max", type_)]), {"type": "struct", "fields": fields}

    def collector(self, spec: IndexSpec, type_: pa.DataType) -> Any:
        """Return what finds both values."""
        return _Extremes()

    def encode(self, cells: Sequence[Any], spec: IndexSpec, type_: pa.DataType) -> pa.Array:
        """Return structs of both values."""
        ends = [stored([c[name] for c in cells], type_) for name in ("min", "max")]
        return pa.StructArray.from_arrays(ends, fields=list(self.cell_type(type_)[0]))

    def may_match(self, evidence: Evidence, index: Index, leaf: Leaf, alive: Flags) -> Flags | None:
        """Return which rows have bounds that a match may lie in."""
        segment = evidence.segment
        found = segment.once("bounds", index.column, lambda: self._bounds(segment, index))
        passes = evidence.may_pass(found, leaf)
        if found is None or passes is None:
            return None
        if found[1].family in ("float", "double") and not self.are_exact(segment.schema):
            # Footers of Parquet files know nothing of NaN: such bounds prove nothing. Other formats have none.
            passes = pc.or_(passes, array_of([not _has_no_footer(i) for i in segment.ids()], pa.bool_()))
        return passes

    def are_exact(self, schema: FileSchema) -> bool:
        """Return whether no bounds come from footers of Parquet files.

        Rows are read for bounds unless footers serve, which is where all indexes are MinMax of native numbers.
        """
        natives = ("integer", "float", "double")
        return schema.bounds_are_of_rows or any(
            i.name != self.name or (i.value_type is not None and i.value_type.family not in natives)
            for i in schema.indexes
        )

    def _bounds(self, segment: Segment, index: Index) -> tuple[Bounds, ColumnType]:
        if index.is_object:
            return old_bounds(segment.objects(index.column))
        array, type_ = segment.column(index.column), index.value_type
        if type_ is None or not pa.types.is_struct(array.type):
            raise OddCells("its type is not that of bounds")
        places = [array.type.get_field_index(n) for n in ("min", "max")]
        if -1 in places:
            raise OddCells("it has no one least and greatest value")
        low, high = (array.flatten()[place] for place in places)
        return bounds_of(low, high, type_, is_legacy=segment.schema.is_legacy), type_


class DistinctValues(Kind):
    """The distinct values of a file."""

    name = "valuelist"


class Text(Kind):
    """What is kept of texts."""

    takes = "text"

    def value_type(self, type_: pa.DataType) -> pa.DataType | None:
        """Return text, None for all else."""
        found = super().value_type(type_)
        return found if found == pa.string() else None


class RegexValueList(Text):
    """The first groups that regular expressions find in the texts of a file."""

    name = "regexvaluelist"
    parameters: ClassVar[Mapping[str, type]] = {"pattern": str}
    is_for_executors = False
    _STORED = "plugins.regex.pattern."

    def check(self, spec: IndexSpec) -> None:
        """Refuse patterns that Java and DuckDB may read in different ways."""
        for pattern in spec.patterns:
            of_java(pattern)

    def described(self, spec: IndexSpec) -> dict[str, str]:
        """Return the patterns with their numbers."""
        return {f"{self._STORED}r{at}": pattern for at, pattern in enumerate(spec.patterns)}

    def parameters_of(self, index: Index) -> dict[str, Any] | None:
        """Return the patterns in their order, None if some are not those of every engine."""
        found = sorted(self._patterns(index), key=lambda n: (len(n[0]), n[0]))
        try:
            for _, pattern in found:
                of_java(pattern)
        except UsageError:
            return None
        return {"patterns": tuple(pattern for _, pattern in found)} if found else None

    def _patterns(self, index: Index) -> list[tuple[str, str]]:
        return [(k.removeprefix(self._STORED), v) for k, v in index.params.items() if k.startswith(self._STORED)]

    def collector(self, spec: IndexSpec, type_: pa.DataType) -> Any:
        """Return what finds the groups in distinct values."""
        return _Extracts(spec.patterns)

    def may_match(self, evidence: Evidence, index: Index, leaf: Leaf, alive: Flags) -> Flags | None:
        """Return which rows list one of the groups that a condition asks for."""
        if not isinstance(leaf, Extracted) or "" in leaf.values:
            return None  # what does not match is extracted as an empty text, and that is in no list
        stored = [pattern for _, pattern in self._patterns(index)]
        found = listed(evidence.segment, index) if leaf.pattern in stored else None
        if found is None or found[1].family != "string":
            return None
        return found[0].may_pass(Among(frozenset(v.encode("utf-8", "surrogatepass") for v in leaf.values)))


class BloomFilter(Kind):
    """Spark's Bloom filter of the values of a file, for a share of false positives and a number of distinct values."""

    name = "bloomfilter"
    takes = "integers and text"
    parameters: ClassVar[Mapping[str, type]] = {"fpp": float, "ndv": int}
    leaves = ("",)
    has_large_cells = True
    _FPP, _NDV = "index.bloom.fpp", "index.bloom.ndv"

    def check(self, spec: IndexSpec) -> None:
        """Refuse filters that are too large, or none."""
        fpp, ndv = spec.fpp, spec.ndv
        usable = isinstance(fpp, float) and 0 < fpp < 1 and isinstance(ndv, int) and 0 < ndv < 1 << 40
        if not usable or shape_for(fpp, ndv).bits > 64 * MAX_WORDS:
            raise UsageError(
                f"A Bloom filter with fpp = {fpp} and ndv = {ndv} is not possible.",
                hint="fpp lies between 0 and 1, ndv is the number of distinct values of a file.",
            )

    def described(self, spec: IndexSpec) -> dict[str, str]:
        """Return both numbers as Java writes them."""
        return {self._FPP: _java_double(spec.fpp), self._NDV: str(spec.ndv)}

    def parameters_of(self, index: Index) -> dict[str, Any] | None:
        """Return both numbers; raises ``invalid-metadata`` for anything else."""
        try:
            fpp, ndv = (float(index.params.get(n, d)) for n, d in ((self._FPP, DEFAULT_FPP), (self._NDV, DEFAULT_NDV)))
            return {"fpp": fpp, "ndv": int(ndv)}
        except (ValueError, OverflowError) as e:
            raise FormatError(f"{index.column}: its parameters are no numbers: {e}.", code="invalid-metadata") from None

    def value_type(self, type_: pa.DataType) -> pa.DataType | None:
        """Return the one type of integers, or text."""
        found = super().value_type(type_)
        if found is not None and pa.types.is_integer(found):
            return pa.int64()
        return found if found == pa.string() else None

    def cell_type(self, type_: pa.DataType) -> tuple[pa.DataType, Any]:
        """Return bytes, which are a Java object."""
        return pa.binary(), {"type": "udt", "class": UDT, "pyClass": None, "sqlType": "binary"}

    def collector(self, spec: IndexSpec, type_: pa.DataType) -> Any:
        """Return what holds the values, or hashes them where they are many."""
        return _Hashed(spec.shape)

    def size(self, cell: Any, spec: IndexSpec) -> int:
        """Return the bytes of a filter, and of the values that are not in it yet."""
        return spec.shape.bits // 8 + (sum(a.nbytes for a in cell) if isinstance(cell, list) else 0)

    def encode(self, cells: Sequence[Any], spec: IndexSpec, type_: pa.DataType) -> pa.Array:
        """Return the objects of filters; the values of many files are hashed together."""
        made = iter(filters_of([c for c in cells if not isinstance(c, bytes)], spec.shape))
        return array_of([c if isinstance(c, bytes) else next(made) for c in cells], pa.binary())

    def recoded(self, cells: pa.Array, index: Index) -> pa.Array:
        """Return filters in the class of version 4."""
        found = []
        for cell in cells.to_pylist():
            shape, words = words_of(cell or b"")
            if shape.version != 1:
                raise JavaStreamError("a filter of another version is made anew")
            found.append(cell_of(shape, words))
        return array_of(found, pa.binary())

    def may_match(self, evidence: Evidence, index: Index, leaf: Leaf, alive: Flags) -> Flags | None:
        """Return which rows that are alive have a filter that may hold one of some values."""
        segment, values = evidence.segment, self._hashed(evidence, index, leaf)
        if values is None or len(values) > MAX_VALUES:
            return None
        try:
            found = evidence.filters(segment, index).may_hold(values, alive.to_pylist())
        except Vanished:
            return None
        except OddCells as e:
            segment.report(f"{segment.source}: the column {index.column} is not used: {e}")
            return None
        return array_of(found, pa.bool_())

    def _hashed(self, evidence: Evidence, index: Index, leaf: Leaf) -> list[int | str] | None:
        """Return the values of which a file must hold one, None if they are not certain."""
        constants = alternatives(leaf)
        if constants is None:
            return None
        type_ = self._type_of(evidence, index)
        if type_ is None:
            return _untyped(constants)
        tests = as_tests(In(leaf.path, constants), type_, evidence.session.zone)
        if tests is None or len(tests) != 1 or not isinstance(tests[0], Among):
            return None
        if type_.family == "integer":
            return [k for k in tests[0].keys if isinstance(k, int)]
        return [k.decode() for k in tests[0].keys if isinstance(k, bytes)] if type_.family == "string" else None

    def _type_of(self, evidence: Evidence, index: Index) -> ColumnType | None:
        """Return the type of a column; filters do not hold it, but indexes on the same column may."""
        if evidence.session.types is not None:
            return evidence.session.types.get(index.path, ColumnType("unknown"))
        others = [i for i in evidence.segment.schema.indexes if i.name in (MinMax.name, DistinctValues.name)]
        return next((o.value_type for o in others if o.path == index.path and o.value_type is not None), None)


class Prefix(Text):
    """The first characters of the texts of a file, each beginning once."""

    name = "prefix"
    is_own = True
    parameters: ClassVar[Mapping[str, type]] = {"length": int}
    _LENGTH = "index.prefix.length"

    def check(self, spec: IndexSpec) -> None:
        """Refuse prefixes of no or too many characters."""
        if not (isinstance(spec.length, int) and 0 < spec.length <= MAX_LENGTH):
            raise UsageError(f"A prefix of {spec.length} characters is not possible.", hint=f"From 1 to {MAX_LENGTH}.")

    def described(self, spec: IndexSpec) -> dict[str, str]:
        """Return the length."""
        return {self._LENGTH: str(spec.length)}

    def parameters_of(self, index: Index) -> dict[str, Any] | None:
        """Return the length, None if it is no such number."""
        text = index.params.get(self._LENGTH, "")
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LENGTH))
        return {"length": int(text)} if is_number and 0 < int(text) <= MAX_LENGTH else None

    def collector(self, spec: IndexSpec, type_: pa.DataType) -> Any:
        """Return what cuts texts."""
        return _Prefixes(spec.length)

    def may_match(self, evidence: Evidence, index: Index, leaf: Leaf, alive: Flags) -> Flags | None:
        """Return which rows have a beginning that a match may have."""
        known = self.parameters_of(index)
        if known is None or (isinstance(leaf, Contains) and not leaf.begins):
            return None
        length: int = known["length"]

        def cut(key: Any) -> Any:
            return key.decode()[:length].encode()

        def weaker(test: Test) -> Test:
            if isinstance(test, Range):
                return Range(f"{test.op[0]}=", cut(test.key))
            if isinstance(test, Outside):
                return ANY
            if isinstance(test, Containing):
                is_short = len(test.part.decode()) < length
                return test if is_short else Among(frozenset({cut(test.part)}))
            return Among(frozenset(map(cut, test.keys)))

        return evidence.may_pass(listed(evidence.segment, index), leaf, weaker)


class NGram(Text):
    """The pieces of three bytes in the texts of a file, whatever their case, as a filter of its own size."""

    name = "ngram"
    is_own = True
    leaves = ("",)
    has_large_cells = True
    _FORM: ClassVar[dict[str, str]] = {"index.ngram.form": "2"}
    _FIRST: ClassVar[dict[str, str]] = {"index.ngram.form": "1"}  # without the sizes of pieces, three bytes each

    def described(self, spec: IndexSpec) -> dict[str, str]:
        """Return the form of the filters."""
        return self._FORM

    def parameters_of(self, index: Index) -> dict[str, Any] | None:
        """Return nothing, None if the filters are of another form."""
        return {} if dict(index.params) in (self._FORM, self._FIRST) else None

    def cell_type(self, type_: pa.DataType) -> tuple[pa.DataType, Any]:
        """Return bytes."""
        return pa.binary(), "binary"

    def collector(self, spec: IndexSpec, type_: pa.DataType) -> Any:
        """Return what collects pieces."""
        return PieceSet()

    def size(self, cell: Any, spec: IndexSpec) -> int:
        """Return the bytes of a filter."""
        return len(cell)

    def encode(self, cells: Sequence[Any], spec: IndexSpec, type_: pa.DataType) -> pa.Array:
        """Return the filters."""
        return array_of(cells, pa.binary())

    def recoded(self, cells: pa.Array, index: Index) -> pa.Array:
        """Return filters that tell the sizes of their pieces."""
        if dict(index.params) != self._FIRST:
            return cells
        return array_of([cell and cell + bytes([SIZE]) for cell in cells.to_pylist()], pa.binary())

    def may_match(self, evidence: Evidence, index: Index, leaf: Leaf, alive: Flags) -> Flags | None:
        """Return which rows that are alive may hold all pieces of a text that is asked for."""
        segment, types, wanted = evidence.segment, evidence.session.types, self._wanted(leaf)
        is_text = types is None or types.get(index.path, ColumnType("unknown")).family == "string"
        # Of a text without pieces nothing is known.
        if not is_text or not wanted or not all(own(SIZE) for own in wanted) or self.parameters_of(index) is None:
            return None
        asked = partial(may_hold, wanted=wanted, has_sizes=dict(index.params) != self._FIRST)

        def read() -> pa.Array:
            cells = segment.column(index.column, is_large=True)
            asked(cells, alive=[False] * segment.rows)  # or they are odd
            return cells

        cells = segment.once("pieces", index.column, read)
        return None if cells is None else array_of(asked(cells, alive=alive.to_pylist()), pa.bool_())

    def _wanted(self, leaf: Leaf) -> list[Wanted]:
        """Return the pieces of each of the texts of which a match holds one; none if that is not known."""
        if isinstance(leaf, Contains | ContainsFolded):
            return [partial(pieces_of, leaf.text, begins=isinstance(leaf, Contains) and leaf.begins)]
        constants = alternatives(leaf)
        if constants is None or len(constants) > MAX_VALUES or any(c.kind not in ("string", "text") for c in constants):
            return []
        return [partial(pieces_of, str(c.value), begins=True, ends=True) for c in constants]


# The kinds by their names, in the order in which they are asked: a kind is asked only about files that the ones before
# it leave.
MIN_MAX = MinMax()
_ALL = (MIN_MAX, Prefix(), DistinctValues(), RegexValueList(), BloomFilter(), NGram())
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}


@dataclass(frozen=True)
class Session:
    """What conditions mean: the time zone of the session, and the types of columns where they are known.

    With ``types``, an index is used only for a column in it, and only if it agrees on the type.
    ``kinds`` are the kinds of indexes that are used, partition values among them.
    """

    zone: str = "UTC"
    types: Types | None = None
    kinds: Sequence[str] = (PARTITION, *KINDS)


# -- what they keep of the rows of a file ------------------------------------------------------------

_HELD_BYTES = 8 << 20  # of the values of one filter


class _Extremes:
    """The least and greatest value of a file so far; NaN is greatest."""

    def __init__(self) -> None:
        self.low: Any = None
        self.high: Any = None
        self._nan = False

    def add(self, values: pa.Array) -> None:
        if pa.types.is_temporal(values.type):
            # Python has no dates beyond the year 9999.
            values = values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
        if pa.types.is_floating(values.type):
            nan = pc.is_nan(values)
            if pc.any(nan).as_py():
                self._nan = True
                values = values.filter(pc.invert(nan))
        found = pc.min_max(values)
        low, high = found["min"].as_py(), found["max"].as_py()
        if low is not None:
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)

    def cell(self) -> Any:
        if self._nan:
            return {"min": math.nan if self.low is None else self.low, "max": math.nan}
        return {"min": self.low, "max": self.high}


class _ValueSet:
    def __init__(self, type_: pa.DataType) -> None:
        self._found = pa.nulls(0, type_)

    def add(self, values: pa.Array) -> None:
        values = pc.unique(values).drop_null()
        self._found = pc.unique(pa.concat_arrays([self._found, values])) if len(self._found) else values

    def cell(self) -> Any:
        return self._found


class _Prefixes(_ValueSet):
    """The first characters of texts."""

    def __init__(self, length: int) -> None:
        super().__init__(pa.string())
        self._length = length

    def add(self, values: pa.Array) -> None:
        super().add(pc.utf8_slice_codeunits(pc.unique(values).drop_null(), 0, self._length))


class _Extracts(_ValueSet):
    """What patterns find in the distinct values of a file."""

    def __init__(self, patterns: Sequence[str]) -> None:
        super().__init__(pa.string())
        self._patterns = patterns

    def cell(self) -> Any:
        return pc.unique(pa.concat_arrays([extracted(self._found, pattern) for pattern in self._patterns]))


class _Hashed:
    """The values of a filter, which are hashed together with those of other files, unless they are many."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._held: list[pa.Array] = []
        self._size = 0
        self._builder: FilterBuilder | None = None

    def add(self, values: pa.Array) -> None:
        if self._builder is not None:
            self._builder.add(values)
            return
        self._held.append(prepared(values))
        self._size += self._held[-1].nbytes
        if self._size > _HELD_BYTES:
            self._builder = FilterBuilder(self._shape)
            for array in self._held:
                self._builder.add(array)
            self._held = []

    def cell(self) -> Any:
        return self._held if self._builder is None else cell_of(self._shape, self._builder.words())


# -- numbers and names -------------------------------------------------------------------------------


def _java_double(number: float) -> str:
    """Return a positive number as Java writes it."""
    if 1e-3 <= number < 1e7:
        return repr(float(number))
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    text = "".join(map(str, digits))
    return f"{text[0]}.{text[1:] or '0'}E{int(exponent) + len(text) - 1}"


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
    """Return whether an object is no Parquet file, by its name."""
    name = path_of(object_name).rsplit("/", 1)[-1].lower()
    for suffix in _PACKED:
        name = name.removesuffix(suffix)
    return name.endswith(_FORMATS)
