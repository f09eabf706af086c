"""Files that call columns otherwise, on Spark."""

from __future__ import annotations

from typing import Any

import pytest

import kartosql
from renaming import EXPECTED, STATEMENTS, attached


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path, attach=True) as made:
        yield made


def test_columns_are_found_by_the_names_in_the_files(con, tmp_path, spark: Any):
    attached(con, tmp_path)
    found = con.sql("SELECT a, b, c, n, m FROM t", engine="spark").rows()
    assert sorted(found, key=repr) == sorted(EXPECTED, key=repr)
    for sql, expected in STATEMENTS:
        assert con.sql(sql, engine="spark").rows() == expected
