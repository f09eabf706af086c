"""The contracts of import-linter hold for every room: an import smuggled into any of them breaks one."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
SOURCE = CHECKOUT / "src" / "kartosql"
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
CONTRACTS = PROJECT["tool"]["importlinter"]["contracts"]
GUARDED = {
    name: c["allowed_importers"] for c in CONTRACTS if c["type"] == "protected" for name in c["protected_modules"]
}


def rooms() -> set[str]:
    """Return the modules and packages right below kartosql."""
    return {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()} - {"__init__"}


def smuggled(folder: Path) -> Iterator[tuple[str, str]]:
    """Add imports that are not allowed to each room of a copy; yields importer and imported."""
    for room in sorted(rooms() - {"__main__"}):
        package = (folder / room).is_dir()
        importer = f"kartosql.{room}.smuggler" if package else f"kartosql.{room}"
        imported = [name for name, allowed in GUARDED.items() if f"kartosql.{room}" not in allowed]
        if room not in ("cli", "spark"):
            imported.append("kartosql.cli.batch" if room != "dbapi" else "kartosql.notebook")
        path = folder / room / "smuggler.py" if package else folder / f"{room}.py"
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"\n\ndef _smuggle() -> None:\n    import {name}\n" for name in imported)
        yield from ((importer, name) for name in imported)
    with (folder / "engines" / "smuggler.py").open("a", encoding="utf-8") as file:
        file.write("import kartosql.sources.odf\n")
    yield "kartosql.engines.smuggler", "kartosql.sources.odf"


def test_the_top_level_holds_what_a_newcomer_looks_for_and_nothing_else():
    ignored = {line.strip("/") for line in (CHECKOUT / ".gitignore").read_text("utf-8").split()}
    found = {p.name for p in CHECKOUT.iterdir() if not p.name.startswith(".")} - ignored
    assert found == {"LICENSE", "README.md", "docs", "pyproject.toml", "sql_examples", "src", "tests"}


def test_no_room_imports_what_it_may_not(tmp_path):
    copy = tmp_path / "src" / "kartosql"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    expected = list(smuggled(copy))
    (copy / "annex.py").write_text("")
    command = [os.path.join(os.path.dirname(sys.executable), "lint-imports"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "COLUMNS": "500"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    found = set(re.findall(r"([\w.]+) -> ([\w.]+)", done.stdout))
    assert [pair for pair in expected if pair not in found] == []
    assert {room for importer, _ in expected for room in [importer.split(".")[1]]} == rooms() - {"__main__"}
    assert re.search(r"^- kartosql\.annex$", done.stdout, re.MULTILINE), "a room in no layer"
    assert len(re.findall(r" BROKEN\b", done.stdout, re.MULTILINE)) == len(CONTRACTS)


def imports() -> Iterator[tuple[Path, str]]:
    """Yield each module of the source with the first word of what it imports, also inside of functions."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            yield from ((path, name.split(".")[0]) for name in names)


def test_what_is_imported_is_declared():
    """py4j, for instance, comes along with PySpark, and nobody would notice where it is imported."""
    groups = PROJECT["project"]["optional-dependencies"]
    users = [text for name, texts in groups.items() if name not in ("dev", "docs", "benchmarks") for text in texts]
    declared = {re.split(r"[^\w.-]", text)[0].lower() for text in [*PROJECT["project"]["dependencies"], *users]}
    named_otherwise = {"_duckdb": "duckdb", "yaml": "pyyaml", "ipython": "ipython", "ibis": "ibis-framework"}
    named_otherwise["adbc_driver_flightsql"] = "adbc-driver-flightsql"
    known = {*sys.stdlib_module_names, "kartosql"}
    undeclared = {
        (str(path.relative_to(SOURCE)), name)
        for path, name in imports()
        if name not in known and named_otherwise.get(name.lower(), name.lower()) not in declared
    }
    assert undeclared == set()
