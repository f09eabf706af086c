"""What a connection is doing, and how that is stopped from any thread; and that it is of this process at all."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from typing import Any, Self, TypeVar
from weakref import WeakSet

from kartosql.errors import ExecutionError, KartosqlError, UsageError, reraise

AGAIN = 0.01  # seconds after which an engine is told again: one that is about to start does not hear it
_WITHIN = contextlib.nullcontext()
_current: ContextVar[Work | None] = ContextVar("kartosql_work", default=None)


class Work:
    """One call or stream of a connection, which is stopped as a whole.

    As a context manager it is what the calling thread does; entering raises once it is stopped.
    """

    def __init__(self, works: Works, within: Work | None) -> None:
        self._works = works
        self._around: list[Work] = [] if within is None else [within, *within._around]  # of which it is a part
        self._code: str | None = None
        self._guard = threading.Lock()
        self._stops: list[Callable[[], None]] = []  # of what runs in an engine at this moment
        self._tokens: list[Token[Work | None]] = []
        self.thread = threading.get_ident()

    def __enter__(self) -> Self:
        self.check()
        self.thread = threading.get_ident()
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, or that of which it is a part."""
        return any(work._code is not None for work in (self, *self._around))

    def check(self) -> None:
        """Raise ``interrupted`` or ``connection-closed`` if it was stopped, ``other-process`` after a fork."""
        for work in (self, *self._around):
            work._works.check_process()
            if work._code == "interrupted":
                raise ExecutionError("The statement was interrupted.", code="interrupted")
            if work._code is not None:
                raise UsageError("The connection was closed while the statement ran.", code="connection-closed")

    def end(self) -> None:
        """Forget it, as it came to its end."""
        self._works.end(self)

    def stop(self, code: str = "interrupted") -> None:
        """Stop it, from any thread."""
        with self._guard:
            self._code = self._code or code
            running = self._tell()
        if running:
            with contextlib.suppress(RuntimeError):  # no thread can be started: told once
                threading.Thread(target=self._insist, name="kartosql-stop", daemon=True).start()

    def _tell(self) -> bool:
        for stop in self._stops:
            stop()
        return bool(self._stops)

    def _insist(self) -> None:
        is_running = True
        while is_running:
            time.sleep(AGAIN)
            with self._guard:
                is_running = self._tell()

    @contextlib.contextmanager
    def running(self, stop: Callable[[], None]) -> Iterator[None]:
        """Let ``stop`` end what an engine does within the block."""
        self.check()  # before any lock, which a thread held that a fork does not have
        around = [self, *self._around]
        for work in around:
            with work._guard:
                work._stops.append(stop)
        try:
            self.check()
            yield
        except KartosqlError:
            raise
        except BaseException:
            self.check()  # which says why the engine was stopped
            raise
        finally:
            for work in around:
                with work._guard:
                    work._stops.remove(stop)


class Works:
    """All that a connection is doing."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._all: WeakSet[Work] = WeakSet()  # streams that nobody reads come to no end

    @property
    def is_of_this_process(self) -> bool:
        """Whether the process is the one that made them, and not a fork of it."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Raise ``other-process`` in a fork, where neither engines nor locks work on."""
        if not self.is_of_this_process:
            raise UsageError(
                "The connection belongs to the process that this one was forked from.",
                code="other-process",
                hint="Call kartosql.connect() in the new process; tables in memory go on being usable.",
            )

    def begin(self) -> Work:
        """Return new work, a part of what the calling thread does."""
        self.check_process()
        work = Work(self, _current.get())
        with self._guard:
            self._all.add(work)
        return work

    def one(self) -> contextlib.AbstractContextManager[None]:
        """Be at work within the block, which is a part of what the thread is doing already, if it is."""
        around = _current.get()
        if around is None or around not in self._all or around.thread != threading.get_ident():
            return self._one()
        around.check()
        return _WITHIN

    @contextlib.contextmanager
    def _one(self) -> Iterator[None]:
        work = self.begin()
        try:
            with work:
                yield
        finally:
            work.end()

    def end(self, work: Work) -> None:
        """Forget work that came to its end."""
        if self.is_of_this_process:
            with self._guard:
                self._all.discard(work)

    def stop(self, code: str = "interrupted", *, of_others: bool = False) -> None:
        """Stop all of it; with ``of_others`` what other threads are doing."""
        if not self.is_of_this_process:
            return
        with self._guard:
            found = [w for w in self._all if not (of_others and w.thread == threading.get_ident())]
        for work in found:
            work.stop(code)


def check() -> None:
    """Raise what stopped the work of the calling thread."""
    work = _current.get()
    if work is not None:
        work.check()


def is_stopped() -> bool:
    """Return whether the work of the calling thread was stopped."""
    work = _current.get()
    return work is not None and work.is_stopped


def running(stop: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Let ``stop`` end what an engine does within the block, if it is part of some work."""
    work = _current.get()
    return contextlib.nullcontext() if work is None else work.running(stop)


def checked(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function for other threads that raises what stopped the work of this one."""
    work = _current.get()
    if work is None:
        return function

    def call(*args: object) -> object:
        work.check()
        return function(*args)

    return call


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Raise a KeyboardInterrupt of the block also where a library, clearing up after it, fails with something else."""
    outer = sys.exception()
    try:
        yield
    except Exception as e:
        found: BaseException | None = e
        while found is not None and found is not outer:
            if isinstance(found, KeyboardInterrupt):
                raise found from None
            found = found.__context__
        raise


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Do what has to come to its end, such as a commit or its undoing."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


# -- calls -------------------------------------------------------------------------------------------

_CALLED = (
    "__repr__",
    "_repr_html_",
    "__iter__",
    "__len__",
    "__getitem__",
    "__next__",
    "__arrow_c_stream__",
    "__arrow_c_schema__",
)
_ALWAYS = ("close", "interrupt", "progress", "settings")  # whatever goes on
_C = TypeVar("_C")


@contextlib.contextmanager
def translated_errors(action: str | None = None) -> Iterator[None]:
    """Raise errors of ours where the machine refuses something within the block."""
    try:
        yield
    except KartosqlError:
        raise
    except Exception as e:
        reraise(e, action)
        raise


def translates_errors(cls: type[_C]) -> type[_C]:
    """Let all that users call of a class raise errors of ours where the machine refuses something."""
    for name, found in vars(cls).copy().items():
        if (name.startswith("_") and name not in _CALLED) or name in _ALWAYS:
            continue
        if isinstance(found, property) and found.fget is not None:
            setattr(cls, name, property(_translating(found.fget), doc=found.__doc__))
        elif inspect.isfunction(found):
            setattr(cls, name, _translating(found))
    return cls


def _translating(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        # Connections can be stopped. Asked of the class: an instance makes an error with a hint for what it lacks.
        working = getattr(type(args[0]), "_working", contextlib.nullcontext)
        with translated_errors(), working(args[0]):
            return function(*args, **keywords)

    return call
