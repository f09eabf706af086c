"""Folders whose files belong to a table format: it alone tells which of their rows count."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from kartosql.errors import FormatError
from kartosql.formats.kartothek.naming import METADATA_JSON, METADATA_MSGPACK
from kartosql.sql.attach_parse import TYPES
from kartosql.store import Store

_READER = (
    "Its files hold rows, too, that were deleted or replaced. Read it with a reader of that format, such as {reader}, "
    "and keep the rows that count: con.create_dataset('t', rows)."
)
_ATTACH = "ATTACH '{root}' AS name (TYPE {type}) reads the rows that count."
# What a folder belongs to, who reads its rows where we do not, and what lies there: at the root of the table, or below.
_FORMATS = {
    "delta": ("a Delta table", "deltalake"),
    "hudi": ("a Hudi table", "hudi or Spark"),
    "iceberg": ("an Iceberg table", "pyiceberg"),
    "stream": ("a stream that Spark writes", "Spark"),
    "kartothek": ("a Kartothek dataset", ""),
    "odf": ("a dataset of Open Data Fabric", ""),
}
_MARKS = {"delta": "_delta_log", "hudi": ".hoodie", "stream": "_spark_metadata", "odf": "refs/head"}
_ICEBERG = r"(?:[^/]+\.metadata\.json(?:\.gz)?|version-hint\.text)"
_WITHIN = re.compile(
    r"(?:(?P<root>.*)/)?(?:(?P<delta>_delta_log)|(?P<hudi>\.hoodie[^/]*)|(?P<stream>_spark_metadata)|(?P<odf>refs/head)"
    rf"|(?P<iceberg>metadata/{_ICEBERG})"
    rf"|(?P<kartothek>[^/]+(?:{re.escape(METADATA_JSON)}|{re.escape(METADATA_MSGPACK)})))",
    re.DOTALL,
)
_DATA = (".parquet", ".csv")


class Owner(NamedTuple):
    """The table that files belong to: its format, its root, and what tells so."""

    format: str
    root: str
    mark: str

    def error(self, url: str) -> FormatError:
        """Return the error about attaching its files as they lie there."""
        name, reader = _FORMATS[self.format]
        hint = _ATTACH if self.format in TYPES else _READER
        return FormatError(
            f"{url}: the files belong to {name}, as {self.mark} tells",
            code="foreign-table",
            hint=hint.format(root=self.root, type=self.format, reader=reader),
        )


def owner_within(url: str, names: Iterable[str]) -> Owner | None:
    """Return the owner of files that the ``names`` of a listing tell, hidden ones included."""
    for name in names:
        if not name.endswith(_DATA) and (found := _WITHIN.fullmatch(name)):
            root = found["root"]
            assert found.lastgroup is not None
            return Owner(found.lastgroup, f"{url}/{root}" if root else url, f"{url}/{name}")
    return None


def owner_above(store: Store) -> Owner | None:
    """Return the owner of a folder that lies beside it or further up, as far as the store lets itself be asked.

    A few questions for each folder above, all at once; nothing is listed but folders called metadata.
    """
    path = os.path.realpath(store.root or "/") if store.is_local else store.root
    url = path if store.is_local else store.url.rstrip("/")
    asked: list[tuple[str, str, str]] = []
    while "/" in path:
        path, _, name = path.rpartition("/")
        if path.endswith(("/", ":")):
            break  # what is left is the protocol
        url = url.rpartition("/")[0]
        asked += [(kind, url, f"{path}/{mark}") for kind, mark in _MARKS.items()]
        asked += [("kartothek", url, f"{path}/{name}{suffix}") for suffix in (METADATA_JSON, METADATA_MSGPACK)]
        asked.append(("iceberg", url, f"{path}/metadata"))
    look = partial(_mark, store)
    found = map(look, asked) if store.is_local else store.map(look, asked)
    return next((owner for owner in found if owner is not None), None)


def _mark(store: Store, asked: tuple[str, str, str]) -> Owner | None:
    """Return the owner if what would tell it is there; what cannot be asked tells nothing."""
    kind, root, path = asked
    try:
        if kind == "iceberg":
            names = (entry["name"].rstrip("/").rpartition("/")[2] for entry in store.fs.ls(path, detail=True))
            path = f"{path}/{next(name for name in names if re.fullmatch(_ICEBERG, name))}"
        elif not (os.path.lexists(path) if store.is_local else store.fs.exists(path)):
            return None
    except Exception:  # noqa: BLE001 - folders above may not be open to whoever reads this one
        return None
    return Owner(kind, root, path)
