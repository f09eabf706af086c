"""Opening the store behind the prompt: imports, connection and catalog in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kartosql.cli import config
from kartosql.cli.messages import BEHIND
from kartosql.cli.options import Options
from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.screen import Screen
from kartosql.text.secrets import redacted

if TYPE_CHECKING:
    from kartosql.cli.repl.known import Known
    from kartosql.cli.repl.shell import Shell
    from kartosql.connection import Connection

NOWHERE = "memory://kartosql-shell"


class Opening:
    """What is made in a thread while somebody looks at the prompt: imports, connection, shell, catalog."""

    def __init__(self, screen: Screen, shell_options: ShellOptions, options: Options, profile: config.Profile) -> None:
        self.screen = screen
        self.options = shell_options
        self.place = profile.name or redacted(profile.url)
        self._given = options
        self._profile = profile
        self._made = threading.Event()
        self._shell: Shell | None = None
        self._error: BaseException | None = None
        self._wanted = threading.Event()
        self.known: Known | None = None
        # Called from the thread: when something was made, when values of a column were read.
        self.on_news: Callable[[], None] = lambda: None
        self.on_values: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._work, name=BEHIND, daemon=True).start()

    def shell(self) -> Shell:
        """Return the shell as soon as it is there; raises what opening the store raised."""
        # Not without a limit: Ctrl-C that comes just before Python begins to wait does not wake it.
        while not self._made.wait(0.1):
            pass
        if self._error is not None:
            raise self._error
        assert self._shell is not None
        return self._shell

    @property
    def ready_shell(self) -> Shell | None:
        """The shell, None as long as it is not there."""
        return self._shell

    @property
    def error(self) -> BaseException | None:
        """What opening the store raised."""
        return self._error

    def _work(self) -> None:
        try:
            from kartosql.cli.repl.shell import Shell

            shell = Shell(self._connect(self._profile), self.screen, self.options, self._open)
            shell.parameters.update(self._given.parameters)
            if self._given.output is not None:
                shell.target.every(self._given.output)
            shell.on_change = self._wanted.set
            shell.values.on_news = self._news_of_values
            self._shell = shell
        except BaseException as e:  # noqa: BLE001
            self._error = e
            return
        finally:
            self._made.set()
            self.on_news()
        self._wanted.set()
        while True:
            self._wanted.wait()
            self._wanted.clear()
            self._load()

    def _news_of_values(self) -> None:
        self.on_values()

    def _load(self) -> None:
        from kartosql.cli.repl.known import load

        shell = self._shell
        assert shell is not None
        try:
            self.known = load(shell.connection)
        except Exception:  # noqa: BLE001
            # A statement will say what is wrong; there are no completions until then.
            self.known = None
        self.on_news()

    def _connect(self, profile: config.Profile) -> Connection:
        from kartosql.connection import connect_as_owner
        from kartosql.settings import find

        given = {**profile.settings, **self._given.settings}
        settings: Mapping[str, Any] = {find(name).name: value for name, value in given.items()}
        return connect_as_owner(
            profile.url,
            storage_options={**profile.storage_options, **self._given.storage_options} or None,
            write=profile.write or self._given.write,
            **settings,
        )

    def _open(self, place: str) -> Connection:
        profile = config.resolve(place)
        connection = self._connect(profile)
        self.place = profile.name or connection.store.url
        return connection


def greeting(place: str) -> str:
    """Return the first line of a session."""
    if place == NOWHERE:
        return "No store is open: .open URL opens one, .tour shows what there is, .help lists commands."
    return f"{place}\nStatements end with a semicolon; .help lists commands, .tour shows examples."
