"""kartosql in Harlequin, the SQL IDE of the terminal: ``harlequin -a kartosql URL``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from harlequin import HarlequinAdapter, HarlequinConnection, HarlequinCursor
from harlequin.catalog import Catalog, CatalogItem
from harlequin.exception import HarlequinConfigError, HarlequinConnectionError, HarlequinQueryError
from harlequin.options import FlagOption, ListOption

from kartosql.connection import Connection
from kartosql.errors import KartosqlError
from kartosql.opening import connect_as_owner
from kartosql.result import Query
from kartosql.sql import split_statements
from kartosql.text.constants import quote
from kartosql.text.secrets import redacted
from kartosql.text.types import type_name

OPTIONS = [
    FlagOption(name="write", short_decls=["--write"], description="Let statements write."),
    ListOption(
        name="storage-option",
        short_decls=["--storage-option"],
        description="K=V, an option of the filesystem of the store; may be repeated.",
    ),
]


def _short(type_: pa.DataType) -> str:
    """Return the label that is shown beside a column of a type."""
    t = pa.types
    shown = (
        *((t.is_boolean, "t/f"), (t.is_integer, "##"), (t.is_floating, "#.#"), (t.is_decimal, "#.#"), (t.is_date, "d")),
        *((t.is_time, "t"), (t.is_timestamp, "ts"), (t.is_duration, "|-|"), (t.is_interval, "|-|")),
        *((t.is_struct, "{}"), (t.is_list, "[]"), (t.is_map, "{}"), (t.is_binary, "0b"), (t.is_string, "s")),
    )
    return next((text for test, text in shown if test(type_)), "?")


class HarlequinKartosqlCursor(HarlequinCursor):
    """The result of one statement."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._limit: int | None = None

    def columns(self) -> list[tuple[str, str]]:
        """Return names and short types of the columns."""
        return [(f.name, _short(f.type)) for f in self._query.schema]

    def set_limit(self, limit: int) -> HarlequinKartosqlCursor:
        """Fetch no more rows than these."""
        self._limit = limit
        return self

    def fetchall(self) -> pa.Table | None:
        """Return the rows; a SELECT runs now, and stops behind the limit."""
        try:
            return self._query.arrow() if self._limit is None else self._query.head(self._limit)
        except KartosqlError as e:
            if e.code == "interrupted":
                return None
            _raise(e)


class HarlequinKartosqlConnection(HarlequinConnection):
    """A connection to one store."""

    def __init__(self, connection: Connection, init_message: str = "") -> None:
        self.native = connection
        self.init_message = init_message

    def execute(self, query: str) -> HarlequinKartosqlCursor | None:
        """Run a statement; names are resolved now, a SELECT runs when its rows are fetched."""
        try:
            found = self.native.sql(query)
            if found.written is not None:
                return HarlequinKartosqlCursor(found)
            found.schema  # noqa: B018 - errors of the text belong here
        except KartosqlError as e:
            _raise(e)
        return HarlequinKartosqlCursor(found)

    def cancel(self) -> None:
        """Stop what runs."""
        self.native.interrupt()

    def get_catalog(self) -> Catalog:
        """Return the tables of the store with their columns."""
        try:
            return Catalog(items=[self._table(name, kind) for name, kind in self.native.sql("SHOW TABLES").rows()])
        except KartosqlError as e:
            _raise(e)

    def _table(self, name: str, kind: str) -> CatalogItem:
        columns = []
        try:
            for field in self.native.sql(f"FROM {name}").schema:
                quoted, type_ = quote(field.name), field.type
                place = f"{name}.{quoted}"
                columns.append(CatalogItem(place, quoted, field.name, _short(type_), type_name=type_name(type_)))
        except KartosqlError:
            kind = f"{kind}, cannot be read"
        return CatalogItem(name, name, name, "c" if kind == "cube" else "t", columns, type_name=kind)

    def validate_sql(self, text: str) -> str:
        """Return the text if it can be split into statements, else an empty one."""
        try:
            split_statements(text)
        except KartosqlError:
            return ""
        return text

    def close(self) -> None:
        """Close the connection."""
        self.native.close()


class HarlequinKartosqlAdapter(HarlequinAdapter):
    """Opens a store for Harlequin; read-only unless ``--write`` is given."""

    ADAPTER_OPTIONS = OPTIONS
    IMPLEMENTS_CANCEL = True
    IMPLEMENTS_READ_ONLY = True
    IMPLEMENTS_VALIDATE_SQL = True
    ADAPTER_DETAILS = "Cubes and datasets of Kartothek, and what else kartosql reads."

    def __init__(self, conn_str: Sequence[str], read_only: bool = False, **options: Any) -> None:
        if len(conn_str) != 1:
            raise HarlequinConfigError("kartosql opens one store: harlequin -a kartosql URL", title="kartosql")
        self._url = conn_str[0]
        self._write = bool(options.get("write")) and not read_only
        self._storage_options = {}
        for text in options.get("storage_option") or ():
            key, equals, value = str(text).partition("=")
            if not equals:
                raise HarlequinConfigError(f"storage-option {key!r} has no value: K=V", title="kartosql")
            self._storage_options[key] = value

    @property
    def connection_id(self) -> str:
        """The place of the store, without credentials."""
        return redacted(self._url) if "://" in self._url else str(Path(self._url).resolve())

    def connect(self) -> HarlequinKartosqlConnection:
        """Open the store; raises HarlequinConnectionError."""
        try:
            native = connect_as_owner(self._url, storage_options=self._storage_options or None, write=self._write)
        except KartosqlError as e:
            raise HarlequinConnectionError(str(e), title=f"kartosql: {e.code}") from None
        return HarlequinKartosqlConnection(native)


def _raise(error: KartosqlError) -> NoReturn:
    raise HarlequinQueryError(str(error), title=f"kartosql: {error.code}") from None
