"""What a statement that writes did, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from kartosql.text.secrets import redacted

_COUNT, _TEXT, _FLAG = pa.int64(), pa.string(), pa.bool_()
_COMMIT = {"sequence": _COUNT, "id": _TEXT}
_CHANGE = {"files": _COUNT, "rows": _COUNT, "bytes": _COUNT, "removed": _COUNT, **_COMMIT}
_TIME = pa.timestamp("us", "UTC")
_GARBAGE = {"key": _TEXT, "bytes": _COUNT, "since": _TIME, "due": _TIME, "removed": _FLAG}
_FINDING = {"dataset": _TEXT, "check": _TEXT, "severity": _TEXT, "key": _TEXT, "message": _TEXT, "repairable": _FLAG}

Reports = Mapping[str, Mapping[str, Any]]


def changes(found: Reports) -> pa.Table:
    """Return one row per dataset: files, rows and bytes written, files removed, and the commit."""
    return _table(((name, one.get) for name, one in found.items()), _CHANGE)


def dropped(found: Reports) -> pa.Table:
    """Return one row per dataset that is gone, with the number of its files."""
    return _table(((name, one.get) for name, one in found.items()), {"files": _COUNT})


def indexed(found: Reports, columns: Iterable[str]) -> pa.Table:
    """Return one row per column of one dataset: how many values its index has, and the commit."""
    rows = []
    for name, one in found.items():
        values = one.get("values") or {}
        rows += [(name, {**one, "column": c, "values": values.get(c)}.get) for c in columns]
    return _table(rows, {"column": _TEXT, "values": _COUNT, **_COMMIT})


def skipping(found: Reports) -> pa.Table:
    """Return one row per dataset: how many skipping indexes, and files that were added, removed, kept, left out."""
    columns = dict.fromkeys(("indexes", "added", "removed", "kept", "unindexed"), _COUNT)
    return _table(((name, one.get) for name, one in found.items()), columns)


def garbage(found: Reports) -> pa.Table:
    """Return one row per file that belongs to nothing: since when, when it is due, and whether it is gone."""
    rows = [(name, file.__getattribute__) for name, one in found.items() for file in one["files"]]
    return _table(rows, _GARBAGE)


def findings(found: Iterable[Any]) -> pa.Table:
    """Return one row per finding of a check."""
    listed = list(found)
    return pa.table({name: pa.array([getattr(f, name) for f in listed], type_) for name, type_ in _FINDING.items()})


def recorded(found: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return one row per table whose schema was to be recorded: its version, block, and whether it is new."""
    listed = list(found)
    columns = {"dataset": _TEXT, "table": _TEXT, "version": _COUNT, "block": _TEXT, "recorded": _FLAG}
    return pa.table({name: pa.array([row[name] for row in listed], type_) for name, type_ in columns.items()})


def exported(url: str, found: Mapping[str, Any]) -> pa.Table:
    """Return one row about what was written elsewhere."""
    types = {"target": _TEXT, "id": _TEXT, "head": _TEXT, "blocks": _COUNT, "rows": _COUNT, "bytes": _COUNT}
    given = {"target": redacted(url), **found}
    return pa.table({name: pa.array([given[name]], type_) for name, type_ in types.items() if name in given})


def _table(rows: Iterable[tuple[str, Any]], columns: Mapping[str, pa.DataType]) -> pa.Table:
    listed = list(rows)
    arrays = {"dataset": pa.array([name for name, _ in listed], _TEXT)}
    arrays |= {name: pa.array([get(name) for _, get in listed], type_) for name, type_ in columns.items()}
    return pa.table(arrays)
