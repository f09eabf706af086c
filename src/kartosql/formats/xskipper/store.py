"""The metadata of one table: which of its files a condition asks for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from kartosql.errors import FormatError, KartosqlError, KartosqlWarning
from kartosql.formats.xskipper.bloom import Budget, Filters
from kartosql.formats.xskipper.clauses import INDEX_KINDS, KINDS, Clauses, Session
from kartosql.formats.xskipper.crypto import Keys, checked_keys
from kartosql.formats.xskipper.domain import ColumnType
from kartosql.formats.xskipper.naming import object_id
from kartosql.formats.xskipper.schema import Index
from kartosql.formats.xskipper.segment import Segment
from kartosql.predicate.tree import Constant, Group, Leaf, Opaque, Path, Predicate
from kartosql.store import Store

# The path of a data file as the metadata know it, its modification time in milliseconds, and its size if it is known.
File = tuple[str, int] | tuple[str, int, int | None]
MAX_FILES = 100_000
MAX_THREADS = 8
ATTEMPTS = 10  # to open files that are all still there


@dataclass(frozen=True)
class Step:
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
    steps: list[Step] = field(default_factory=list)

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
            segment = self._segment(name, keys)
            if segment is not None and _is_about(segment, table, self._report):
                self.segments.append(segment)

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

        def names() -> list[str]:
            return [e.name for e in store.list_root() if not e.is_dir and e.name[:1] not in "._"]

        return cls._opened(store, names, store.url, keys, table)

    @classmethod
    def below(cls, store: Store, folder: str, keys: Keys | None = None, *, table: str | None = None) -> MetadataStore:
        """Open the metadata in a folder of a store, such as ``t/skipping``; no folder is one without part files."""
        start = len(folder) + 1

        def names() -> list[str]:
            return [k for k in store.list_below(folder) if "/" not in k[start:] and k[start : start + 1] not in "._"]

        return cls._opened(store, names, folder, keys, table)

    @classmethod
    def _opened(
        cls, store: Store, names: Callable[[], list[str]], shown: str, keys: Keys | None, table: str | None
    ) -> MetadataStore:
        """Open what a listing names, and list again if somebody replaced files meanwhile."""
        for _ in range(ATTEMPTS):
            listed = names()
            if len(listed) > MAX_FILES:
                raise FormatError(f"{shown}: {len(listed):,} files are more than {MAX_FILES:,}.", code="too-large")
            found = cls(store, listed, checked_keys(keys), table)
            # The listing of a local folder may lack both what was added and what was removed meanwhile.
            if not found.has_gaps and (not store.is_local or names() == listed):
                break
        return found

    def _segment(self, name: str, keys: Mapping[str, bytes]) -> Segment | None:
        try:
            return Segment(self._store, name, keys, self._report)
        except KeyError:
            self._gone = True  # somebody replaced the file since it was listed
            return None
        except FormatError as e:
            self._report(e.message)
            kind = self.newer if e.code == "unsupported-version" else self.unreadable
            (self.locked if self._is_locked(name) else kind).append(name)
            return None

    def _is_locked(self, name: str) -> bool:
        try:
            return self._store.read(name, start=0, end=4) == b"PARE"
        except KeyError:
            return False

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
                steps.append(Step(kind, before, after))
            before = after
        return Selection(skipped, steps)

    def _stages(self, conditions: Sequence[Predicate], session: Session) -> tuple[dict[str, list[bool]], set[str]]:
        """Return per kind of index which rows of all part files are left after it, and the kinds that were asked."""
        found: dict[str, list[bool]] = {kind: [] for kind in KINDS if kind in session.kinds}
        named = [s for s in self.segments if s.ids()]
        asked: set[str] = set()

        def ask(segment: Segment) -> tuple[list[list[tuple[str, Any]]], set[str]]:
            clauses = Clauses(segment, self._filters_of, session)
            return [clauses.stages(c) for c in conditions], clauses.asked

        for segment, (stages, kinds) in zip(named, _each(ask, named), strict=True):
            asked |= kinds
            for kind in found:
                joined = None
                for stage in stages:
                    flags = dict(stage)[kind]
                    joined = flags if joined is None else pc.and_(joined, flags)
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

    def _filters_of(self, segment: Segment, index: Index) -> Filters:
        made = Filters(segment, index, self._budget)
        return self._filters.setdefault((segment.source, index.column), made)


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


def _is_about(segment: Segment, table: str | None, report: Callable[[str], None]) -> bool:
    if table is None or segment.schema.table_identifiers == (table,):
        return True
    report(f"{segment.source}: the file is about another table than {table}, and is not used.")
    return False
