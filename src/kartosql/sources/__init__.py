"""Folders of files, datasets of other formats and other stores as tables: what ATTACH opens."""

from __future__ import annotations

from collections.abc import Mapping

from kartosql.errors import UsageError
from kartosql.sources.attachments import AttachLocation, Attachment, AttachOptions, Source
from kartosql.sources.csv import CsvFolder
from kartosql.sources.delta import DeltaSource
from kartosql.sources.folder import ParquetFolder
from kartosql.sources.kartothek import AttachedStore
from kartosql.sources.odf import OdfDataset


def _iceberg(location: AttachLocation, options: AttachOptions) -> Attachment:
    try:
        from kartosql.sources.iceberg import IcebergTable
    except ImportError:
        hint = "pip install 'kartosql[iceberg]'"
        raise UsageError("pyiceberg is not installed.", code="missing-extra", hint=hint) from None
    return IcebergTable(location, options)


# By the TYPE of ATTACH.
SOURCES: Mapping[str, Source] = {
    "parquet": ParquetFolder,
    "csv": CsvFolder,
    "odf": OdfDataset,
    "delta": DeltaSource,
    "iceberg": _iceberg,
    "kartothek": AttachedStore,
}
