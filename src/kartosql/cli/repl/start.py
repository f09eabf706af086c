"""Opening the shell: config, screen and front first, all that takes longer behind the prompt."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kartosql.cli import config
from kartosql.cli.messages import BEHIND
from kartosql.cli.options import Options
from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.screen import Screen, chosen
from kartosql.errors import KartosqlError, StoreError, UsageError
from kartosql.text.secrets import redacted

if TYPE_CHECKING:
    from kartosql.cli.repl.known import Known
    from kartosql.cli.repl.shell import Shell
    from kartosql.connection import Connection

NOWHERE = "memory://kartosql-shell"
PROMPT, MORE = "kartosql> ", "     ...> "


def run_shell(options: Options) -> None:
    """Open the shell and stay until it is left; raises KartosqlError for what keeps it from opening.

    Of the options, ``--format``, ``-o`` and ``--param`` are what ``.mode``, ``.output`` and
    ``.param`` set; ``--stats`` is what the shell tells anyway.
    """
    screen = Screen()
    shell_options, told = read_options()
    if options.format is not None:
        shell_options.set("mode", options.format)
    place = options.url or shell_options["profile"]
    profile = config.resolve(place) if place else config.Profile("", NOWHERE)
    _check_folder(profile.url)
    screen.theme = chosen(shell_options["theme"], is_terminal=screen.is_terminal)
    screen.pager = shell_options["pager"]
    behind = Behind(screen, shell_options, options, profile)
    if wants_plain(screen):
        behind.start()
        run_lines(behind, told)
        return
    try:
        from kartosql.cli.repl import front
    except ModuleNotFoundError as e:
        if (e.name or "").split(".")[0] != "prompt_toolkit":
            raise
        raise UsageError(
            "The interactive shell needs the package prompt_toolkit, which is not installed.",
            code="missing-extra",
            hint="pip install 'kartosql[shell]'; statements run without it: kartosql URL -c SQL",
        ) from None
    front.run(behind, told)


def wants_plain(screen: Screen) -> bool:
    """Return whether the terminal can do no more than lines."""
    return not screen.is_terminal or os.environ.get("TERM", "") in ("", "dumb")


def read_options() -> tuple[ShellOptions, list[str]]:
    """Return the options of the config file, and what is wrong with it: the shell opens anyway."""
    options, told = ShellOptions(), []
    try:
        found = config.read()
    except KartosqlError as e:
        return options, [f"warning: {e.message} The shell goes on without it."]
    for name, value in found.shell.items():
        try:
            options.set(name, value)
        except KartosqlError as e:
            told.append(f"warning: {found.path}: {e.message}")
    return options, told


def _check_folder(url: str) -> None:
    """Find out at once what can be: whether a local folder is there."""
    if "://" not in url and "::" not in url and not os.path.isdir(os.path.expanduser(url)):
        name = os.path.abspath(os.path.expanduser(url))
        hint = "Check the path of the store; kartosql demo builds a sample cube."
        raise StoreError(f"{name!r} is no folder.", code="store-not-found", hint=hint)


class Behind:
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


def run_lines(behind: Behind, told: list[str]) -> None:
    """Read lines until there are no more, from a terminal that can do nothing else."""
    for text in told:
        behind.screen.say(text, "hint")
    shell = behind.shell()
    behind.screen.say(greeting(behind.place))
    goes_on = False
    while True:
        try:
            behind.screen.write(MORE if goes_on else PROMPT)
            line = input()
        except EOFError:
            behind.screen.line()
            return
        except KeyboardInterrupt:
            behind.screen.line()
            shell.forget_input()
            goes_on = False
            continue
        except UnicodeDecodeError:
            behind.screen.say("That is no text in the encoding of the terminal.", "error")
            continue
        try:
            goes_on = shell.feed(line)
        except SystemExit:
            return
        if shell.draft is not None:
            behind.screen.say(shell.draft)
            for written in shell.draft.split("\n"):
                goes_on = shell.feed(written)
            shell.draft = None
