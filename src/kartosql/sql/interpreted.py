"""sqlglot's parser as Python reads it, also where the package sqlglotc has compiled it.

No class of Python inherits from a compiled one; the source of each compiled module is beside it.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlglot.parsers.duckdb import DuckDBParser as DuckDBParser


def interpreted(name: str, instead: Mapping[str, ModuleType]) -> ModuleType:
    """Return a module as Python reads it; a compiled one is read anew, and imports other modules ``instead`` of some.

    That one is known to nobody else: whoever imports the module gets the compiled one.
    """
    module = importlib.import_module(name)
    path, own = Path(str(module.__file__)), name.rpartition(".")[2]
    if path.suffix == ".py":
        return module

    def import_(wanted: str, names: Any = None, variables: Any = None, items: Any = (), level: int = 0) -> Any:
        if wanted in instead:
            return instead[wanted]
        found = builtins.__import__(wanted, names, variables, items, level)
        ours = {item: instead[f"{wanted}.{item}"] for item in items or () if f"{wanted}.{item}" in instead}
        return SimpleNamespace(**{item: ours.get(item) or getattr(found, item) for item in items}) if ours else found

    read = ModuleType(name)
    vars(read)["__builtins__"] = {**vars(builtins), "__import__": import_}
    SourceFileLoader(name, str(path.with_name(f"{own}.py"))).exec_module(read)
    return read


if not TYPE_CHECKING:
    _PARSER = "sqlglot.parser"
    DuckDBParser = interpreted("sqlglot.parsers.duckdb", {_PARSER: interpreted(_PARSER, {})}).DuckDBParser
