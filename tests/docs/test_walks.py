"""The lines of functions in docs/architecture.md: each is there, and calls what the page says."""

from __future__ import annotations

import ast
import functools
import re

import fences
import pytest

SOURCE = fences.CHECKOUT / "src" / "kartosql"
_LINE = re.compile(r"^(\S+\.py) +(\S+) +-> (.+)$", re.MULTILINE)
WALKS = [
    _LINE.findall(block)
    for block in fences.blocks(fences.CHECKOUT / "docs" / "architecture.md", "text")
    if _LINE.search(block)
]


@functools.cache
def definitions(path: str) -> dict[str, ast.AST]:
    """Return the functions, classes and methods of a module by their names."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse((SOURCE / path).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef):
                found[f"{node.name}.{inner.name}"] = inner
    return found


@functools.cache
def everything() -> set[str]:
    return {name for path in SOURCE.rglob("*.py") for name in definitions(str(path.relative_to(SOURCE)))}


def wrong_in(path: str, caller: str, called: str) -> list[str]:
    """Return what is wrong with a line."""
    node = definitions(path).get(caller)
    if node is None:
        return [f"{path} has no {caller}"]
    words = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    words |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    names = called.split(", ")
    found = [f"{caller} does not call {name}" for name in names if name.rpartition(".")[2] not in words]
    return found + [f"there is no {name}" for name in names if name not in everything()]


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk[0][1])
def test_each_function_of_a_walk_calls_the_next_ones(walk: list[tuple[str, str, str]]) -> None:
    assert [problem for line in walk for problem in wrong_in(*line)] == []
    reached = {walk[0][1].rpartition(".")[2]}
    for _, caller, called in walk:
        assert caller.removesuffix(".__init__").rpartition(".")[2] in reached, caller
        reached |= {name.rpartition(".")[2] for name in called.split(", ")}


def test_there_are_walks_of_a_query_and_of_a_write() -> None:
    assert [walk[0][1] for walk in WALKS] == ["Connection.sql", "SelectQuery.reader", "run"]


def test_lines_that_are_wrong_are_found() -> None:
    assert wrong_in("connection.py", "Connection.sequel", "bind") == ["connection.py has no Connection.sequel"]
    assert wrong_in("connection.py", "Connection.sql", "prune") == ["Connection.sql does not call prune"]
    assert wrong_in("connection.py", "Connection.sql", "Request.query, Session.run") == ["there is no Session.run"]
