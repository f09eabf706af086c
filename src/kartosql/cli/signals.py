"""Being asked to end: files that are half written go away, as after Ctrl-C."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

from kartosql.cli.main import end_at_once


class Terminated(KeyboardInterrupt):
    """Ends the command as Ctrl-C does; ``number`` is that of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP raise Terminated, unless whoever started the process ignores them, as nohup does."""
    if sys.platform == "win32":
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _raise)


def raise_on_ctrl_c() -> None:
    """Let SIGINT raise KeyboardInterrupt again, if the entry point has let it end the process."""
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(number)
