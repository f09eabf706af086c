"""Datasets of Open Data Fabric on disk, made record by record, and the state that follows from them."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.formats.odf import data_schema, hashes
from kartosql.formats.odf.blocks import Block, write_block
from kartosql.formats.odf.logical import NotCheckable, logical_hash_of
from odf_data import SEED, TIME

SECOND = 1_000_000_000
MOMENT = pa.timestamp("ms", "UTC")


class Dataset:
    """Writes blocks and data files; each block is one second later than the one before."""

    def __init__(self, folder: Path, vocab: Mapping[str, str] | None = None, key: Sequence[str] | None = None) -> None:
        self.folder = folder
        self.names = {"offset": "offset", "op": "op", "system": "system_time", "event": "event_time", **(vocab or {})}
        self.records: list[dict[str, Any]] = []
        self.number = 0
        self.prev: bytes | None = None
        for kind in ("refs", "blocks", "data"):
            (folder / kind).mkdir(parents=True)
        self.add(SEED)
        if vocab is not None:
            names = self.names
            self.add(
                {
                    "kind": "SetVocab",
                    "offsetColumn": names["offset"],
                    "operationTypeColumn": names["op"],
                    "systemTimeColumn": names["system"],
                    "eventTimeColumn": names["event"],
                }
            )
        if key is not None:
            merge = {"kind": "ChangelogStream", "primaryKey": list(key)}
            self.add({"kind": "AddPushSource", "sourceName": "default", "read": {"kind": "NdJson"}, "merge": merge})

    @property
    def now(self) -> int:
        """System time of the last block, in nanoseconds."""
        return TIME + (self.number - 1) * SECOND

    def add(self, event: Mapping[str, Any]) -> None:
        data = write_block(Block(3, TIME + self.number * SECOND, self.prev, self.number, dict(event)))
        self.prev = hashes.hash_of(data)
        self.number += 1
        (self.folder / "blocks" / hashes.to_text(self.prev)).write_bytes(data)
        (self.folder / "refs" / "head").write_text(hashes.to_text(self.prev))

    def schema(self, **columns: pa.DataType) -> None:
        names = self.names
        system = {
            names["offset"]: pa.uint64(),
            names["op"]: pa.uint8(),
            names["system"]: MOMENT,
            names["event"]: MOMENT,
        }
        raw = data_schema.to_bytes(pa.schema([*system.items(), *columns.items()]))
        self.add({"kind": "SetDataSchema", "rawArrowSchema": raw})

    def append(
        self,
        ops: Sequence[int],
        types: Mapping[str, pa.DataType],
        rows: Iterable[Mapping[str, Any]],
        *,
        without: str | None = None,
    ) -> str:
        """Add a slice, perhaps without one of the system columns, and return its file.

        Rows hold the event time as ``event``, in milliseconds, and data columns.
        """
        rows, names = list(rows), self.names
        start = len(self.records)
        columns = {
            names["offset"]: pa.array(range(start, start + len(rows)), pa.int64()),
            names["op"]: pa.array(ops, pa.int32()),
            names["system"]: pa.array([(TIME + self.number * SECOND) // 10**6] * len(rows), MOMENT),
            names["event"]: pa.array([r.get("event", 0) for r in rows], MOMENT),
            **{name: pa.array([r.get(name) for r in rows], type_) for name, type_ in types.items()},
        }
        columns.pop(self.names[without] if without else "", None)
        table = pa.table(columns)
        sink = io.BytesIO()
        pq.write_table(table, sink, version="1.0", store_schema=False)
        data = sink.getvalue()
        name = hashes.to_text(hashes.hash_of(data))
        (self.folder / "data" / name).write_bytes(data)
        read = pq.read_table(pa.BufferReader(data))
        try:
            logical = logical_hash_of(read.schema, read.to_batches())
        except NotCheckable:
            logical = hashes.logical_hash(bytes(32))
        new = {
            "logicalHash": logical,
            "physicalHash": hashes.hash_of(data),
            "offsetInterval": {"start": start, "end": start + len(rows) - 1},
            "size": len(data),
        }
        self.records += [{**r, "__op": op} for r, op in zip(rows, ops, strict=True)]
        self.add({"kind": "AddData", **({"prevOffset": start - 1} if start else {}), "newData": new})
        return name


def state(records: Iterable[Mapping[str, Any]], key: Sequence[str] | None) -> Counter[str]:
    """Return the rows that hold after some records, by definition."""
    rows = [(r["__op"], {n: v for n, v in r.items() if n != "__op"}) for r in records]
    if key:
        last = {tuple(row.get(k) for k in key): (op, row) for op, row in rows}
        return Counter(_shown(row) for op, row in last.values() if op in (0, 3))
    count: Counter[str] = Counter()
    for op, row in rows:
        count[_shown(row)] += 1 if op in (0, 3) else -1
    return +count


def _shown(row: Mapping[str, Any]) -> str:
    return repr(sorted((n, v) for n, v in row.items() if v is not None and n != "event"))
