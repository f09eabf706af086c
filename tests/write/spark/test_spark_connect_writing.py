"""Writing by executors in sessions of Spark Connect: what classic sessions write they write as well."""

from __future__ import annotations

from typing import Any

import pytest
from test_spark_failures import con, test_the_cells_of_all_tasks_are_counted  # noqa: F401
from test_spark_rows import test_a_cube_is_the_same_as_one_process_writes_it, test_all_kinds_of_changes_take_data_frames  # noqa: F401
from test_spark_skipping import test_a_store_in_memory_is_not_shared  # noqa: F401
from test_spark_upkeep import stores, test_a_copy, test_indices, test_merged_files  # noqa: F401


@pytest.fixture
def spark(spark_connect: Any) -> Any:
    return spark_connect
