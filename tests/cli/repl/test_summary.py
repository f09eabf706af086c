"""The line below a result, against stores that count."""

from __future__ import annotations

import os
import re
import uuid
from typing import Any

import pyarrow as pa
import pytest

from kartosql.formats.kartothek.cube import Cube
from kartosql.render.tables import RunSummary
from kartosql.store import Store
from kartosql.store.store import StoreCounter
from kartosql.text.report import human_bytes
from written import build_cube

LINE = re.compile(
    r"(?P<rows>[\d,]+) rows? in (?P<seconds>[\d.]+) s \(plan (?P<plan>[\d.]+), read (?P<read>[\d.]+)\)"
    r" · (?P<opened>\d+) of (?P<files>\d+) files?"
    r" · (?P<bytes>[\d.]+ \w+) of (?P<total>[\d.]+ \w+) read · (?P<saved>[\d.]+ \w+) saved"
)


class Counting:
    """Counts the bytes of data files that leave a store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: dict[str, int] = {}
        add = StoreCounter.add

        def counted(counter: StoreCounter, kind: str, key: str = "", nbytes: int = 0) -> None:
            if kind == "reads" and key.endswith(".parquet") and "/indices/" not in key:
                self.read[key] = self.read.get(key, 0) + nbytes
            add(counter, kind, key, nbytes)

        monkeypatch.setattr(StoreCounter, "add", counted)


@pytest.fixture
def remote() -> str:
    """A store in memory with a cube of 8 files in 4 partitions."""
    url = f"memory://{uuid.uuid4().hex}"
    rows = 4 * 3000
    data = {
        "seed": pa.table(
            {"x": range(rows), "p": [i % 4 for i in range(rows)], "v": [i * 7919 % 1013 for i in range(rows)]}
        ),
        "more": pa.table({"x": range(rows), "p": [i % 4 for i in range(rows)], "w": [float(i) for i in range(rows)]}),
    }
    build_cube(Store(url), Cube("c", "x", "p", index_columns=["v"]), data)
    return url


@pytest.mark.parametrize(
    ("condition", "opened"),
    [("p = 1 and v > 3", 1), ("p in (0, 3) and w > 5", 4), ("v > 5 and w >= 0", 8), ("p = 9 and v > 1", 0)],
)
def test_a_remote_store_is_accounted_for_to_the_byte(shell_in, remote, monkeypatch, condition, opened):
    session = shell_in(remote)
    counting = Counting(monkeypatch)
    found = LINE.fullmatch(session(f"select sum(x) from c where {condition};").splitlines()[-1])
    assert found is not None
    store = Store(remote)
    datasets = {key.split("/")[0] for key in counting.read} or {"c++seed"}
    sizes = {k: n or 0 for d in datasets for k, n in store.list_below(f"{d}/table/").items() if k.endswith(".parquet")}
    summary = session.shell.last.summary
    assert len(counting.read) == opened == int(found["opened"])
    assert summary.bytes_read == sum(counting.read.values())
    assert summary.bytes_total >= sum(sizes.values())
    assert str(summary).endswith(f"{human_bytes(summary.bytes_total - summary.bytes_read)} saved")
    assert found["bytes"] == human_bytes(sum(counting.read.values()))
    assert float(found["seconds"]) == pytest.approx(float(found["plan"]) + float(found["read"]), abs=0.002)


def test_the_total_is_that_of_all_files_of_the_tables(shell_in, remote):
    session = shell_in(remote)
    session("select sum(v + w) from c where p = 1;")
    store = Store(remote)
    sizes = [
        n for d in ("seed", "more") for k, n in store.list_below(f"c++{d}/table/").items() if k.endswith(".parquet")
    ]
    assert session.shell.last.summary.bytes_total == sum(n or 0 for n in sizes)
    assert session.shell.last.summary.files_total == len(sizes) == 8


def test_a_local_store_has_the_files_of_the_report_and_all_their_bytes(shell, sales):
    shell("select country, sum(amount) as n from sales where day = 1 and country <> 'DE' group by 1;")
    summary: Any = shell.shell.last.summary
    files = [
        os.path.join(d, f) for d, _, fs in os.walk(f"{sales}/sales++seed/table") for f in fs if f.endswith(".parquet")
    ]
    assert (summary.files_read, summary.files_total) == (2, 3) == (2, len(files))
    assert summary.bytes_total == sum(map(os.path.getsize, files))
    assert 0 < summary.bytes_read <= summary.bytes_total


def test_what_nobody_measured_is_not_told():
    assert str(RunSummary(1, 0.5)) == "1 row in 0.500 s"
    assert str(RunSummary(2, 0.5, 0.1, 1, 2)) == "2 rows in 0.500 s (plan 0.100, read 0.400) · 1 of 2 files"
    assert str(RunSummary(2, 0.5, 0.1, 1, 2, 10)).endswith(" · 10 B read")


def test_statements_without_a_scan_have_rows_and_time_only(shell):
    assert re.fullmatch(r"1 row in [\d.]+ s( \(plan [\d.]+, read [\d.]+\))?", shell("select 1;").splitlines()[-1])
    assert re.fullmatch(r"1 row in [\d.]+ s", shell("show cubes;").splitlines()[-1])
