"""Data-skipping metadata that executors collect."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from kartosql.formats.xskipper import DataFile, Layout
from kartosql.formats.xskipper.collect import partition_values
from kartosql.formats.xskipper.naming import OBJECT_COLUMN, VIRTUAL
from kartosql.store import Store
from kartosql.write.spark.job import Job
from kartosql.write.spark.sides import pieces
from kartosql.write.spark.work import CollectMetadata

# What the driver takes of metadata at once.
PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class SparkSources:
    """How the executors of a session collect the metadata of files of the dataset ``uuid`` in ``store``."""

    session: Any
    store: Store
    uuid: str

    def rows(self, files: Sequence[DataFile], layout: Layout) -> Generator[pa.Table]:
        """Yield metadata rows of files, see ``Collecting``; nothing is yielded before all files were read.

        Raises ``store-unreachable``, ``spark-job-failed``, and what the store raises.
        """
        if not files:
            return
        by_id = {file.id: file for file in files}
        with Job(self.session, self.store, self.uuid) as job:
            # The driver knows the values of partition columns; JSON has no dates.
            plain = replace(layout, partitions={})
            items = [[file.path, file.modified_ms, file.key] for file in files]
            answers = job.run(job.spread(items), CollectMetadata(job.address, job.token, plain))
            for answer in answers:
                for rows in pieces(self.store, answer["metadata"], PIECE_BYTES):
                    indexed = [by_id[i] for i in rows.column(OBJECT_COLUMN).to_pylist()]
                    yield _with_partitions(rows, indexed, layout)


def _with_partitions(rows: pa.Table, files: Sequence[DataFile], layout: Layout) -> pa.Table:
    arrays = []
    for field in layout.arrow_schema:
        if field.name.startswith(VIRTUAL) and (name := field.name.removeprefix(VIRTUAL)) in layout.partitions:
            arrays.append(pa.chunked_array([partition_values(files, name, field.type)], field.type))
        else:
            arrays.append(rows.column(field.name))
    return pa.Table.from_arrays(arrays, schema=layout.arrow_schema)
