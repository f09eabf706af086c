"""Stores on which somebody else acts, answers get lost, or the writer dies, at any chosen call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import builders
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown
from kartosql.write.change import Change

CALLS = ("read_versioned", "read_metadata", "put_if", "delete_if", "put", "delete", "list_root", "list_below", "sizes")


class Died(BaseException):
    """The writer is gone; nothing in it may go on."""


class Watched(Store):
    """A store that tells of each call before and after it.

    ``hook`` is called with the number of the call, "before" or "after", the name of the call
    and its key. Calls that a hook makes itself are not told of.
    """

    hook: Callable[[int, str, str, str], None] | None = None
    calls = 0
    _inside = False


def _watched(name: str) -> Any:
    plain = getattr(Store, name)

    def call(self: Watched, *args: Any, **kwargs: Any) -> Any:
        if self.hook is None or self._inside:
            return plain(self, *args, **kwargs)
        number, self.calls = self.calls, self.calls + 1
        key = str(args[0]) if args else ""
        _tell(self, number, "before", name, key)
        self._inside = True
        try:
            return plain(self, *args, **kwargs)
        finally:
            self._inside = False
            _tell(self, number, "after", name, key)

    return call


def _tell(store: Watched, number: int, when: str, name: str, key: str) -> None:
    store._inside = True
    try:
        assert store.hook is not None
        store.hook(number, when, name, key)
    finally:
        store._inside = False


for _name in CALLS:
    setattr(Watched, _name, _watched(_name))


def watched(store: Store) -> Watched:
    """Return another view on the same files, whose threads would hide the order of calls."""
    other = Watched(store.url)
    other.map = lambda function, items, workers=1: [function(item) for item in items]  # type: ignore[method-assign]
    other._conditional = True
    return other


def count_calls(store: Store, act: Callable[[Store], Any]) -> int:
    """Return how many calls ``act`` makes."""
    other = watched(store)
    other.hook = lambda *call: None
    act(other)
    return other.calls


def act_at(store: Store, at: int, act: Callable[[], Any]) -> Watched:
    """Return a store on which somebody acts before the call number ``at``."""
    other = watched(store)

    def hook(number: int, when: str, name: str, key: str) -> None:
        if number == at and when == "before":
            act()

    other.hook = hook
    return other


def dies_at(store: Store, at: int, when: str) -> Watched:
    """Return a store whose user dies before or after the call number ``at``."""
    other = watched(store)
    dead = []

    def hook(number: int, now: str, name: str, key: str) -> None:
        if dead or (number == at and now == when):
            dead.append(True)
            raise Died

    other.hook = hook
    return other


def loses_answers(store: Store, lost: Callable[[int, str], bool]) -> Watched:
    """Return a store that gives no answer to conditional writes for which ``lost(number, key)`` holds."""
    other = watched(store)

    def hook(number: int, when: str, name: str, key: str) -> None:
        if when == "after" and name in ("put_if", "delete_if") and lost(number, key):
            raise OutcomeUnknown(key)

    other.hook = hook
    return other


# -- changes -------------------------------------------------------------------------------------------

SCHEMA = pa.schema([("p", pa.int64()), ("i", pa.string()), ("x", pa.int64())])


def adding(store: Store, dataset: str, values: Mapping[int, str], operation: str = "append", **options: Any) -> Change:
    """Return a change that adds one file per partition ``p`` with a value of the indexed column ``i``."""
    tail = uuid.uuid4().hex
    added, pairs = {}, []
    for p, value in values.items():
        label = f"p={p}/{tail}"
        key = f"{dataset}/table/{label}.parquet"
        Store.put(store, key, builders.parquet({"i": [value], "x": [p]}))
        added[label] = {"table": key}
        pairs.append({"value": value, "label": label})
    made: dict[str, Any] = {
        "added": added,
        "pairs": {"i": pa.Table.from_pylist(pairs, pa.schema([("value", pa.string()), ("label", pa.string())]))},
        "schemas": {"table": SCHEMA},
        "partition_keys": ("p",),
    }
    return Change(dataset, operation, **(made | options))


def in_partition(*values: int) -> Callable[[Any], list[str]]:
    """Return a selection of the partitions ``p`` in ``values``."""
    return lambda table: [label for label in table.labels if label.startswith(tuple(f"p={v}/" for v in values))]


def content(store: Store, dataset: str) -> list[tuple[str, str]] | None:
    """Return the partitions and values of ``i`` as readers see them, in order; None for no dataset.

    The index has to tell the same as the files, and all files have to exist.
    """
    found = Snapshot(store).datasets([dataset])[dataset]
    if isinstance(found, KeyError):
        return None
    if isinstance(found, Exception):
        raise found
    table = found.tables["table"]
    rows = [(label, builders.read_parquet(store, key)["i"][0].as_py()) for label, key in zip(table.labels, table.files)]
    if "i" in table.indices:
        assert index_of(store, table.indices["i"].key) == sorted((value, label) for label, value in rows)
    return [(label.partition("/")[0], value) for label, value in rows]


def index_of(store: Store, key: str | None) -> list[tuple[str, str]]:
    assert key is not None
    index = pq.read_table(pa.BufferReader(store.read(key)))
    return sorted((row["i"], label) for row in index.to_pylist() for label in row["partition"])


def values(store: Store, dataset: str) -> list[str] | None:
    """Return the values of ``i`` as readers see them, sorted."""
    found = content(store, dataset)
    return None if found is None else sorted(value for _, value in found)
