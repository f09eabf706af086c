from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.screen import Screen
from kartosql.cli.repl.shell import Shell
from kartosql.connection import Connection
from kartosql.formats.kartothek.cube import Cube
from kartosql.opening import connect, connect_as_owner
from kartosql.store import Store
from written import build_cube


def _opened(place: str, *, read_only: bool = False, **settings: object) -> Connection:
    return connect_as_owner(place, write=not read_only, **settings)


class Session:
    """A shell whose output is a text."""

    def __init__(self, place: str, **given: Any) -> None:
        self.out = io.StringIO()
        columns, lines = given.pop("columns", 100), given.pop("lines", 30)
        self.screen = Screen(self.out, columns=columns, lines=lines)
        self.shell = Shell(_opened(place, **given), self.screen, ShellOptions(), lambda url: connect(url))

    def __call__(self, text: str) -> str:
        """Feed lines and return what they print."""
        before = self.out.tell()
        for line in text.split("\n"):
            self.shell.feed(line)
        self.out.seek(before)
        return self.out.read()


@pytest.fixture(scope="session")
def sales(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the cube ``sales`` of two datasets in three partitions, and the dataset ``shops``."""
    folder = str(tmp_path_factory.mktemp("sales"))
    store = Store(folder)
    cube = Cube("sales", ("shop", "day"), ("country",), index_columns=["product"])
    seed = pa.table(
        {
            "shop": [1, 1, 2, 2, 3, 3],
            "day": [1, 2, 1, 2, 1, 2],
            "country": ["DE", "DE", "FR", "FR", "GB", "GB"],
            "product": ["apple", "pear", "apple", "plum", "o'ne", "apple"],
            "amount": [12345, -20000, 7, None, 2013, 99999],
        }
    )
    weather = pa.table({"shop": [1, 2], "day": [1, 1], "country": ["DE", "FR"], "rain": [0.5, 1.25]})
    build_cube(store, cube, {"seed": seed, "weather": weather})
    from written import write_dataset

    write_dataset(store, "shops", pa.table({"shop": [1, 2, 3], "name": ["a\x1b[31m", "NULL", None]}))
    return folder


@pytest.fixture(autouse=True)
def _no_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the files of whoever runs the tests out of them."""
    monkeypatch.setenv("KARTOSQL_CONFIG", str(tmp_path / "config" / "config.toml"))
    monkeypatch.setenv("KARTOSQL_HISTORY", str(tmp_path / "state" / "history"))
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def shell(sales: str) -> Session:
    return Session(sales, read_only=True)


@pytest.fixture
def shell_over(sales: str) -> Callable[..., Session]:
    """Return a function that opens a shell over the sales with options of its own."""
    return lambda **given: Session(sales, **given)


@pytest.fixture
def shell_in() -> Callable[..., Session]:
    """Return a function that opens a shell over a store."""
    return Session
