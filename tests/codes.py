"""The codes of errors, read from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "kartosql"
_CODE = re.compile(r"[a-z]+(-[a-z]+)*")


def _strings(node: ast.AST) -> Iterator[str]:
    """Yield the texts that an expression may be; the condition of ``a if b else c`` is no such text."""
    if isinstance(node, ast.IfExp):
        yield from _strings(node.body)
        yield from _strings(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _codes_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.ClassDef):
            for keyword in node.keywords:
                if keyword.arg == "code":
                    yield from _strings(keyword.value)
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "invalid_data" and len(node.args) > 3:
                yield from _strings(node.args[3])
        elif isinstance(node, ast.Assign):
            names = {getattr(t, "id", getattr(t, "attr", None)) for t in node.targets}
            if names & {"code", "default_code"}:
                yield from _strings(node.value)
        elif isinstance(node, ast.arguments):
            named = node.posonlyargs + node.args
            for argument, default in zip(reversed(named), reversed(node.defaults), strict=False):
                if argument.arg == "code":
                    yield from _strings(default)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"error\[([a-z-]+)\]", node.value)


def error_codes() -> set[str]:
    """Return the codes of all errors that the source raises."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        found.update(c for c in _codes_in(ast.parse(path.read_text("utf-8"))) if _CODE.fullmatch(c))
    return found
