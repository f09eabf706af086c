"""The result of a statement: Arrow first; rows, data frames and files on top."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from kartosql.errors import UsageError, quoted, without
from kartosql.formats.arrays import array_of
from kartosql.plan.scan import ScanReport
from kartosql.stopping import translates_errors
from kartosql.text import markup
from kartosql.text.escape import escaped_lines
from kartosql.text.report import Page, Report
from kartosql.text.types import type_name

if TYPE_CHECKING:
    import pandas
    import polars

    from kartosql.typing import FileFormat

PREVIEW_ROWS = 20
_HABITS = {
    **dict.fromkeys(("fetchall", "fetchmany", "collect", "to_list"), "rows()"),
    **dict.fromkeys(("fetchone", "first", "one", "scalar"), "query[0]"),
    **dict.fromkeys(("limit", "take"), "head(rows)"),
    **dict.fromkeys(("fetchdf", "to_df", "to_pandas", "toPandas"), "df()"),
    **dict.fromkeys(("to_arrow", "fetch_arrow_table", "arrow_table"), "arrow()"),
    **dict.fromkeys(("to_polars", "polars"), "pl()"),
    **dict.fromkeys(("write_parquet", "write_csv", "to_parquet", "to_csv"), "write(path)"),
    **dict.fromkeys(("description", "dtypes"), "schema"),
}


@dataclass(frozen=True)
class Progress:
    """How far a statement is: ``phase`` is ``plan`` or ``read``, ``fraction`` is what the engine says, 0 to 1.

    ``files`` and ``bytes`` are all that it reads, known once it is planned. The fraction is of the whole run, all scans
    and what is made of them; of Spark, which knows no more, ``of_stage`` says that it is of the stages that run now.
    """

    phase: str
    files: int | None = None
    bytes: int | None = None
    fraction: float | None = None
    of_stage: bool = False


@translates_errors
class Query:
    """The result of a statement.

    A SELECT is lazy: it runs when rows are asked for, and ``arrow()`` and what builds on it
    keeps them. ``stats`` says afterwards what was really read.
    """

    def __init__(
        self,
        table: pa.Table | None = None,
        types: list[str] | None = None,
        *,
        written: int | None = None,
        report: ScanReport | None = None,
        stats: dict[str, Any] | None = None,
    ) -> None:
        #: How many rows a statement wrote; None for statements that change nothing.
        self.written = written
        self._table = table
        self._types = types
        self._report = report
        self._stats = stats

    # -- what it looks like ------------------------------------------------------------------

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.schema.names)

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result; for a SELECT known without running it."""
        return self.arrow().schema

    @property
    def types(self) -> list[str] | None:
        """DuckDB's names of the column types, once a SELECT ran; None for other statements."""
        return self._types

    @property
    def report(self) -> ScanReport | None:
        """The ScanReport of a SELECT or an EXPLAIN, None for other statements."""
        return self._report

    @property
    def stats(self) -> dict[str, Any] | None:
        """What was really read; None until the query ran to its end."""
        return self._stats

    @property
    def progress(self) -> Progress | None:
        """How far the statement is, from any thread; None if it does not run, or unknown."""
        return None

    def explain(self) -> ScanReport:
        """Return what the query will read and why; raises ``not-explainable`` for statements that scan nothing."""
        report = self.report
        if report is None:
            raise UsageError("Only a SELECT can be explained.", code="not-explainable")
        return report

    def __repr__(self) -> str:
        from kartosql.render import tables

        rows = self.head(PREVIEW_ROWS + 1)
        return "\n".join(
            filter(None, [tables.preview(rows, PREVIEW_ROWS, self._display_types(rows.schema)), self._summary(rows)])
        )

    def _repr_html_(self) -> str:
        from kartosql.render import tables

        rows = self.head(PREVIEW_ROWS + 1)
        line = self._summary(rows)
        return tables.table(rows, PREVIEW_ROWS, self._display_types(rows.schema)) + (
            f"\n<p>{markup.text(line)}</p>" if line else ""
        )

    def _summary(self, head: pa.Table) -> str | None:
        """Return the line on what the query took; None unless it ran to its end."""
        from kartosql.render.tables import summary

        stats = self.stats
        if stats is None or (self._table is None and head.num_rows > PREVIEW_ROWS):
            return None
        rows = head.num_rows if self._table is None else self._table.num_rows
        return str(summary(rows, stats["seconds"], stats, self.report))

    def head(self, rows: int) -> pa.Table:
        """Return the first rows; a query that did not run yet is stopped behind them."""
        if not isinstance(rows, int) or isinstance(rows, bool) or not 0 <= rows < 2**63:
            raise UsageError(f"{quoted(rows)} is no number of rows.")
        if self._table is not None:
            return self._table.slice(0, rows)
        reader = self.reader()
        batches, count = [], 0
        for batch in reader:
            batches.append(batch)
            count += batch.num_rows
            if count >= rows:
                break
        preview = pa.Table.from_batches(batches, reader.schema).slice(0, rows)
        reader.close()
        return preview

    def interrupt(self) -> None:
        """Stop the query, from any thread; does nothing if it does not run."""

    # -- what it holds -----------------------------------------------------------------------

    def arrow(self) -> pa.Table:
        """Return the result as an Arrow table; the query runs once.

        >>> con.sql("SELECT city FROM trips").arrow().num_rows
        3
        """
        if self._table is None:
            self._table = self.reader().read_all()
        return self._table

    def reader(self) -> pa.RecordBatchReader:
        """Return the result as a stream of record batches; each call of a SELECT runs it."""
        return self.arrow().to_reader()

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the result as Python tuples.

        128-bit integers are int, decimals Decimal; dates and timestamps beyond what Python's
        datetime holds (years after 9999, nanoseconds, infinity) are text.

        >>> con.sql("SELECT DISTINCT city FROM trips ORDER BY city").rows()
        [('Bonn',), ('Rom',)]
        """
        return list(python_rows(self.arrow(), self.types))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        # Where the first row of data knows names, pandas takes them for those of the columns.
        fields = {"_fields": tuple(self.columns), "__slots__": (), "__reduce__": lambda row: (tuple, (tuple(row),))}
        return map(type("Row", (tuple,), fields), python_rows(self.arrow(), self.types))

    @overload
    def __getitem__(self, at: int) -> tuple[Any, ...]: ...

    @overload
    def __getitem__(self, at: slice) -> list[tuple[Any, ...]]: ...

    def __getitem__(self, at: int | slice) -> tuple[Any, ...] | list[tuple[Any, ...]]:
        if isinstance(at, slice):
            return self.rows()[at]
        if isinstance(at, str):
            raise TypeError(f"query[0] is a row; a column is query.df()[{at!r}] or query.arrow()[{at!r}]")
        return python_rows(self.arrow().slice(range(len(self))[at], 1), self.types)[0]

    def show(self, rows: int = PREVIEW_ROWS) -> None:
        """Print the first rows as a table; a query that did not run yet is stopped behind them."""
        from kartosql.render import tables

        found = self.head(rows + 1 if isinstance(rows, int) and rows >= 0 else rows)
        print(tables.preview(found, rows, self._display_types(found.schema)))

    def _display_types(self, schema: pa.Schema) -> list[str]:
        return self._types or [*map(type_name, schema.types)]

    def __dir__(self) -> list[str]:
        return ["written", *(name for name in dir(Query) if not name.startswith("_"))]

    if not TYPE_CHECKING:  # or every name would be an attribute

        def __getattr__(self, name: str) -> Any:
            raise without(self, name, _HABITS)

    def __len__(self) -> int:
        return int(self.arrow().num_rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def df(self) -> pandas.DataFrame:
        """Return the result as pandas DataFrame; raises ``missing-extra`` without pandas."""
        _extra("pandas")
        frame: pandas.DataFrame = self.arrow().to_pandas()
        return frame

    def pl(self) -> polars.DataFrame:
        """Return the result as polars DataFrame; raises ``missing-extra`` without polars."""
        frame: polars.DataFrame = _extra("polars").from_arrow(self.arrow())
        return frame

    def write(self, path: str, format: FileFormat | None = None) -> int:  # noqa: A002
        """Write the result to a file and return the number of rows.

        The format follows from the suffix (parquet, arrow, csv, tsv, json, jsonl) unless
        given. Raises ``invalid-argument`` and ``store-failed``.

        >>> con.sql("SELECT * FROM trips").write("trips.parquet")
        3
        """
        from kartosql.render.formats import write_file

        return write_file(self.reader(), path, format)


class ReportQuery(Query):
    """The result of EXPLAIN, ADVISE, VERIFY and SHOW COVERAGE: ``content`` in one of its forms.

    As text, JSON and HTML it has one column, the ``lines``, which are as long as they are.
    """

    def __init__(self, content: Report, name: str, format: str = "text", stats: dict[str, Any] | None = None) -> None:  # noqa: A002
        self.content = content
        self.format = format
        self.lines: list[str] | None = None
        if format == "table":
            table = content.table()
        else:
            self.lines = _lines(content, format)
            table = pa.table({name: array_of(self.lines, pa.string())})
        super().__init__(table, report=content if isinstance(content, ScanReport) else None, stats=stats)

    def __repr__(self) -> str:
        lines = self._laid_out(Page.of_stdout())
        return super().__repr__() if lines is None else "\n".join(lines)

    def _laid_out(self, page: Page) -> list[str] | None:
        """Return the lines as a page shows them, safe to print; None for a table."""
        if self.format == "text":
            return self.content._laid_out(page)
        return None if self.lines is None else escaped_lines("\n".join(self.lines)).split("\n")

    def _repr_html_(self) -> str:
        return self.content.html()


def _extra(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        hint = f"pip install 'kartosql[{name}]'"
        raise UsageError(f"{name} is not installed.", code="missing-extra", hint=hint) from None


def _lines(content: Report, format: str) -> list[str]:  # noqa: A002
    if format == "json":
        return [json.dumps(content.to_dict(), ensure_ascii=False, indent=1)]
    if format == "html":
        return [markup.document("kartosql", content.html())]
    return content._laid_out(Page()) if format == "text" else str(getattr(content, format)()).splitlines()


def python_rows(table: pa.Table, types: list[str] | None = None) -> list[tuple[Any, ...]]:
    """Return the rows of a table as ``Query.rows`` does; ``types`` are DuckDB's names of the column types."""
    types = types or [""] * table.num_columns
    columns = [_python_values(c, t) for c, t in zip(table.columns, types, strict=True)]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _python_values(column: pa.ChunkedArray, type_: str) -> list[Any]:
    try:
        if type_ in ("HUGEINT", "UHUGEINT"):
            return [None if v is None else int(v) for v in column.to_pylist()]
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = column.cast(pa.timestamp("us", column.type.tz))
        if pa.types.is_interval(column.type):
            return [_timedelta(v) for v in column.to_pylist()]
        return list(column.to_pylist())
    except (OverflowError, ValueError, pa.ArrowException):
        return [_python_value(v) for v in column]


def _timedelta(value: Any) -> Any:
    """Return an interval as timedelta, unless it has months, whose length differs, or parts of microseconds."""
    if value is None or value.months or value.nanoseconds % 1000:
        return value
    return dt.timedelta(days=value.days, microseconds=value.nanoseconds // 1000)


def _python_value(scalar: pa.Scalar) -> Any:
    """Return one value; dates and timestamps that Python's datetime cannot hold are text."""
    if not scalar.is_valid:
        return None
    type_ = scalar.type
    if pa.types.is_map(type_):
        return [(_python_value(e[0]), _python_value(e[1])) for e in scalar.values]
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        return [_python_value(v) for v in scalar.values]
    if pa.types.is_union(type_):
        return _python_value(scalar.value)
    if pa.types.is_struct(type_):
        return {name: _python_value(value) for name, value in scalar.items()}
    try:
        if not (pa.types.is_timestamp(type_) and type_.unit == "ns"):
            return scalar.as_py()
    except (OverflowError, ValueError):
        pass
    from kartosql.render.values import texts

    return texts(pa.array([scalar], type_))[0]
