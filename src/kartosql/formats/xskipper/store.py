"""The metadata of one table: which of its files conditions ask for, by the indexes of its part files."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import FormatError, KartosqlError, KartosqlWarning
from kartosql.formats.arrays import array_of
from kartosql.formats.xskipper.bloom import MAX_VALUES, Budget, Filters
from kartosql.formats.xskipper.domain import (
    Among,
    Bounds,
    ColumnType,
    OddCells,
    Test,
    Values,
    Vanished,
    as_tests,
    repeated,
)
from kartosql.formats.xskipper.naming import object_id, path_of
from kartosql.formats.xskipper.segment import (
    BLOOM,
    MINMAX,
    PATTERN,
    REGEX,
    VALUE_LIST,
    Index,
    Keys,
    Segment,
    checked_keys,
)
from kartosql.predicate.tree import Comparison, Constant, Extracted, Group, In, Leaf, Opaque, Path, Predicate, Value
from kartosql.store import Store

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
        self._kinds = [kind for kind in KINDS if kind in session.kinds]
        self._found: dict[tuple[str, Leaf], pa.BooleanArray | None] = {}
        self._everything = repeated(True, segment.rows)
        self.asked: set[str] = set()  # the kinds of indexes that had an answer

    def stages(self, condition: Predicate) -> dict[str, pa.BooleanArray]:
        """Return which rows are left after each kind of index was asked; a row that is left once more stays out."""
        left, found = self._everything, {}
        for number, kind in enumerate(self._kinds):
            passes = self._may_hold(condition, self._kinds[: number + 1], left)
            if passes is not None:
                left = pc.and_(left, passes)
                self.asked |= {asked for (asked, _), flags in self._found.items() if flags is not None}
            found[kind] = left
        return found

    def _may_hold(self, condition: Predicate, kinds: Collection[str], alive: pa.BooleanArray) -> pa.BooleanArray | None:
        """Return which rows may stand for files with a match, None for all of them."""
        if isinstance(condition, Constant):
            return None if condition.holds else repeated(False, self._segment.rows)
        if isinstance(condition, Opaque):
            return None
        if not isinstance(condition, Group):
            for kind in kinds:
                if (kind, condition) not in self._found:
                    # Answers of filters hold for rows that are alive; from stage to stage there are fewer of them.
                    self._found[kind, condition] = self._asked(kind, condition, alive)
            return _joined(pc.and_, [self._found[kind, condition] for kind in kinds])
        parts = [self._may_hold(item, kinds, alive) for item in condition.items]
        if condition.op == "OR":
            return None if any(p is None for p in parts) else _joined(pc.or_, parts)
        return _joined(pc.and_, parts)

    def _asked(self, kind: str, leaf: Leaf, alive: pa.BooleanArray) -> pa.BooleanArray | None:
        if kind == PARTITION:
            names = [name for name in self._segment.schema.virtual if (name.lower(),) == leaf.path]
            return _joined(pc.or_, [self._passing(self._segment.partition(name), leaf) for name in names])
        found: list[pa.BooleanArray | None] = []
        for index in self._segment.schema.indexes:
            if index.name != kind or index.path != leaf.path:
                continue
            if kind == MINMAX:
                found.append(self._by_bounds(index, leaf))
            elif kind == VALUE_LIST:
                found.append(self._passing(self._segment.values(index), leaf))
            elif kind == REGEX:
                found.append(self._by_pattern(index, leaf))
            else:
                found.append(self._by_filters(index, leaf, alive))
        return _joined(pc.and_, found)

    # -- kinds -----------------------------------------------------------------------------

    def _tests(self, leaf: Leaf, type_: ColumnType) -> tuple[Test, ...] | None:
        """Return the tests of a leaf on a column that an index holds as some type; None, if it is another one."""
        if self._session.types is not None:
            known = self._session.types.get(leaf.path)
            if known is None or replace(known, clock=None) != replace(type_, clock=None):
                return None
            type_ = known
        return as_tests(leaf, type_, self._session.zone)

    def _passing(self, found: tuple[Bounds | Values, ColumnType] | None, leaf: Leaf) -> pa.BooleanArray | None:
        """Return which rows have bounds or values that may pass, None if that is not known."""
        tests = None if found is None else self._tests(leaf, found[1])
        if found is None or tests is None:
            return None
        passes = _joined(pc.or_, map(found[0].may_pass, tests))
        return repeated(False, self._segment.rows) if passes is None else passes

    def _by_bounds(self, index: Index, leaf: Leaf) -> pa.BooleanArray | None:
        found = self._segment.bounds(index)
        passes = self._passing(found, leaf)
        if found is None or passes is None:
            return None
        if found[1].family in ("float", "double") and not self._segment.schema.bounds_are_exact:
            # Footers of Parquet files know nothing of NaN: such bounds prove nothing. Other formats have none.
            passes = pc.or_(passes, array_of([not _has_no_footer(i) for i in self._segment.ids()], pa.bool_()))
        return passes

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
        if constants is None:
            return None
        type_ = self._type_of(index)
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


def _joined(join: Callable[..., Any], flags: Iterable[pa.BooleanArray | None]) -> pa.BooleanArray | None:
    """Return known flags joined, None if there are none."""
    known = [f for f in flags if f is not None]
    return reduce(join, known) if known else None


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


# The path of a data file as the metadata know it, its modification time in milliseconds, and its size if it is known.
File = tuple[str, int] | tuple[str, int, int | None]
MAX_FILES = 100_000
MAX_THREADS = 8
ATTEMPTS = 10  # to open files that are all still there


@dataclass(frozen=True)
class SkippingStep:
    """How many files were left before and after one kind of index was asked."""

    by: str
    files_before: int
    files_after: int


@dataclass(frozen=True)
class Skipped:
    """The files, by position, that one kind of index rules out; none if it was asked and left out nothing."""

    by: str
    files: frozenset[int]


@dataclass(frozen=True)
class Selection:
    """Which files have to be read.

    ``skipped_by`` tells for each given file which kind of index proves that it holds no match,
    None for files to read. ``steps`` are the kinds that were asked, in order.
    """

    skipped_by: list[str | None]
    steps: list[SkippingStep] = field(default_factory=list)

    @property
    def kept(self) -> list[int]:
        """The places of the files to read."""
        return [i for i, by in enumerate(self.skipped_by) if by is None]

    @property
    def skipped(self) -> list[Skipped]:
        """The places of the files not to read, by the kind of index that rules them out, in the order of the steps."""
        found: dict[str, set[int]] = {step.by: set() for step in self.steps}
        for i, by in enumerate(self.skipped_by):
            if by is not None:
                found.setdefault(by, set()).add(i)  # no step was asked about what is never true
        return [Skipped(by, frozenset(files)) for by, files in found.items()]


class MetadataStore:
    """The data-skipping metadata of one table, as Xskipper keeps it, of versions 0 to 4.

    What is odd in it is in ``problems``, and never a reason to skip a file.
    """

    def __init__(self, store: Store, names: Sequence[str], keys: Mapping[str, bytes], table: str | None) -> None:
        """Read the footers of the part files that are named; ``open`` finds them."""
        self._store = store
        self._problems: dict[str, None] = {}
        self._gone = False
        self.segments: list[Segment] = []
        self._filters: dict[tuple[str, str], Filters] = {}
        # Keys of part files that are damaged, those of a newer version, and those that no key opens.
        self.unreadable: list[str] = []
        self.newer: list[str] = []
        self.locked: list[str] = []
        self._budget = Budget()
        self._rows: dict[str, list[int]] | None = None
        self._sizes: list[int | None] = []
        for name in names:
            self._open_segment(name, keys, table)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | Store,
        keys: Keys | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        table: str | None = None,
    ) -> MetadataStore:
        """Open the folder that holds the metadata of one table.

        ``keys`` are master keys of encrypted metadata by their labels, as bytes or base64; what
        they do not open is not used. ``table`` is the identifier of the table, if only metadata
        of that one are wanted. Raises ``store-not-found`` for folders that do not exist, and
        ``missing-extra`` where keys are given without the package that uses them.
        """
        store = path if isinstance(path, Store) else Store(path, storage_options)
        return cls._opened(store, None, keys, table)

    @classmethod
    def below(cls, store: Store, folder: str, keys: Keys | None = None, *, table: str | None = None) -> MetadataStore:
        """Open the metadata in a folder of a store, such as ``t/skipping``; no folder is one without part files."""
        return cls._opened(store, folder, keys, table)

    @classmethod
    def _opened(cls, store: Store, folder: str | None, keys: Keys | None, table: str | None) -> MetadataStore:
        """Open what a listing names, and list again if somebody replaced files meanwhile."""
        start = 0 if folder is None else len(folder) + 1

        def names() -> list[str]:
            if folder is None:
                found = [e.name for e in store.list_root() if not e.is_dir]
            else:
                found = [k for k in store.list_below(folder) if "/" not in k[start:]]
            return [k for k in found if k[start : start + 1] not in "._"]

        for _ in range(ATTEMPTS):
            listed = names()
            if len(listed) > MAX_FILES:
                shown = store.url if folder is None else folder
                raise FormatError(f"{shown}: {len(listed):,} files are more than {MAX_FILES:,}.", code="too-large")
            found = cls(store, listed, checked_keys(keys), table)
            # The listing of a local folder may lack both what was added and what was removed meanwhile.
            if not found.has_gaps and (not store.is_local or names() == listed):
                break
        return found

    def _open_segment(self, name: str, keys: Mapping[str, bytes], table: str | None) -> None:
        try:
            segment = Segment(self._store, name, keys, self._report)
        except KeyError:
            self._gone = True  # somebody replaced the file since it was listed
        except FormatError as e:
            self._report(e.message)
            kind = self.newer if e.code == "unsupported-version" else self.unreadable
            with contextlib.suppress(KeyError):
                kind = self.locked if self._store.read(name, start=0, end=4) == b"PARE" else kind
            kind.append(name)
        else:
            if table is None or segment.schema.table_identifiers == (table,):
                self.segments.append(segment)
            else:
                self._report(f"{name}: the file is about another table than {table}, and is not used.")

    def _report(self, problem: str) -> None:
        self._problems[problem] = None

    def __repr__(self) -> str:
        return f"MetadataStore({self._store.url!r})"

    # -- what there is ---------------------------------------------------------------------

    @property
    def problems(self) -> list[str]:
        """What was odd so far, once each: files and columns that are not used."""
        return list(self._problems)

    @property
    def has_gaps(self) -> bool:
        """Whether files were removed since they were listed; metadata opened again may know more."""
        return self._gone or any(s.is_gone for s in self.segments)

    @property
    def versions(self) -> list[int]:
        """The versions of the format that occur, ascending; several while somebody upgrades."""
        return sorted({s.schema.version for s in self.segments})

    @property
    def table_identifiers(self) -> list[str]:
        """The tables that the metadata say they are about; usually one."""
        return list(dict.fromkeys(t for s in self.segments for t in s.schema.table_identifiers))

    @property
    def indexes(self) -> list[Index]:
        """The indexes of all part files, each kind and columns once."""
        found: dict[tuple[str, str], Index] = {}
        for segment in reversed(self.segments):
            found.update(((i.name, i.shown), i) for i in reversed(segment.schema.indexes))
        return list(reversed(found.values()))

    @property
    def objects(self) -> list[str]:
        """The indexed files as ``path#milliseconds``, each once."""
        return list(self._by_id())

    def describe(self) -> dict[str, Any]:
        """Return all of this as a dictionary of JSON values."""
        virtual = {n: t.family if t else None for s in self.segments for n, t in s.schema.virtual.items()}
        return {
            "location": self._store.url,
            "versions": self.versions,
            "table_identifiers": self.table_identifiers,
            "objects": len(self._by_id()),
            "files": len(self.segments),
            "partition_columns": virtual,
            "indexes": [
                {
                    "name": i.name,
                    "cols": list(i.cols),
                    "column": i.column,
                    "params": dict(i.params),
                    "key": i.key_metadata,
                    "type": i.value_type.family if i.value_type else None,
                }
                for i in self.indexes
            ],
            "encryption": {k: v for s in self.segments for k, v in s.schema.encryption.items()},
            "problems": self.problems,
        }

    def known(self, files: Sequence[File]) -> int:
        """Return how many of some files are indexed as they are now."""
        return sum(bool(self._rows_of(file)) for file in files)

    # -- which files -----------------------------------------------------------------------

    def select(self, where: Any, listing: Iterable[File | Sequence[Any]], *, time_zone: str = "UTC") -> list[str]:
        """Return the paths of the files that may hold a row for which ``where`` is TRUE.

        ``where`` is SQL text, a tree of sqlglot or a Predicate. ``listing`` are the files as they
        are: (path as the metadata know it, modification time in milliseconds), and the size in bytes if it
        is known. Files that are not indexed, or changed since, are among the answers, as is each file
        where the metadata leave a doubt. Raises ``syntax-error`` for text that is no predicate.
        """
        files = [(str(path), int(time), *size) for path, time, *size in listing]
        from kartosql.predicate.from_sql import predicate_of  # only this call reads text

        predicate = where if isinstance(where, Leaf | Constant | Opaque | Group) else predicate_of(where)
        kept = self.select_files([predicate], files, Session(zone=time_zone)).kept
        return [files[i][0] for i in kept]

    def select_files(
        self, conditions: Sequence[Predicate], files: Sequence[File], session: Session | None = None
    ) -> Selection:
        """Return which of some files may hold a row for which all conditions are TRUE, and what rules out the others.

        Without a session its time zone is UTC, and constants are taken to be of the types of the
        columns where the indexes do not tell these.
        """
        session = session or Session()
        stages, asked = self._stages(conditions, session)
        skipped: list[str | None] = [None] * len(files)
        steps = []
        before = len(files)
        rows = [self._rows_of(file) for file in files]
        for kind, flags in stages.items():
            for i, numbers in enumerate(rows):
                # Several rows of one file should say the same; if not, the file is kept.
                if numbers and skipped[i] is None and not any(flags[n] for n in numbers):
                    skipped[i] = kind
            after = skipped.count(None)
            if before and kind in asked:
                steps.append(SkippingStep(kind, before, after))
            before = after
        return Selection(skipped, steps)

    def _stages(self, conditions: Sequence[Predicate], session: Session) -> tuple[dict[str, list[bool]], set[str]]:
        """Return per kind of index which rows of all part files are left after it, and the kinds that were asked."""
        found: dict[str, list[bool]] = {kind: [] for kind in KINDS if kind in session.kinds}
        named = [s for s in self.segments if s.ids()]
        asked: set[str] = set()

        def filters(segment: Segment, index: Index) -> Filters:
            return self._filters.setdefault((segment.source, index.column), Filters(segment, index, self._budget))

        def ask(segment: Segment) -> tuple[list[dict[str, Any]], set[str]]:
            clauses = Clauses(segment, filters, session)
            return [clauses.stages(c) for c in conditions], clauses.asked

        for segment, (stages, kinds) in zip(named, _each(ask, named), strict=True):
            asked |= kinds
            for kind in found:
                joined = _joined(pc.and_, [stage[kind] for stage in stages])
                found[kind] += [True] * segment.rows if joined is None else joined.to_pylist()
        return found, asked

    def _rows_of(self, file: File) -> list[int]:
        """Return the rows about a file as it is now; none of another size is."""
        path, time, *known = file
        rows = self._by_id().get(object_id(path, time), [])
        size = known[0] if known else None
        return rows if size is None else [n for n in rows if self._sizes[n] in (None, size)]

    def _by_id(self) -> dict[str, list[int]]:
        """Return the rows of each indexed object, counted through all part files with readable names."""
        if self._rows is None:
            rows: dict[str, list[int]] = {}
            sizes: list[int | None] = []
            at = 0
            for segment in self.segments:
                for name in segment.ids():
                    rows.setdefault(name, []).append(at)
                    at += 1
                sizes += segment.sizes()
            self._sizes, self._rows = sizes, rows
        return self._rows


