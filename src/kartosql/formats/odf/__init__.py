"""Open Data Fabric: metadata blocks, their hashes and texts, chains, and Arrow schemas in them.

Bytes in, values out; no SQL, no engine, and no store: who reads hands over a function. Sources:
the Open Data Fabric specification 0.39 with its RFCs 10, 12, 13, 15 and 16, and blocks that real
tools wrote. The names below are loaded when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kartosql.formats.odf.blocks import Block as Block
    from kartosql.formats.odf.blocks import read_block as read_block
    from kartosql.formats.odf.blocks import write_block as write_block
    from kartosql.formats.odf.chain import Chain as Chain
    from kartosql.formats.odf.chain import read_chain as read_chain
    from kartosql.formats.odf.data_schema import event_schema as event_schema
    from kartosql.formats.odf.evolution import compare_events as compare_events
    from kartosql.formats.odf.logical import logical_hash_of as logical_hash_of
    from kartosql.formats.odf.manifest import parse_text as parse_text
    from kartosql.formats.odf.manifest import to_json as to_json
    from kartosql.formats.odf.manifest import to_yaml as to_yaml

_MODULES = {
    "Block": "blocks",
    "read_block": "blocks",
    "write_block": "blocks",
    "Chain": "chain",
    "read_chain": "chain",
    "event_schema": "data_schema",
    "compare_events": "evolution",
    "logical_hash_of": "logical",
    "parse_text": "manifest",
    "to_json": "manifest",
    "to_yaml": "manifest",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
