"""Folders of CSV files, whose columns DuckDB's sniffer finds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from kartosql.engines.duckdb.remote import PROTOCOL, StoreFiles
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.engines.duckdb.texts import MOMENT, VERSION, Sniffer, common_type
from kartosql.engines.duckdb.types import sql_type
from kartosql.errors import FormatError, KartosqlError
from kartosql.formats.partition_table import Variant
from kartosql.formats.xskipper.naming import spelled
from kartosql.sources.attachments import AttachOptions
from kartosql.sources.folder import Folder
from kartosql.sources.folder_table import FolderTable
from kartosql.sql.attach_parse import CSV_ALIASES, CSV_OPTIONS
from kartosql.store import Fetched
from kartosql.store.listing import ListedFile

if TYPE_CHECKING:
    from kartosql.formats.xskipper.refreshing import Sources

_T = TypeVar("_T")
_KINDS = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.opaque(pa.decimal128(38), "HUGEINT", "CSV")),
    *(pa.opaque(pa.binary(), "BIGNUM", "CSV"), pa.uint64(), pa.float32(), pa.float64(), pa.date32(), pa.time64("us")),
    *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.string()),
)
_ARROW = {sql_type(type_): type_ for type_ in _KINDS}
_PATTERN = frozenset("*?[")  # DuckDB would look for other files
_DECIMAL = re.compile(r"DECIMAL\((\d{1,2}), ?(\d{1,2})\)")
_SPELLED = {"INT": "INTEGER", "TEXT": "VARCHAR", "STRING": "VARCHAR", "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE"}


@dataclass
class _Sniffed:
    """How one file is written, the DuckDB types of its columns, and which of them are empty, once that was asked."""

    reading: dict[str, Any]
    types: dict[str, str]
    empty: frozenset[str] | None = None


class CsvFolder(Folder):
    """A folder of CSV files: each is sniffed once, and those that are written alike are read together."""

    described = "csv files"
    has_footers = False

    def _begin(self, options: AttachOptions) -> None:
        self._options: dict[str, Any] = {}
        for name in sorted({*CSV_OPTIONS, *CSV_ALIASES}):
            value = options.take(name)
            if value is not None:
                self._options[CSV_ALIASES.get(name, name)] = value
        self._types = _types_option(options)
        self.reading = json.dumps([VERSION, self._options, self._types], sort_keys=True, default=str)
        self._known: dict[tuple[str, object], _Sniffed] = {}
        self._sniffer: Sniffer | None = None
        self._filesystem = StoreFiles(self._location.mounts)

    def close(self) -> None:
        """Free the sniffer; statements that were made may still read the files."""
        if self._sniffer is not None:
            self._sniffer.close()

    def _columns(self, files: Sequence[ListedFile]) -> tuple[dict[str, pa.DataType], list[Variant]]:
        for file in files:
            if (file.name, file.state) not in self._known:
                reading, own = self._ask(file, lambda path: self._asking.sniff(path, self._options))
                self._known[file.name, file.state] = _Sniffed(reading, own)
        self._known = {(f.name, f.state): self._known[f.name, f.state] for f in files}
        found = list(self._known.values())
        self._forget_empty(files)
        types = self._common(found, [f.name for f in files])
        arrow = {name: _ARROW.get(type_) or _decimal(type_) for name, type_ in types.items()}
        shapes: dict[str, Variant] = {}
        each = []
        for sniffed in found:
            written = {**sniffed.reading, "columns": {name: types[name] for name in sniffed.types}}
            shape = shapes.setdefault(
                repr(written), Variant((), {name: arrow[name] for name in sniffed.types}, written)
            )
            each.append(shape)
        return arrow, each

    def _sources(self, files: Sequence[ListedFile], table: FolderTable) -> Sources:
        # As queries read them.
        from kartosql.formats.xskipper.refreshing import Sources

        at = {f.name: i for i, f in enumerate(files)}

        def scan(keys: Sequence[str], columns: Mapping[str, Any]) -> Iterator[tuple[int, pa.RecordBatch]]:
            for number, key in enumerate(keys):
                shape = table.shapes[at[key]]
                exact = {spelled([c]).lower(): c for c in shape.types or ()}
                if shape.reading is None or not all(c.lower() in exact for c in columns):
                    continue
                names = [exact[c.lower()] for c in columns]
                ask = partial(self._asking.rows, reading=shape.reading, columns=names)
                try:
                    rows = self._ask(files[at[key]], ask)
                    if MOMENT in rows.schema.types:
                        elsewhere = self._ask(files[at[key]], partial(ask, time_zone="Asia/Kathmandu"))
                        if elsewhere != rows:
                            continue  # the session's time zone decides what some of them mean
                except (KartosqlError, KeyError):
                    continue  # files that cannot be read as their table says stay without an entry
                for batch in rows.to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]:
                    yield number, batch.rename_columns(list(columns))

        return Sources(scan, self._times)

    @property
    def _asking(self) -> Sniffer:
        if self._sniffer is None:
            self._sniffer = Sniffer(self._filesystem)
        return self._sniffer

    def _ask(self, file: ListedFile, ask: Callable[[str], _T]) -> _T:
        path = self._store.local_path(file.name) if self._store.is_local else None
        if path is not None and not _PATTERN.intersection(path):
            return ask(path)
        key = self._prefix + file.name
        # DuckDB takes some names of local files for patterns; these are read by ranges.
        ends = FileAccess(self._location.mounts).begin_reading([key])
        self._filesystem.allow(key, ends.get(key) or Fetched(b"", file.size, file.size))
        try:
            return ask(f"{PROTOCOL}://{key}")
        finally:
            self._filesystem.forget()

    def _forget_empty(self, files: Sequence[ListedFile]) -> None:
        """Find the columns that are text in some files only because they hold nothing there."""
        kinds: dict[str, set[str]] = {}
        for sniffed in self._known.values():
            for name, type_ in sniffed.types.items():
                kinds.setdefault(name, set()).add(type_)
        doubtful = {name for name, types in kinds.items() if len(types) > 1 and "VARCHAR" in types}
        for file in files:
            sniffed = self._known[file.name, file.state]
            if sniffed.empty is None and any(sniffed.types.get(name) == "VARCHAR" for name in doubtful):
                ask = partial(self._asking.empty_columns, reading=sniffed.reading, columns=list(sniffed.types))
                sniffed.empty = self._ask(file, ask)

    def _common(self, found: Sequence[_Sniffed], names: Sequence[str]) -> dict[str, str]:
        """Return the type of each column; a type that Arrow has no match for is text."""
        seen: dict[str, list[str]] = {}
        spelled: dict[str, tuple[str, str]] = {}
        for sniffed, file in zip(found, names, strict=True):
            for name, type_ in sniffed.types.items():
                other = spelled.setdefault(name.lower(), (name, file))
                if other[0] != name:
                    raise FormatError(
                        f"{self._store.url}: the column {name!r} of {file} is spelled {other[0]!r} in {other[1]}",
                        code="schema-conflict",
                        hint="Files of one table have to spell their columns alike.",
                    )
                listed = seen.setdefault(name, [])
                if name not in (sniffed.empty or ()):
                    listed.append(type_)
        types = {name: common_type(listed) if listed else "VARCHAR" for name, listed in seen.items()}
        types = {name: t if t in _ARROW or _DECIMAL.fullmatch(t) else "VARCHAR" for name, t in types.items()}
        return {name: self._types.get(name, t) for name, t in types.items()}


def _types_option(options: AttachOptions) -> dict[str, str]:
    """Return the option TYPES: DuckDB types by column; raises ``invalid-option``."""
    given = options.take("types", {})
    expected = f"a map such as {{'a': 'VARCHAR'}} of {', '.join(_ARROW)} and DECIMAL(p, s)"
    if not isinstance(given, Mapping):
        raise options.invalid("types", given, expected)
    found = {}
    for name, text in given.items():
        type_ = " ".join(str(text).upper().split())
        type_ = _SPELLED.get(type_, type_)
        if type_ not in _ARROW and not (_DECIMAL.fullmatch(type_) and _decimal(type_) is not None):
            raise options.invalid("types", text, expected)
        found[str(name)] = type_
    return found


def _decimal(type_: str) -> pa.DataType | None:
    match = _DECIMAL.fullmatch(type_)
    if match is None or not 1 <= int(match[1]) <= 38 or int(match[2]) > int(match[1]):
        return None
    return pa.decimal128(int(match[1]), int(match[2]))
