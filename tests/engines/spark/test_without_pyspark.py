"""Spark where PySpark, or what it needs, is not installed."""

from __future__ import annotations

import importlib
import sys

import pyarrow as pa
import pytest

import kartosql
from kartosql.cli.output import exit_code
from kartosql.errors import KartosqlError


@pytest.mark.parametrize("sql", ["SELECT sum(v) FROM t", "SELECT 1"])
def test_a_statement_on_spark_names_the_extra(monkeypatch, tmp_path, sql):
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("t", pa.table({"v": [1, 2]}))
        importlib.import_module("pyspark.sql")  # whole, as an import that fails leaves parts behind for other tests
        monkeypatch.setitem(sys.modules, "pyspark.sql", None)
        with pytest.raises(KartosqlError) as caught:
            con.sql(sql, engine="spark").rows()
        assert (caught.value.code, caught.value.hint) == ("missing-extra", "pip install 'kartosql[spark]'")
        assert exit_code(caught.value) == 2
        assert con.sql(sql).rows()