class Warned:
    """Warns of what is odd about metadata, once each."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def __call__(self, *problems: str) -> None:
        """Warn of what was not told yet."""
        for problem in problems:
            if problem not in self.told:
                self.told.add(problem)
                warnings.warn(f"Data skipping: {problem}", KartosqlWarning, stacklevel=2)


class MetadataSkipping:
    """What the metadata of one table tell about its files; whatever is wrong with them warns and rules out nothing.

    ``_look`` notes the metadata and the files as they are named in them, ``_look_again`` does so after somebody
    replaced part files while they were read, and returns False if nothing newer can be read.
    """

    _metadata: MetadataStore | None = None
    _files: Sequence[File] = ()
    _tell: Warned
    _shown: str  # where the metadata are, in warnings

    def _look(self) -> None:
        """Take the metadata as they are."""

    def _look_again(self) -> bool:
        raise NotImplementedError

    def _certain(self, condition: Predicate) -> Predicate | None:
        """Return what of a condition the metadata can be asked about, None for nothing."""
        return condition

    def indexed(self) -> tuple[list[Index], int]:
        """Return the indexes, and how many files of the table they know; raises what is wrong with them."""
        self._look()
        assert self._metadata is not None
        return self._metadata.indexes, self._metadata.known(self._files)

    def skipped(self, condition: Predicate, types: Mapping[Path, ColumnType], zone: str) -> Sequence[Skipped]:
        """Return the files that hold no row for which a condition is TRUE, by the kind of index that proves it."""
        try:
            for _ in range(ATTEMPTS):
                self._look()
                known = self._certain(condition)
                if self._metadata is None or known is None:
                    return []
                found = self._metadata.select_files([known], self._files, Session(zone, types, INDEX_KINDS))
                problems = self._metadata.problems
                if not self._metadata.has_gaps or not self._look_again():
                    break
        except Exception as e:  # noqa: BLE001 - whatever is wrong with the metadata, the answer is right without them
            self._tell(f"{self._shown}: {e.message if isinstance(e, KartosqlError) else e}")
            return []
        self._tell(*problems)
        return found.skipped


def _each(function: Callable[[Segment], Any], segments: Sequence[Segment]) -> Iterable[Any]:
    """Apply a function to all part files, on as many threads as there are processors: Arrow decodes without locks."""
    if len(segments) <= 1:
        return map(function, segments)
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1, len(segments))) as pool:
        return list(pool.map(function, segments))
