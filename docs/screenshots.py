"""Makes the pictures of the shell in docs/images from the real program: ``python docs/screenshots.py``.

It types into a terminal emulator and draws what stands on its screen.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 104, 30
IMAGES = Path(__file__).parent / "images"
# What is typed, and what has to stand on the screen before the picture is taken.
PICTURES = {
    "result": (("SELECT carrier, count(*) AS n FROM flights WHERE dest = 'SFO' GROUP BY ALL;\r", "saved"),),
    "values": (("SELECT count(*) FROM flights WHERE dest = 'S", "SFO"),),
    "explain": (("EXPLAIN SELECT dest, dep_delay FROM flights WHERE tailnum = 'N375JB';\r", "planning"),),
    "coverage": ((".coverage flights origin month\r", "not know"),),
}
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}</style>
<rect width="100%" height="100%" rx="8" fill="#0c0c0c"/>
<g transform="translate(10, 10)"><g class="{unique_id}-matrix">{backgrounds}{matrix}</g></g>
</svg>
"""


class Terminal:
    """The shell in a terminal of its own."""

    def __init__(self, store: str, home: str) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        environment = {
            **{k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI")},
            **{"TERM": "xterm-256color", "COLORTERM": "truecolor", "HOME": home, "XDG_CONFIG_HOME": home},
            **{"XDG_STATE_HOME": home, "XDG_DATA_HOME": home, "COLUMNS": str(COLUMNS), "LINES": str(ROWS)},
        }
        self._process = pexpect.spawn(
            sys.executable,
            ["-m", "kartosql", os.path.basename(store)],
            env=environment,
            cwd=os.path.dirname(store),
            dimensions=(ROWS, COLUMNS),
            timeout=10,
        )

    def wait_for(self, text: str, again: str = "", seconds: float = 300) -> None:
        """Read until a text stands on the screen, and then until nothing more comes.

        What is completed too late on a busy machine is not shown: a text to type ``again`` asks for it anew.
        """
        end, quiet, silent = time.monotonic() + seconds, 0.0, 0.0
        while time.monotonic() < end and quiet < 1:
            if again and silent > 20:
                self.send(again)
                silent = 0.0
            silent += 0.2
            with contextlib.suppress(pexpect.TIMEOUT):
                self._stream.feed(self._process.read_nonblocking(65_536, timeout=0.2))
                quiet = 0.0
                continue
            quiet += 0.2 if text in "\n".join(self.screen.display) else 0.0
        if text not in "\n".join(self.screen.display):
            raise SystemExit(f"{text!r} does not come up:\n" + "\n".join(self.screen.display))

    def send(self, text: str) -> None:
        """Type a text."""
        self._process.send(text)

    def close(self) -> None:
        """End the program."""
        self._process.close(force=True)

    def svg(self) -> str:
        """Return the screen as a picture, without its empty last lines."""
        lines = [self._line(row) for row in range(ROWS)]
        while lines and not lines[-1].plain.strip():
            lines.pop()
        console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        for line in lines:
            console.print(line, no_wrap=True, overflow="crop")
        return console.export_svg(code_format=SVG, unique_id="shell")

    def _line(self, row: int) -> Text:
        text = Text()
        cells = [self.screen.buffer[row][column] for column in range(COLUMNS)]
        for style, run in itertools.groupby(cells, key=_style):
            text.append("".join(cell.data for cell in run), style)
        return text


def _style(cell: pyte.screens.Char) -> str:
    style = [_color(cell.fg)] if cell.fg != "default" else []
    style += [f"on {_color(cell.bg)}"] if cell.bg != "default" else []
    style += [
        rich for rich, name in (("bold", "bold"), ("italic", "italics"), ("reverse", "reverse")) if getattr(cell, name)
    ]
    return " ".join(style)


def _color(name: str) -> str:
    known = {"brown": "yellow", "brightbrown": "bright_yellow"}
    if len(name) == 6 and all(c in "0123456789abcdef" for c in name.lower()):
        return f"#{name}"
    return known.get(name, name.replace("bright", "bright_") if name.startswith("bright") else name)


def picture(name: str, store: str) -> str:
    """Return one of the pictures as SVG."""
    with tempfile.TemporaryDirectory() as home:
        terminal = Terminal(store, home)
        try:
            terminal.wait_for("> ")
            for typed, shown in PICTURES[name]:
                terminal.send(typed)
                terminal.wait_for(shown, "" if typed.endswith("\r") else f"\x7f{typed[-1]}")
            return terminal.svg()
        finally:
            terminal.close()


def main() -> None:
    """Make all pictures."""
    from kartosql.demo import build_flights

    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "kartosql-demo")
        with contextlib.redirect_stderr(io.StringIO()):
            build_flights(store)
        for name in PICTURES:
            (IMAGES / f"{name}.svg").write_text(picture(name, store), "utf-8")


if __name__ == "__main__":
    main()
