"""kartosql: type SQL at an object store, open only the files that can hold the answer."""

from __future__ import annotations

from kartosql.text.version import VERSION

__version__ = VERSION

TYPE_CHECKING = False  # typing takes longer to import than all that is here
if TYPE_CHECKING:
    from typing import Any

    from kartosql.conditions import C as C
    from kartosql.conditions import Condition as Condition
    from kartosql.conditions import Conjunction as Conjunction
    from kartosql.connection import Connection as Connection
    from kartosql.errors import KartosqlError as KartosqlError
    from kartosql.errors import KartosqlWarning as KartosqlWarning
    from kartosql.formats.kartothek.cube import Cube as Cube
    from kartosql.opening import connect as connect
    from kartosql.plan.scan import ScanReport as ScanReport
    from kartosql.result import Query as Query

# Importing the package is cheap: names are loaded from their modules when they are first used.
_MODULES = {
    "conditions": ("C", "Condition", "Conjunction"),
    "connection": ("Connection",),
    "errors": ("KartosqlError", "KartosqlWarning"),
    "formats.kartothek.cube": ("Cube",),
    "opening": ("connect",),
    "plan.scan": ("ScanReport",),
    "result": ("Query",),
}
_HOMES = {name: f"kartosql.{module}" for module, names in _MODULES.items() for name in names}
__all__ = sorted([*_HOMES, "__version__"])


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
    if name in ("spark", "dbapi"):
        return import_module(f"kartosql.{name}")
    raise AttributeError(f"module 'kartosql' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "dbapi", "load_ipython_extension", "spark"])
