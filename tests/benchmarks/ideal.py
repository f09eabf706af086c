"""The ideal: a warm DuckDB that is handed exactly the right files and a statement written for them."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from tests.benchmarks.lineitem import month_of


class Ideal:
    """A bare DuckDB connection with the settings that serve it best.

    In statements ``{0}``, ``{1}``, ... stand for the file lists; they are bound as parameters
    with hive parsing off, which is the fastest way to hand them over.
    """

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:")
        self.connection.execute("SET parquet_metadata_cache = true")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def arrow(self, sql: str, *files: Sequence[str]) -> pa.Table:
        """Run a statement over file lists."""
        readers = [f"read_parquet(${i + 1}, hive_partitioning = false) r{i}" for i in range(len(files))]
        parameters: dict[str, Any] = {str(i + 1): list(names) for i, names in enumerate(files)}
        return self.connection.sql(sql.format(*readers), params=parameters).to_arrow_table()

    def by_month(self, sql: str, files: Sequence[str]) -> pa.Table:
        """Run a statement over files; in it the month of a row is ``{month}``, looked up by the file's position."""
        self.connection.execute("SET VARIABLE months = ?", [[month_of(f) for f in files]])
        return self.arrow(sql.replace("{month}", "getvariable('months')[CAST(file_index AS BIGINT) + 1]"), files)

    def holding(self, files: Sequence[str], column: str, values: Sequence[int]) -> dict[int, list[str]]:
        """Return for each value the files that hold it, found by reading that column of all files."""
        sql = (
            f"SELECT {column}, list(DISTINCT filename ORDER BY filename) FROM read_parquet($1, "
            f"hive_partitioning = false, filename = true) WHERE {column} IN (SELECT unnest($2)) GROUP BY 1"
        )
        with duckdb.connect(":memory:") as connection:
            rows = connection.execute(sql, {"1": list(files), "2": list(values)}).fetchall()
        return dict(rows)
