"""Folders of files, datasets of other formats and other stores as tables: what ATTACH opens."""

from __future__ import annotations

from collections.abc import Mapping

from kartosql.sources.attachments import Source
from kartosql.sources.csv import CsvFolder
from kartosql.sources.folder import ParquetFolder
from kartosql.sources.kartothek import AttachedStore
from kartosql.sources.odf import OdfDataset

# By the TYPE of ATTACH.
SOURCES: Mapping[str, Source] = {
    "parquet": ParquetFolder,
    "csv": CsvFolder,
    "odf": OdfDataset,
    "kartothek": AttachedStore,
}
