"""Datasets that another program writes anew under their old labels, while a connection is open."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.store import Store

STATEMENTS = (
    "SELECT count(*) FROM d",
    "SELECT count(*) FROM d WHERE p = 1",
    "SELECT p, count(*) FROM d GROUP BY p ORDER BY p",
    "SELECT min(x), max(x), max(f), min(s) FROM d",
    "SELECT max(x) FROM d WHERE p = 0",
    "SELECT x, s FROM d WHERE x = 1001 ORDER BY ALL",
    "SELECT x, s FROM d WHERE x = 1 ORDER BY ALL",
    "SELECT count(*) FROM d WHERE s >= 'b'",
    "SELECT count(*) FROM d WHERE f > 1000",
    "SELECT count(*) FROM d WHERE i = 7 AND p IN (0, 2)",
    "SELECT sum(a.x) FROM d a JOIN d b USING (p, x)",
    "SELECT sum(x), count(s) FROM (SELECT x, s FROM d LIMIT 1000000)",
    "SELECT count(*) FROM (SELECT x FROM d LIMIT 3)",
    "SELECT x FROM d ORDER BY x DESC LIMIT 3",
    "SELECT count(DISTINCT x) FROM d",
    "SELECT x FROM d WHERE x = (SELECT max(x) FROM d)",
    "SELECT typeof(any_value(x)), typeof(any_value(f)) FROM d",
)
FILES = 40  # enough for statistics of footers


def rows(base: int, sizes: list[int], type_: pa.DataType) -> list[pa.Table]:
    made = []
    for n, size in enumerate(sizes):
        values = [base + n * 10 + i for i in range(size)]
        columns = {"x": pa.array(values, type_), "s": [f"{'ab'[base > 0]}{v:06}" for v in values]}
        columns |= {"f": [float(v) for v in values], "i": pa.array([v % 10 for v in values], pa.int64())}
        made.append(pa.table(columns))
    return made


def stored(table: pa.Table) -> bytes:
    return builders.parquet(table, row_group_size=2, compression="none")


def write(store: Store, tables: list[pa.Table], generation: int) -> None:
    """Write the data files, an index and a document, as a program does that chooses its labels itself."""
    schema = {"p": pa.int64(), "x": pa.int64(), "s": pa.string(), "f": pa.float64(), "i": pa.int64()}
    folders = [f"p={n}" for n in range(len(tables))]
    document = builders.document("d", folders, partition_keys=["p"])
    labels: dict[int, list[str]] = {}
    for (label, files), table in zip(document["partitions"].items(), tables, strict=True):
        store.put(files["files"]["table"], stored(table))
        for value in {*table["i"].to_pylist()}:
            labels.setdefault(value, []).append(label)
    index = pa.table({"i": pa.array([*labels], pa.int64()), "partition": list(labels.values())})
    store.put("d/indices/i/index.by-dataset-index.parquet", builders.parquet(index))
    document["indices"] = {"i": "d/indices/i/index.by-dataset-index.parquet"}
    document["metadata"]["creation_time"] = f"2026-01-{generation:02}T00:00:00"
    store.put("d/table/_common_metadata", builders.schema_bytes(schema))
    builders.write_document(store, document)


def answers(connection: Any) -> list[Any]:
    return [connection.sql(sql).rows() for sql in STATEMENTS]


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_an_open_connection_answers_as_a_new_one(place, tmp_path):
    store = Store(str(tmp_path) if place == "disk" else f"memory://{uuid.uuid4().hex}")
    sizes = [4 + n % 3 for n in range(FILES)]
    generations = [
        rows(0, sizes, pa.int64()),
        rows(1000, sizes, pa.int64()),  # other values, files of the same sizes
        rows(1000, [n % 5 for n in sizes], pa.int64()),  # other row counts
        rows(0, sizes, pa.int32()),  # other types in the files
        rows(0, list(reversed(sizes)), pa.int64()),
    ]
    write(store, generations[0], 1)
    with kartosql.connect(store.url) as connection:
        for _ in range(3):
            answers(connection)
        for number, tables in enumerate(generations[1:], 2):
            write(store, tables, number)
            with kartosql.connect(store.url) as new:
                wanted = answers(new)
            for _ in range(3):
                given = answers(connection)
                wrong = [(s, g, w) for s, g, w in zip(STATEMENTS, given, wanted, strict=True) if g != w]
                assert wrong == [], (number, wrong)


def sizes_told(connection: Any) -> list[int | None]:
    """Return the bytes of all files of each dataset, as reports tell them after a run."""
    told = []
    for sql in STATEMENTS:
        query = connection.sql(sql)
        query.rows()
        query.learn_sizes()
        told += [d["bytes_total"] for scan in query.report.to_dict()["scans"] for d in scan["datasets"]]
    return told


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_reports_tell_the_sizes_of_the_files_as_they_are(place, tmp_path):
    store = Store(str(tmp_path) if place == "disk" else f"memory://{uuid.uuid4().hex}")
    with kartosql.connect(store.url) as connection:
        for number, size in enumerate((4, 40, 400), 1):
            tables = rows(0, [size + n % 3 for n in range(FILES)], pa.int64())
            write(store, tables, number)
            for _ in range(2):
                assert set(sizes_told(connection)) == {sum(len(stored(t)) for t in tables)}


def test_files_of_other_values_have_the_same_sizes():
    one, other = ([len(stored(t)) for t in rows(base, [4, 5, 6], pa.int64())] for base in (0, 1000))
    assert one == other
