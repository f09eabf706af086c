"""Processes made by forks of one that has loaded all they need: a worker costs a tenth of what its imports do.

The process in between, the template, gets nothing of its owner but sockets to hand on, and starts no thread and no
engine: what a fork knows it was told by its owner over its own socket. It is the parent of all, so that whoever ends
is waited for, and ends them with its owner.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable

PATIENCE = 60.0  # seconds for a template to load and to answer, which takes it less than one
LOOK = 0.5  # seconds between two looks whether a parent is there
_WORD = 8  # bytes of a message: the number of a process; with a socket it is to start, without one to end
_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "2",  # arenas reserve memory for each thread, which limits of a process count
    # No library starts a thread as it is loaded: a fork has the thread alone that made it.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_TEMPLATE = "from kartosql.worker import main; main()"
_ONE = "from kartosql.worker import spawned; spawned()"
Work = Callable[[socket.socket, int], None]  # what a process does, given its socket and its parent


class Template:
    """The process that makes others, as its owner sees it; ``folder`` is there for them and goes away with it."""

    def __init__(self, *, forks: bool = sys.platform == "linux") -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._control, theirs = socket.socketpair()
        self._control.settimeout(PATIENCE)
        self.folder = tempfile.mkdtemp(prefix="kartosql-worker-")
        path = os.pathsep.join(filter(None, sys.path))
        arguments = [str(os.getpid()), self.folder, "fork" if forks else "spawn"]
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            undo.callback(self._control.close)
            self.process = subprocess.Popen(
                [sys.executable, "-c", _TEMPLATE, *arguments],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path, **_ENVIRONMENT},
                start_new_session=True,  # Ctrl-C is for the owner
            )
            undo.pop_all()

    @property
    def is_alive(self) -> bool:
        """Whether it can make processes."""
        return self.process.poll() is None

    def start(self) -> tuple[int, socket.socket]:
        """Make a process, and return its number and the socket to it; one that could not be made has closed its end."""
        number = next(self._numbers)
        mine, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError), self._lock:
            socket.send_fds(self._control, [number.to_bytes(_WORD, "little")], [theirs.fileno()])
        return number, mine

    def end(self, number: int) -> None:
        """End a process, and return when it is gone."""
        with contextlib.suppress(OSError), self._lock:
            self._control.sendall(number.to_bytes(_WORD, "little"))
            if self._control.recv(1):
                return
        self.close()  # it ended, or hangs

    def close(self) -> None:
        """End it with all its processes."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self.process.terminate()  # as it may not listen yet
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._control.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def is_open(channel: socket.socket) -> bool:
    """Return whether the other end of a socket is there."""
    found = select.poll()
    try:
        found.register(channel, select.POLLIN)
        return not any(event & (select.POLLHUP | select.POLLERR) for _, event in found.poll(0))
    except (OSError, ValueError):  # closed
        return False


def make(work: Work) -> None:
    """Be a template until the owner ends: make processes that do ``work``, and end them."""
    owner, folder, way = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    control = socket.socket(fileno=os.dup(0))
    os.dup2(1, 0)
    control.settimeout(LOOK)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of the socket says that, from now on
    gc.collect()
    gc.freeze()  # so that forks do not copy what they only look at
    running: dict[bytes, int] = {}
    while os.getppid() == owner:
        try:
            number, found, _, _ = socket.recv_fds(control, _WORD, 1)
        except TimeoutError:
            continue
        except OSError:
            break
        if not number:
            break
        for descriptor in found:
            with contextlib.suppress(OSError):  # no more processes: the owner sees that the socket is closed
                running[number] = _started(control, descriptor, work, way)
            os.close(descriptor)
        if not found:
            _end([running.pop(number)] if number in running else [])
            with contextlib.suppress(OSError):
                control.sendall(b".")
    _end(list(running.values()))
    shutil.rmtree(folder, ignore_errors=True)


def _started(control: socket.socket, descriptor: int, work: Work, way: str) -> int:
    me = os.getpid()
    os.set_inheritable(descriptor, False)
    if way == "spawn" or len(os.listdir("/proc/self/task")) > 1:  # a library that starts threads after all
        command, to = [sys.executable, "-c", _ONE, str(me)], [(os.POSIX_SPAWN_DUP2, descriptor, 0)]
        return os.posix_spawn(sys.executable, command, os.environ, file_actions=to)
    if process := os.fork():
        return process
    try:
        control.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work(socket.socket(fileno=descriptor), me)
    finally:
        os._exit(0)


def _end(processes: list[int]) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)
    for process in processes:
        os.waitpid(process, 0)
