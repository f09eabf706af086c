from __future__ import annotations

import threading
import time
import warnings
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube


@pytest.mark.usefixtures("spark")
def test_progress_is_told_while_spark_runs(tmp_path):
    rows = range(8 * 40)
    data = pa.table({"x": rows, "p": [i % 8 for i in rows], "v": rows})
    build_cube(Store(str(tmp_path)), Cube("c", "x", "p"), data)
    con = kartosql.connect(str(tmp_path), engine="spark")
    query: Any = con.sql("SELECT count(*) AS n FROM c a, c b, c d WHERE (a.v * b.v + d.v) % 7 = 3")
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                query.arrow()
        except BaseException as e:  # noqa: BLE001
            raised.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    seen = []
    end = time.monotonic() + 200
    while time.monotonic() < end and thread.is_alive() and not any(p.fraction is not None for p in seen):
        seen += [p] if (p := query.progress) is not None and p.phase == "read" else []
        time.sleep(0.05)
    assert seen
    assert seen[-1].files == 3 * 8
    assert seen[-1].bytes > 0
    assert 0 <= seen[-1].fraction <= 1
    thread.join()
    assert raised == []
    assert query.progress is None
