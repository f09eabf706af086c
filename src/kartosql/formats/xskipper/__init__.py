"""Data-skipping metadata as Xskipper keeps it: one row per file with indexes over its columns."""

from kartosql.formats.xskipper.store import MetadataStore, Selection, Step

__all__ = ["MetadataStore", "Selection", "Step"]
