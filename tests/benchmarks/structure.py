"""Measure the structure of the package: parses, modules on the way of a statement, circles, names, lines.

``python -m tests.benchmarks.structure``. Nothing here depends on the speed of the machine.
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

SOURCE = Path(__file__).parents[2] / "src" / "kartosql"
ROWS, DAYS = 4_000, 40
CONDITIONS = "SELECT count(*) FROM t WHERE day = {0} AND i = {1} AND x > {1}.5 AND s LIKE 's1%'"
POINT = "SELECT * FROM plain WHERE i = {0}"
INSERT = "INSERT INTO plain BY NAME SELECT 1 AS day, {0} AS i, 0.5::DOUBLE AS x, 's1' AS s"


def build(folder: str) -> None:
    """Write two datasets of 40 partitions with an inverted index, one of them with skipping indexes."""
    import pyarrow as pa

    import kartosql

    numbers = range(ROWS)
    rows = {"day": [n % DAYS for n in numbers], "i": list(numbers), "x": [float(n) for n in numbers]}
    with kartosql.connect(folder, read_only=False) as con:
        table = pa.table({**rows, "s": [f"s{n % 50}" for n in numbers]})
        for name in ("t", "plain"):
            con.create_dataset(name, table, partition_on=["day"], index_columns=["i"])
        con.sql("CREATE SKIPPING INDEX ON t (MINMAX(x), VALUELIST(s))").rows()


def parses(folder: str) -> list[int]:
    """Return how often texts of predicates are parsed: first, repeated, and with other constants of the same kinds.

    DuckDB's parses are counted and sqlglot's, but for the one of the statement itself.
    """
    import sqlglot

    import kartosql
    from kartosql.engines.duckdb.evaluator import Planner

    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            return function(*arguments, **options)

        return call

    found = []
    with (
        kartosql.connect(folder) as con,
        patch.object(Planner, "_parsed", counted(Planner._parsed)),
        patch.object(sqlglot, "parse_one", counted(sqlglot.parse_one)),
    ):
        for day, key in ((7, 1007), (7, 1007), (8, 2008)):
            count = 0
            con.sql(CONDITIONS.format(day, key)).rows()
            found.append(count)
    return found


def entered(run: Callable[[], object]) -> set[str]:
    """Return the modules of the package of which a function is called while something runs, in any thread."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return {f for f in files if f.startswith(f"{SOURCE}{os.sep}")}


def ways(folder: str) -> tuple[int, int]:
    """Return how many modules a warm point query enters, and a warm INSERT of one row."""
    import kartosql

    with kartosql.connect(folder, read_only=False) as con:
        con.sql(POINT.format(11)).arrow()
        query = entered(lambda: con.sql(POINT.format(12)).arrow())
        con.sql(INSERT.format(5_001)).rows()
        insert = entered(lambda: con.sql(INSERT.format(5_002)).rows())
    return len(query), len(insert)


def modules() -> dict[str, ast.Module]:
    """Return the trees of all modules by their names."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("kartosql", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


def imports(tree: ast.Module, known: set[str], *, typing: bool) -> Iterator[str]:
    """Yield the modules that one imports, inside of functions too, and with ``typing`` those for checkers."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing:
            pending += node.orelse
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            pending += ast.iter_child_nodes(node)


def circles(trees: dict[str, ast.Module], *, typing: bool) -> int:
    """Return how many groups of modules import each other."""
    known = set(trees)
    graph = {name: {i for i in imports(tree, known, typing=typing) if i in known} for name, tree in trees.items()}
    reached = {name: _reachable(name, graph) for name in graph}
    groups = {frozenset(o for o in reached[name] if name in reached[o]) for name in graph if name in reached[name]}
    return sum(len(group) > 1 for group in groups)


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = list(graph[start])
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += graph[name]
    return found


def repeated_classes(trees: dict[str, ast.Module]) -> list[str]:
    """Return the names of classes at the top of more than one module."""
    names = Counter(n.name for tree in trees.values() for n in tree.body if isinstance(n, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def repeated_files() -> list[str]:
    """Return the names that three modules or more have."""
    names = Counter(p.name for p in SOURCE.rglob("*.py") if p.name not in ("__init__.py", "__main__.py"))
    return sorted(name for name, count in names.items() if count > 2)


def main() -> None:
    """Print the table of docs/performance.md."""
    trees = modules()
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        parsed = parses(folder)
        query, insert = ways(folder)
    lines = sum(len(p.read_text().splitlines()) for p in SOURCE.rglob("*.py"))
    print("| measure | figure |\n|---|---|")
    for name, figure in (
        ("parses of predicate text for four conditions: first / repeated / other constants", parsed),
        ("modules entered by a warm point query / an INSERT of one row", (query, insert)),
        ("import circles with / without `TYPE_CHECKING`", (circles(trees, typing=True), circles(trees, typing=False))),
        (
            "class names defined twice or more / file names used three times or more",
            (len(repeated_classes(trees)), len(repeated_files())),
        ),
        ("lines of src", (lines,)),
    ):
        print(f"| {name} | {' / '.join(f'{number:,}' for number in figure)} |")


if __name__ == "__main__":
    main()
