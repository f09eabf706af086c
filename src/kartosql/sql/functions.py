"""Which functions a query may call: those that compute, and none that reach files, settings or other tables."""

from __future__ import annotations

import re


def words(*texts: str) -> frozenset[str]:
    """Return the words of texts."""
    return frozenset(word for text in texts for word in text.split())


# Functions that may stand in FROM. All others read files, settings or the catalog, or take tables by name.
TABLE_FUNCTIONS = frozenset(
    {
        "unnest",
        "explode",  # what the parser calls unnest of a column
        "range",
        "generate_series",
        "repeat",
        "repeat_row",
        "json_each",
        "json_tree",
        "icu_calendar_names",
        "pg_timezone_names",
    }
)

# Functions that are refused wherever they stand.
REFUSED_FUNCTIONS = words(
    # the engine's variables, settings, sequences, environment
    "getvariable current_setting getenv nextval currval setval setseed get_block_size",
    # the statement as the engine sees it, its plan, its catalog and its transactions
    "current_query current_query_id current_transaction_id current_connection_id txid_current json_serialize_plan",
    "stats vector_type index_key pg_get_viewdef pg_get_constraintdef pg_get_expr format_type in_search_path",
    # text that is run as a statement, and tables by name
    "query query_table json_execute_serialized_sql copy_database import_database",
    # files, secrets, logs, foreign memory
    "glob sniff_csv which_secret write_log truncate_duckdb_logs enable_logging disable_logging enable_profiling",
    "disable_profiling checkpoint force_checkpoint seq_scan arrow_scan arrow_scan_dumb pandas_scan",
    "python_arrow_scan python_map_function add_parquet_key create_external_resource register_external_resource",
    "deregister_external_resource destroy_external_resource register_external_resource_type load_aws_credentials",
    # holds a thread
    "sleep_ms pg_sleep",
)

# Families of them: what is the engine's own, and what a format or another database brings along.
_REFUSED_FAMILIES = re.compile(
    r"__|duckdb_|pragma_|read_|parquet_(?!normalize)|(?:sqlite|postgres|mysql|iceberg|delta|excel|st_read|shapefile)_"
    r"|st_read|st_drivers|from_substrait|.*_scan$"
)


def is_refused(name: str) -> bool:
    """Return whether no query may call the function ``name``, given in lower case."""
    return name in REFUSED_FUNCTIONS or _REFUSED_FAMILIES.match(name) is not None


def is_table_function(name: str) -> bool:
    """Return whether the function ``name``, given in lower case, may stand in FROM."""
    return name in TABLE_FUNCTIONS
