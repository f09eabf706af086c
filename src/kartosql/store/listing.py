"""Every file below a folder with its size and its modification time, as Spark and Hadoop list it."""

from __future__ import annotations

import datetime as dt
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from kartosql.errors import FormatError
from kartosql.store.keys import stable_listing
from kartosql.store.store import Store

_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
FEW = 32  # files for which a listing does not pay
_COPYING = "._COPYING_"
# A file that is written twice within one tick of the clock of its store has the same time both times.
TICK_SECONDS, WHOLE_SECONDS = 0.05, 1.001


class ListedFile(NamedTuple):
    """One file: its path below the folder, bytes, and modification time in milliseconds since 1970.

    ``state`` differs once the file was written again, as far as the store reports.
    """

    name: str
    size: int
    time: int | None
    state: object

    @property
    def stamp(self) -> str:
        """Size and modification time, or what else changes when it is written again; empty if unknown."""
        told = self.state[0] if isinstance(self.state, tuple) else None
        return "" if self.time is None or told is None else f"{self.size}-{self.time}-{told}"


def is_hidden(name: str) -> bool:
    """Return whether Spark does not see a file or folder of that name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith(_COPYING)


def list_files(store: Store, only: str | None = None, left_out: set[str] | None = None) -> list[ListedFile]:
    """Return the files of a store, or the one called ``only``, sorted by name, without hidden and empty ones.

    The files and folders that do not count are added to ``left_out``, of a hidden folder its name alone.
    Raises ``unsafe-key`` for links, ``access-denied`` and ``store-failed``.
    """
    if only is not None:
        return _one(store, only)
    store.counter.add("lists")
    left_out = set() if left_out is None else left_out
    if not store.is_local:
        return sorted(_remote(store, left_out), key=itemgetter(0))
    return stable_listing(lambda gone: sorted(_local(store, left_out, gone), key=itemgetter(0)))


def times_of(store: Store, names: Sequence[str]) -> list[int | None]:
    """Return the modification times of files in milliseconds as of now, None for those that are gone."""
    if store.is_local or len(names) <= FEW:
        found = [file for files in store.map(partial(_one, store), names) for file in files]
    else:
        found = list_files(store)
    times = {file.name: file.time for file in found}
    return [times.get(name) for name in names]


def _one(store: Store, name: str) -> list[ListedFile]:
    """Return one file, if it is there and not empty."""
    try:
        if store.is_local:
            found = store.stamp(name)
            assert found is not None
            state: object = (found.mtime_ns, found.ctime_ns, found.inode)
            return [ListedFile(name, found.size, found.mtime_ns // 1_000_000, state)] if found.size else []
        info = store.info(name)
    except KeyError:
        return []
    file = listed_file(name, info)
    return [file] if file.size else []


def listed_file(name: str, info: Mapping[str, Any]) -> ListedFile:
    """Return a file, given its entry in a listing."""
    time = _milliseconds(next((info[k] for k in _TIMES if info.get(k) is not None), None))
    return ListedFile(name, int(info.get("size") or 0), time, (str(info.get("ETag")), time))


def _local(store: Store, left_out: set[str], gone: list[str]) -> Iterator[ListedFile]:
    root = os.path.realpath(store.root or "/")
    pending = [""]
    while pending:
        below = pending.pop()
        with store.failures(below, "list"):
            try:
                with os.scandir(f"{root}/{below}") as found:
                    entries = list(found)  # or a caller that stops in the middle would leave the folder open
            except FileNotFoundError:
                if below:
                    gone.append(below)
                continue
        for entry in entries:
            name = entry.name
            # Looked at closer only then, as folders may be large.
            if (name[0] in "._" or name[-1] == "_") and is_hidden(name):
                left_out.add(below + name)
                continue
            name = below + name
            if entry.is_dir(follow_symlinks=False):
                pending.append(f"{name}/")
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                gone.append(name)
                continue
            if stat.S_ISLNK(info.st_mode):
                hint = "Links in a folder that is attached are not followed; replace it by what it points to."
                raise FormatError(f"{store.url}/{name}: it is a link", code="unsafe-key", hint=hint)
            if not info.st_size:
                left_out.add(name)
            elif stat.S_ISREG(info.st_mode):
                time = info.st_mtime_ns
                yield ListedFile(name, info.st_size, time // 1_000_000, (time, info.st_ctime_ns, info.st_ino))


def _remote(store: Store, left_out: set[str]) -> Iterator[ListedFile]:
    for name, info in store.infos_below().items():
        if not name or info.get("type", "file") != "file":
            continue
        parts = name.split("/")
        first = next((at for at, part in enumerate(parts) if is_hidden(part)), None)
        if first is not None:
            left_out.add("/".join(parts[: first + 1]))
        else:
            found = listed_file(name, info)
            if found.size:
                yield found
            else:
                left_out.add(name)


def _milliseconds(value: object) -> int | None:
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, dt.datetime):
        value = value if value.tzinfo is not None else value.replace(tzinfo=dt.timezone.utc)
        since: dt.timedelta = value - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
        return since // dt.timedelta(milliseconds=1)
    if not isinstance(value, int | float):
        return None
    return int(float(value) * 1000)


def settle(files: Iterable[ListedFile]) -> None:
    """Wait until files that are written from now on have other times than those that were listed."""
    times = [f.time for f in files if f.time is not None]
    now = time.time()
    fresh = [t for t in times if t > 1000 * (now - WHOLE_SECONDS)]
    if fresh:
        tick = WHOLE_SECONDS if any(t % 1000 == 0 for t in fresh) else TICK_SECONDS
        time.sleep(min(max(0.0, max(fresh) / 1000 + tick - now), tick))
