"""A filesystem in memory, ``lossy://``, without conditional writes, that loses or delays the answer of one call."""

from __future__ import annotations

import datetime as dt
import io
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
from fsspec.spec import AbstractFileSystem

FATES = ("before", "after", "late", "delayed", "overdue")
WRITES = ("pipe_file", "rm_file")


class Fault:
    """What becomes of call number ``at``, counted from 0: no answer comes, and a TimeoutError is raised.

    It is lost ``before`` it is carried out, or ``after``; ``late`` it is carried out with the call that comes
    next, ``delayed`` when the operation has ended, and ``overdue`` after another one: when ``arrive`` is called.
    """

    def __init__(self, at: int | None = None, fate: str = "before") -> None:
        self.at, self.fate = at, fate
        self.calls: list[tuple[str, str]] = []
        self._waiting: list[Callable[[], object]] = []

    @property
    def was_met(self) -> bool:
        return self.at is not None and len(self.calls) > self.at

    def meet(self, name: str, path: str, carry_out: Callable[[], Any]) -> Any:
        if self.fate == "late":
            self.arrive()
        self.calls.append((name, path))
        if len(self.calls) - 1 != self.at:
            return carry_out()
        if self.fate == "after":
            carry_out()
        elif self.fate not in ("before", "after") and name in WRITES:
            self._waiting.append(carry_out)
        raise TimeoutError(f"no answer of {name} {path}")

    def arrive(self) -> None:
        """Carry out what was delayed."""
        while self._waiting:
            try:
                self._waiting.pop()()
            except FileNotFoundError:
                continue


class LossyFiles(AbstractFileSystem):
    """The files of all of its stores, by the first part of their paths."""

    protocol = "lossy"
    cachable = False
    root_marker = ""
    stores: ClassVar[dict[str, dict[str, tuple[bytes, dt.datetime]]]] = {}
    fault: ClassVar[Fault] = Fault()
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def _files(self, path: str) -> tuple[dict[str, tuple[bytes, dt.datetime]], str]:
        store, _, rest = self._strip_protocol(path).partition("/")
        return self.stores.setdefault(store, {}), rest

    def _call(self, name: str, path: str, carry_out: Callable[[], Any]) -> Any:
        with self._lock:
            return type(self).fault.meet(name, self._strip_protocol(path), carry_out)

    def _info(self, path: str) -> dict[str, Any]:
        files, rest = self._files(path)
        name = self._strip_protocol(path)
        if rest in files:
            data, time = files[rest]
            return {"name": name, "size": len(data), "type": "file", "modified": time}
        if rest and not any(key.startswith(f"{rest}/") for key in files):
            raise FileNotFoundError(path)
        return {"name": name, "size": 0, "type": "directory"}

    def _read(self, path: str) -> bytes:
        files, rest = self._files(path)
        if rest not in files:
            raise FileNotFoundError(path)
        return files[rest][0]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return self._call("info", path, lambda: self._info(path))

    def size(self, path: str) -> int:
        return self._call("size", path, lambda: self._info(path)["size"])

    def modified(self, path: str) -> dt.datetime:
        return self._call("modified", path, lambda: self._info(path)["modified"])

    def _list(self, path: str, *, deep: bool) -> dict[str, dict[str, Any]]:
        files, rest = self._files(path)
        name = self._strip_protocol(path)
        begin = f"{rest}/" if rest else ""
        store = name.partition("/")[0]
        below = [key for key in files if key.startswith(begin)]
        if not deep:
            below = list(dict.fromkeys(begin + key[len(begin) :].partition("/")[0] for key in below))
        if not below and rest:
            raise FileNotFoundError(path)
        return {f"{store}/{key}": self._info(f"{store}/{key}") for key in sorted(below)}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        found = self._call("ls", path, lambda: self._list(path, deep=False))
        return list(found.values()) if detail else list(found)

    def find(self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **kwargs: Any) -> Any:
        found = self._call("find", path, lambda: self._list(path, deep=True))
        return found if detail else list(found)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        return self._call("cat_file", path, lambda: self._read(path)[slice(start, end)])

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        def write() -> None:
            files, rest = self._files(path)
            files[rest] = (bytes(value), dt.datetime.now(dt.timezone.utc))

        self._call("pipe_file", path, write)

    def rm_file(self, path: str) -> None:
        def remove() -> None:
            files, rest = self._files(path)
            if rest not in files:
                raise FileNotFoundError(path)
            del files[rest]

        self._call("rm_file", path, remove)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode == "rb":
            return io.BytesIO(self._call("open", path, lambda: self._read(path)))
        return _Upload(self, path)


class _Upload(io.BytesIO):
    """A file that is uploaded when it is closed."""

    def __init__(self, files: LossyFiles, path: str) -> None:
        super().__init__()
        self._to = files, path

    def close(self) -> None:
        if not self.closed:
            files, path = self._to
            files.pipe_file(path, self.getvalue())
        super().close()


def copy_store(old: str, new: str) -> str:
    """Let the store ``new`` hold what ``old`` holds, and return its URL."""
    LossyFiles.stores[new] = dict(LossyFiles.stores.get(old, {}))
    return f"lossy://{new}"


fsspec.register_implementation("lossy", LossyFiles, clobber=True)
