"""Data-skipping metadata as Xskipper keeps it: one row per file with indexes over its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kartosql.formats.xskipper.clauses import Session
    from kartosql.formats.xskipper.collect import DataFile
    from kartosql.formats.xskipper.refreshing import Refreshed, Sources, drop, refresh, specs_of
    from kartosql.formats.xskipper.schema import Index
    from kartosql.formats.xskipper.store import MetadataStore, Selection, Skipped, Step
    from kartosql.formats.xskipper.writer import IndexSpec, Layout, Secrets, layout_for

__all__ = [
    "DataFile",
    "Index",
    "IndexSpec",
    "Layout",
    "MetadataStore",
    "Refreshed",
    "Secrets",
    "Selection",
    "Session",
    "Skipped",
    "Sources",
    "Step",
    "drop",
    "layout_for",
    "refresh",
    "specs_of",
]
# Loaded when they are asked for: most statements meet no such metadata.
_MODULES = {
    "clauses": ("Session",),
    "collect": ("DataFile",),
    "refreshing": ("Refreshed", "Sources", "drop", "refresh", "specs_of"),
    "schema": ("Index",),
    "store": ("MetadataStore", "Selection", "Skipped", "Step"),
    "writer": ("IndexSpec", "Layout", "Secrets", "layout_for"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        value = getattr(import_module(f"kartosql.formats.xskipper.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'kartosql.formats.xskipper' has no attribute {name!r}")
