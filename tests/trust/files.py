"""An object store in memory with conditional writes, ``sim://ACTOR/...``, each call of which the scheduler lets go."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import hashlib
import io
import random
import time
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import fsspec
from fsspec.spec import AbstractFileSystem

from kartosql.engines.duckdb import runtime
from kartosql.formats.kartothek import snapshot
from kartosql.store import remote, store
from kartosql.store.keys import Fetched, PreconditionFailed, Version
from kartosql.write import commit, document, files, operation, recovery
from trust.engines import Reused
from trust.scheduler import Scheduler

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


class Object(NamedTuple):
    data: bytes
    etag: str
    time: dt.datetime


class Place:
    """What the store holds, whoever asks, and the scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.objects: dict[str, Object] = {}

    def time(self) -> dt.datetime:
        return BEGIN + dt.timedelta(seconds=self.scheduler.now)

    def put(self, key: str, data: bytes) -> Version:
        etag = hashlib.md5(data).hexdigest()
        self.objects[key] = Object(bytes(data), etag, self.time().replace(microsecond=0))
        return Version(f'"{etag}"')

    def put_if(self, key: str, data: bytes, expected: Version | None) -> Version:
        self._check(key, expected)
        return self.put(key, data)

    def _check(self, key: str, expected: Version | None) -> None:
        found = self.objects.get(key)
        if (None if found is None else f'"{found.etag}"') != (None if expected is None else expected.token):
            raise PreconditionFailed(key)

    def remove_if(self, key: str, expected: Version) -> None:
        if key in self.objects:
            self._check(key, expected)
            del self.objects[key]

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is None:
            raise FileNotFoundError(key)

    def get(self, key: str) -> Object:
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]


class SimFiles(AbstractFileSystem):
    """The files of a place; what the URL begins with tells processes apart."""

    protocol = "sim"
    cachable = False
    root_marker = ""
    place: ClassVar[Place]

    @classmethod
    @functools.lru_cache(4096)
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path)

    def key(self, path: str) -> str:
        return self._strip_protocol(path).partition("/")[2]

    def call(self, name: str, path: str, carry_out: Callable[[], Any], *, conditional: bool = False) -> Any:
        return self.place.scheduler.call(name, self.key(path), carry_out, conditional=conditional)

    def _info(self, path: str) -> dict[str, Any]:
        name, key = self._strip_protocol(path), self.key(path)
        found = self.place.objects.get(key)
        if found is not None:
            etag = f'"{found.etag}"'
            return {"name": name, "size": len(found.data), "type": "file", "ETag": etag, "LastModified": found.time}
        if key and not any(other.startswith(f"{key}/") for other in self.place.objects):
            raise FileNotFoundError(path)
        return {"name": name, "size": 0, "type": "directory"}

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return self.call("info", path, lambda: self._info(path))

    def size(self, path: str) -> int:
        return self.call("size", path, lambda: len(self.place.get(self.key(path)).data))

    def _list(self, path: str, *, deep: bool) -> dict[str, dict[str, Any]]:
        name, key = self._strip_protocol(path), self.key(path)
        begin = f"{key}/" if key else ""
        below = [found for found in self.place.objects if found.startswith(begin)]
        if not deep:
            below = list(dict.fromkeys(begin + found[len(begin) :].partition("/")[0] for found in below))
        actor = name.partition("/")[0]
        return {f"{actor}/{found}": self._info(f"{actor}/{found}") for found in sorted(below)}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        found = self.call("ls", path, lambda: self._list(path, deep=False))
        return list(found.values()) if detail else list(found)

    def find(self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **kwargs: Any) -> Any:
        found = self.call("find", path, lambda: self._list(path, deep=True))
        return found if detail else list(found)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        return self.call("cat_file", path, lambda: self.place.get(self.key(path)).data[slice(start, end)])

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        data = bytes(value)
        self.call("pipe_file", path, lambda: self.place.put(self.key(path), data))

    def rm_file(self, path: str) -> None:
        self.call("rm_file", path, lambda: self.place.remove(self.key(path)))

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        assert mode == "rb", mode
        return io.BytesIO(self.cat_file(path))


fsspec.register_implementation("sim", SimFiles, clobber=True)


