"""A terminal of its own for the shell: pexpect runs it, pyte shows what is on the screen."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import pexpect
import pyte

from terminals import Spawn

SUMMARY = r"rows? in \d+\.\d{3} s"  # below a result, however long it took


class Terminal:
    """A process in a terminal; without ``answers`` it leaves the queries of programs unanswered."""

    def __init__(
        self, *arguments: str, columns: int = 100, lines: int = 30, answers: bool = True, **environment: str
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000)
        if answers:
            self.screen.write_process_input = self.send  # type: ignore[method-assign]
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "PAGER", "COLORFGBG")}
        env |= {"TERM": "xterm-256color", "LESS": "", "KARTOSQL_PAGER": "cat", **environment}
        self.process = Spawn(
            sys.executable,
            ["-m", "kartosql", *arguments],
            dimensions=(lines, columns),
            env=env,  # type: ignore[arg-type]
            timeout=120,
        )
        # Ctrl-C and the like are typed, not swallowed by a pause of pexpect.
        self.process.delaybeforesend = None

    def send(self, text: str) -> None:
        """Type something."""
        self.process.send(text.encode())

    def paste(self, text: str) -> None:
        """Paste something, as a terminal with bracketed paste does."""
        self.send(f"\x1b[200~{text}\x1b[201~")

    def resize(self, columns: int, lines: int) -> None:
        self.process.setwinsize(lines, columns)
        self.screen.resize(lines, columns)

    @property
    def display(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    @property
    def text(self) -> str:
        """What was on the screen and is."""
        width = self.screen.columns
        above = ["".join(row[i].data for i in range(width)).rstrip() for row in self.screen.history.top]
        return "\n".join([*above, self.display])

    def read(self, seconds: float = 0.05) -> None:
        try:
            data = self.process.read_nonblocking(65536, seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        self.raw += data
        self.stream.feed(data)

    def until(self, found: str | Callable[[], Any], seconds: float = 120) -> Any:
        """Read until a text is on the screen, or something holds."""
        holds = (lambda: found in self.display) if isinstance(found, str) else found
        end = time.monotonic() + seconds
        while True:
            self.read()
            answer = holds()
            if answer:
                return answer
            if time.monotonic() > end or not self.process.isalive():
                self.read()
                if answer := holds():
                    return answer
                raise AssertionError(f"{found!r} is not there:\n{self.text}")

    def ready(self) -> Terminal:
        """Wait for the prompt and for the metadata behind it."""
        self.until(lambda: "tables · mode" in self.display)
        return self

    def run(self, text: str, wanted: str | None = None) -> str:
        """Type a statement, press Enter, and return what is on the screen when ``wanted`` is, or a summary."""
        pattern = SUMMARY if wanted is None else re.escape(wanted)
        count = len(re.findall(pattern, self.text))
        self.send(text + "\r")
        self.until(lambda: len(re.findall(pattern, self.text)) > count)
        # What is typed before the prompt is there, is not typed into it.
        self.until(lambda: any(line.endswith(">") for line in [x for x in self.display.split("\n") if x][-2:]))
        return self.text

    def ended(self) -> int | None:
        """Wait for the end and return the exit code."""
        end = time.monotonic() + 120
        while self.process.isalive() and time.monotonic() < end:
            self.read()
        self.process.close()
        return self.process.exitstatus

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close(force=True)
