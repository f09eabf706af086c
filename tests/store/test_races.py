"""Many writers of one key: nothing is lost, nothing is applied twice."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections import Counter

import pytest

from kartosql.store import OutcomeUnknown, PreconditionFailed, Store
from s3_server import BUCKET, serve

DOC = "u.by-dataset-metadata.json"

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

# What a writer does; each entry of the document is the name of one increment.
INCREMENT = """
import json, random, sys, time
from kartosql.store import OutcomeUnknown, PreconditionFailed, Store

def increment(store, key, name, attempts=100_000):
    for attempt in range(attempts):
        data, version = store.read_versioned(key)
        names = json.loads(data)
        if name in names:
            return  # an answer was lost
        try:
            store.put_if(key, json.dumps([*names, name]).encode(), version)
            return
        except OutcomeUnknown:
            continue
        except PreconditionFailed:
            time.sleep(random.uniform(0, 0.002 * min(attempt + 1, 20)))
    raise AssertionError("starved")
"""
WORKER = (
    INCREMENT
    + """
url, options, worker, count = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
store = Store(url, options)
store.require_conditional_put("u")
for i in range(count):
    increment(store, "u.by-dataset-metadata.json", f"{worker}-{i}")
"""
)
space: dict[str, object] = {}
exec(INCREMENT, space)
increment = space["increment"]


def race_processes(url: str, options: dict, workers: int, count: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER, url, json.dumps(options), str(worker), str(count)],
            stderr=subprocess.PIPE,
        )
        for worker in range(workers)
    ]
    for process in processes:
        _, err = process.communicate(timeout=250)
        assert process.returncode == 0, err.decode()[-2000:]


def expect_all(store: Store, workers: int, count: int) -> None:
    names = Counter(json.loads(store.read(DOC)))
    assert names == Counter(f"{worker}-{i}" for worker in range(workers) for i in range(count))


def test_eight_processes_lose_nothing_on_a_local_disk(local):
    local.put_if(DOC, b"[]", None)
    race_processes(local.url, {}, 8, 50)
    expect_all(local, 8, 50)
    assert list(local.details("u/")) == []


def test_eight_processes_lose_nothing_on_s3(s3, s3_server):
    s3.put_if(DOC, b"[]", None)
    race_processes(s3.url, s3_server.storage_options, 8, 50)
    expect_all(s3, 8, 50)
    assert s3_server.keys() == [f"some/prefix/{DOC}"]


def race_threads(stores: list[Store], count: int) -> None:
    errors = []

    def work(worker: int) -> None:
        try:
            for i in range(count):
                increment(stores[worker], DOC, f"{worker}-{i}")
        except Exception as e:  # noqa: BLE001
            errors.append(e)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_threads_lose_nothing_in_memory():
    url = f"memory://{uuid.uuid4().hex}"
    stores = [Store(url) for _ in range(8)]
    stores[0].put_if(DOC, b"[]", None)
    race_threads(stores, 50)
    expect_all(stores[0], 8, 50)


def test_threads_of_one_store_lose_nothing_on_a_local_disk(local):
    local.put_if(DOC, b"[]", None)
    race_threads([local] * 4, 20)
    expect_all(local, 4, 20)


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_answers_lose_and_double_nothing(seed):
    with serve(seed=seed) as server:
        stores = [Store(f"s3://{BUCKET}/x", server.storage_options) for _ in range(3)]
        stores[0].put_if(DOC, b"[]", None)
        server.lose = 0.25
        stores[0].require_conditional_put("u")
        race_threads(stores, 15)
        server.lose = 0.0
        expect_all(stores[0], 3, 15)
        assert server.lost > 4


def test_deletes_and_puts_of_one_key_exclude_each_other(any_store):
    """Of a put and a delete that expect the same version exactly one happens."""
    for _ in range(15):
        version = any_store.put_if(DOC, b"old", None)
        any_store.require_conditional_put()
        results: dict[str, object] = {}
        gate = threading.Barrier(2)

        def run(name, act, results=results, gate=gate):
            gate.wait()
            try:
                act()
                results[name] = True
            except PreconditionFailed:
                results[name] = False

        threads = [
            threading.Thread(target=run, args=("put", lambda: any_store.put_if(DOC, b"new", version))),
            threading.Thread(target=run, args=("delete", lambda: any_store.delete_if(DOC, version))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = [e.name for e in any_store.list_root() if e.name == DOC]
        if results == {"put": True, "delete": False}:
            assert left == [DOC]
            any_store.delete_if(DOC, any_store.read_versioned(DOC)[1])
        else:
            assert (results, left) == ({"put": False, "delete": True}, [])


def test_listings_of_memory_survive_deletes_at_the_same_time():
    url = f"memory://{uuid.uuid4().hex}"
    store, stop, errors = Store(url), threading.Event(), []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def churn() -> None:
        while not stop.is_set():
            keys = [f"k{i}" for i in range(300)]
            for key in keys:
                store.put(key, b"1")
            store.delete(keys)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            store.list_root()
            store.details("u/")
    except Exception as e:  # noqa: BLE001
        errors.append(e)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert errors == []


def test_an_unknown_outcome_is_told_when_no_answer_comes_at_all():
    with serve() as server:
        store = Store(f"s3://{BUCKET}/x", server.storage_options)
        version = store.put_if(DOC, b"old", None)
        server.lose = 1.0
        with pytest.raises((OutcomeUnknown, PreconditionFailed)):
            store.put_if(DOC, b"new", version)
        server.lose = 0.0
        assert store.read(DOC) == b"new"
