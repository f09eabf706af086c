"""Writers that append to one dataset at once, in full: data files, index, commit.

The sizes of the product's figures run with ``python -m tests.benchmarks.races``.
"""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

import kartosql
from kartosql.store import Store
from s3_server import BUCKET, serve
from tests.benchmarks import races

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")]


def expect_all(tally: races.Tally) -> None:
    assert (tally.outcome.errors, tally.lost, tally.doubled, tally.wrong_in_index) == ([], 0, 0, 0)


@contextlib.contextmanager
def read_versions(url: str) -> Iterator[Counter[int]]:
    """Read any version that is there again and again, and check that it has what had been appended by then."""
    over, seen, rng = threading.Event(), Counter[int](), random.Random(1)

    def look() -> None:
        with kartosql.connect(url, read_only=True) as con:
            while True:
                is_last = over.is_set()
                version = rng.choice(con.history(races.DATASET).rows())[0]
                past = f"{races.DATASET} AT (VERSION => {version})"
                found = con.sql(
                    f"SELECT count(*), count(DISTINCT (writer, n)), count(*) FILTER (i = 'v0') FROM {past}"
                ).rows()
                assert found[0][:2] == (version * races.ROWS, version)
                assert con.sql(f"SELECT count(*) FROM {past} WHERE i = 'v0'").rows() == [found[0][2:]]
                seen[version] += 1
                if is_last:
                    return

    with races.ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield seen
        finally:
            over.set()
            looking.result()


def test_processes_lose_and_double_nothing_on_a_local_disk(tmp_path):
    url = str(tmp_path)
    races.create(url)
    with read_versions(url) as seen:
        outcome = races.race_processes(url, 8, 20)
    expect_all(races.tally(url, 8, 20, outcome))
    assert set(seen) <= set(range(1, 8 * 20 + 2))
    assert seen.total() > 1
    # Nobody leaves files behind: one file and one entry of the log per commit, and no temporary ones.
    keys = Store(url).list_below("d/")
    assert sum("/table/p=" in key for key in keys) == 8 * 20 + 1
    assert not any(key.endswith(".tmp") for key in keys)


def test_threads_lose_and_double_nothing_in_memory():
    url = f"memory://{uuid.uuid4().hex}"
    races.create(url)
    outcome = races.race_threads(url, 16, 20)
    expect_all(races.tally(url, 16, 20, outcome))
    # Index files of lost rounds are deleted; those that were replaced stay for readers.
    commits = 16 * 20 + 1
    assert sum("/indices/" in key for key in Store(url).list_below("d/")) == commits


def test_processes_lose_and_double_nothing_on_s3():
    with serve(seed=1) as server:
        url, options = f"s3://{BUCKET}/races", server.storage_options
        races.create(url, options)
        outcome = races.race_processes(url, 8, 10, options)
        expect_all(races.tally(url, 8, 10, outcome, options))


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_answers_double_nothing_and_are_no_errors(seed):
    with serve(seed=seed) as server:
        url, options = f"s3://{BUCKET}/races", server.storage_options
        races.create(url, options)
        server.lose = 0.25
        outcome = races.race_threads(url, 4, 10, options)
        server.lose = 0.0
        expect_all(races.tally(url, 4, 10, outcome, options))
        assert server.lost > 40


def test_connections_lose_nothing_that_append_to_two_datasets_of_a_cube_at_once(tmp_path):
    """Each call appends a cell to both datasets; in the end both have all cells once."""
    cube = kartosql.Cube("c", ["x"], ["p"])
    with kartosql.connect(str(tmp_path)) as con:
        con.build_cube(cube, {"seed": cells(-1, 0), "e": cells(-1, 0, "w")})

    def append(writer: int) -> None:
        with kartosql.connect(str(tmp_path)) as con:
            for number in range(6):
                con.append_to_cube("c", {"seed": cells(writer, number), "e": cells(writer, number, "w")})

    with races.ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    wanted = Counter(number_of(writer, number) for writer in range(4) for number in range(6)) + Counter([-1])
    with kartosql.connect(str(tmp_path)) as con:
        for name in ("seed", "e"):
            assert Counter(x for (x,) in con.sql(f"SELECT x FROM c.{name}").rows()) == wanted
        assert con.sql("SELECT count(*), count(w), sum(x - w) FROM c").rows() == [(25, 25, 0)]


def number_of(writer: int, number: int) -> int:
    return writer if writer < 0 else writer * 100 + number


def cells(writer: int, number: int, payload: str = "v") -> pa.Table:
    x = number_of(writer, number)
    return pa.table({"x": [x], "p": [x % 3], payload: [x]})


# -- the tally itself ------------------------------------------------------------------------------


def test_the_tally_sees_what_is_lost_and_what_is_there_twice():
    url = f"memory://{uuid.uuid4().hex}"
    races.create(url)
    with kartosql.connect(url) as con:
        con.append_to_dataset("d", races.rows(0, 0))
        con.append_to_dataset("d", races.rows(0, 0))
    tally = races.tally(url, 1, 2, races.Outcome(0.0, ["an error"], [0.1, 0.2]))
    assert (tally.lost, tally.doubled, tally.wrong_in_index, tally.outcome.errors) == (1, 1, 0, ["an error"])
    assert tally.faults == 3


def test_the_tally_sees_what_is_wrong_in_the_index():
    url = f"memory://{uuid.uuid4().hex}"
    races.create(url)
    store = Store(url)
    (index,) = [key for key in store.list_below("d/") if "/indices/" in key]
    old = store.read(index)
    with kartosql.connect(url) as con:
        con.append_to_dataset("d", races.rows(0, 0))
    (new,) = [key for key in store.list_below("d/") if "/indices/" in key and key != index]
    store.put(new, old)
    assert races.tally(url, 1, 1, (0.0, [])).wrong_in_index == races.ROWS
