"""The prompt, in this process, with keys from a pipe."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("prompt_toolkit")

from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from kartosql.cli import config
from kartosql.cli.options import parse_options
from kartosql.cli.repl import known
from kartosql.cli.repl.front import Front
from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.screen import Screen
from kartosql.cli.repl.start import Opening

LIMIT = 60


def _wait(holds: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def behind(sales: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    monkeypatch.setenv("KARTOSQL_HISTORY", str(tmp_path / "history"))
    made = Opening(Screen(io.StringIO()), ShellOptions(), parse_options([sales]), config.resolve(sales))
    made.start()
    _wait(lambda: made.known is not None)
    yield made
    made.shell().connection.close()


def test_values_that_arrive_while_the_menu_is_open_come_into_it(behind, monkeypatch):
    may_read, asked = threading.Event(), threading.Event()
    read = known.read

    def slow(store, column):
        asked.set()
        assert may_read.wait(LIMIT)
        return read(store, column)

    monkeypatch.setattr(known, "read", slow)
    shown: list[str] = []
    errors: list[BaseException] = []

    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        front = Front(behind)
        buffer = front._session.default_buffer

        def texts() -> list[str]:
            state = buffer.complete_state
            return [c.display_text for c in state.completions] if state is not None else []

        def drive() -> None:
            try:
                _wait(lambda: front._session.app.is_running)
                keys.send_text("select amount from sales where country = \t")
                assert asked.wait(LIMIT)
                _wait(lambda: "amount" in texts())  # the menu is there, without them
                shown.append("names")
                may_read.set()
                _wait(lambda: "GB" in texts())
                shown.append("values")
            except BaseException as e:  # noqa: BLE001
                errors.append(e)
            finally:
                may_read.set()
                keys.send_text("\x03")

        driver = threading.Thread(target=drive)
        driver.start()
        with pytest.raises(KeyboardInterrupt):
            front.prompt()
        driver.join()
    assert not errors, errors
    assert shown == ["names", "values"]
