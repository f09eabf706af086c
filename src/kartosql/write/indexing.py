"""Files -> inverted indices: which partitions hold which value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.schema import normalise
from kartosql.write.split import Split, run_starts

VALUES_PER_ROW_GROUP = 10_000


def index_key(uuid: str, column: str, created: str) -> str:
    """Return the storage key of the index of ``column`` written at the ISO time ``created``."""
    return f"{uuid}/indices/{naming.quote(column)}/{naming.quote(created)}{naming.INDEX_SUFFIX}"


def index_table(split: Split, column: str) -> pa.Table:
    """Return the inverted index of ``column``: one row per value, sorted, with its labels.

    The columns are ``column`` in its normalised type and ``partition``, a list of labels in
    file order. NULLs are left out.
    """
    values = split.rows[column].cast(normalise(split.rows.schema.field(column).type))
    pairs = pa.table({"value": values, "part": _part_of_row(split)})
    pairs = pairs.filter(pc.is_valid(pairs["value"])).group_by(["value", "part"]).aggregate([])
    pairs = pairs.sort_by([("value", "ascending"), ("part", "ascending")])
    # Grouping tells 0.0 from -0.0, which are one value of the index.
    pairs = pairs.take(pa.array(run_starts(pairs, ("value", "part")), pa.int64()))
    starts = run_starts(pairs, ("value",))
    parts = pairs["part"].combine_chunks()
    labels = pa.array(split.labels, pa.string()).take(parts)
    lists = pa.ListArray.from_arrays(pa.array([*starts, len(parts)], pa.int32()), labels)
    schema = pa.schema([(column, values.type), ("partition", pa.list_(pa.field("item", pa.string())))])
    firsts = pairs["value"].take(pa.array(starts, pa.int64())).combine_chunks()
    return pa.table([firsts, lists], schema=schema)


def _part_of_row(split: Split) -> pa.Array:
    if not split.rows.num_rows:
        return pa.array([], pa.int32())
    ends = pa.array(split.starts[1:], pa.int64())
    parts = pa.array(range(len(ends)), pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, parts))
