"""Where the shell writes: a terminal, a pipe, or the text of a test."""

from __future__ import annotations

import codecs
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TextIO

from kartosql.text.escape import escaped_lines, width
from kartosql.text.report import Page

# Name -> SGR codes, for results and messages, and for the prompt's text.
_DARK = {
    **{"keyword": "1;94", "function": "96", "string": "92", "number": "93", "comment": "90", "parameter": "95"},
    **{"command": "1;95", "line": "90", "type": "90", "null": "3;90", "error": "1;91", "hint": "93", "note": "90"},
    "good": "92",
}
_LIGHT = {
    **_DARK,
    **{"keyword": "1;34", "function": "36", "string": "32", "number": "35", "parameter": "31", "command": "1;35"},
    **{"error": "1;31", "hint": "33", "good": "32"},
}
THEMES: Mapping[str, Mapping[str, str]] = {"dark": _DARK, "light": _LIGHT, "none": {}}
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "gray")


def chosen(theme: str, *, is_terminal: bool) -> str:
    """Return the theme that ``auto`` means here, other names as they are; ``NO_COLOR`` and dumb terminals have none."""
    if not is_terminal or os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb"):
        return "none"
    if theme != "auto":
        return theme
    # What xterm, rxvt and konsole say about the background: the last of "15;0" is its colour.
    background = os.environ.get("COLORFGBG", "").rsplit(";", 1)[-1]
    return "light" if background in ("7", "15") else "dark"


def prompt_styles(theme: str) -> dict[str, str]:
    """Return the styles of the prompt's text by name, in the words of prompt_toolkit."""
    words = {"1": "bold", "3": "italic"}
    words |= {f"3{i}": f"ansi{colour}" for i, colour in enumerate(_COLOURS)}
    words |= {f"9{i}": f"ansibright{colour}" for i, colour in enumerate(_COLOURS)}
    found = {name: " ".join(words[code] for code in codes.split(";")) for name, codes in THEMES[theme].items()}
    return {**found, "comment": f"{found['comment']} italic"} if found else {}


MIN_COLUMNS = 20
PAGER = "KARTOSQL_PAGER"
_CLEAR = "\r\x1b[K"


class Screen:
    """An output that knows how large it is, and what colours it has.

    All text from data has to be escaped before it comes here; ``say`` does that.
    """

    def __init__(self, out: TextIO | None = None, *, columns: int | None = None, lines: int | None = None) -> None:
        self.out = out or sys.stdout
        self.notes: TextIO | None = None  # where notes and hints go, if not there
        self._columns = columns
        self._lines = lines
        self.is_terminal = bool(getattr(self.out, "isatty", lambda: False)())
        self.theme = "none"
        self.pager = "auto"
        self._status = False

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """Its width now; a terminal may be resized."""
        return max(MIN_COLUMNS, self._columns or self._size().columns)

    @property
    def lines(self) -> int:
        """Its height now."""
        return max(2, self._lines or self._size().lines)

    def _size(self) -> os.terminal_size:
        """Ask the terminal before the environment: COLUMNS of a shell does not follow when a window is resized."""
        if self.is_terminal:
            with suppress(OSError, ValueError):  # of streams without a descriptor
                size = os.get_terminal_size(self.out.fileno())
                if size.columns and size.lines:
                    return size
        return shutil.get_terminal_size()

    @property
    def page(self) -> Page:
        """What lays reports out for it."""
        return Page(self.columns, self.paint)

    def paint(self, style: str, text: str) -> str:
        """Return a text in a style of the theme; its codes end with it."""
        codes = THEMES[self.theme].get(style)
        return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text

    # -- writing -------------------------------------------------------------------------------------

    def write(self, text: str) -> None:
        """Write a text as it is; whoever does not listen any more is no error."""
        self.clear_status()
        try:
            self.out.write(text)
            self.out.flush()
        except UnicodeEncodeError:
            encoding = getattr(self.out, "encoding", None) or "ascii"
            self.out.write(text.encode(encoding, "replace").decode(encoding))
            self.out.flush()

    def line(self, text: str = "") -> None:
        """Write a line as it is."""
        self.write(text + "\n")

    def say(self, text: str, style: str = "") -> None:
        """Write lines of any text, escaped, in a style."""
        if self.notes is not None and style in ("note", "hint"):
            print(escaped_lines(text), file=self.notes, flush=True)
            return
        page = self.page if self.is_terminal else Page()
        for line in escaped_lines(text).split("\n"):
            lead = line[: len(line) - len(line.lstrip(" "))]
            for piece in page.text(line[len(lead) :], lead, 2 * len(line), style):
                self.line(piece.rstrip())

    def show(self, lines: Sequence[str], *, page: bool = False) -> None:
        """Write lines; through the pager if they are more than the terminal holds, and it is wanted."""
        wanted = self.pager == "on" or (page and self.pager == "auto")
        if wanted and self.is_terminal and len(lines) >= self.lines and self._paged(lines):
            return
        if lines:
            self.write("\n".join(lines) + "\n")

    def _paged(self, lines: Sequence[str]) -> bool:
        """Show lines in the pager; return False without one."""
        self.clear_status()
        given = os.environ.get(PAGER) or os.environ.get("PAGER")
        try:
            words = shlex.split(given) if given else ["less", "-FRSX"]
        except ValueError:
            return False
        if not words or shutil.which(words[0]) is None:
            return False
        # less may run commands for whoever sits there, and take some from its environment.
        environment = {"LESSCHARSET": "utf-8", "LESSHISTFILE": "-", **os.environ}
        try:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)
        except OSError:
            return False
        assert process.stdin is not None
        with suppress(BrokenPipeError, OSError):
            process.stdin.write(("\n".join(lines) + "\n").encode())
        with suppress(BrokenPipeError, OSError):
            process.stdin.close()
        while True:
            try:
                return process.wait() in (0, 1, 130)
            except KeyboardInterrupt:  # which is for the pager
                continue

    # -- a line that is written over -----------------------------------------------------------------

    def status(self, text: str) -> None:
        """Show one line that the next output takes away; on terminals only."""
        if not self.is_terminal or (self.theme == "none" and os.environ.get("TERM") in (None, "", "dumb")):
            return
        text = escaped_lines(text).replace("\n", " ")
        while width(text) > self.columns - 1:
            text = text.rpartition(" · ")[0] or text[:-1]
        self._status = True  # before it is written, as Ctrl-C may come meanwhile
        with suppress(OSError, UnicodeEncodeError):
            self.out.write(_CLEAR + self.paint("note", text))
            self.out.flush()

    def clear_status(self) -> None:
        """Take that line away."""
        if self._status:
            self._status = False
            with suppress(OSError):
                self.out.write(_CLEAR)
                self.out.flush()


class Bytes:
    """A screen as a file of UTF-8 bytes."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> int:
        """Write some of it."""
        self._screen.write(self._decoder.decode(data))
        return len(data)
