"""DuckDB's types as its plans write them, and the Spark types that hold their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kartosql.engines.duckdb.types import quote
from kartosql.errors import NotPortable

INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}
UNSIGNED = {"UTINYINT": 8, "USMALLINT": 16, "UINTEGER": 32, "UBIGINT": 64}

_SPARK = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "TINYINT",
    "SMALLINT": "SMALLINT",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
    # Spark has no unsigned integers; the next wider type holds their values.
    "UTINYINT": "SMALLINT",
    "USMALLINT": "INT",
    "UINTEGER": "BIGINT",
    "UBIGINT": "DECIMAL(20,0)",
    "HUGEINT": "DECIMAL(38,0)",
    "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE",
    "VARCHAR": "STRING",
    "BLOB": "BINARY",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP_NTZ",
    # Views hold them in microseconds, and refuse files with more precise ones.
    "TIMESTAMP_S": "TIMESTAMP_NTZ",
    "TIMESTAMP_MS": "TIMESTAMP_NTZ",
    "TIMESTAMP_NS": "TIMESTAMP_NTZ",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP_LTZ",
    # What DuckDB itself gives a column of which no type is known.
    "NULL": "INT",
}
# One letter for each type in the patterns of portable functions.
_KINDS = {
    **dict.fromkeys(INTEGERS, "i"),
    **dict.fromkeys(UNSIGNED, "u"),
    "HUGEINT": "h",
    "FLOAT": "f",
    "DOUBLE": "d",
    "DECIMAL": "m",
    "VARCHAR": "s",
    "BOOLEAN": "b",
    "BLOB": "x",
    "DATE": "D",
    "TIMESTAMP": "T",
    "TIMESTAMP WITH TIME ZONE": "Z",
    "TIMESTAMP_S": "N",
    "TIMESTAMP_MS": "N",
    "TIMESTAMP_NS": "N",
    "INTERVAL": "y",
    "LIST": "l",
    "STRUCT": "S",
    "MAP": "M",
    "NULL": "0",
}


@dataclass(frozen=True)
class Type:
    """A DuckDB type: its name, width and scale of a DECIMAL, and the parts of a nested one by name."""

    name: str
    width: int = 0
    scale: int = 0
    parts: tuple[tuple[str, Type], ...] = ()

    @property
    def kind(self) -> str:
        """One letter: i and u integers, h HUGEINT, f and d floats, m DECIMAL, s text, D T Z N times, l S M nested."""
        return _KINDS.get(self.name, "?")

    @property
    def is_nested(self) -> bool:
        """Whether values hold other values."""
        return bool(self.parts)

    @property
    def element(self) -> Type:
        """The type of a list's elements."""
        return self.parts[0][1]

    def sql(self) -> str:
        """Return the type as DuckDB writes it."""
        if self.name == "DECIMAL":
            return f"DECIMAL({self.width},{self.scale})"
        if self.name == "LIST":
            return f"{self.element.sql()}[]"
        if self.name == "MAP":
            return f"MAP({self.parts[0][1].sql()}, {self.parts[1][1].sql()})"
        if self.name == "STRUCT":
            fields = ", ".join(f"{quote(name)} {part.sql()}" for name, part in self.parts)
            return f"STRUCT({fields})"
        return '"NULL"' if self.name == "NULL" else self.name

    def spark(self) -> str:
        """Return the Spark type that holds the values; raises ``not-portable``."""
        if self.name == "DECIMAL":
            return f"DECIMAL({self.width},{self.scale})"
        if self.name == "LIST":
            return f"ARRAY<{self.element.spark()}>"
        if self.name == "MAP":
            return f"MAP<{self.parts[0][1].spark()}, {self.parts[1][1].spark()}>"
        if self.name == "STRUCT":
            fields = ", ".join(f"{identifier(name)}: {part.spark()}" for name, part in self.parts)
            return f"STRUCT<{fields}>"
        found = _SPARK.get(self.name)
        if found is None:
            raise NotPortable(f"Spark has no type for the values of {self.name}.")
        return found


BOOLEAN = Type("BOOLEAN")
BIGINT = Type("BIGINT")
DOUBLE = Type("DOUBLE")
VARCHAR = Type("VARCHAR")


def read_type(node: Mapping[str, Any] | None) -> Type:
    """Return the type that a node of DuckDB's plan stands for; raises ``not-portable``."""
    name = (node or {}).get("id")
    if node is None or not isinstance(name, str):
        raise NotPortable("DuckDB does not tell the type of a part of the statement.")
    info = node.get("type_info") or {}
    if info.get("alias"):
        raise NotPortable(f"Spark has no type for the values of {info['alias']}.")
    if name == "DECIMAL":
        return Type(name, info["width"], info.get("scale", 0))
    if name == "LIST":
        return Type(name, parts=(("", read_type(info["child_type"])),))
    if name == "STRUCT":
        return Type(name, parts=tuple((c.get("first", ""), read_type(c["second"])) for c in info["child_types"]))
    if name == "MAP":
        entry = read_type(info["child_type"])
        return Type(name, parts=entry.parts)
    if info:
        # Enums, collated texts, arrays of a fixed size and whatever else has more to it than a name.
        raise NotPortable(f"Spark has no type for the values of {name}.")
    return Type(name)


def identifier(name: str) -> str:
    """Return a quoted Spark identifier; raises ``not-portable``."""
    if "${" in name:
        # Spark replaces variables anywhere in the text, and a name has no escapes.
        raise NotPortable(f"Spark cannot be given the name {name!r}.")
    return "`" + name.replace("`", "``") + "`"
