"""Instances of DuckDB that runs of the simulation hand on: to start one takes as long as hundreds of calls.

They are not locked, as no text of a stranger runs here, and go on only where nothing of a statement is left.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Mapping
from typing import Any

import duckdb

from kartosql.engines.duckdb.evaluator import HELD, SCHEMA
from kartosql.engines.duckdb.remote import StoreFiles
from kartosql.engines.duckdb.runtime import Instance
from kartosql.store import Files

MOST = 24
_CLEAN = f"DETACH DATABASE IF EXISTS {HELD}; DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"
_LEFT = "SELECT (SELECT count(*) FROM duckdb_views() WHERE NOT internal) + (SELECT count(*) FROM duckdb_tables())"
_SAME = ("settings", "filesystem", "slots", "schemas", "threads", "_process", "_temporary", "_ahead", "_current")
_free: dict[str, list[Reused]] = {}
atexit.register(_free.clear)


class Reused(Instance):
    """An instance whose DuckDB another one had before."""

    def __init__(self, store: Files, settings: Mapping[str, Any], *, slots: bool = False) -> None:
        self._has_left = False
        free = _free.get(repr(settings))
        if not free:
            super().__init__(store, settings, slots=slots)
            return
        former = free.pop()
        vars(self).update({name: getattr(former, name) for name in (*_SAME, "_root")})
        self._allowed, self._tables, self._footers, self.resting = None, {}, {}, None
        self.footer_bytes, self.worn_out, self.epoch = 0, False, 0
        vars(self.filesystem).update(vars(StoreFiles(store)))  # DuckDB knows it already

    def lock(self, keys: frozenset[str], paths: Any, tables: Any = ()) -> None:
        """Do as if it were locked."""
        self._allowed = keys

    def close(self) -> None:
        """Leave DuckDB to others, if it is as it was."""
        self.take_over()
        free = _free.setdefault(repr(self.settings), [])
        if self._has_left:
            return
        self._has_left = True
        with contextlib.suppress(duckdb.Error):
            self._root.execute(_CLEAN)
            if len(free) < MOST and self._root.execute(_LEFT).fetchall() == [(0,)]:
                free.append(self)
                return
        super().close()

    close_later = close
