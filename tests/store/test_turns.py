"""Turns: one writer after the other, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator

import pytest

from crashes import fork
from kartosql.store import Store, syscalls, turns

fcntl = pytest.importorskip("fcntl")


@pytest.fixture(autouse=True)
def own_queue(tmp_path_factory, monkeypatch):
    """Let the file of the queues lie in a folder of its own."""
    folder = str(tmp_path_factory.mktemp("queue"))
    monkeypatch.setattr(tempfile, "tempdir", folder)
    monkeypatch.setenv("TMPDIR", folder)


@pytest.fixture
def place(store):
    """A store in which the folder of turns exists."""
    store.put("d/x", b"1")
    return store


def test_threads_take_turns(place, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
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


def test_a_ticket_that_a_slow_writer_notes_over_later_ones_lets_nobody_in_before_these(place, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    for _ in range(3):
        with place.turn("d"):
            pass
    done = threading.Event()

    def late() -> None:
        with place.turn("d"):
            done.set()

    thread = threading.Thread(target=late)
    with place.turn("d"):
        with open(turns._path(), "r+b") as queues:
            queues.write(bytes(8 * turns.QUEUES))
        thread.start()
        assert not done.wait(0.2)
    thread.join()
    assert done.is_set()


def test_whoever_has_the_turn_does_not_wait_for_himself(place, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 200)
    started = time.monotonic()
    with place.turn("d"), place.turn("d"), place.turn("other"):
        pass
    assert time.monotonic() - started < turns.TURN_SECONDS


def test_a_turn_that_does_not_end_stops_nobody(place, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.05)
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
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    with place.turn("d"):
        pass


def test_there_need_be_no_folder(local):
    with local.turn("none"):
        assert os.listdir(local.root) == []


def test_turns_are_given_up_where_folders_cannot_be_locked(local, monkeypatch):
    def refuse(fd: int) -> bool:
        raise OSError("not here")

    local.put("d/x", b"1")
    monkeypatch.setattr(turns.syscalls, "try_lock", refuse)
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
        assert not turns.syscalls.try_lock(fd)
        os.close(fd)
    finally:
        process.kill()
        process.communicate()
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    with local.turn("d"):
        pass


# -- the queue ---------------------------------------------------------------------------------------

queues = pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLKW"), reason="no locks of ranges that belong to an open file")
# Writes what it is after, each time at the end of a file: that it is in the queue, and that it has the turn.
WAITER = """
import os, sys
from kartosql.store import Store, turns
real = turns._wait_behind
def told(*given):
    print("waits", flush=True)
    real(*given)
turns._wait_behind, turns.TURN_SECONDS = told, 1e9
try:
    with Store(sys.argv[1]).turn("d"):
        with open(sys.argv[2], "a") as file:
            file.write(sys.argv[3] + "\\n")
        print("mine", flush=True)
        sys.stdin.readline()
except KeyboardInterrupt:
    os._exit(130)
