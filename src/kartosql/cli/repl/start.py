"""Opening the shell: config, screen and front first; imports, connection and catalog in a thread behind the prompt."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kartosql.cli import config
from kartosql.cli.options import Options
from kartosql.cli.output import BEHIND
from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.screen import Screen, chosen
from kartosql.errors import KartosqlError, UsageError
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
    ``.param`` set; ``--stats`` is what the shell prints anyway.
    """
    screen = Screen()
    shell_options, told = _read_options()
    if options.format is not None:
        shell_options.set("mode", options.format)
    place = options.url or shell_options["profile"]
    profile = config.resolve(place) if place else config.Profile("", NOWHERE)
    url = os.path.expanduser(profile.url)
    if "://" not in url and "::" not in url and not os.path.isdir(url):
        from kartosql.store import Store  # not at the top: what is imported here keeps the prompt waiting

        Store(url)  # raises, with a way out
    screen.theme = chosen(shell_options["theme"], is_terminal=screen.is_terminal)
    screen.pager = shell_options["pager"]
    for text in told:
        screen.say(text, "hint")
    behind = Opening(screen, shell_options, options, profile)
    if wants_plain(screen):
        _run_lines(behind)
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
    front.run(behind)


def run_scripts(scripts: Iterable[str], options: Options) -> None:
    """Run texts that have commands of the shell, without anybody at a prompt; the first that fails raises its error."""
    from kartosql.cli.repl.shell import Cancelled, Shell
    from kartosql.render.formats import Style  # not at the top, as all that knows Arrow

    if options.partition_by:
        raise UsageError("--partition-by is for statements alone.", hint="Leave out the commands with a dot.")
    chosen_options, screen = ShellOptions(), Screen()
    screen.notes = sys.stderr
    given = {"mode": options.format, "nullvalue": options.null or "", "rows": 0, "timing": False, "progress": False}
    for name, value in given.items():
        chosen_options.set(name, value)

    def opened(place: str) -> Connection:
        return config.open_store(config.resolve(place), options)

    shell = Shell(opened(options.url), screen, chosen_options, opened)
    shell.raises, shell.cube, shell.parameters = True, options.cube, dict(options.parameters)
    shell.style = Style(options.header, separator=options.separator)
    shell.target.every(options.output)
    try:
        for script in scripts:
            shell.execute(script)
    except Cancelled:
        raise KeyboardInterrupt from None
    finally:
        shell.connection.close()


def run_init(behind: Opening) -> None:
    """Run the statements and commands of the file ``init.sql`` beside the config file, if there is one."""
    place = os.path.join(config.folder(), "init.sql")
    if os.path.exists(place):
        behind.shell().execute(f".read {shlex.quote(place)}")


def wants_plain(screen: Screen) -> bool:
    """Return whether the terminal can do no more than lines."""
    return not screen.is_terminal or os.environ.get("TERM", "") in ("", "dumb")


def _read_options() -> tuple[ShellOptions, list[str]]:
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


def greeting(place: str) -> str:
    """Return the first line of a session."""
    if place == NOWHERE:
        return "No store is open: .open URL opens one, .tour shows what there is, .help lists commands."
    return f"{place}\nStatements end with a semicolon; .help lists commands, .tour shows examples."


def _run_lines(behind: Opening) -> None:
    """Read lines until there are no more, from a terminal that can do nothing else."""
    shell = behind.shell()
    behind.screen.say(greeting(behind.place))
    run_init(behind)
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
            shell.pending = ""
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


class Opening:
    """What is made in a thread while somebody looks at the prompt: imports, connection, shell, catalog.

    ``ready_shell``, ``error`` and ``known`` are None as long as they are not there.
    """

    def __init__(self, screen: Screen, shell_options: ShellOptions, options: Options, profile: config.Profile) -> None:
        self.screen = screen
        self.options = shell_options
        self.place = profile.name or redacted(profile.url)
        self.ready_shell: Shell | None = None
        self.error: BaseException | None = None  # what opening the store raised
        self.known: Known | None = None
        # Called from the thread: when something was made, when values of a column were read.
        self.on_news: Callable[[], None] = lambda: None
        self.on_values: Callable[[], None] = lambda: None
        self._given = options
        self._profile = profile
        self._begun = False
        self._made = threading.Event()
        self._wanted = threading.Event()

    def start(self) -> None:
        """Begin, if it has not begun."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._work, name=BEHIND, daemon=True).start()

    def shell(self) -> Shell:
        """Return the shell as soon as it is there; raises what opening the store raised."""
        self.start()
        # Not without a limit: Ctrl-C that comes just before Python begins to wait does not wake it.
        while not self._made.wait(0.1):
            pass
        if self.error is not None:
            raise self.error
        assert self.ready_shell is not None
        return self.ready_shell

    def _work(self) -> None:
        try:
            from kartosql.cli.repl.known import load
            from kartosql.cli.repl.shell import Shell

            shell = Shell(config.open_store(self._profile, self._given), self.screen, self.options, self._open)
            shell.parameters.update(self._given.parameters)
            shell.cube = self._given.cube
            if self._given.output is not None:
                shell.target.every(self._given.output)
            shell.on_change = self._wanted.set
            shell.values.on_news = lambda: self.on_values()
            self.ready_shell = shell
        except BaseException as e:  # noqa: BLE001
            self.error = e
            return
        finally:
            self._made.set()
            self.on_news()
        while True:
            try:
                self.known = load(shell.connection)
            except Exception:  # noqa: BLE001
                # A statement will say what is wrong; there are no completions until then.
                self.known = None
            self.on_news()
            self._wanted.wait()
            self._wanted.clear()

    def _open(self, place: str) -> Connection:
        profile = config.resolve(place)
        connection = config.open_store(profile, self._given)
        self.place = profile.name or connection.store.url
        return connection
