"""Text files as DuckDB reads them: what its sniffer finds, as options of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from kartosql import stopping
from kartosql.errors import FormatError, KartosqlError, reraise
from kartosql.sql.attach_parse import CSV_OPTIONS
from kartosql.text.constants import literal, quote

VERSION = duckdb.__version__
_INTEGERS = ("BIGINT", "HUGEINT", "BIGNUM")  # as the sniffer finds them, each holding those before
MOMENT = pa.timestamp("us", "UTC")


def csv_reader(files: str, reading: Mapping[str, Any], columns: Mapping[str, str] | None = None) -> str:
    """Return the reader over text files, given as SQL, that are written as ``reading`` says; ``columns`` are types."""
    options = {**({} if columns is None else {"columns": columns}), **reading}
    listed = ", ".join(f"{name} = {_literal(value)}" for name, value in options.items())
    return f"read_csv({files}, auto_detect = false, hive_partitioning = false, {listed})"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(str(k))}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return literal(str(value))


class Sniffer:
    """Asks DuckDB how text files are written; it may read anything, as no text of a user runs in it."""

    def __init__(self, filesystem: Any) -> None:
        config = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        self._connection = duckdb.connect(":memory:", config=config)
        self._connection.register_filesystem(filesystem)

    def close(self) -> None:
        """Free the instance."""
        self._connection.close()

    def sniff(self, path: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return how a file is written, as options of read_csv, and the DuckDB types of its columns.

        Raises ``corrupt-file`` for what DuckDB cannot read as CSV, ``invalid-option`` for options it does not take.
        """
        given = {k: v for k, v in options.items() if k in CSV_OPTIONS}
        listed = "".join(f", {name} = {_literal(value)}" for name, value in given.items())
        with self._errors(path):
            found = self._connection.sql(f"FROM sniff_csv({literal(path)}{listed})")
            row = dict(zip(found.columns, found.fetchall()[0], strict=True))
        reading: dict[str, Any] = {
            "delim": row["Delimiter"],
            "quote": _character(row["Quote"]),
            "escape": _character(row["Escape"]),
            "comment": _character(row["Comment"]),
            "new_line": row["NewLineDelimiter"],
            "skip": row["SkipRows"],
            "header": row["HasHeader"],
        }
        for name, key in (("dateformat", "DateFormat"), ("timestampformat", "TimestampFormat")):
            if row[key]:
                reading[name] = row[key]
        reading |= {k: v for k, v in given.items() if k not in ("sample_size", "all_varchar")}
        return reading, {c["name"]: c["type"] for c in row["Columns"]}

    def empty_columns(self, path: str, reading: Mapping[str, Any], columns: Sequence[str]) -> frozenset[str]:
        """Return the columns that have no value in a file; what they are sniffed as means nothing."""
        reader = csv_reader(literal(path), reading, dict.fromkeys(columns, "VARCHAR"))
        counts = ", ".join(f"count({quote(c)})" for c in columns)
        with self._errors(path):
            row = self._connection.sql(f"SELECT {counts} FROM {reader}").fetchall()[0]
        return frozenset(c for c, count in zip(columns, row, strict=True) if not count)

    def rows(self, path: str, reading: Mapping[str, Any], columns: Sequence[str], time_zone: str = "UTC") -> pa.Table:
        """Return columns of a file as queries read them in sessions of some time zone; moments are in UTC."""
        reader = csv_reader(literal(path), reading)
        listed = ", ".join(map(quote, columns))
        with self._errors(path):
            self._connection.execute(f"SET TimeZone = {literal(time_zone)}")
            found = self._connection.sql(f"SELECT {listed} FROM {reader}").to_arrow_table()
        is_zoned = [isinstance(f.type, pa.TimestampType) and f.type.tz is not None for f in found.schema]
        fields = [f.with_type(MOMENT) if zoned else f for f, zoned in zip(found.schema, is_zoned, strict=True)]
        return found.cast(pa.schema(fields))

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            with stopping.running(self._connection.interrupt):
                yield
        except KartosqlError:
            raise
        except duckdb.Error as e:
            reraise(e, f"Cannot read {path!r}")
            hint = "The file cannot be read as CSV; options such as DELIM, QUOTE and HEADER tell how it is written."
            raise FormatError(f"{path}: {str(e).splitlines()[0]}", code="corrupt-file", hint=hint) from None


def _character(text: str | None) -> str:
    return "" if text in (None, "(empty)") else str(text)


def common_type(types: Sequence[str]) -> str:
    """Return the type of a column whose files were sniffed with ``types``: text, unless one holds all values."""
    found = set(types)
    if len(found) == 1:
        return found.pop()
    whole = [t for t in _INTEGERS if t in found]
    if found <= {*_INTEGERS, "DOUBLE"}:
        return "DOUBLE" if "DOUBLE" in found else whole[-1]
    return "VARCHAR"
