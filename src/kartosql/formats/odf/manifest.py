"""Blocks and snapshots as YAML and JSON texts.

Read are the forms of all generations: kinds and enums as declared, in camel case or in small
letters, types by their name alone, hashes in base16 and base58, and the raw Arrow schema under
its older name. Written is the form of today.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from kartosql.errors import FormatError, UsageError
from kartosql.formats.odf import blocks, hashes, times
from kartosql.formats.odf.blocks import Block, Event, Field, TableLayout
from kartosql.text.escape import is_unicode

MAX_TEXT = 4 << 20
BLOCK = "MetadataBlock"
SNAPSHOT = "DatasetSnapshot"


def _table_to_plain(layout: TableLayout, value: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: _to_plain(f, value[f.name]) for f in layout.fields if value.get(f.name) is not None}


def _to_plain(field: Field, value: Any) -> Any:
    if field.many:
        return [_to_plain(field._replace(many=False), item) for item in value]
    if field.kind == "table":
        return _table_to_plain(blocks.TABLES[field.of], value)
    if field.kind == "union":
        return {"kind": value["kind"], **_table_to_plain(blocks.member_table(field.of, value["kind"]), value)}
    return _TEXTS[field.kind][0](value) if field.kind in _TEXTS else value


# How what is no number or plain text is written, and read.
_TEXTS: dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    "hash": (hashes.to_text, hashes.from_text),
    "did": (hashes.did_to_text, hashes.did_from_text),
    "time": (times.to_text, times.from_text),
    "bytes": (lambda data: base64.b64encode(data).decode(), lambda text: base64.b64decode(text, validate=True)),
}


# -- from plain values -----------------------------------------------------------------------


def _table_from_plain(layout: TableLayout, value: Any, where: str, depth: int) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise invalid(where, f"a map is needed, not {_shortened(value)}")
    if depth > blocks.MAX_DEPTH:
        raise invalid(where, f"it is nested more than {blocks.MAX_DEPTH} levels deep")
    fields = {f.name: f for f in layout.fields}
    for key in value:
        if key not in fields:
            raise invalid(where, f"there is no key {_shortened(key)}; known are {', '.join(fields) or 'none'}")
    found: dict[str, Any] = {}
    for name, field in fields.items():
        given = value.get(name)
        if given is not None:
            found[name] = _from_plain(field, given, f"{where}.{name}", depth)
        elif field.required or (field.kind in ("scalar", "enum") and not field.optional and not field.many):
            raise invalid(where, f"{name} is missing")
    return found


def _from_plain(field: Field, value: Any, where: str, depth: int) -> Any:
    if field.many:
        if not isinstance(value, list):
            raise invalid(where, f"a list is needed, not {_shortened(value)}")
        one = field._replace(many=False)
        return [_from_plain(one, item, f"{where}[{i}]", depth) for i, item in enumerate(value)]
    if field.kind == "table":
        return _table_from_plain(blocks.TABLES[field.of], value, where, depth + 1)
    if field.kind == "union":
        return _union_from_plain(field.of, value, where, depth + 1)
    if field.kind == "enum":
        return _name(value, blocks.ENUMS[field.of][1], field.of, where)
    if field.kind == "scalar":
        return _scalar(field.of, value, where)
    if field.kind == "json":
        if not isinstance(value, Mapping):
            raise invalid(where, f"a map is needed, not {_shortened(value)}")
        return _json(value, where, depth)
    if not isinstance(value, str):
        raise invalid(where, f"text is needed, not {_shortened(value)}")
    if not is_unicode(value):
        raise invalid(where, f"{_shortened(value)} is no valid Unicode")
    if field.kind == "string":
        return value
    try:
        return _TEXTS[field.kind][1](value)
    except (FormatError, binascii.Error, ValueError) as e:
        raise invalid(where, e.message if isinstance(e, FormatError) else "it is no base64") from None


def _union_from_plain(union: str, value: Any, where: str, depth: int) -> dict[str, Any]:
    if union == "DataType" and isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping):
        raise invalid(where, f"a map with kind is needed, not {_shortened(value)}")
    if "kind" not in value:
        raise invalid(where, "kind is missing")
    kind = _name(value["kind"], blocks.UNIONS[union], union, where)
    rest = {k: v for k, v in value.items() if k != "kind"}
    if kind == "SetDataSchema" and isinstance(rest.get("schema"), str):
        # Before RFC-016 the raw schema had this name.
        if "rawArrowSchema" in rest:
            raise invalid(where, "it holds a raw schema twice")
        rest["rawArrowSchema"] = rest.pop("schema")
    found = {"kind": kind, **_table_from_plain(blocks.member_table(union, kind), rest, where, depth)}
    if union == "MetadataEvent":
        try:
            blocks.check_event(found, where)
        except FormatError as e:
            raise FormatError(e.message, code="odf-invalid-manifest") from None
    return found


def _name(value: Any, names: tuple[str, ...], what: str, where: str) -> str:
    """Return a name that is written as declared, in camel case, or in small letters; nothing between."""
    if isinstance(value, str):
        for name in names:
            if value in (name, name[:1].lower() + name[1:], name.lower()):
                return name
    raise invalid(where, f"{_shortened(value)} is no kind of {what}; known are {', '.join(names)}")


def _scalar(of: str, value: Any, where: str) -> Any:
    if of == "bool":
        if isinstance(value, bool):
            return value
        raise invalid(where, f"true or false is needed, not {_shortened(value)}")
    low = -(1 << int(of[1:]) - 1) if of[0] == "i" else 0
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < low + (1 << int(of[1:])):
        raise invalid(where, f"a number ({of}) is needed, not {_shortened(value)}")
    return value


def _json(value: Any, where: str, depth: int) -> Any:
    if depth > blocks.MAX_DEPTH:
        raise invalid(where, f"it is nested more than {blocks.MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) and is_unicode(k) for k in value):
            raise invalid(where, "a key is no text")
        return {k: _json(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_json(v, where, depth + 1) for v in value]
    if isinstance(value, str):
        if not is_unicode(value):
            raise invalid(where, f"{_shortened(value)} is no valid Unicode")
        return value
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and value - value == 0):
        return value
    raise invalid(where, f"{_shortened(value)} is no JSON")


def invalid(where: str, problem: str) -> FormatError:
    """Return the error for plain values that are no block."""
    hint = "Keys are written in camel case; the specification of Open Data Fabric names those of each kind."
    return FormatError(f"{where}: {problem}", code="odf-invalid-manifest", hint=hint)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class DatasetSnapshot(NamedTuple):
    """A dataset as somebody writes it down: its name, its kind, and the events it begins with."""

    name: str
    kind: str
    metadata: tuple[Event, ...]


def parse_text(text: str) -> Block | DatasetSnapshot:
    """Return what a YAML or JSON text holds.

    Raises ``odf-invalid-manifest``, and ``missing-extra`` if YAML is given and PyYAML is absent.
    """
    if len(text) > MAX_TEXT:
        raise invalid("the manifest", f"it is longer than {MAX_TEXT} characters")
    if text.lstrip()[:1] != "{":
        return from_manifest(_parse_yaml(text))
    try:
        manifest = json.loads(text, object_pairs_hook=blocks.unique_pairs)
    except (ValueError, RecursionError) as e:
        raise invalid("the manifest", f"it is no JSON: {str(e)[:200]}") from None
    return from_manifest(manifest)


def from_manifest(manifest: Any) -> Block | DatasetSnapshot:
    """Return what a manifest of plain values holds; raises ``odf-invalid-manifest``."""
    if not isinstance(manifest, Mapping):
        raise invalid("the manifest", "it is no map")
    unknown = manifest.keys() - {"kind", "version", "content"}
    if unknown or "kind" not in manifest or "content" not in manifest:
        raise invalid("the manifest", "it has to hold kind, version and content, and nothing else")
    kind, version = manifest["kind"], manifest.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise invalid("the manifest", "its version is no number")
    if kind not in (BLOCK, SNAPSHOT):
        raise invalid("the manifest", f"its kind is neither {BLOCK} nor {SNAPSHOT}")
    if version not in (range(blocks.OLDEST, blocks.VERSION + 1) if kind == BLOCK else (1,)):
        raise invalid("the manifest", f"version {version} of {kind} is not supported")
    found = _table_from_plain(blocks.TABLES[kind], manifest["content"], "content", 0)
    if kind == SNAPSHOT:
        return DatasetSnapshot(found["name"], found["kind"], tuple(found["metadata"]))
    return Block(version, found["systemTime"], found.get("prevBlockHash"), found["sequenceNumber"], found["event"])


def to_manifest(value: Block | DatasetSnapshot) -> dict[str, Any]:
    """Return the manifest of a block or snapshot as plain values."""
    if isinstance(value, Block):
        kind, version, content = BLOCK, value.version, value.content
    else:
        kind, version, content = SNAPSHOT, 1, value._asdict()
    return {"kind": kind, "version": version, "content": _table_to_plain(blocks.TABLES[kind], content)}


def to_json(value: Block | DatasetSnapshot) -> str:
    """Return the JSON text of a block or snapshot."""
    return json.dumps(to_manifest(value), ensure_ascii=False, indent=2) + "\n"


def to_yaml(value: Block | DatasetSnapshot) -> str:
    """Return the YAML text of a block or snapshot."""
    return "\n".join(_yaml_lines(to_manifest(value))) + "\n"


# -- reading ---------------------------------------------------------------------------------


def _parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        hint = "pip install 'kartosql[odf]', or hand over the same manifest as JSON."
        raise UsageError("Reading YAML needs PyYAML", code="missing-extra", hint=hint) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """YAML 1.2: only null, true, false and numbers are no text; no aliases, and no key twice."""

        yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                raise yaml.YAMLError("it holds an alias")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            found: dict[Any, Any] = super().construct_mapping(node, deep=True)
            if len(found) != len(node.value):
                raise yaml.YAMLError("a key stands there twice")
            return found

    for tag, pattern, first in _RESOLVED:
        Loader.add_implicit_resolver(tag, re.compile(pattern), first)
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise invalid("the manifest", f"it is no YAML: {' '.join(str(e).split())[:200]}") from None


_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?\Z|[-+]?[0-9]+[eE][-+]?[0-9]+\Z"
_RESOLVED: tuple[tuple[str, str, list[str]], ...] = (
    ("tag:yaml.org,2002:null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9]*)\Z", list("-+0123456789")),
    ("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789")),
)


# -- writing ---------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9_./+=][A-Za-z0-9_./+=:,@ -]*\Z")
_NOT_TEXT = re.compile(
    r"(?i:true|false|null|yes|no|on|off|y|n)\Z|[-+.]?[0-9][0-9_.,:eExXoObB+-]*\Z|=\Z|\.(?i:inf|nan)\Z"
)
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\Z")


def _yaml_lines(value: dict[str, Any] | list[Any], indent: str = "") -> list[str]:
    lines: list[str] = []
    if isinstance(value, list):
        for item in value:
            is_nested = isinstance(item, dict | list) and item
            inner = _yaml_lines(item, indent + "  ") if is_nested else [f"{indent}  {_yaml_scalar(item)}"]
            lines += [f"{indent}- {inner[0][len(indent) + 2 :]}", *inner[1:]]
        return lines
    for key, item in value.items():
        name = f"{indent}{_yaml_scalar(key)}:"
        if isinstance(item, dict | list) and item:
            lines += [name, *_yaml_lines(item, indent + "  " if isinstance(item, dict) else indent)]
        else:
            lines.append(f"{name} {_yaml_scalar(item)}")
    return lines


def _yaml_scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = _PLAIN.match(value) and not _NOT_TEXT.match(value) and ": " not in value and value[-1] not in ": "
    if is_plain or _TIME.match(value):
        return value
    return _UNPRINTABLE.sub(lambda c: f"\\u{ord(c[0]):04x}", json.dumps(value, ensure_ascii=False))
