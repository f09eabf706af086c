"""Data-skipping metadata as Xskipper keeps it: one row per file with indexes over its columns."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kartosql.formats.xskipper.refreshing import IndexLayout as IndexLayout
    from kartosql.formats.xskipper.refreshing import IndexSpec as IndexSpec
    from kartosql.formats.xskipper.refreshing import Refreshed as Refreshed
    from kartosql.formats.xskipper.refreshing import Secrets as Secrets
    from kartosql.formats.xskipper.refreshing import Sources as Sources
    from kartosql.formats.xskipper.refreshing import drop as drop
    from kartosql.formats.xskipper.refreshing import layout_for as layout_for
    from kartosql.formats.xskipper.refreshing import refresh as refresh
    from kartosql.formats.xskipper.refreshing import specs_of as specs_of
    from kartosql.formats.xskipper.scans import DataFile as DataFile
    from kartosql.formats.xskipper.segment import Index as Index
    from kartosql.formats.xskipper.store import MetadataStore as MetadataStore
    from kartosql.formats.xskipper.store import Selection as Selection
    from kartosql.formats.xskipper.store import Session as Session
    from kartosql.formats.xskipper.store import Skipped as Skipped
    from kartosql.formats.xskipper.store import SkippingStep as SkippingStep

# Loaded when they are asked for: most statements meet no such metadata.
_MODULES = {
    "refreshing": "IndexSpec IndexLayout Refreshed Secrets Sources drop layout_for refresh specs_of",
    "scans": "DataFile",
    "segment": "Index",
    "store": "MetadataStore Selection Session Skipped SkippingStep",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
