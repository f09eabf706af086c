"""Delta tables on Spark: the same rows as on DuckDB."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

import kartosql
from delta_tables import DeltaTable, column

pytestmark = pytest.mark.usefixtures("spark")


def test_mapped_columns_deleted_rows_and_moments_of_12_bytes(tmp_path: Path):
    inner = {"type": "struct", "fields": [column("x", "integer", "p-x", 11), column("y", "string", "p-y", 12)]}
    fields = [column("i", "long", "c-1", 1), column("n", inner, "c-2", 2), column("t", "timestamp", "c-3", 3)]
    fields.append(column("p", "string", "c-4", 4))
    made = DeltaTable(
        tmp_path / "t",
        fields,
        ["p"],
        features=("columnMapping", "deletionVectors"),
        configuration={"delta.columnMapping.mode": "name"},
    )
    for n in range(3):
        at = dt.datetime(2020, 3, 8, 2, 30, n, 123_456, dt.timezone.utc)
        rows = [{"i": 10 * n + k, "n": {"x": k, "y": None} if k else None, "t": at, "p": "ab"[n % 2]} for k in range(4)]
        name = made.add(rows, **({"int96": True} if n == 1 else {}))
    made.delete(name, [0, 2])
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        con.attach(made.root, "d", type="delta")
        con.sql("SET TimeZone = 'America/New_York'")
        for sql in ("SELECT i, n.x, n.y, epoch_us(t), p FROM d", "SELECT count(*), sum(n.x) FROM d WHERE p = 'a'"):
            found = sorted(map(repr, con.sql(sql, engine="spark").rows()))
            assert found == sorted(map(repr, con.sql(sql, engine="duckdb").rows())), sql
        assert len(con.sql("FROM d", engine="spark").rows()) == 10
