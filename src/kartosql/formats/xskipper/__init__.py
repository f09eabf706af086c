"""Data-skipping metadata as Xskipper keeps it: one row per file with indexes over its columns."""

from kartosql.formats.xskipper.clauses import Session
from kartosql.formats.xskipper.collect import DataFile
from kartosql.formats.xskipper.refresh import Refreshed, Sources, drop, refresh, specs_of
from kartosql.formats.xskipper.schema import Index
from kartosql.formats.xskipper.store import MetadataStore, Selection, Step
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
    "Sources",
    "Step",
    "drop",
    "layout_for",
    "refresh",
    "specs_of",
]
