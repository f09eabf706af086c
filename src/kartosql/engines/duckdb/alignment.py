"""Datasets of a cube whose files hold the same cells in the same order: their rows join by position.

Whether they do is found by comparing the cells of two files row by row; nothing that files or documents say of
themselves is believed. What was found is known of local files with these very stamps, which show when they changed.
Files in remote stores have none, so what is known of them is forgotten with the metadata that name them.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import pyarrow as pa

from kartosql.engines.base import FILE, RowRequest, numbered_files, shared_keys
from kartosql.engines.duckdb.statement import stamps_of
from kartosql.formats.kartothek.snapshot import SETTLED_NS
from kartosql.plan.scan import OccurrenceScan, PartScan
from kartosql.tables.table import FileTable, Overlay, Part
from kartosql.text.report import counted

if TYPE_CHECKING:
    from kartosql.engines.duckdb.statement import EngineSession, FileAccess
    from kartosql.store.keys import Stamp
    from kartosql.user_cache import UserCache

POSITION_BYTES = 1 << 20  # of all files of a scan; a hash join of fewer takes no longer than all else
SAMPLE = 4  # pairs of files, from all over a dataset, that are compared first
AT_ONCE = 1_000  # pairs of files whose cells are compared by one query
MAX_KNOWN, MAX_KEPT = 500_000, 50_000  # pairs of files; of two datasets for later processes
MAX_SIDES = 4  # ways in which the files of one scan join
SHOWN = 3  # partitions that a report names
_DIGEST = 16
_KIND = "aligned-files"

# Some files of the seed with the datasets that are joined by their cells, and datasets whose files hold the same cells.
Side = tuple[OccurrenceScan, Sequence[PartScan]]


@dataclass(frozen=True)
class Arrangement:
    """How the datasets of a scan are joined, as long as its local files have these stamps, and that is not None.

    ``is_complete`` says whether all files were compared.
    """

    sides: Sequence[Side]
    stamps: Mapping[str, Stamp | None]
    is_complete: bool


@dataclass(frozen=True)
class _Match:
    """What metadata say about the files of two datasets that may hold the same cells.

    ``columns`` are compared. ``numbers`` are the same for files of both datasets with the same partition values, and
    ``partners`` are the files of the other dataset that may be like those of the seed.
    """

    seed: weakref.ref[FileTable]
    columns: tuple[str, ...]
    numbers: tuple[Sequence[int], Sequence[int]]
    partners: Mapping[int, int]


# A dataset of a scan, and what names a file of the seed together with its partner there.
_Pairs = tuple[PartScan, _Match, Mapping[int, bytes]]


class Alignments:
    """What is known of pairs of files, kept for later statements, and in ``cache`` for later processes."""

    def __init__(self) -> None:
        self.cache: UserCache | None = None
        self._known: dict[bytes, bool] = {}
        self._loaded: set[tuple[str, str]] = set()
        self._matches: weakref.WeakKeyDictionary[FileTable, _Match] = weakref.WeakKeyDictionary()
        self._tokens: weakref.WeakKeyDictionary[FileTable, bytes] = weakref.WeakKeyDictionary()

    def arrange(
        self, files: FileAccess, scan: OccurrenceScan, session: EngineSession | None = None
    ) -> Arrangement | None:
        """Return how the datasets of a scan are joined, None if all are joined by their cells.

        A ``session`` compares files of which nothing is known, which takes a fifth of the time of a hash join.
        """
        seed = scan.parts[0]
        matches = [(p, m) for p in scan.parts[1:] if (m := self._match(seed.part, p.part)).partners]
        columns = {c for _, match in matches for c in match.columns}
        # By position all rows of files are read; of a condition on what is joined the engine makes one on each dataset,
        # and leaves out row groups of all of them.
        if not matches or any(o == scan.occurrence.id and c in columns for p in scan.predicates for o, c in p.columns):
            return None
        keys = [p.part.table.files[f] for p in scan.parts for f in p.files]
        if session is not None:
            files.stat(keys)
        if sum(files.sizes.get(key) or 0 for key in keys) < POSITION_BYTES:
            return None
        stamps: dict[str, Stamp | None] = {}
        first = self._names(files, seed, stamps)
        found: list[_Pairs] = []
        for part, match in matches:
            names, about = self._names(files, part, stamps), repr(match.columns).encode()
            named = {
                f: blake2b(b"\0".join((about, name, names[g])), digest_size=_DIGEST).digest()
                for f, name in first.items()
                if (g := match.partners.get(f)) in names
            }
            found.append((part, match, named))
            if (places := (_place(files, seed), _place(files, part))) not in self._loaded:
                self._loaded.add(places)
                self._known |= self._cached(places)
        is_complete = all(name in self._known for _, _, named in found for name in named.values())
        if not is_complete and session is not None:
            is_complete = True
            self._compare(session, seed, found)
            for part, _, pairs in found if stamps and None not in stamps.values() else ():
                self._keep((_place(files, seed), _place(files, part)), pairs.values())
        return Arrangement(list(self._sides(scan, found)), stamps, is_complete)

    def describe(self, files: FileAccess, scan: OccurrenceScan) -> str | None:
        """Return in words which files are joined by position, as far as is known; None where all join by cells."""
        arrangement = self.arrange(files, scan) if len(scan.parts) > 1 and not scan.is_empty else None
        if arrangement is None:
            return None
        seed, told = scan.parts[0], []
        folders: dict[str, None] = {}
        for side, beside in arrangement.sides:
            own = side.parts[0].files
            if beside:
                names = ", ".join(p.part.name for p in beside)
                told.append(f"by position {len(own):,} of {counted(len(seed.files), 'file')} with {names}")
            if len(side.parts) > 1:
                folders |= dict.fromkeys(seed.part.table.labels[f].rpartition("/")[0] for f in own)
        if folders:
            known = "" if arrangement.is_complete else " (as far as is known)"
            more = "" if len(folders) <= SHOWN else f" and {len(folders) - SHOWN:,} more"
            told.append(f"by cells{known} {', '.join(list(folders)[:SHOWN])}{more}")
        return "; ".join(told)

    def _match(self, seed: Part, part: Part) -> _Match:
        known = self._matches.get(part.table)
        if known is None or known.seed() is not seed.table:
            known = self._matches[part.table] = _match(seed, part)
        return known

    def _names(self, files: FileAccess, scan: PartScan, stamps: dict[str, Stamp | None]) -> dict[int, bytes]:
        """Return a name for each file whose rows all count, which no other content has; stamps are added."""
        table, names = scan.part.table, {}
        keys = {f: table.files[f] for f in scan.files if f not in scan.overlaid}
        known = stamps_of(files.store, keys.values())
        token = self._tokens.setdefault(table, os.urandom(_DIGEST))
        for f, key in keys.items():
            stamp = known.get(key)
            if stamp is not None:
                # Of a file that was written just now another write may leave the same stamp.
                settled = max(stamp.mtime_ns, stamp.ctime_ns) + SETTLED_NS < time.time_ns()
                stamps[key] = stamp if settled else None
                names[f] = repr(tuple(stamp)).encode() + (b"" if settled else os.urandom(_DIGEST))
            elif not files.store.is_on_disk(key):
                names[f] = b"%b %d %d" % (token, f, files.sizes.get(key) or 0)
        return names

    def _compare(self, session: EngineSession, seed: PartScan, found: Sequence[_Pairs]) -> None:
        """Find out about all pairs of files; where none of a few holds the same cells, the others are left alone."""
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        counts = [
            dict(zip(p.files, session.relations.row_counts(p.part.table, p.files), strict=True))
            for p in (seed, *(part for part, _, _ in found))
        ]
        alike: dict[tuple[int, ...], list[int]] = {}
        for f in seed.files:
            new = [at for at, (_, _, named) in enumerate(found) if f in named and named[f] not in self._known]
            self._known |= {found[at][2][f]: False for at in new}
            same = tuple(at for at in new if counts[0][f] == counts[at + 1][found[at][1].partners[f]])
            alike.setdefault(same, []).append(f)
        alike.pop((), None)
        for parts, files in alike.items():
            chosen = [found[at] for at in parts]
            sample = files[:: max(1, len(files) // SAMPLE)][:SAMPLE]
            others = [f for f in files if f not in sample]
            for chunk in (sample, *(others[at : at + AT_ONCE] for at in range(0, len(others), AT_ONCE))):
                told = _compared(session, seed, chosen, chunk)
                self._known |= {named[f]: is_same for f, (_, _, named), is_same in told}
                if chunk is sample and not any(is_same for _, _, is_same in told):
                    break

    def _sides(self, scan: OccurrenceScan, found: Sequence[_Pairs]) -> Iterator[Side]:
        """Yield the files of a scan, those together whose rows join in the same way."""
        seed = scan.parts[0]
        alike: dict[tuple[int, ...], list[int]] = {}
        for f in seed.files:
            parts = tuple(at for at, (_, _, named) in enumerate(found) if self._known.get(named.get(f, b""), False))
            alike.setdefault(parts, []).append(f)
        while len(alike) > MAX_SIDES:
            fewest = min((parts for parts in alike if parts), key=lambda parts: len(alike[parts]))
            alike[()] = sorted([*alike.get((), ()), *alike.pop(fewest)])
        for parts, files in alike.items():
            beside, names = [], set()
            for part, match, _ in map(found.__getitem__, parts):
                beside.append(replace(part, files=tuple(match.partners[f] for f in files)))
                names.add(part.part.name)
            others = []
            for part in scan.parts[1:]:
                mine, theirs = self._match(seed.part, part.part).numbers
                wanted = set(map(mine.__getitem__, files))
                if part.part.name not in names:
                    others.append(replace(part, files=tuple(f for f in part.files if theirs[f] in wanted)))
            yield replace(scan, parts=(replace(seed, files=tuple(files)), *others)), beside

    def _cached(self, places: tuple[str, str]) -> dict[bytes, bool]:
        """Return what other processes found out."""
        found = (self.cache.get(_KIND, places) if self.cache is not None else None) or ()
        return {
            bytes(names[at : at + _DIGEST]): same
            for same, names in zip((True, False), found, strict=False)
            for at in range(0, len(names), _DIGEST)
        }

    def _keep(self, places: tuple[str, str], names: Iterable[bytes]) -> None:
        """Tell other processes; what they know of files that are not asked for now stays."""
        if self.cache is None:
            return
        before, now = self._cached(places), {name: self._known.get(name, False) for name in names}
        kept = {**before, **now} if len(before) < MAX_KEPT else now
        self.cache.put(_KIND, places, [b"".join(n for n in kept if kept[n] is same) for same in (True, False)])


def _place(files: FileAccess, scan: PartScan) -> str:
    key, uuid = scan.part.table.files[0], scan.part.table.uuid
    return files.names([key[: key.index(uuid) + len(uuid)]])[0]


def _match(seed: Part, part: Part) -> _Match:
    shared = shared_keys(seed, part, {*seed.join_key} & {*part.join_key})
    numbers, of_seed, of_part = numbered_files(seed, part, shared)
    columns = tuple(c for c in part.join_key if c not in shared)
    partners: dict[int, int] = {}
    if {*seed.join_key} == {*part.join_key} and columns and all(_is_plain(p, columns) for p in (seed, part)):
        without = {number for value, number in numbers.items() if None in value}
        candidates = _by_number(of_part)
        for number, files in _by_number(of_seed).items():
            others = candidates.get(number, [])
            # Files of several writes without overlays have no cell in common; of one write nothing proves it.
            writes = part.table.writes if len(others) > 1 else ()
            if number not in without and len({writes[f] for f in others} if writes else others) == len(others):
                partners.update(zip(files, others, strict=False))
    return _Match(weakref.ref(seed.table), columns, (of_seed, of_part), partners)


def _by_number(numbers: Sequence[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for file, number in enumerate(numbers):
        found.setdefault(number, []).append(file)
    return found


def _is_plain(part: Part, columns: Sequence[str]) -> bool:
    """Return whether DuckDB itself reads the files of a dataset, and as one."""
    types, variants = part.table.types, part.table.variants((0,))
    return (
        isinstance(part.rows, Overlay)
        and part.table.has_footers
        and all(v.types is None and v.reading is None for v in variants)
        and len({c.lower() for c in types}) == len(types)
        and not any(map(pa.types.is_duration, types.values()))
        and not any(pa.types.is_null(types[c]) for c in columns)
    )


def _compared(
    session: EngineSession, seed: PartScan, found: Sequence[_Pairs], files: Sequence[int]
) -> list[tuple[int, _Pairs, bool]]:
    """Return for files of the seed whether each of their partners holds the same cells, all different, in their order.

    The rows of the first file are joined with those of its partners, then those of the second, and so on. Whatever lets
    rows of other files be joined, such as wrong row counts in footers, is an answer of no.
    """
    relations = session.relations
    names = {c: f"s{i}" for i, c in enumerate(dict.fromkeys(c for _, match, _ in found for c in match.columns))}
    beside, tests = [], []
    types = seed.part.table.types
    for n, (part, match, _) in enumerate(found, 1):
        own = {c: f"p{n}_{i}" for i, c in enumerate(match.columns)}
        beside.append((part.part.table, [match.partners[f] for f in files], RowRequest(own, ordered=True)))
        equal = " AND ".join(f"{names[c]} = {relations.as_key(own[c], types[c])}" for c in own)
        ascends = "false"
        for c in reversed(own):
            value = relations.as_key(names[c], types[c])
            ascends = f"{value} > before_{names[c]} OR ({value} = before_{names[c]} AND ({ascends}))"
        tests.append(f"bool_and(coalesce({equal} AND (before IS DISTINCT FROM {FILE} OR {ascends}), false))")
    same = " AND ".join(f"{FILE} = {FILE}{n}" for n in range(1, len(found) + 1))
    before = ", ".join(f"lag({name}) OVER () AS before_{name}" for name in names.values())
    request = RowRequest(names, ordered=True, beside=tuple(beside))
    queries = [
        f"SELECT {at}, {FILE}, bool_and(coalesce({same}, false)), {', '.join(tests)} FROM "
        f"(SELECT *, lag({FILE}) OVER () AS before, {before} FROM ({query})) GROUP BY {FILE}"
        for at, query in relations.side_by_side(seed.part.table, files, request)
    ]
    rows = session.rows(" UNION ALL ".join(queries))
    if not all(is_beside for _, _, is_beside, *_ in rows):
        return []
    return [
        (files[at + number], pairs, is_same)
        for at, number, _, *told in rows
        for pairs, is_same in zip(found, told, strict=True)
    ]
