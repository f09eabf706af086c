"""Other prices: what the planner does only for large data, done for small ones, and the other way round."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from pkgutil import walk_packages
from typing import Any
from unittest import mock

import kartosql.engines
import kartosql.indexes
import kartosql.plan
import kartosql.tables

# Values of the planner's constants, by name.
REGIMES: list[Mapping[str, Any]] = [
    {},
    {"MAX_PROBES": 1_000, "MIN_FOR_STATISTICS": 1, "MIN_FILES": 1, "FILE_BYTES": 10**9, "FOOTER_BYTES": 0,
     "INDEX_SHARE": 10**9, "MAX_SHARE": 10**9, "LEARNED": 1, "FIRST_FILES": 1, "NEGLIGIBLE": 0.0,
     "SMALL_INDEX_BYTES": 0, "FIRST": 1, "MAX_SAMPLE": 3, "HOLD_SECONDS": 0.0, "FREE_USES": 0, "HOLD_SHARE": 1e-3,
     "BRIEF_SECONDS": 0.0, "PORTION_SECONDS": 0.0, "BATCH_PAIRS": 3,
     "SAMPLED_FOOTERS": 2, "PAYING_SHARE": 0.0, "PAYING_REMOTE_SHARE": 0.0, "MIN_REMOTE_FILES": 0,
     "POSITION_BYTES": 0, "SETTLED_NS": 0, "MIN_SLICE": 1, "MIN_KEPT": 1},
    {"MAX_PROBES": 0, "MIN_FOR_STATISTICS": 1, "MIN_FILES": 1, "FILE_BYTES": 10**9, "FOOTER_BYTES": 10**9,
     "INDEX_SHARE": 10**9, "MAX_LISTED": 1, "MAX_SHARE": 10**9, "LEARNED": 2, "FREE_USES": 10**9,
     "POSITION_BYTES": 0, "MIN_REMOTE_FILES": 0},
]  # fmt: skip


@contextlib.contextmanager
def regime(seed: int) -> Iterator[None]:
    """Give the constants, wherever they were imported to, the values of one of the regimes."""
    names = [
        m.name
        for p in (kartosql.plan, kartosql.indexes, kartosql.engines, kartosql.tables)
        for m in walk_packages(p.__path__, f"{p.__name__}.")
    ]
    modules = [importlib.import_module(name) for name in names]
    with contextlib.ExitStack() as stack:
        for name, value in REGIMES[seed % len(REGIMES)].items():
            holders = [m for m in modules if hasattr(m, name)]
            if not holders:
                raise LookupError(f"no module of the planner has a constant {name} any more")
            for module in holders:
                stack.enter_context(mock.patch.object(module, name, value))
        yield
