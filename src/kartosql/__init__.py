"""kartosql: type SQL at an object store, open only the files that can hold the answer."""

from __future__ import annotations

from kartosql.text.version import VERSION

__version__ = VERSION

TYPE_CHECKING = False  # typing takes longer to import than all that is here
if TYPE_CHECKING:
    from typing import Any

    from kartosql.conditions import C, Condition, Conjunction
    from kartosql.connection import Connection, connect
    from kartosql.errors import KartosqlError, KartosqlWarning
    from kartosql.formats.kartothek.cube import Cube
    from kartosql.plan.report import ScanReport
    from kartosql.result import Query

# Importing the package is cheap: names are loaded from their modules when they are first used.
_HOMES = {
    "C": "kartosql.conditions",
    "Condition": "kartosql.conditions",
    "Conjunction": "kartosql.conditions",
    "Connection": "kartosql.connection",
    "connect": "kartosql.connection",
    "Cube": "kartosql.formats.kartothek.cube",
    "KartosqlError": "kartosql.errors",
    "KartosqlWarning": "kartosql.errors",
    "Query": "kartosql.result",
    "ScanReport": "kartosql.plan.report",
}

__all__ = [
    "C",
    "Condition",
    "Conjunction",
    "Connection",
    "Cube",
    "KartosqlError",
    "KartosqlWarning",
    "Query",
    "ScanReport",
    "__version__",
    "connect",
]


def load_ipython_extension(shell: Any) -> None:
    """Make ``%ksql`` known to IPython, for ``%load_ext kartosql``."""
    from importlib import import_module

    import_module("kartosql.notebook").load_ipython_extension(shell)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name == "spark":
        return import_module("kartosql.spark")
    raise AttributeError(f"module 'kartosql' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
