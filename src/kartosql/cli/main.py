"""Entry point of the command: it imports nearly nothing before it knows what Ctrl-C means."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default the one of the process, and return its exit code.

    Nothing is raised: errors are told on stderr. Ctrl-C before anything is done ends the process at once, if it is
    the one of the command.
    """
    try:
        if arguments is None:
            from kartosql.cli.signals import end_at_once_on_ctrl_c

            end_at_once_on_ctrl_c()
        from kartosql.cli.command import run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # INTERRUPTED of cli.signals, whose import may be what was interrupted
    return run(arguments)
