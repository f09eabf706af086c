"""The data of the figures: TPC-H lineitem as plain datasets of many files and as a cube, made once per folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import duckdb
import pyarrow as pa

import kartosql
from kartosql.store import Store
from kartosql.write.inputs import open_rows
from kartosql.write.layout import Layout, run_starts
from kartosql.write.operation import Operation
from tests.written import build_cube, write_dataset

FILE_COUNTS = {"lineitem_few": 1_000, "lineitem_many": 10_000}
INDEXED = ("l_orderkey", "l_partkey", "l_suppkey")
DIMENSIONS = ("l_orderkey", "l_linenumber")
MONTH = "l_shipmonth"
MEMBERS = {
    "seed": ("l_partkey", "l_suppkey", "l_quantity", "l_extendedprice", "l_discount"),
    "shipping": ("l_shipdate", "l_commitdate", "l_receiptdate", "l_shipinstruct", "l_shipmode"),
    "state": ("l_returnflag", "l_linestatus", "l_tax", "l_comment"),
}
_VERSION = 2  # of the layout below: folders with another one are made again


@dataclass(frozen=True)
class Data:
    """A store with ``lineitem_few``, ``lineitem_many``, ``part`` and the cube ``lines``."""

    root: str
    scale: float

    @cached_property
    def files(self) -> Mapping[str, list[str]]:
        """Absolute paths of the data files by dataset uuid, in the order of the metadata documents."""
        found = {}
        for name in sorted(os.listdir(self.root)):
            if name.endswith(".by-dataset-metadata.json"):
                with open(os.path.join(self.root, name)) as f:
                    document = json.load(f)
                keys = [p["files"]["table"] for p in document["partitions"].values()]
                found[document["dataset_uuid"]] = [os.path.join(self.root, key) for key in keys]
        return found

    def glob(self, uuid_: str) -> str:
        """Return the pattern that names all files of a dataset."""
        return os.path.join(self.root, uuid_, "table", "**", "*.parquet")


def month_of(path: str) -> str:
    """Return the partition value in the path of a file."""
    return path.split(f"/{MONTH}=")[1].split("/")[0]


def prepare(folder: str, scale: float, counts: Mapping[str, int] = FILE_COUNTS) -> Data:
    """Return the data in ``folder``, made now unless they are there already."""
    root = os.path.join(folder, f"tpch-{scale:g}")
    done = os.path.join(root, "made.txt")
    stamp = f"layout {_VERSION}, scale factor {scale:g}, files {sorted(counts.values())}\n"
    if os.path.exists(done):
        with open(done) as f:
            if f.read() == stamp:
                return Data(root, scale)
    shutil.rmtree(root, ignore_errors=True)
    raw = os.path.join(root, "raw")
    os.makedirs(raw)
    _generate(raw, scale)
    store = Store(root)
    rows = _query(
        f"SELECT strftime(l_shipdate, '%Y-%m') AS {MONTH}, * FROM read_parquet(?) ORDER BY 1, {', '.join(DIMENSIONS)}",
        os.path.join(raw, "lineitem.parquet"),
    )
    for name, count in counts.items():
        _write_files(store, rows, name, count)
    _write_cube(store, rows)
    parts = _query("SELECT * FROM read_parquet(?) ORDER BY p_partkey", os.path.join(raw, "part.parquet"))
    write_dataset(store, "part", parts, partition_on="p_brand", index_columns=["p_partkey", "p_size"])
    shutil.rmtree(raw)
    with open(done, "w") as f:
        f.write(stamp)
    return Data(root, scale)


def generator() -> str:
    """Return the path of the program that makes the rows; it may not exist."""
    return os.path.join(os.path.dirname(sys.executable), "tpchgen-cli")


def _generate(folder: str, scale: float) -> None:
    if not os.path.exists(generator()):
        sys.exit("tpchgen-cli is missing: pip install 'kartosql[benchmarks]'")
    command = [generator(), "parquet", "--quiet", "-s", str(scale), "-T", "lineitem,part", "-o", folder]
    subprocess.run(command, check=True)


def _query(sql: str, path: str) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql(sql, params=[path]).to_arrow_table()


def _write_files(store: Store, rows: pa.Table, name: str, count: int) -> None:
    """Write rows that are sorted by month as about ``count`` files of one size, several for each month."""
    layout = Layout(uuid=name, name=name, partition_on=(MONTH,), index_columns=INDEXED, not_null=(MONTH,))
    operation = Operation(store, "create_dataset")
    # A write makes one file for each month, so there are as many as the month with the most files needs.
    written = [operation.write_table(open_rows(part, name), layout) for part in _parts(rows, count)]
    files = sorted(
        (label.partition("/")[0], at, label, key)
        for at, one in enumerate(written)
        for label, key in zip(one.labels, one.keys, strict=True)
    )
    whole = replace(
        written[0],
        labels=tuple(label for *_, label, _ in files),
        keys=tuple(key for *_, key in files),
        pairs={c: pa.concat_tables([one.pairs[c] for one in written]) for c in INDEXED},
    )
    operation.commit([operation.adding([whole], create=True)], written)


def _parts(rows: pa.Table, count: int) -> list[pa.Table]:
    """Return the rows in parts with an equal share of each month, unless that would make more than ``count`` files."""
    parts: dict[int, list[pa.Table]] = {}
    for start, end in pairwise([*run_starts(rows, (MONTH,)), rows.num_rows]):
        pieces = min(end - start, max(1, round((end - start) * count / rows.num_rows)))
        cuts = [start + (end - start) * i // pieces for i in range(pieces + 1)]
        for at, (first, last) in enumerate(pairwise(cuts)):
            parts.setdefault(at, []).append(rows.slice(first, last - first))
    return [pa.concat_tables(found) for found in parts.values()]


def _write_cube(store: Store, rows: pa.Table) -> None:
    cube = kartosql.Cube("lines", DIMENSIONS, [MONTH], index_columns=["l_partkey"], suppress_index_on=["l_linenumber"])
    build_cube(store, cube, {name: rows.select(_columns(payload)) for name, payload in MEMBERS.items()})


def _columns(payload: Sequence[str]) -> list[str]:
    return [MONTH, *DIMENSIONS, *payload]
