"""Commands about the session: store, settings, options, help."""

from __future__ import annotations

import os

from kartosql import __version__
from kartosql.cli import config, resources
from kartosql.cli.repl import options as shell_options
from kartosql.cli.repl.registry import COMMANDS, GROUPS, arguments, command, find, option_command
from kartosql.cli.repl.shell import Shell
from kartosql.engines.duckdb.types import literal
from kartosql.errors import StoreError, UsageError
from kartosql.settings import SETTINGS
from kartosql.tables.names import quote_if_needed

_GROUP = "Session"
MAX_SYNOPSIS = 34


@command("engine", usage="[NAME]", about="engine of statements", group=_GROUP, takes=("engine",))
def _engine(shell: Shell, text: str) -> None:
    if text:
        shell.connection.settings.set("engine", text)
    shell.screen.say(f"engine: {shell.connection.settings['engine']}", "note")


@command("store", about="the store, and how often it was asked", group=_GROUP)
def _store(shell: Shell, text: str) -> None:
    store = shell.connection.store
    counts = store.counter.to_dict()
    shell.screen.say(f"store: {store.url}")
    shell.screen.say(f"writes: {'no, start with --write' if shell.connection.read_only else 'yes'}")
    shell.screen.say("calls: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))


@command("open", r"\c", usage="URL|PROFILE", about="open another store", group=_GROUP, takes=("store",))
def _open(shell: Shell, text: str) -> None:
    found = arguments(text, 1)
    if not found:
        raise UsageError("Name a folder, a URL or a profile.", hint=".open s3://bucket/store")
    shell.open(os.path.expanduser(found[0]))
    shell.screen.say(f"store: {shell.connection.store.url}", "note")


@command(
    "attach",
    r"\a",
    usage="[URL NAME [TYPE]]",
    about="attach a folder or another store under a name; without one, list what is attached",
    group=_GROUP,
    takes=("store", "", "attach type"),
)
def _attach(shell: Shell, text: str) -> None:
    found = arguments(text, 3)
    if not found:
        shell.run_sql("SHOW ATTACHED")
        return
    if len(found) < 2:
        from kartosql.sql.attach_parse import TYPES

        raise UsageError("Name the table or schema, too.", hint=f".attach URL NAME [{'|'.join(TYPES)}]")
    type_ = found[2] if len(found) > 2 else "parquet"
    shell.run_sql(f"ATTACH {literal(found[0])} AS {quote_if_needed(found[1])} (TYPE {quote_if_needed(type_)})")


@command("detach", usage="NAME", about="let go of what is attached", group=_GROUP, takes=("table",))
def _detach(shell: Shell, text: str) -> None:
    if not text:
        raise UsageError("Name what is attached.", hint=".attach lists it.")
    shell.run_sql(f"DETACH {text}")


@command(
    "config",
    usage="[NAME [VALUE]|save]",
    about="options of the shell and settings; save writes the options to the config file",
    group=_GROUP,
    takes=("option", "value"),
)
def _config(shell: Shell, text: str) -> None:
    found = arguments(text, 2)
    if found == ["save"]:
        _save_config(shell)
        return
    if not found:
        shell.screen.say(f"config file: {config.path()}", "note")
        for name in shell.options:
            shell.screen.say(f"{name} = {shell.options.shown(name)}  -- {shell_options.OPTIONS[name].about}")
        for name in SETTINGS:
            shell.screen.say(f"{name} = {_setting(shell, name)}  -- {SETTINGS[name].about}")
        return
    by_lower = {name.lower(): name for name in SETTINGS}
    setting = by_lower.get(found[0].lower())
    if setting is not None and found[0].lower() not in shell_options.OPTIONS:
        if len(found) == 2:
            shell.connection.settings.set(setting, found[1])
        shell.screen.say(f"{setting} = {_setting(shell, setting)}")
        return
    option = shell_options.find(found[0])
    if len(found) == 2:
        shell.set_option(option.name, found[1])
    shell.screen.say(f"{option.name} = {shell.options.shown(option.name)}")


def _setting(shell: Shell, name: str) -> str:
    value = shell.connection.settings[name]
    return "not set" if value is None else str(value)


def _save_config(shell: Shell) -> None:
    changed = {n: shell.options[n] for n in shell.options if shell.options[n] != shell_options.OPTIONS[n].default}
    try:
        place = config.write_shell(changed)
    except OSError as e:
        raise StoreError(f"Cannot write {config.path()!r}: {e.strerror or e}") from None
    shell.screen.say(f"Saved to {place}.", "note")


option_command("theme", usage="[NAME]", about="colours: auto, dark, light or none", group=_GROUP, takes=("theme",))
option_command("keys", usage="[emacs|vi]", about="keys of the prompt", group=_GROUP, takes=("keys",))


@command(
    "help",
    r"\?",
    r"\h",
    usage="[COMMAND|CODE]",
    about="commands, one of them, or an error code",
    group=_GROUP,
    takes=("command",),
)
def _help(shell: Shell, text: str) -> None:
    if not text:
        shell.screen.show(help_lines(shell), page=True)
        return
    if text[0] not in ".\\" and text not in COMMANDS:
        section = resources.error_sections().get(text)
        if section:
            shell.screen.say(f"{text}\n{section}")
            return
    found = find(text if text[0] in ".\\" else f".{text}")
    shell.screen.say(found.synopsis, "command")
    shell.screen.say(f"  {found.about}")
    if found.aliases:
        shell.screen.say(f"  also: {', '.join(found.aliases)}", "note")


def help_lines(shell: Shell) -> list[str]:
    """Return the list of commands by group."""
    lines = [f"kartosql {__version__}: statements end with a semicolon; Tab completes; Ctrl-C stops; Ctrl-D leaves."]
    widest = max(len(c.synopsis) for c in COMMANDS.values() if len(c.synopsis) <= MAX_SYNOPSIS)
    for group in GROUPS:
        lines += ["", shell.screen.paint("name", group)]
        for found in COMMANDS.values():
            if found.group == group:
                aliases = f"  ({', '.join(found.aliases)})" if found.aliases else ""
                shown = found.synopsis if len(found.synopsis) <= widest else f".{found.name} ..."
                lines.append(f"  {shell.screen.paint('command', shown.ljust(widest))}  {found.about}{aliases}")
    return lines


@command("quit", r"\q", about="leave the shell, as Ctrl-D does", group=_GROUP)
def _quit(shell: Shell, text: str) -> None:
    raise SystemExit(0)
