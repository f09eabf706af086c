"""What is attached, on a session of Spark Connect: the tests of classic sessions, once more."""

from __future__ import annotations

import pytest
from test_attach_delta_spark import test_mapped_columns_deleted_rows_and_moments_of_12_bytes  # noqa: F401
from test_attach_spark import (  # noqa: F401
    con,
    test_csv_files_are_read_by_duckdb_and_handed_over,
    test_folders_of_parquet_files_and_other_stores,
    test_iceberg_tables_with_deletes_of_all_kinds_and_columns_of_other_names,
    test_odf_datasets_of_several_schemas_and_times,
)

from engines.spark.test_spark_connect import spark  # noqa: F401

pytestmark = pytest.mark.usefixtures("spark")
