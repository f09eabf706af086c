"""The views of a repeated statement are left where they are, and used again only for the same scan."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.engines.duckdb.relations import Relations
from kartosql.errors import FormatError, LimitError
from kartosql.plan.cache import LEARNED
from kartosql.store import Store
from kartosql.write.build import write_dataset

SQL = "SELECT v FROM t WHERE i = 11"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Any]:
    """``t`` has four files by ``p`` and an index on ``i``."""
    table = pa.table({"p": [0, 0, 1, 2, 3], "i": [1, 2, 11, 21, 31], "v": [1.0, 2.0, 3.0, 4.0, 5.0]})
    write_dataset(Store(str(tmp_path / "store"), create=True), "t", table, partition_on="p", index_columns=["i"])
    with kartosql.connect(tmp_path / "store") as made:
        yield made


@pytest.fixture
def created(monkeypatch) -> list[Any]:
    """Scans for which views were made."""
    made: list[Any] = []
    create = Relations.create

    def noting(self: Relations, scan: Any) -> None:
        made.append(scan)
        create(self, scan)

    monkeypatch.setattr(Relations, "create", noting)
    return made


def test_views_are_made_until_the_plan_is_kept(connection, created):
    for _ in range(LEARNED + 3):
        query = connection.sql(SQL)
        assert query.rows() == [(3.0,)]
        assert query.stats["files_read"] == query.stats["files_opened"] == 1
    assert len(created) == LEARNED


def test_another_statement_in_between_takes_the_instance(connection, created):
    for _ in range(LEARNED + 1):
        assert connection.sql(SQL).rows() == [(3.0,)]
    assert connection.sql("SELECT v FROM t WHERE i = 21").rows() == [(4.0,)]
    assert connection.sql(SQL).rows() == [(3.0,)]
    assert connection.sql(SQL).rows() == [(3.0,)]


def test_a_write_is_seen(connection):
    for _ in range(LEARNED + 1):
        connection.sql("SELECT sum(v) FROM t").rows()
    builders.append(connection.store, "t", pa.table({"p": [1], "i": [12], "v": [7.0]}))
    assert connection.sql("SELECT sum(v) FROM t").rows() == [(22.0,)]


def test_a_file_that_is_gone_is_an_error_of_ours(connection):
    for _ in range(LEARNED + 1):
        connection.sql(SQL).rows()
    (key,) = connection.explain(SQL).selected
    Path(connection.store.local_path(key)).unlink()
    with pytest.raises(FormatError) as caught:
        connection.sql(SQL).rows()
    assert caught.value.code == "missing-file"


def test_the_timeout_is_that_of_the_statement_at_hand(connection):
    sql = "SELECT count(*) FROM t, range(300000) a, range(300000) b"
    small = "SELECT count(*) FROM t, range(3) a WHERE i = 11"
    for _ in range(LEARNED + 1):
        connection.sql(small).rows()
    connection.sql("SET timeout = 0.2")
    assert connection.sql(small).rows() == [(3,)]
    with pytest.raises(LimitError):
        connection.sql(sql).rows()
    assert connection.sql(small).rows() == [(3,)]


def test_one_statement_may_run_many_times_at_once(connection):
    for _ in range(LEARNED + 1):
        connection.sql("SELECT v FROM t").rows()
    readers = [connection.sql("SELECT v FROM t").reader() for _ in range(3)]
    assert [sorted(r.read_all().column(0).to_pylist()) for r in readers] == [[1.0, 2.0, 3.0, 4.0, 5.0]] * 3
    found: list[Any] = []

    def work() -> None:
        found.extend(connection.sql(SQL).rows() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[(3.0,)]] * 80
