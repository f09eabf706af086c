"""Turns: one writer after the other, and nobody waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from kartosql.store import local_commit


@pytest.fixture
def place(store):
    """A store in which the folder of turns exists."""
    store.put("d/x", b"1")
    return store


def test_threads_take_turns(place, monkeypatch):
    monkeypatch.setattr(local_commit, "TURN_SECONDS", 1e9)
    inside, most, lock = [], [], threading.Lock()

    def work() -> None:
        for _ in range(20):
            with place.turn("d"):
                with lock:
                    inside.append(1)
                    most.append(len(inside))
                time.sleep(0.0005)
                with lock:
                    inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 80


def test_whoever_has_the_turn_does_not_wait_for_himself(place, monkeypatch):
    monkeypatch.setattr(local_commit, "TURN_SECONDS", 200)
    started = time.monotonic()
    with place.turn("d"), place.turn("d"), place.turn("other"):
        pass
    assert time.monotonic() - started < local_commit.TURN_SECONDS


def test_a_turn_that_does_not_end_stops_nobody(place, monkeypatch):
    monkeypatch.setattr(local_commit, "TURN_SECONDS", 0.05)
    done = threading.Event()

    def late() -> None:
        with place.turn("d"):
            done.set()

    with place.turn("d"):
        thread = threading.Thread(target=late)
        thread.start()
        assert done.wait(200)
    thread.join()


def test_turns_end_after_an_error(place, monkeypatch):
    def fail() -> None:
        with place.turn("d"):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    monkeypatch.setattr(local_commit, "TURN_SECONDS", 1e9)
    with place.turn("d"):
        pass


def test_there_need_be_no_folder(local):
    with local.turn("none"):
        assert os.listdir(local.root) == []


def test_turns_are_given_up_where_folders_cannot_be_locked(local, monkeypatch):
    def refuse(fd: int) -> bool:
        raise OSError("not here")

    local.put("d/x", b"1")
    monkeypatch.setattr(local_commit.syscalls, "try_lock", refuse)
    with local.turn("d"):
        pass


def test_processes_take_turns_and_a_dead_one_holds_none(local, monkeypatch):
    local.put("d/x", b"1")
    hold = (
        "import sys, time; from kartosql.store import Store\n"
        "with Store(sys.argv[1]).turn('d'):\n    print('mine', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", hold, local.url], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "mine\n"
        fd = os.open(f"{local.root}/d", os.O_RDONLY)
        assert not local_commit.syscalls.try_lock(fd)
        os.close(fd)
    finally:
        process.kill()
        process.communicate()
    monkeypatch.setattr(local_commit, "TURN_SECONDS", 1e9)
    with local.turn("d"):
        pass
