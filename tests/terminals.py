"""Pseudo-terminals whose processes start without a fork of the process that runs the tests."""

from __future__ import annotations

import os
import termios
from collections.abc import Mapping
from typing import Any

import pexpect
import ptyprocess


class Spawn(pexpect.spawn):
    """Starts its process by ``posix_spawn``: in a fork, libraries run handlers of theirs, and gRPC's may hang."""

    def _spawnpty(
        self, args: list[str], *, env: Mapping[str, str] | None, dimensions: tuple[int, int] = (24, 80), **_: Any
    ) -> ptyprocess.PtyProcess:
        ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, dimensions)
        # The first terminal that the leader of a new session opens is the one that controls it.
        opened = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(theirs), os.O_RDWR, 0)
        actions = [opened, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
        try:
            pid = os.posix_spawn(args[0], args, os.environ if env is None else env, file_actions=actions, setsid=True)
        finally:
            os.close(theirs)
        return ptyprocess.PtyProcess(pid, ours)