class SimWriter(remote.RemoteWriter):
    """The writing side of such a store: conditions, ETags that are the MD5, ranges."""

    has_ranges = True

    def read_versioned(self, key: str) -> tuple[bytes, Version]:
        found = self.get(key)
        return found.data, Version(found.etag)

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
        path = self.path(key)
        place = self.fs.place
        return self.fs.call("put_if", path, lambda: place.put_if(self.fs.key(path), data, expected), conditional=True)

    def delete_if(self, key: str, expected: Version) -> None:
        path = self.path(key)
        place = self.fs.place
        self.fs.call("delete_if", path, lambda: place.remove_if(self.fs.key(path), expected), conditional=True)

    def probe(self, key: str) -> tuple[bool, bool]:
        return True, True

    def now(self) -> dt.datetime:
        return self.fs.call("now", self.path(""), self.fs.place.time)

    async def _get(self, key: str, span: Any = None, unless: str = "", only: str = "") -> Fetched:
        path = self.path(key)
        found = self.fs.call("get", path, lambda: self.fs.place.get(self.fs.key(path)))
        etag, size = f'"{found.etag}"', len(found.data)
        told = (etag, found.time, self.fs.place.time())
        if unless and unless == found.etag:
            return Fetched(b"", 0, size, *told, unchanged=True)
        if only and only != etag:
            raise PreconditionFailed(key)
        start, end = span or (0, None)
        start = max(0, size + start) if start < 0 else start
        return Fetched(found.data[start:end], start, size, *told)


class _AtOnce:
    """A pool of threads without threads, which the scheduler could not tell apart."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _AtOnce:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *given: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*given))
        except Exception as e:  # noqa: BLE001
            done.set_exception(e)
        return done

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Go through them in an order by chance, as threads may."""
        given = list(items)
        order = SimFiles.place.scheduler.random.sample(range(len(given)), len(given))
        done = {at: function(given[at]) for at in order}
        return [done[at] for at in range(len(given))]

    def shutdown(self, *_: object, **__: object) -> None:
        pass


class _IsDatetime(type):
    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, dt.datetime)


@contextlib.contextmanager
def simulated(scheduler: Scheduler, seed: object) -> Iterator[Place]:
    """Let the product take time, names and chance from the scheduler, whose store is ``sim://``."""

    class Now(dt.datetime, metaclass=_IsDatetime):
        @classmethod
        def now(cls, tz: Any = None) -> dt.datetime:  # type: ignore[override]
            return BEGIN + dt.timedelta(seconds=scheduler.clock())

    dates = types.SimpleNamespace(**{**vars(dt), "datetime": Now})
    told = BEGIN.timestamp()
    times = types.SimpleNamespace(
        sleep=scheduler.pause,
        monotonic=lambda: scheduler.now,
        time=lambda: told + scheduler.clock(),
        time_ns=lambda: int((told + scheduler.clock()) * 10**9),
        perf_counter=time.perf_counter,
    )

    @functools.cache  # each actor has its own, so that what it names does not depend on what others do
    def chance(what: str, actor: int | None) -> Random:
        return Random(f"{what} {seed} {actor}")

    def drawn(what: str) -> Random:
        return chance(what, scheduler.actor.number if scheduler.actor is not None else None)

    place = SimFiles.place = Place(scheduler)
    writer_of = remote.writer_of
    with contextlib.ExitStack() as stack:

        def patch(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for module in (commit, document, recovery):
            patch(module, "dt", dates)
        for module in (commit, document, recovery, snapshot):
            patch(module, "time", times)
        for module in (store, remote, files):
            patch(module, "ThreadPoolExecutor", _AtOnce)
        patch(runtime, "Instance", Reused)
        patch(random, "uniform", lambda low, high: drawn("chance").uniform(low, high))
        patch(uuid, "uuid4", lambda: uuid.UUID(int=drawn("names").getrandbits(128), version=4))
        patch(remote, "writer_of", lambda names: SimWriter if "sim" in names else writer_of(names))
        # The swap is right without the queue, which would hold up the thread of an actor in the kernel.
        patch(store.Store, "turn", lambda self, folder, offer=None: contextlib.nullcontext())
        yield place


assert operation.utc_now is commit.utc_now  # which asks the clock when it is called
