"""Events and blocks as plain values: what YAML and JSON hold, and the golden texts show.

Hashes and ids are texts, bytes base64, times RFC 3339, unions tagged by ``kind``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from kartosql.errors import FormatError
from kartosql.formats.odf import hashes, times
from kartosql.formats.odf.blocks import OLDEST, VERSION, Block, Event, check_event
from kartosql.formats.odf.layout import ENUMS, TABLES, UNIONS, Field, Layout, member_table

MAX_DEPTH = 64
_RANGES = {
    "i16": (-(1 << 15), 1 << 15),
    "i32": (-(1 << 31), 1 << 31),
    "i64": (-(1 << 63), 1 << 63),
    "u32": (0, 1 << 32),
    "u64": (0, 1 << 64),
}


def block_to_plain(block: Block) -> dict[str, Any]:
    """Return a block as plain values: version, system time, hash of the block before, number and event."""
    found: dict[str, Any] = {"version": block.version, "systemTime": times.to_text(block.system_time)}
    if block.prev_block_hash is not None:
        found["prevBlockHash"] = hashes.to_text(block.prev_block_hash)
    return {**found, "sequenceNumber": block.sequence_number, "event": event_to_plain(block.event)}


def event_to_plain(event: Event) -> dict[str, Any]:
    """Return an event as plain values, its kind first."""
    return _union_to_plain("MetadataEvent", event)


def _union_to_plain(union: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": value["kind"], **_table_to_plain(member_table(union, value["kind"]), value)}


def _table_to_plain(layout: Layout, value: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: _to_plain(f, value[f.name]) for f in layout.fields if value.get(f.name) is not None}


def _to_plain(field: Field, value: Any) -> Any:
    if field.many:
        return [_one_to_plain(field, item) for item in value]
    return _one_to_plain(field, value)


def _one_to_plain(field: Field, value: Any) -> Any:
    if field.kind == "table":
        return _table_to_plain(TABLES[field.of], value)
    if field.kind == "union":
        return _union_to_plain(field.of, value)
    return _TO_PLAIN[field.kind](value) if field.kind in _TO_PLAIN else value


_TO_PLAIN: dict[str, Callable[[Any], str]] = {
    "hash": hashes.to_text,
    "did": hashes.did_to_text,
    "time": times.to_text,
    "bytes": lambda data: base64.b64encode(data).decode(),
}


# -- from plain values -----------------------------------------------------------------------


def block_from_plain(content: Any, version: int, where: str = "content") -> Block:
    """Return the block that plain values stand for; raises ``odf-invalid-manifest``."""
    found = _table_from_plain(TABLES["MetadataBlock"], content, where, 0)
    if not OLDEST <= version <= VERSION:
        raise invalid(where, f"metadata block version {version} is not supported")
    return Block(version, found["systemTime"], found.get("prevBlockHash"), found["sequenceNumber"], found["event"])


def event_from_plain(value: Any, where: str = "event") -> Event:
    """Return the event that plain values stand for; raises ``odf-invalid-manifest``."""
    return _union_from_plain("MetadataEvent", value, where, 0)


def table_from_plain(table: str, value: Any, where: str) -> dict[str, Any]:
    """Return a table from plain values; raises ``odf-invalid-manifest``."""
    return _table_from_plain(TABLES[table], value, where, 0)


def _table_from_plain(layout: Layout, value: Any, where: str, depth: int) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise invalid(where, f"a map is needed, not {_shown(value)}")
    if depth > MAX_DEPTH:
        raise invalid(where, f"it is nested more than {MAX_DEPTH} levels deep")
    fields = {f.name: f for f in layout.fields}
    for key in value:
        if key not in fields:
            raise invalid(where, f"there is no key {_shown(key)}; known are {', '.join(fields) or 'none'}")
    found: dict[str, Any] = {}
    for name, field in fields.items():
        given = value.get(name)
        if given is not None:
            found[name] = _from_plain(field, given, f"{where}.{name}", depth)
        elif field.required or (field.kind in ("scalar", "enum") and not field.optional and not field.many):
            raise invalid(where, f"{name} is missing")
    return found


def _from_plain(field: Field, value: Any, where: str, depth: int) -> Any:
    if not field.many:
        return _one_from_plain(field, value, where, depth)
    if not isinstance(value, list):
        raise invalid(where, f"a list is needed, not {_shown(value)}")
    return [_one_from_plain(field, item, f"{where}[{i}]", depth) for i, item in enumerate(value)]


def _one_from_plain(field: Field, value: Any, where: str, depth: int) -> Any:
    if field.kind == "table":
        return _table_from_plain(TABLES[field.of], value, where, depth + 1)
    if field.kind == "union":
        return _union_from_plain(field.of, value, where, depth + 1)
    if field.kind == "enum":
        return _name(value, ENUMS[field.of][1], field.of, where)
    if field.kind == "scalar":
        return _scalar(field.of, value, where)
    if field.kind == "json":
        if not isinstance(value, Mapping):
            raise invalid(where, f"a map is needed, not {_shown(value)}")
        return _json(value, where, depth)
    if not isinstance(value, str):
        raise invalid(where, f"text is needed, not {_shown(value)}")
    if not _is_unicode(value):
        raise invalid(where, f"{_shown(value)} is no valid Unicode")
    if field.kind == "string":
        return value
    try:
        return _FROM_TEXT[field.kind](value)
    except (FormatError, binascii.Error, ValueError) as e:
        raise invalid(where, e.message if isinstance(e, FormatError) else "it is no base64") from None


def _union_from_plain(union: str, value: Any, where: str, depth: int) -> dict[str, Any]:
    if union == "DataType" and isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping):
        raise invalid(where, f"a map with kind is needed, not {_shown(value)}")
    if "kind" not in value:
        raise invalid(where, "kind is missing")
    kind = _name(value["kind"], UNIONS[union], union, where)
    rest = {k: v for k, v in value.items() if k != "kind"}
    if kind == "SetDataSchema" and isinstance(rest.get("schema"), str):
        # Before RFC-016 the raw schema had this name.
        if "rawArrowSchema" in rest:
            raise invalid(where, "it holds a raw schema twice")
        rest["rawArrowSchema"] = rest.pop("schema")
    found = {"kind": kind, **_table_from_plain(member_table(union, kind), rest, where, depth)}
    if union == "MetadataEvent":
        try:
            check_event(found, where)
        except FormatError as e:
            raise FormatError(e.message, code="odf-invalid-manifest") from None
    return found


def _name(value: Any, names: tuple[str, ...], what: str, where: str) -> str:
    """Return a name that is written as declared, in camel case, or in small letters; nothing between."""
    if isinstance(value, str):
        for name in names:
            if value in (name, name[:1].lower() + name[1:], name.lower()):
                return name
    raise invalid(where, f"{_shown(value)} is no kind of {what}; known are {', '.join(names)}")


def _scalar(of: str, value: Any, where: str) -> Any:
    if of == "bool":
        if isinstance(value, bool):
            return value
        raise invalid(where, f"true or false is needed, not {_shown(value)}")
    low, high = _RANGES[of]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
        raise invalid(where, f"a number ({of}) is needed, not {_shown(value)}")
    return value


def _json(value: Any, where: str, depth: int) -> Any:
    """Return a JSON value as it is; raises for what JSON has not."""
    if depth > MAX_DEPTH:
        raise invalid(where, f"it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) and _is_unicode(k) for k in value):
            raise invalid(where, "a key is no text")
        return {k: _json(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_json(v, where, depth + 1) for v in value]
    if isinstance(value, str):
        if not _is_unicode(value):
            raise invalid(where, f"{_shown(value)} is no valid Unicode")
        return value
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and value - value == 0):
        return value
    raise invalid(where, f"{_shown(value)} is no JSON")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def invalid(where: str, problem: str) -> FormatError:
    """Return the error for plain values that are no block."""
    return FormatError(
        f"{where}: {problem}",
        code="odf-invalid-manifest",
        hint="Keys are written in camel case; the specification of Open Data Fabric names those of each kind.",
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "hash": hashes.from_text,
    "did": hashes.did_from_text,
    "time": times.from_text,
    "bytes": lambda text: base64.b64decode(text, validate=True),
}
