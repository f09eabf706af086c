"""``.tour``: the examples of the package, played on a copy of the demo cube."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from itertools import takewhile

from kartosql.cli import resources
from kartosql.cli.repl.registry import arguments, command
from kartosql.cli.repl.shell import Shell
from kartosql.connection import connect
from kartosql.demo import build_flights
from kartosql.errors import UsageError
from kartosql.store import Store

EXAMPLES = "sql_examples"


def examples() -> list[str]:
    """Return the names of the examples in order, without their suffix."""
    return [n.removesuffix(".sql") for n in resources.names(EXAMPLES) if n.endswith(".sql")]


@command(
    "tour",
    usage="[NUMBER|list]",
    about="play the next example on a copy of the demo cube, or one of them, or list them",
    group="Session",
    takes=("tour",),
)
def _tour(shell: Shell, text: str) -> None:
    found = arguments(text, 1)
    names = examples()
    if not names:
        raise UsageError("The examples are not installed.", hint="They stand in sql_examples of the source.")
    if found == ["list"]:
        for number, name in enumerate(names, 1):
            shell.screen.say(f"{number:>3}  {_title(name)}")
        return
    number = _number(found[0], len(names)) if found else shell.tour_at % len(names) + 1
    shell.tour_at = number
    _play(shell, names[number - 1], number, len(names))


def _number(text: str, most: int) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise UsageError(f"There is no example {text!r}.", hint=f".tour 1 to .tour {most}; .tour list")
    return int(text)


def _title(name: str) -> str:
    """Return the first sentence of what an example says about itself."""
    lines = resources.text(f"{EXAMPLES}/{name}.sql").splitlines()
    comment = " ".join(line.removeprefix("-- ") for line in takewhile(lambda line: line.startswith("-- "), lines))
    return re.split(r"(?<=[.:]) ", comment)[0] or name


def _play(shell: Shell, name: str, number: int, count: int) -> None:
    """Run an example in a folder of its own, so that what it writes harms nothing, and it can be played again."""
    script = resources.text(f"{EXAMPLES}/{name}.sql")
    with tempfile.TemporaryDirectory(prefix="kartosql-tour-") as folder, contextlib.chdir(folder):
        place = os.path.join(folder, "kartosql-demo")
        _demo(shell, place)
        _weather(place)
        shell.screen.say(f"Example {number} of {count}: {name}", "name")
        shell.screen.say(script.strip())
        shell.screen.line()
        before, settings = shell.connection, shell.connection.settings.copy()
        shell.connection = connect(place)
        try:
            ended_well = shell.execute(script)
        finally:
            shell.connection.close()
            shell.connection = before
            before.settings = settings
    if ended_well:
        shell.screen.say(f".tour plays the next one, .tour {number} this one again; .tour list names all.", "note")


def _weather(place: str) -> None:
    """Write the folder of files that docs/attach.md attaches, beside the demo cube."""
    import pyarrow.parquet as pq

    with connect(place) as connection:
        rows = connection.sql("SELECT * FROM flights.weather").arrow()
    pq.write_to_dataset(rows, "weather", partition_cols=["month"])


def _demo(shell: Shell, place: str) -> None:
    """Put the demo cube into a folder: linked from the open store if that holds it, else built."""
    os.mkdir(place)
    store = shell.connection.store
    wanted = ("flights++", "planes", "airports")
    if store.is_local and {"planes", "airports"} <= set(shell.connection.datasets()) and _has_flights(shell):
        for name in os.listdir(store.root):
            if name.startswith(wanted):
                _copy(os.path.join(store.root, name), os.path.join(place, name))
        return
    shell.screen.say("Building the demo cube ...", "note")
    build_flights(Store(place))


def _has_flights(shell: Shell) -> bool:
    cube = shell.connection.cubes().get("flights")
    return cube is not None and "tailnum" in cube.index_columns


def _copy(source: str, target: str) -> None:
    def link(old: str, new: str) -> str:
        try:
            os.link(old, new)
        except OSError:
            shutil.copyfile(old, new)
        return new

    if os.path.isdir(source):
        shutil.copytree(source, target, copy_function=link)
    else:
        link(source, target)