"""


@pytest.fixture
def waiter(tmp_path):
    """A function that starts a process, and returns it when it is in the queue."""
    started = []

    def start(store: Store, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WAITER, store.url, str(tmp_path / "order"), name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "waits\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def queued_thread(store: Store, act: Callable[[], None]) -> Iterator[None]:
    """Let a thread have its turn, and go on when it is in the queue."""
    drawn = threading.Event()
    real = turns._wait_behind

    def told(*given: int) -> None:
        drawn.set()
        real(*given)

    def work() -> None:
        with store.turn("d"):
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "_wait_behind", told)
        thread = threading.Thread(target=work)
        thread.start()
        assert drawn.wait(200)
    yield
    thread.join()


def stands_alone(name: str) -> bool:
    """Return whether nobody has a ticket of a queue."""
    with open(turns._path(), "r+b") as file:
        queue = zlib.crc32(name.encode()) % turns.QUEUES
        return syscalls.front_of_range(file.fileno(), queue * turns.FARTHEST, turns.FARTHEST) is None


@queues
def test_who_came_first_is_first_threads_and_processes_alike(local, waiter, tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    order = tmp_path / "order"

    def act(name: str) -> None:
        with order.open("a") as file:
            file.write(name + "\n")

    local.put("d/x", b"1")
    with contextlib.ExitStack() as threads, local.turn("d"):
        for number in range(6):
            if number % 2:
                threads.enter_context(queued_thread(local, functools.partial(act, str(number))))
            else:
                print(file=waiter(local, str(number)).stdin, flush=True)
    assert order.read_text().split() == list("012345")


@queues
def test_a_killed_holder_lets_the_next_one_in_and_a_killed_waiter_nobody_past_the_holder(
    local, waiter, tmp_path, monkeypatch
):
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    local.put("d/x", b"1")
    holder = waiter(local, "holder")
    assert holder.stdout.readline() == "mine\n"
    first, second = waiter(local, "first"), waiter(local, "second")
    first.kill()
    first.wait()
    got = threading.Event()
    with queued_thread(local, got.set):
        assert not got.is_set()
        assert (tmp_path / "order").read_text().split() == ["holder"]
        holder.kill()
        assert second.stdout.readline() == "mine\n"
        second.kill()
    assert (tmp_path / "order").read_text().split() == ["holder", "second"]
    assert got.is_set()


@queues
def test_a_waiter_ends_at_ctrl_c_and_leaves_the_queue(local, waiter, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    local.put("d/x", b"1")
    with local.turn("d"):
        process = waiter(local, "one")
        process.send_signal(signal.SIGINT)
        assert process.wait(200) == 130
    with local.turn("d"):
        pass
    assert stands_alone(f"{local._real_root}/d")


@queues
def test_a_fork_holds_no_turn_of_its_parent(local, tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    local.put("d/x", b"1")
    reading, writing = os.pipe()
    forking, forked = os.pipe()
    parent = fork()
    if not parent:
        with local.turn("d"):
            child = fork()
            if not child:
                os.close(writing)
                os.read(reading, 1)  # lives on behind its parent
                os._exit(0)
            os.write(forked, b"x")
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.read(forking, 1)
        os.waitpid(parent, 0)
        with local.turn("d"):
            pass
    finally:
        for fd in (reading, writing, forking, forked):
            os.close(fd)


@queues
@pytest.mark.parametrize("opened", [0, 4])
def test_a_fork_in_a_turn_touches_no_file_that_it_opens_itself(local, opened):
    local.put("d/x", b"1")
    child = None
    try:
        with local.turn("d"):
            child = fork()
            held = [os.open(os.devnull, os.O_RDONLY) for _ in range(opened if not child else 0)]
        if not child:
            for fd in held:
                os.fstat(fd)
            os._exit(0)
    finally:
        if child == 0:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_who_waits_goes_on_waiting_while_others_come_to_an_end(tmp_path):
    with open(tmp_path / "x", "w") as mine, open(tmp_path / "x") as other:
        assert syscalls.try_lock(mine.fileno())
        moves = iter([True, True, True])

        def goes_on() -> bool:
            if not next(moves, False):
                syscalls.unlock(mine.fileno())
            return True

        assert turns.blocking(other.fileno(), syscalls.lock, 0.001, goes_on)
        assert not syscalls.try_lock(mine.fileno())


def test_a_lock_that_comes_too_late_is_not_kept(tmp_path):
    with open(tmp_path / "x", "w") as mine, open(tmp_path / "x") as other:
        assert syscalls.try_lock(mine.fileno())
        assert not turns.lock_within(other.fileno(), 0.001)
        other.close()
        syscalls.unlock(mine.fileno())
        with open(tmp_path / "x") as third:
            assert turns.lock_within(third.fileno(), 200)


def _open() -> set[int]:
    """Return the open files of locks, after waits of other tests that came too late have closed theirs."""
    for waiting in threading.enumerate():
        if waiting.name == "kartosql-turn":
            waiting.join(60)
    return set(turns._open)


def test_locks_are_given_up_where_no_thread_can_be_started(tmp_path, monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with open(tmp_path / "x", "w") as mine, open(tmp_path / "x") as other:
        assert syscalls.try_lock(mine.fileno())
        before = _open()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert not turns.lock_within(other.fileno(), 200)
        assert turns._open == before


@queues
def test_queues_of_different_datasets_do_not_wait_for_each_other(local):
    entered = threading.Event()

    def other() -> None:
        with local.turn("e"):
            entered.set()

    with local.turn("d"):
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(200)
    thread.join()


@queues
@pytest.mark.parametrize("damage", [b"\xff" * 8 * turns.QUEUES, b"x", b""])
def test_a_damaged_file_of_queues_does_no_harm(local, damage):
    with open(turns._path(), "wb") as file:
        file.write(damage)
    for _ in range(3):
        with local.turn("d"):
            assert not stands_alone(f"{local._real_root}/d")


@queues
@pytest.mark.parametrize("kind", ["no folder", "a link", "a folder", "no locks", "of somebody else"])
def test_turns_are_taken_within_the_process_where_there_can_be_no_queue(place, tmp_path, monkeypatch, kind):
    target = tmp_path / "target"
    target.write_bytes(b"mine")

    def refuse(*given: int) -> bool:
        raise OSError("no locks")

    if kind == "no folder":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    elif kind == "a link":
        os.symlink(target, turns._path())
    elif kind == "a folder":
        os.mkdir(turns._path())
    elif kind == "no locks":
        monkeypatch.setattr(syscalls, "try_lock_byte", refuse)
    else:
        monkeypatch.setattr(turns.os, "getuid", lambda: 4711)
        monkeypatch.setattr(turns, "_path", lambda: str(target))
    before = _open()
    test_threads_take_turns(place, monkeypatch)
    assert target.read_bytes() == b"mine"
    assert turns._open == before
