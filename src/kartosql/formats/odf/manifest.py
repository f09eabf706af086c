"""Blocks and snapshots as YAML and JSON texts.

Read are the forms of all generations: kinds and enums as declared, in camel case or in small
letters, types by their name alone, hashes in base16 and base58, and the raw Arrow schema under
its older name. Written is the form of today.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kartosql.errors import UsageError
from kartosql.formats.odf.blocks import Block, Event
from kartosql.formats.odf.layout import ENUMS
from kartosql.formats.odf.plain import (
    block_from_plain,
    block_to_plain,
    event_to_plain,
    invalid,
    table_from_plain,
)

MAX_TEXT = 4 << 20
BLOCK = "MetadataBlock"
SNAPSHOT = "DatasetSnapshot"


@dataclass(frozen=True, slots=True)
class DatasetSnapshot:
    """A dataset as somebody writes it down: its name, its kind, and the events it begins with."""

    name: str
    kind: str
    metadata: tuple[Event, ...]


def parse_text(text: str) -> Block | DatasetSnapshot:
    """Return what a YAML or JSON text holds.

    Raises ``odf-invalid-manifest``, and ``missing-extra`` if YAML is given and PyYAML is absent.
    """
    return from_manifest(_parse_json(text) if text.lstrip()[:1] == "{" else _parse_yaml(text))


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
    if kind == BLOCK:
        return block_from_plain(manifest["content"], version)
    if kind == SNAPSHOT:
        if version != 1:
            raise invalid("the manifest", f"version {version} of {SNAPSHOT} is not supported")
        found = table_from_plain(SNAPSHOT, manifest["content"], "content")
        return DatasetSnapshot(found["name"], found["kind"], tuple(found["metadata"]))
    raise invalid("the manifest", f"its kind is neither {BLOCK} nor {SNAPSHOT}")


def to_manifest(value: Block | DatasetSnapshot) -> dict[str, Any]:
    """Return the manifest of a block or snapshot as plain values."""
    if isinstance(value, Block):
        content = block_to_plain(value)
        return {"kind": BLOCK, "version": content.pop("version"), "content": content}
    events = [event_to_plain(event) for event in value.metadata]
    assert value.kind in ENUMS["DatasetKind"][1]
    return {
        "kind": SNAPSHOT,
        "version": 1,
        "content": {"name": value.name, "kind": value.kind, "metadata": events},
    }


def to_json(value: Block | DatasetSnapshot) -> str:
    """Return the JSON text of a block or snapshot."""
    return json.dumps(to_manifest(value), ensure_ascii=False, indent=2) + "\n"


def to_yaml(value: Block | DatasetSnapshot) -> str:
    """Return the YAML text of a block or snapshot."""
    return "\n".join(_yaml_lines(to_manifest(value))) + "\n"


# -- reading ---------------------------------------------------------------------------------


def _parse_json(text: str) -> Any:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) != len(found):
            raise ValueError("a key stands there twice")
        return dict(found)

    _check_length(text)
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as e:
        raise invalid("the manifest", f"it is no JSON: {str(e)[:200]}") from None


def _parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(
            "Reading YAML needs PyYAML",
            code="missing-extra",
            hint="pip install 'kartosql[odf]', or hand over the same manifest as JSON.",
        ) from None
    _check_length(text)

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


def _check_length(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise invalid("the manifest", f"it is longer than {MAX_TEXT} characters")


# -- writing ---------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9_./+=][A-Za-z0-9_./+=:,@ -]*\Z")
_NOT_TEXT = re.compile(
    r"(?i:true|false|null|yes|no|on|off|y|n)\Z|[-+.]?[0-9][0-9_.,:eExXoObB+-]*\Z|=\Z|\.(?i:inf|nan)\Z"
)
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\Z")


def _yaml_lines(value: dict[str, Any], indent: str = "") -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        name = f"{indent}{_yaml_scalar(key)}:"
        if isinstance(item, dict) and item:
            lines += [name, *_yaml_lines(item, indent + "  ")]
        elif isinstance(item, list) and item:
            lines += [name, *_yaml_items(item, indent)]
        else:
            lines.append(f"{name} {_yaml_scalar(item)}")
    return lines


def _yaml_items(items: list[Any], indent: str) -> list[str]:
    lines: list[str] = []
    for item in items:
        if isinstance(item, dict) and item:
            inner = _yaml_lines(item, indent + "  ")
        elif isinstance(item, list) and item:
            inner = _yaml_items(item, indent + "  ")
        else:
            inner = [f"{indent}  {_yaml_scalar(item)}"]
        lines += [f"{indent}- {inner[0][len(indent) + 2 :]}", *inner[1:]]
    return lines


def _yaml_scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _TIME.match(value):
        return value
    is_plain = _PLAIN.match(value) and not _NOT_TEXT.match(value) and ": " not in value and value[-1] not in ": "
    if is_plain:
        return value
    return _UNPRINTABLE.sub(lambda c: f"\\u{ord(c[0]):04x}", json.dumps(value, ensure_ascii=False))
