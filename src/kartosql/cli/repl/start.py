"""Opening the shell: config, screen and front first, all that takes longer behind the prompt."""

from __future__ import annotations

import os

from kartosql.cli import config
from kartosql.cli.options import Options
from kartosql.cli.repl.opening import NOWHERE, Opening, greeting
from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.screen import Screen, chosen
from kartosql.errors import KartosqlError, StoreError, UsageError

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
    behind = Opening(screen, shell_options, options, profile)
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


def run_lines(behind: Opening, told: list[str]) -> None:
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
