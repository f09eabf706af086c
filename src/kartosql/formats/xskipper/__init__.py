"""Data-skipping metadata as Xskipper keeps it: one row per file with indexes over its columns."""
