"""Both engines fulfil one protocol."""

from __future__ import annotations

import inspect

import pytest

from kartosql.engines.base import EngineStatement
from kartosql.engines.duckdb.statement import DuckStatement
from kartosql.engines.spark.engine import SparkStatement

MEMBERS = [name for name in vars(EngineStatement) if inspect.isfunction(vars(EngineStatement)[name]) and name[0] != "_"]


@pytest.mark.parametrize("kind", [DuckStatement, SparkStatement])
def test_a_statement_of_an_engine_has_what_the_protocol_asks_for(kind):
    assert {"describe", "prepare", "stream", "interrupt", "close"} <= set(MEMBERS)
    for name in MEMBERS:
        asked, given = (list(inspect.signature(getattr(c, name)).parameters) for c in (EngineStatement, kind))
        assert given == asked, name
