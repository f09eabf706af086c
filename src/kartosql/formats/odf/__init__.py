"""Open Data Fabric: metadata blocks, their hashes and texts, chains, and Arrow schemas in them.

Bytes in, values out; no SQL, no engine, and no store: who reads hands over a function. Sources:
the Open Data Fabric specification 0.39 with its RFCs 10, 12, 13, 15 and 16, and blocks that real
tools wrote. The names below are loaded when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kartosql.formats.odf.blocks import Block as Block
    from kartosql.formats.odf.blocks import read_block as read_block
    from kartosql.formats.odf.blocks import write_block as write_block
    from kartosql.formats.odf.chain import Chain as Chain
    from kartosql.formats.odf.chain import read_chain as read_chain
    from kartosql.formats.odf.data_schema import compare_events as compare_events
    from kartosql.formats.odf.data_schema import event_schema as event_schema
    from kartosql.formats.odf.logical import logical_hash_of as logical_hash_of
    from kartosql.formats.odf.manifest import parse_text as parse_text
    from kartosql.formats.odf.manifest import to_json as to_json
    from kartosql.formats.odf.manifest import to_yaml as to_yaml

_MODULES = {
    "blocks": ("Block", "read_block", "write_block"),
    "chain": ("Chain", "read_chain"),
    "data_schema": ("compare_events", "event_schema"),
    "logical": ("logical_hash_of",),
    "manifest": ("parse_text", "to_json", "to_yaml"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
