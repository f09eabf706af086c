"""Python workers that are killed while they write: the result is right, or there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import killer
import pytest
from sameness import leftovers, metadata

import kartosql
from kartosql.store import Store

if not Path("/proc/self/stat").exists():
    pytest.skip("processes are found below /proc", allow_module_level=True)


def check(folder: Path) -> None:
    with kartosql.connect(str(folder)) as con:
        sums = "count(*), count(DISTINCT x), sum(x), count(DISTINCT i)"
        expected = (killer.ROWS, killer.ROWS, killer.ROWS * (killer.ROWS - 1) // 2, 1000)
        assert con.sql(f"SELECT {sums} FROM c").rows() == [expected]
        assert [f for f in con.check("c", full=True) if f.severity != "info"] == []
        documents = con.sql("SHOW FILES FROM c.seed").rows()
        assert len(documents) == 20


def test_without_retries_nothing_is_visible_and_nothing_stays(spark, tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        with killer.Killer(spark, tmp_path) as thread, pytest.raises(kartosql.KartosqlError) as e:
            con.build_cube(killer.CUBE, killer.frame(spark))
        assert thread.killed
        assert e.value.code == "spark-job-failed"
        assert "Python worker exited unexpectedly" in e.value.message
        assert con.cubes() == {}
        assert leftovers(Store(str(tmp_path))) == []
        con.build_cube(killer.CUBE, killer.frame(spark))
    check(tmp_path)


def test_tasks_that_are_run_again_leave_orphans_and_double_nothing(spark, tmp_path):
    """In a process of its own: only a session that is started so runs failed tasks again."""
    command = [sys.executable, killer.__file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(int(killed) > 0 for killed in done.stdout.split())
    check(tmp_path)
    with kartosql.connect(str(tmp_path)) as con:
        assert not [key for key in leftovers(con.store) if "kartosql-spark" in key]
        found = metadata(con.store)
        con.drop_skipping_index("c.seed")
        con.create_skipping_index("c.seed", **killer.INDEXES)
        assert metadata(con.store) == found
        assert len(found) == 20
    # What lost attempts had written by then belongs to nothing, and a cleanup finds it.
    with kartosql.connect(str(tmp_path)) as con:
        orphans = leftovers(con.store)
        assert orphans
        assert {g.key for g in con.cleanup_cube("c", dry_run=True)["seed"]["files"]} >= set(orphans)
