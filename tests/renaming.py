"""Tables whose files call columns otherwise, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import kartosql
from kartosql.formats.partition_table import TAG, PartitionTable, Variant
from kartosql.sources.folder_table import FolderTable
from kartosql.tables.table import Table, file_table


@dataclass(frozen=True)
class Written:
    """A file: its rows, the table's columns in it by name and type, and what it does not have to hold."""

    rows: pa.Table
    types: dict[str, pa.DataType]
    names: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)


def tagged(name: str, type_: pa.DataType, tag: bytes) -> pa.Field:
    return pa.field(name, type_, metadata={TAG: tag})


class _Given:
    """A table that is attached, and stays as it is."""

    def __init__(self, inner: Any, made: Table) -> None:
        self._inner, self._made = inner, made

    def now(self) -> dict[str, Any]:
        return dict.fromkeys(self._inner.now(), self)

    def find(self, rest: tuple[str, ...], as_of: str | None = None) -> Table | None:
        return self._made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def renamed(
    con: kartosql.Connection, path: Path, name: str, schema: pa.Schema, files: Sequence[Written], told: Any = None
) -> None:
    """Write files below ``path`` and attach them as a table of a schema, with bounds that metadata tell."""
    (path / name).mkdir()
    labels = [f"{at:03}.parquet" for at in range(len(files))]
    for label, file in zip(labels, files, strict=True):
        pq.write_table(file.rows, path / name / label, row_group_size=2)
        if label == labels[0]:
            con.attach(path / name, name)
            table = con.tables().find((name,)).parts[0].table
    assert isinstance(table, FolderTable)
    prefix = table.files[0].removesuffix(labels[0])
    table = replace(
        table,
        schema=schema,
        labels=tuple(labels),
        files=tuple(prefix + label for label in labels),
        partitions=PartitionTable((), (), (), 1, (0,) * len(files)),
        shapes=tuple(Variant((), f.types, None, f.names, f.constants) for f in files),
        renames=True,
        stored_bounds=told,
    )
    entries = con._session.attachments.entries
    attachment = _Given(entries[name].attachment, file_table(name, table, name, is_attached=True))
    entries[name] = replace(entries[name], attachment=attachment)


LONG, TEXT = pa.int64(), pa.string()
INNER = pa.struct([tagged("x", LONG, b"1"), tagged("y", TEXT, b"2")])
SCHEMA = pa.schema({"a": LONG, "b": TEXT, "c": LONG, "n": INNER, "m": pa.map_(TEXT, INNER)})


def attached(con: kartosql.Connection, path: Path, name: str = "t") -> None:
    """Attach files: as the table, with other names, with another column of such a name, and with names swapped."""
    now = pa.table(
        {
            "a": [1, 2],
            "b": ["p", "q"],
            "c": [5, 5],
            "n": [{"x": 1, "y": "i"}, None],
            "m": [[("k", {"x": 7, "y": "o"})], []],
        },
        schema=SCHEMA,
    )
    older = pa.struct([tagged("y", LONG, b"1"), tagged("x", TEXT, b"2")])  # names swapped
    old = pa.table(
        {"b": [3, 4], "col-2": ["r", "s"], "n": [{"y": 3, "x": "j"}, {"y": 4, "x": None}]},
        schema=pa.schema({"b": pa.int32(), "col-2": TEXT, "n": older}),
    )
    other = pa.table({"a": [100, 200, 300], "b": ["t", "u", None]})  # its a is another column, which was dropped
    renamed(
        con,
        path,
        name,
        SCHEMA,
        [
            Written(now, {f.name: f.type for f in SCHEMA}),
            Written(old, {"a": pa.int32(), "b": TEXT, "n": older}, {"a": "b", "b": "col-2"}),
            Written(other, {"b": TEXT}, constants={"c": 9}),
            Written(pa.table({"a": [50], "c": [8]}), {"a": LONG, "c": LONG}, {"a": "c", "c": "a"}),
        ],
    )


EXPECTED = [
    (1, "p", 5, {"x": 1, "y": "i"}, [("k", {"x": 7, "y": "o"})]),
    (2, "q", 5, None, []),
    (3, "r", None, {"x": 3, "y": "j"}, None),
    (4, "s", None, {"x": 4, "y": None}, None),
    (None, "t", 9, None, None),
    (None, "u", 9, None, None),
    (None, None, 9, None, None),
    (8, None, 50, None, None),
]
STATEMENTS = [
    ("SELECT b FROM t WHERE a = 3", [("r",)]),
    ("SELECT a, c FROM t WHERE b = 'u'", [(None, 9)]),
    ("SELECT count(*) FROM t WHERE a IS NULL", [(3,)]),
    ("SELECT min(a), max(a), min(c), max(c), min(b), max(b) FROM t", [(1, 8, 5, 50, "p", "u")]),
    ("SELECT b FROM t WHERE c = 9 AND b > 't'", [("u",)]),
    ("SELECT n.x FROM t WHERE n.y = 'j'", [(3,)]),
    ("SELECT count(*) FROM t", [(8,)]),
    ("SELECT count(c) FROM t WHERE a > 1", [(2,)]),
    ("SELECT c FROM t WHERE a = 8", [(50,)]),
]
