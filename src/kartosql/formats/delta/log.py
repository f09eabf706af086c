"""The log of a Delta table: commits and checkpoints, and the files that are live in a version."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import FormatError, SqlError, first_line, reraise
from kartosql.formats.arrays import array_of, constant
from kartosql.formats.odf.times import to_text
from kartosql.parquet import column_sizes, footer_of
from kartosql.store import Store
from kartosql.store.listing import list_files, listed_file

LOG = "_delta_log"
# Of readers; what only writers have to know says nothing about rows.
FEATURES = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint"}
    | {"vacuumProtocolCheck"}
)
MAX_ROWS, MAX_BYTES = 50_000_000, 16 << 30  # of a checkpoint, not compressed
_NAME = re.compile(
    rf"{LOG}/(?P<version>\d{{20}})\.(?:(?P<commit>json)"
    r"|checkpoint(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.[0-9A-Za-z-]+)?\.(?:parquet|json))"
)
_ADD = re.compile(rb'\{"add":\{"path":"([^"\\]+)",[^\n]*\}\}')  # with a path that is spelled as it is
_TEXT, _INT = pa.string(), pa.int64()
_VECTOR = {"storageType": _TEXT, "pathOrInlineDv": _TEXT, "offset": pa.int32(), "sizeInBytes": pa.int32()}
_VECTOR["cardinality"] = _INT
_MAP = pa.map_(_TEXT, _TEXT)
_PLAIN = {"path": _TEXT, "size": _INT, "modificationTime": _INT, "partitionValues": _MAP, "stats": _TEXT}
FILES = pa.schema([*_PLAIN.items(), *((f"dv.{name}", type_) for name, type_ in _VECTOR.items())])
PARSED = "stats_parsed"  # in checkpoints beside these, if ``stats`` are missing there
_BAD = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


def broken(
    name: str, problem: str, hint: str = "Ask what writes the table to repair it, or for an older VERSION."
) -> FormatError:
    """Return the error about a log from which no version follows."""
    return FormatError(f"{name}: {problem}", code="delta-invalid-log", hint=hint)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A version of a table: its metadata, and its live files as a table with the columns of ``FILES``."""

    version: int
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    files: pa.Table
    kept: pa.ChunkedArray | None = None  # of a known version before, whose files stand first, which of them stay


@dataclass
class _Changes:
    """What actions say together; the last one about a file counts."""

    name: str
    protocol: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    sidecars: list[Any] = field(default_factory=list)
    gone: dict[str, None] = field(default_factory=dict)
    added: dict[str, dict[str, Any]] = field(default_factory=dict)

    def apply(self, data: bytes, name: str, *, paths_only: bool = False) -> None:
        """Note the actions of a commit or a checkpoint of JSON; raises ``delta-invalid-log``.

        With ``paths_only`` no more than its path has to be known of a file without a deletion vector.
        """
        if not data or data.isspace():
            raise broken(name, "it is torn: there is nothing in it")
        try:
            for line in data.splitlines():
                if paths_only and (found := _ADD.fullmatch(line)) and b"deletionVector" not in line:
                    self._note("add", {"path": found[1].decode()})
                elif line.strip():
                    for kind, action in json.loads(line).items():
                        self._note(kind, action)
        except _BAD as e:
            raise broken(name, f"it is torn or no list of actions: {first_line(e)[:200]}") from None

    def _note(self, kind: str, action: Any) -> None:
        if kind in ("add", "remove"):
            vector = action.get("deletionVector")
            key = action["path"]
            if vector is not None:
                at = "" if vector.get("offset") is None else f"@{vector['offset']}"
                key += f"\0{vector['storageType']}{vector['pathOrInlineDv']}{at}"
            key.encode()  # raises ValueError for what is no text
            self.gone[key] = None
            self.added.pop(key, None)
            if kind == "add":
                self.added[key] = action
        elif kind == "protocol":
            self.protocol = dict(action)
        elif kind == "metaData":
            self.metadata = dict(action)
        elif kind == "sidecar":
            self.sidecars.append(action["path"])

    def files(self) -> pa.Table:
        """Return the files that were added and stay."""
        rows = list(self.added.values())
        try:
            vectors = [row.get("deletionVector") or {} for row in rows]
            columns = {name: array_of([row.get(name) for row in rows], t) for name, t in _PLAIN.items() if t != _MAP}
            columns |= {f"dv.{n}": array_of([v.get(n) for v in vectors], t) for n, t in _VECTOR.items()}
            values = [row.get("partitionValues") or {} for row in rows]
            ends = array_of([0, *accumulate(map(len, values))], pa.int32())
            inner = [
                array_of(list(chain.from_iterable(part)), _TEXT) for part in (values, (v.values() for v in values))
            ]
            columns["partitionValues"] = pa.MapArray.from_arrays(ends, *inner)
            return pa.table([columns[name] for name in FILES.names], schema=FILES)
        except _BAD as e:
            raise broken(self.name, f"an action add is odd: {first_line(e)[:200]}") from None


