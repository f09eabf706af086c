"""What a local disk may hold after a power loss, for a recorded run of the steps.

The model is harsher than real filesystems: of the bytes of a file and of each name of a
folder that were not brought to the disk by an fsync, any earlier state may be found, each
independently of all others. A folder whose own name is lost takes everything in it along.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kartosql.store import syscalls

State = dict[str, bytes]
RECORDED = ("create", "write", "fsync", "fsync_folder", "mkdir", "link", "rename", "unlink", "rmdir")


@dataclass
class _File:
    on_disk: bytes | None = None  # None: never synced
    now: bytes = b""

    def choices(self) -> list[bytes]:
        found = [self.now, b"", self.now[: len(self.now) // 2]]
        if self.on_disk is not None:
            found = [self.on_disk, self.now] if self.on_disk != self.now else [self.now]
        return list(dict.fromkeys(found))


@dataclass
class _Folder:
    """Each name has what is on the disk, and after it what it stood for since."""

    names: dict[str, list[_File | _Folder | None]] = field(default_factory=dict)

    def now(self, name: str) -> _File | _Folder | None:
        return self.names.get(name, [None])[-1]

    def set(self, name: str, value: _File | _Folder | None) -> None:
        self.names.setdefault(name, [None]).append(value)

    def sync(self) -> None:
        self.names = {name: values[-1:] for name, values in self.names.items()}


class Recorder:
    """Records the steps that are made below ``root``, and marks of the caller between them."""

    def __init__(self, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = os.path.realpath(root)
        self.log: list[tuple[Any, ...]] = []
        self._paths: dict[int, str] = {}
        self._before = {
            str(path.relative_to(self.root)): path.read_bytes() for path in Path(self.root).rglob("*") if path.is_file()
        }
        for name in RECORDED:
            monkeypatch.setattr(syscalls, name, self._recorded(name, getattr(syscalls, name)))

    def mark(self, what: Any) -> None:
        """Note that the caller was told something, for instance that its commit is done."""
        self.log.append(("mark", what))

    def _recorded(self, name: str, real: Any) -> Any:
        def step(*args: Any) -> Any:
            result = real(*args)
            if name == "create":
                self._paths[result] = args[0]
            on_file = name in ("write", "fsync")
            first = self._paths[args[0]] if on_file else args[0]
            more = [bytes(args[1])[:result]] if name == "write" else list(args[1:])
            self.log.append((name, first, *more))
            return result

        return step

    def crashes(self, *, limit: int = 512, seed: int = 0) -> Iterator[tuple[int, list[Any], State]]:
        """Yield (number of steps done, marks so far, files found) for every state after a power loss.

        Where more than ``limit`` states are possible at one point, that many are drawn by chance.
        """
        disk = _Disk(self.root, self._before)
        marks: list[Any] = []
        for done, entry in enumerate([None, *self.log]):
            if entry is not None:
                if entry[0] == "mark":
                    marks.append(entry[1])
                else:
                    disk.apply(*entry)
            for state in disk.states(limit, random.Random(f"{seed}-{done}")):
                yield done, list(marks), state


class _Disk:
    def __init__(self, root: str, before: State) -> None:
        self.root = root
        self.top = _Folder()
        for path, data in before.items():
            folder = self.top
            *outer, name = path.split("/")
            for part in outer:
                folder = folder.names.setdefault(part, [_Folder()])[-1]  # type: ignore[assignment]
            folder.names[name] = [_File(data, data)]

    def _at(self, path: str) -> tuple[_Folder, str]:
        folder = self.top
        *outer, name = os.path.relpath(path, self.root).split("/")
        for part in outer:
            inner = folder.now(part)
            assert isinstance(inner, _Folder), path
            folder = inner
        return folder, name

    def _file(self, path: str) -> _File:
        folder, name = self._at(path)
        found = folder.now(name)
        assert isinstance(found, _File), path
        return found

    def apply(self, step: str, path: str, *more: Any) -> None:
        if step == "fsync_folder" and os.path.normpath(path) == self.root:
            return self.top.sync()
        folder, name = self._at(path)
        if step == "create":
            folder.set(name, _File())
        elif step == "mkdir":
            folder.set(name, _Folder())
        elif step == "write":
            self._file(path).now += more[0]
        elif step == "fsync":
            file = self._file(path)
            file.on_disk = file.now
        elif step == "fsync_folder":
            inner = folder.now(name)
            assert isinstance(inner, _Folder), path
            inner.sync()
        elif step in ("link", "rename"):
            target, new = self._at(more[0])
            target.set(new, self._file(path))
            if step == "rename":
                folder.set(name, None)
        else:
            folder.set(name, None)
        return None

    def states(self, limit: int, chance: random.Random) -> Iterator[State]:
        """Yield what may be found: all of it, or the oldest, the newest and a draw."""
        choices: list[tuple[int, list[Any]]] = []
        self._collect(self.top, choices, set())
        count = math.prod(len(values) for _, values in choices)
        keys = [key for key, _ in choices]
        if count <= limit:
            picks: Any = itertools.product(*(values for _, values in choices))
        else:
            picks = [[values[0] for _, values in choices], [values[-1] for _, values in choices]]
            picks += [[chance.choice(values) for _, values in choices] for _ in range(limit)]
        for pick in picks:
            chosen = dict(zip(keys, pick, strict=True))
            yield dict(self._read(self.top, "", chosen))

    def _collect(self, node: Any, choices: list[tuple[int, list[Any]]], seen: set[int]) -> None:
        if node is None or id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, _File):
            choices.append((id(node), node.choices()))
            return
        for values in node.names.values():
            distinct = list({id(value): value for value in values}.values())
            choices.append((id(values), distinct))
            for value in distinct:
                self._collect(value, choices, seen)

    def _read(self, folder: _Folder, prefix: str, chosen: dict[int, Any]) -> Iterator[tuple[str, bytes]]:
        for name, values in folder.names.items():
            node = chosen[id(values)]
            if isinstance(node, _Folder):
                yield from self._read(node, f"{prefix}{name}/", chosen)
            elif node is not None:
                yield f"{prefix}{name}", chosen[id(node)]
