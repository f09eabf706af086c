"""Executors whose Python is missing, or lacks pyarrow: what is wrong is said, and what to set."""

from __future__ import annotations

import datetime as dt
import shlex
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.errors import KartosqlError, python_error


@pytest.mark.parametrize(("python", "told"), [("missing", "Cannot run program"), ("bare", "No module named 'pyarrow'")])
def test_what_workers_lack_is_named(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python, told) -> None:
    program = tmp_path / python
    if python == "bare":
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
        program.chmod(0o755)
    (tmp_path / "raw").mkdir()
    rows = pa.table({"t": pa.array([dt.datetime(2020, 1, 1)], pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "raw" / "a.parquet", use_deprecated_int96_timestamps=True)
    with kartosql.connect(tmp_path) as con:
        con.attach(tmp_path / "raw", "raw")
        assert con.sql("SELECT t FROM raw", engine="spark").rows() == [(dt.datetime(2020, 1, 1),)]
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(program))
        with pytest.raises(KartosqlError) as read:
            con.sql("SELECT t FROM raw", engine="spark").rows()
        with pytest.raises(KartosqlError) as written:
            con.create_dataset("d", spark.range(3))
        assert con.datasets() == []
    for caught, code in ((read, "spark-failed"), (written, "spark-job-failed")):
        assert (caught.value.code, told in caught.value.message) == (code, True), caught.value.message
        assert "PYSPARK_PYTHON" in (caught.value.hint or "")


def test_other_errors_are_not_about_python() -> None:
    assert python_error("[PYTHON_VERSION_MISMATCH] Python in worker has other version", "spark-failed") is not None
    assert python_error("No module named 'mine'\n[DIVIDE_BY_ZERO] ...", "spark-failed") is None
