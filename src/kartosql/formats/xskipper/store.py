"""The metadata of one table: which of its files conditions ask for, by the indexes of its part files."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import FormatError, KartosqlError, KartosqlWarning
from kartosql.formats.xskipper.bloom import Budget, Filters
from kartosql.formats.xskipper.domain import ColumnType, repeated
from kartosql.formats.xskipper.kinds import KINDS, PARTITION, Evidence, Session, joined_flags
from kartosql.formats.xskipper.naming import is_part, object_id
from kartosql.formats.xskipper.segment import Index, Keys, Segment, checked_keys
from kartosql.predicate.tree import Constant, Group, Leaf, Opaque, Path, Predicate
from kartosql.store import Store


class Clauses:
    """The indexes of a part file, as answers to conditions; what they answer is remembered for one statement."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._segment = evidence.segment
        self._kinds = evidence.session.kinds
        self._found: dict[tuple[str, Leaf], pa.BooleanArray | None] = {}
        self._everything = repeated(True, self._segment.rows)
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
                    self._found[kind, condition] = self._may_match(kind, condition, alive)
            return joined_flags(pc.and_, [self._found[kind, condition] for kind in kinds])
        parts = [self._may_hold(item, kinds, alive) for item in condition.items]
        if condition.op == "OR":
            return None if any(p is None for p in parts) else joined_flags(pc.or_, parts)
        return joined_flags(pc.and_, parts)

    def _may_match(self, kind: str, leaf: Leaf, alive: pa.BooleanArray) -> pa.BooleanArray | None:
        if kind == PARTITION:
            names = [name for name in self._segment.schema.virtual if (name.lower(),) == leaf.path]
            partitions = map(self._segment.partition, names)
            return joined_flags(pc.or_, [self._evidence.may_pass(found, leaf) for found in partitions])
        own = [i for i in self._segment.schema.indexes if i.name == kind and i.path == leaf.path]
        return joined_flags(pc.and_, [KINDS[kind].may_match(self._evidence, index, leaf, alive) for index in own])


# The path of a data file as the metadata know it, its modification time in milliseconds, and its size if it is known.
File = tuple[str, int] | tuple[str, int, int | None]
MAX_FILES = 100_000
MAX_THREADS = 8
ATTEMPTS = 10  # to open files that are all still there


@dataclass(frozen=True)
class Skipped:
    """The files, by position, that one kind of index rules out; none if it was asked and left out nothing."""

    by: str
    files: frozenset[int]


@dataclass(frozen=True)
class Selection:
    """Which of some files, by position, have to be read; ``skipped`` are the others by the kinds that were asked."""

    count: int
    skipped: list[Skipped]

    @property
    def kept(self) -> list[int]:
        """The places of the files to read."""
        gone = frozenset[int]().union(*(s.files for s in self.skipped))
        return [i for i in range(self.count) if i not in gone]


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
        self._kinds: set[bool] = set()  # whether part files are about kinds that the original does not know
        self._first_own = 0  # row about kinds that the original does not know
        for name in names:
            self._open_segment(name, keys, table)
        self.segments.sort(key=lambda segment: segment.is_own)

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
            return [k for k in found if is_part(k[start:])]

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
            found.update(((i.name, i.columns_text), i) for i in reversed(segment.schema.indexes))
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
        return sum(all(self._rows_of(file)) for file in files)

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
        columns where the indexes do not know these.
        """
        stages, asked = self._stages(conditions, session or Session())
        rows = dict(enumerate(map(self._rows_of, files)))
        skipped = []
        for kind, flags in stages.items():
            gone = frozenset[int]()
            if not all(flags):
                # Several rows of one file in parts of the same indexes should say the same; if not, the file is kept.
                gone = frozenset(i for i, ps in rows.items() if any(p and not any(flags[n] for n in p) for p in ps))
                rows = {i: numbers for i, numbers in rows.items() if i not in gone}
            if gone or kind in asked:
                skipped.append(Skipped(kind, gone))
        return Selection(len(files), skipped)

    def _stages(self, conditions: Sequence[Predicate], session: Session) -> tuple[dict[str, list[bool]], set[str]]:
        """Return per kind of index which rows of all part files are left after it, and the kinds that were asked."""
        found: dict[str, list[bool]] = {kind: [] for kind in session.kinds}
        named = [s for s in self.segments if s.ids()]
        asked: set[str] = set()

        def filters(segment: Segment, index: Index) -> Filters:
            return self._filters.setdefault((segment.source, index.column), Filters(segment, index, self._budget))

        def ask(segment: Segment) -> tuple[list[dict[str, Any]], set[str]]:
            clauses = Clauses(Evidence(segment, session, filters))
            return [clauses.stages(c) for c in conditions], clauses.asked

        # On as many threads as there are processors: Arrow decodes without locks.
        answers = self._store.map(ask, named, min(MAX_THREADS, os.cpu_count() or 1))
        for segment, (stages, kinds) in zip(named, answers, strict=True):
            asked |= kinds
            for kind in found:
                joined = joined_flags(pc.and_, [stage[kind] for stage in stages])
                found[kind] += [True] * segment.rows if joined is None else joined.to_pylist()
        return found, asked

    def _rows_of(self, file: File) -> list[list[int]]:
        """Return the rows about a file as it is now, those of the kinds that the original knows and the others.

        None is of another size.
        """
        path, time, *known = file
        rows = self._by_id().get(object_id(path, time), [])
        size = known[0] if known else None
        same = rows if size is None else [n for n in rows if self._sizes[n] in (None, size)]
        if len(self._kinds) < 2:
            return [same]
        return [[n for n in same if (n >= self._first_own) == is_own] for is_own in self._kinds]

    def _by_id(self) -> dict[str, list[int]]:
        """Return the rows of each indexed object, counted through all part files with readable names."""
        if self._rows is None:
            rows: dict[str, list[int]] = {}
            sizes: list[int | None] = []
            at = self._first_own = 0
            for segment in self.segments:
                for name in segment.ids():
                    rows.setdefault(name, []).append(at)
                    at += 1
                sizes += segment.sizes()
                self._first_own = self._first_own if segment.is_own else at
            self._sizes, self._rows, self._kinds = sizes, rows, {segment.is_own for segment in self.segments}
        return self._rows


class Warned:
    """Warns of what is odd about metadata, once each."""

    def __init__(self, what: str = "Data skipping") -> None:
        self._what = what
        self.warned: set[str] = set()

    def __call__(self, *problems: str) -> None:
        """Warn of what is new."""
        for problem in problems:
            if problem not in self.warned:
                self.warned.add(problem)
                warnings.warn(f"{self._what}: {problem}", KartosqlWarning, stacklevel=2)


class MetadataSkipping:
    """What the metadata of one table say about its files; whatever is wrong with them warns and rules out nothing.

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
                found = self._metadata.select_files([known], self._files, Session(zone, types, tuple(KINDS)))
                problems = self._metadata.problems
                if not self._metadata.has_gaps or not self._look_again():
                    break
        except Exception as e:  # noqa: BLE001 - whatever is wrong with the metadata, the answer is right without them
            self._tell(f"{self._shown}: {e.message if isinstance(e, KartosqlError) else e}")
            return []
        self._tell(*problems)
        return found.skipped
