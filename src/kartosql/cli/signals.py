"""What Ctrl-C and the signals that end a process do to the command. It imports nearly nothing."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130  # the exit code


def end_at_once_on_ctrl_c() -> None:
    """Let SIGINT end the process while modules are imported, where KeyboardInterrupt is lost or shown as it is.

    ``raise_on_ctrl_c`` ends that. Whoever has the signal ignored, as shells do behind ``&``, is not asked.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)


def end_at_once(number: int, frame: FrameType | None) -> None:
    """End the process as interrupted."""
    # Nothing is open yet, and nothing of the interpreter can be relied on in the middle of an import.
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(INTERRUPTED)


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
