"""The files of several stores under one set of keys: those of the connection's store, and of what is attached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol
from weakref import WeakMethod, WeakValueDictionary

from kartosql.store.store import Store, StoreCounter

MARK = "@"  # begins the keys of what is attached; no dataset's uuid may hold it


class Files(Protocol):
    """What an engine asks of the place where its files are: a Store, or several of them."""

    counter: StoreCounter

    @property
    def is_local(self) -> bool:
        """Whether all files are on local disks."""

    def is_on_disk(self, key: str) -> bool:
        """Return whether a file is on a local disk."""

    def local_path(self, key: str) -> str:
        """Return the absolute path of a local file."""

    def display_name(self, key: str) -> str:
        """Return the name of a file as messages and reports have it."""

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes; KeyError when there is none."""

    def sizes(self, keys: Sequence[str]) -> dict[str, int | None]:
        """Return the size of each file in bytes; KeyError for one that is not there."""

    def dataset_sizes(self, uuid: str) -> dict[str, int | None]:
        """Return the sizes of all files of a dataset by one listing; nothing for what is attached."""

    def read(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file or of a range of it; KeyError when there is none."""

    def admit(self, keys: Sequence[str]) -> None:
        """Raise what speaks against reading files that are about to be opened."""

    def map(self, function: Any, items: Sequence[Any]) -> Iterable[Any]:
        """Apply a function to all items concurrently and return the results in order."""


class Mounts:
    """A store, and others that are mounted beside it: their keys begin with ``@<number>/``.

    A number is used once, so what is remembered of a key is never taken for another file's. A
    store stays mounted as long as somebody holds it: an attachment, or a table of a statement.
    """

    def __init__(self, main: Store) -> None:
        self.main = main
        self.counter = main.counter
        self._mounted: WeakValueDictionary[str, Store] = WeakValueDictionary()
        self._admit: dict[str, WeakMethod[Callable[[Sequence[str]], None]]] = {}
        self._count = 0

    def mount(self, store: Store, admit: Callable[[Sequence[str]], None] | None = None) -> str:
        """Mount a store and return the beginning of its keys; ``admit`` is asked before files of it are opened."""
        self._count += 1
        prefix = f"{MARK}{self._count}"
        store.counter = self.counter
        self._mounted[prefix] = store
        if admit is not None:
            self._admit[prefix] = WeakMethod(admit, lambda _: self._admit.pop(prefix, None))
        return f"{prefix}/"

    def place(self, key: str) -> tuple[Store, str]:
        """Return the store of a key, and the key in it; KeyError for one that is mounted no more."""
        if not key.startswith(MARK):
            return self.main, key
        prefix, _, rest = key.partition("/")
        return self._mounted[prefix], rest

    @property
    def is_local(self) -> bool:
        """Whether all files are on local disks."""
        return self.main.is_local and all(s.is_local for s in list(self._mounted.values()))

    def is_on_disk(self, key: str) -> bool:
        """Return whether a file is on a local disk."""
        return self.place(key)[0].is_local

    def local_path(self, key: str) -> str:
        """Return the absolute path of a local file; links that leave its folder are refused."""
        store, rest = self.place(key)
        return store.local_path(rest)

    def display_name(self, key: str) -> str:
        """Return the name of a file as messages and reports have it: its key, or the URL of what is attached."""
        try:
            store, rest = self.place(key)
        except KeyError:
            return key
        return key if store is self.main else f"{store.url.rstrip('/')}/{rest}"

    def dataset_sizes(self, uuid: str) -> dict[str, int | None]:
        """Return the sizes of all files of a dataset by one listing; nothing for what is attached."""
        return {} if uuid.startswith(MARK) else self.main.dataset_sizes(uuid)

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes; KeyError when there is none."""
        store, rest = self.place(key)
        return store.size(rest)

    def sizes(self, keys: Sequence[str]) -> dict[str, int | None]:
        """Return the size of each file in bytes; KeyError for one that is not there."""
        groups: dict[str, list[str]] = {}
        for key in keys:
            groups.setdefault(key.partition("/")[0] if key.startswith(MARK) else "", []).append(key)
        found: dict[str, int | None] = {}
        for prefix, group in groups.items():
            if not prefix:
                found |= self.main.sizes(group)
                continue
            cut = len(prefix) + 1
            sizes = self._mounted[prefix].sizes([key[cut:] for key in group])
            found |= {key: sizes[key[cut:]] for key in group}
        return found

    def read(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file or of a range of it; KeyError when there is none."""
        store, rest = self.place(key)
        return store.read(rest, start=start, end=end)

    def admit(self, keys: Sequence[str]) -> None:
        """Raise what speaks against reading files that are about to be opened."""
        for prefix, found in list(self._admit.items()):
            begin, admit = f"{prefix}/", found()
            own = [key[len(begin) :] for key in keys if key.startswith(begin)]
            if own and admit is not None:
                admit(own)

    def map(self, function: Any, items: Sequence[Any]) -> Iterable[Any]:
        """Apply a function to all items concurrently and return the results in order."""
        return self.main.map(function, items)
