"""Folders of files, datasets of other formats and other stores as tables: what ATTACH opens."""

from __future__ import annotations

from collections.abc import Mapping

from kartosql.errors import UsageError
from kartosql.memo import Late
from kartosql.sources.attachments import AttachLocation, Attachment, AttachOptions, Source

# Imported when something is opened: a list of tables needs none of them.
_csv, _delta, _folder = map(Late, ("sources.csv", "sources.delta", "sources.folder"))
_kartothek, _odf = map(Late, ("sources.kartothek", "sources.odf"))


def _iceberg(location: AttachLocation, options: AttachOptions) -> Attachment:
    try:
        from kartosql.sources.iceberg import IcebergTable
    except ImportError:
        hint = "pip install 'kartosql[iceberg]'"
        raise UsageError("pyiceberg is not installed.", code="missing-extra", hint=hint) from None
    return IcebergTable(location, options)


# By the TYPE of ATTACH.
SOURCES: Mapping[str, Source] = {
    "parquet": lambda *given: _folder.ParquetFolder(*given),
    "csv": lambda *given: _csv.CsvFolder(*given),
    "odf": lambda *given: _odf.OdfDataset(*given),
    "delta": lambda *given: _delta.DeltaSource(*given),
    "iceberg": _iceberg,
    "kartothek": lambda *given: _kartothek.AttachedStore(*given),
}
