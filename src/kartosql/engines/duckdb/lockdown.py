"""What keeps a user's text inside of an instance of DuckDB, for all who start one; it imports nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# Threads that read ahead come with the first statement that needs them.
CONFIG = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "async_threads": "0"}
# What we change from statement to statement. SET is a statement of its own, so no query of a user reaches it.
OURS = (
    *("max_execution_time", "parquet_metadata_cache", "enable_profiling", "disabled_optimizers", "async_threads"),
    *("enable_progress_bar", "enable_progress_bar_print", "pivot_filter_threshold"),
)
PIVOTED = 20  # DuckDB's own number of values from which a PIVOT has an operator of its own


def lock(connection: Any, paths: Sequence[str]) -> None:
    """Take away access to everything but ``paths``, and lock the settings."""
    connection.execute("SET VARIABLE allowed = ?", [list(paths)])
    connection.execute("SET GLOBAL allowed_paths = getvariable('allowed')")
    connection.execute("RESET VARIABLE allowed")
    connection.execute(f"SET GLOBAL allowed_configs = {list(OURS)}")
    connection.execute("SET GLOBAL enable_external_access = false")
    connection.execute("SET GLOBAL lock_configuration = true")