def _keys(files: pa.Table) -> pa.ChunkedArray:
    """Return what distinguishes the files of a table, as ``_Changes`` has it."""
    kind, place, offset = (files[f"dv.{name}"] for name in ("storageType", "pathOrInlineDv", "offset"))
    if kind.null_count == len(kind):
        return files["path"]
    no, at, nul = (constant(text, _TEXT) for text in ("", "@", "\0"))
    numbers = pc.fill_null(pc.binary_join_element_wise(at, offset.cast(_TEXT), no), no)
    whole = pc.binary_join_element_wise(files["path"], nul, kind, place, numbers, no)
    return pc.if_else(pc.is_valid(kind), whole, files["path"])


class Log:
    """Reads versions of the table in a store; with ``paths_only`` only that which tells the files of a version."""

    def __init__(self, store: Store, *, paths_only: bool = False) -> None:
        self._store, self._paths_only = store, paths_only
        self._name = f"{store.url.rstrip('/')}/{LOG}"
        self._stamp: Any = None  # of the commit of the last version that was read as the newest

    def newest(self, known: Snapshot | None) -> Snapshot:
        """Return the newest version: the known one with the commits since, if that one is still there."""
        if known is None or self._stamp != self._stamp_of(known.version):
            found = self.at(None)
        else:
            changes, version = _Changes(self._name), known.version
            while (data := self._commit(version + 1)) is not None:
                version += 1
                changes.apply(data, self._path(version))
            if version == known.version:
                return known
            found = self._after(known, changes, version)
        self._stamp = self._stamp_of(found.version)
        return found

    def at(self, version: int | None) -> Snapshot:
        """Return a version, by default the newest one there is.

        Raises ``delta-invalid-log``, ``no-such-version``, ``version-gone`` and ``unsupported-feature``.
        """
        commits, checkpoints = self._listed()
        newest = max([*commits, *checkpoints], default=-1)
        if newest < 0:
            raise broken(
                self._name,
                "there is no log of a Delta table",
                "Check the path: it is that of the folder around _delta_log.",
            )
        version = newest if version is None else version
        if not 0 <= version <= newest:
            raise SqlError(
                f"There is no version {version} of {self._store.url}; the last one is {newest}.", code="no-such-version"
            )
        failed: FormatError | None = None
        for base in [*sorted((c for c in checkpoints if c <= version), reverse=True), -1]:
            missing = next((v for v in range(base + 1, version + 1) if v not in commits), None)
            if missing is not None:
                continue
            for names in checkpoints.get(base, [[]]):
                try:
                    return self._build_snapshot(names, range(base + 1, version + 1), version)
                except FormatError as e:
                    if e.code not in ("delta-invalid-log", "missing-file"):
                        raise
                    failed = failed or e
        if failed is not None:
            raise failed
        oldest = min(commits, default=newest)
        begins = min([*checkpoints, 0 if 0 in commits else newest])
        if version < newest and version < max(oldest, begins):
            raise SqlError(
                f"The version {version} of {self._store.url} cannot be read any more: its log was cleaned up.",
                code="version-gone",
                hint=f"The newest version is {newest}.",
            )
        gap = next(v for v in range(version, -1, -1) if v not in commits)
        raise broken(self._path(gap), f"the commit is missing, so there is no version {version}")

    def version_at(self, nanoseconds: int) -> int:
        """Return the last version at a time; raises ``no-such-version`` and ``version-gone``."""
        infos = self._store.infos_below(f"{LOG}/")
        found = {int(m["version"]): k for k in infos if (m := _NAME.fullmatch(k)) and m["commit"]}
        last, times = -(2**63), {}
        for version in sorted(found):
            # Of clocks that went backwards, as the format has it.
            last = max(last + 1, listed_file(found[version], infos[found[version]]).time or 0)
            times[version] = last
        versions = sorted(times)
        count = bisect_right(versions, nanoseconds // 1_000_000, key=lambda v: self._noted_time(v) or times[v])
        if count:
            return versions[count - 1]
        is_cleaned = bool(versions) and versions[0] > 0
        code = "version-gone" if is_cleaned else "no-such-version"
        why = "its log was cleaned up" if is_cleaned else "it did not exist then"
        time = to_text(nanoseconds // 1000 * 1000)
        raise SqlError(f"There is no version of {self._store.url} as of {time}: {why}.", code=code)

    def _noted_time(self, version: int) -> int | None:
        """Return the time that a commit notes itself, in milliseconds since 1970, if it does so."""
        try:
            first = json.loads((self._commit(version) or b"").partition(b"\n")[0] or b"{}")
            return int(first["commitInfo"]["inCommitTimestamp"])
        except _BAD:
            return None

    # -- files of the log ------------------------------------------------------------------------

    def _path(self, version: int) -> str:
        return f"{self._name}/{version:020}.json"

    def _stamp_of(self, version: int) -> Any:
        return [file.state for file in list_files(self._store, f"{LOG}/{version:020}.json")]

    def _commit(self, version: int) -> bytes | None:
        try:
            return self._store.read_metadata(f"{LOG}/{version:020}.json")
        except KeyError:
            return None

    def _listed(self) -> tuple[set[int], dict[int, list[list[str]]]]:
        """Return the versions with commits, and by version the checkpoints that are complete, each with its files."""
        commits: set[int] = set()
        whole: dict[int, list[list[str]]] = {}
        parts: dict[tuple[int, int], list[str]] = {}
        for name in self._store.list_below(f"{LOG}/"):
            if (found := _NAME.fullmatch(name)) is None:
                continue
            version = int(found["version"])
            if found["commit"]:
                commits.add(version)
            elif found["parts"]:
                parts.setdefault((version, int(found["parts"])), []).append(name)
            else:
                whole.setdefault(version, []).append([name])
        for (version, count), names in parts.items():
            if len(names) == count:
                whole.setdefault(version, []).append(names)
        return commits, whole

    def _build_snapshot(self, checkpoint: Sequence[str], commits: Sequence[int], version: int) -> Snapshot:
        changes = _Changes(self._name)
        for number, data in zip(commits, self._store.map(self._commit, commits), strict=True):
            if data is None:
                raise broken(self._path(number), "the commit was removed meanwhile")
            changes.apply(data, self._path(number), paths_only=self._paths_only)
        base = Snapshot(-1, {}, {}, _Changes("").files())
        for part in self._store.map(self._part, checkpoint):
            base = self._with_part(base, *part)
        found = self._after(base, changes, version)
        return Snapshot(version, found.protocol, found.metadata, found.files)

    def _after(self, known: Snapshot, changes: _Changes, version: int) -> Snapshot:
        """Return the version that follows from a known one and changes; raises ``unsupported-feature``."""
        protocol = changes.protocol or known.protocol
        metadata = changes.metadata or known.metadata
        if not protocol or not metadata:
            raise broken(self._name, "neither a checkpoint nor a commit tells protocol and metadata")
        check_protocol(protocol, self._store.url)
        kept = pc.invert(pc.is_in(_keys(known.files), array_of(list(changes.gone), _TEXT)))
        files = pa.concat_tables([known.files.filter(kept), changes.files()], promote_options="default")
        return Snapshot(version, protocol, metadata, files, kept)

    # -- checkpoints -----------------------------------------------------------------------------

    def _part(self, name: str) -> tuple[_Changes, pa.Table | None]:
        """Return the contents of one file of a checkpoint: actions, and files of which there may be many."""
        shown = f"{self._store.url.rstrip('/')}/{name}"
        changes = _Changes(shown)
        try:
            data = self._store.read_metadata(name)
        except KeyError:
            raise broken(shown, "the file of a checkpoint is missing") from None
        if name.endswith(".json"):
            changes.apply(data, shown)
            return changes, None
        try:
            return changes, _files_of(data, changes)
        except _BAD as e:
            reraise(e, f"Cannot read {shown!r}")
            raise broken(shown, f"the checkpoint is damaged: {first_line(e)[:200]}") from None

    def _with_part(self, base: Snapshot, changes: _Changes, files: pa.Table | None) -> Snapshot:
        tables = [base.files, changes.files(), *([files] if files is not None else [])]
        names = [f"{LOG}/_sidecars/{unquote(str(path)).rpartition('/')[2]}" for path in changes.sidecars]
        for more, sidecar in self._store.map(self._part, names):
            tables += [more.files(), *([sidecar] if sidecar is not None else [])]
        whole = pa.concat_tables(tables, promote_options="permissive")
        return Snapshot(-1, changes.protocol or base.protocol, changes.metadata or base.metadata, whole)


def check_protocol(protocol: Mapping[str, Any], name: str) -> None:
    """Raise ``unsupported-feature`` for tables that ask readers for more than is known here."""
    version, asked = protocol.get("minReaderVersion"), protocol.get("readerFeatures") or []
    odd = [f"reader version {version}"] if version not in (1, 2, 3) or not isinstance(asked, list) else []
    odd += sorted(str(f)[:80] for f in asked if f not in FEATURES) if not odd and version == 3 else []
    if odd:
        hint = f"Known are reader versions 1 to 3 with {', '.join(sorted(FEATURES))}."
        raise FormatError(f"{name}: the table asks readers for {', '.join(odd)}", code="unsupported-feature", hint=hint)


def _files_of(data: bytes, changes: _Changes) -> pa.Table | None:
    """Return the live files of a checkpoint as it is stored, and note its other actions; raises what is in ``_BAD``."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(pa.BufferReader(data)) as file:
        footer = footer_of(data)
        if footer is None or column_sizes(footer, file.schema) is None:
            raise ValueError("columns of it are encrypted or damaged")
        sizes = [file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups)]
        if file.metadata.num_rows > MAX_ROWS or sum(sizes) > MAX_BYTES:
            raise ValueError("it is too large")
        schema = {f.name: f for f in file.schema_arrow}
        for kind in ("protocol", "metaData", "sidecar"):
            if kind in schema:
                rows = file.read([kind])[kind]
                for action in rows.filter(pc.is_valid(rows)).to_pylist():
                    if kind != "metaData" or action.get("schemaString"):
                        changes._note(kind, {**action, "configuration": dict(action.get("configuration") or ())})
        if "add" not in schema:
            return None
        members = {f.name for f in schema["add"].type}
        wanted = [*(n for n in _PLAIN if n in members), *({"deletionVector"} & members)]
        added = _valid(file.read([f"add.{name}" for name in wanted]))
        columns = {name: _cast(added.get(name), type_, added["path"]) for name, type_ in _PLAIN.items()}
        vector = added.get("deletionVector")
        inner = {} if vector is None else {f.name: pc.struct_field(vector, f.name) for f in vector.type}
        columns |= {f"dv.{n}": _cast(inner.get(n), t, added["path"]) for n, t in _VECTOR.items()}
        if PARSED in members and columns["stats"].null_count:
            columns[PARSED] = _valid(file.read(["add.path", f"add.{PARSED}"]))[PARSED]
        return pa.table(columns)


def _valid(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    flat = table.flatten()
    flat = flat.filter(pc.is_valid(flat["add.path"]))
    return {name.removeprefix("add."): flat[name] for name in flat.column_names}


def _cast(column: pa.ChunkedArray | None, type_: pa.DataType, like: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(len(like), type_)]) if column is None else column.cast(type_)


def partition_texts(files: pa.Table, key: str) -> pa.ChunkedArray:
    """Return the partition values of a column as they are written; what is empty is NULL."""
    found = pc.map_lookup(files["partitionValues"], constant(key, _TEXT), "first")
    return pc.if_else(pc.equal(found, constant("", _TEXT)), constant(None, _TEXT), found)
