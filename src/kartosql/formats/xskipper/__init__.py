"""Data-skipping metadata as Xskipper keeps it: one row per file with indexes over its columns."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Loaded when they are asked for: most statements meet no such metadata.
_MODULES = {
    "kinds": "IndexSpec Session",
    "layout": "IndexLayout Secrets layout_for",
    "refreshing": "Refreshed Sources drop refresh specs_of",
    "scans": "DataFile",
    "segment": "Index",
    "store": "MetadataStore Selection Skipped",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
