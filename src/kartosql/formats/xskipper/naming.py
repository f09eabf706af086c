"""Names on disk: identifiers of tables, folders of metadata, columns, and objects with their times."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

VIRTUAL = "virtual_"
OBJECT_COLUMN = "obj_name"
OWN = "_kartosql-"  # what names of part files begin with that Spark, and so the original, must not see
_PART = re.compile(r'"(?:[^"]|"")+"|[^."]+')
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def table_identifier(location: str) -> str:
    """Return the identifier of the table at a path or URL: its path alone, without the last slash.

    Scheme and bucket are lost, so tables of two buckets may share an identifier; keep their
    metadata under different base folders.
    """
    if scheme := _SCHEME.match(location):
        _, slash, path = location[scheme.end() :].partition("/")  # ? and # are characters of paths
        location = slash + path
    return location.removesuffix("/") if len(location) > 1 else location


def is_part(name: str) -> bool:
    """Return whether a file with a name is a part of metadata."""
    return name[:1] not in "._" or name.startswith(OWN)


def folder_name(identifier: str) -> str:
    """Return the name of the folder below a base folder that holds the metadata of a table."""
    return hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()


def object_id(path: str, modified_ms: int) -> str:
    """Return the name under which a file is indexed: its path, and its modification time in milliseconds."""
    return f"{path}#{modified_ms}"


def path_of(object_name: str) -> str:
    """Return the path in the name of an indexed object."""
    return object_name.rpartition("#")[0]


def parts_of(column: str) -> tuple[str, ...]:
    """Return a column and the members of structs below it, of a text with dots between them.

    Names that hold dots themselves are in double quotes, as in SQL.
    """
    if '"' not in column:
        return tuple(column.split("."))
    found = [m[0] for m in _PART.finditer(column)]
    if ".".join(found) != column:
        return (column,)
    return tuple(p[1:-1].replace('""', '"') if p[0] == '"' else p for p in found)


def spelled(parts: Sequence[str]) -> str:
    """Return the text of which ``parts_of`` makes these parts."""
    return ".".join('"' + p.replace('"', '""') + '"' if "." in p or '"' in p else p for p in parts)


def column_name(column: str, index: str) -> str:
    """Return the name of the metadata column of an index over a column, as versions since 2 build it."""
    part = column.lower().replace("#", "##").replace(".", "$#$")
    return f"{part}_{index}_{len(part.encode('utf-16-le', 'surrogatepass')) // 2}"
