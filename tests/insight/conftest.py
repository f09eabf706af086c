"""A cube small enough to count by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import kartosql
from kartosql.connection import Connection

P = 4  # partitions
ROWS = 40


def seed() -> pa.Table:
    x = list(range(ROWS))
    return pa.table(
        {
            "x": x,
            "p": [i * P // ROWS for i in x],
            "i1": [i % 10 for i in x],
            "v1": [float(i) for i in x],
            "t": [f"name {i % 7}" for i in x],
        }
    )


def enrichment() -> pa.Table:
    """Cells 30 to 49: the last ten are unknown to the seed, of which partition 3 exists and 4 does not."""
    x = list(range(30, 50))
    return pa.table({"x": x, "p": [min(i * P // ROWS, 4) for i in x], "v2": [i * 2 for i in x]})


@pytest.fixture
def con(tmp_path: Path) -> Iterator[Connection]:
    """The cube ``c``: a seed of 40 cells in 4 partitions with an index on i1, and the enrichment ``e`` of 20."""
    with kartosql.connect(str(tmp_path)) as connection:
        cube = kartosql.Cube("c", ["x"], ["p"], index_columns=["i1"])
        connection.build_cube(cube, {"seed": seed(), "e": enrichment()})
        yield connection
