"""The command line from its arguments to its exit code."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from kartosql.cli import messages
from kartosql.cli.options import command_parser, parse_demo, parse_options
from kartosql.cli.signals import INTERRUPTED, Terminated, end_on_signals, raise_on_ctrl_c
from kartosql.errors import KartosqlError


def run(arguments: Sequence[str] | None) -> int:
    """Run a command line, None is the one of the process, and return its exit code.

    Nothing is raised: errors are told on stderr.
    """
    if arguments is None:
        # numpy is optional for pyarrow, and takes a third of the time of a small query to import.
        sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]
        # What is imported stays, so there is little to find for the collector of cycles.
        gc.set_threshold(200_000, 20, 20)
    given = sys.argv[1:] if arguments is None else list(arguments)
    messages.debug("--debug" in given)
    with messages.warnings_on_stderr():
        try:
            _run(given)
            sys.stdout.flush()
            return messages.FINE
        except SystemExit as e:
            return e.code if isinstance(e.code, int) else messages.FINE
        except Terminated as e:
            messages.say("terminated")
            return 128 + e.number
        except KeyboardInterrupt:
            messages.say("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            # Whoever reads, as head does, has enough.
            from kartosql.cli.output import drop_stdout

            drop_stdout()
            return messages.FINE
        except KartosqlError as e:
            return messages.report(e)
        except Exception as e:  # noqa: BLE001
            from kartosql.failures import failure_of

            found = failure_of(e)
            return messages.report_bug(e) if found is None else messages.report(found)


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["--complete"]:
        from kartosql.cli.completion import lines

        print("\n".join(lines(command_parser(), arguments[1:])))
        return
    if arguments[:1] == ["demo"]:
        folder = parse_demo(arguments[1:])
        from kartosql.cli.demo import run_demo

        end_on_signals()
        raise_on_ctrl_c()
        run_demo(folder)
        return
    options = parse_options(arguments)
    if not options.sources and sys.stdin is not None and sys.stdin.isatty():
        from kartosql.cli.repl.start import run_shell

        raise_on_ctrl_c()
        run_shell(options)
        return
    from kartosql.cli.batch import run_batch

    end_on_signals()
    raise_on_ctrl_c()
    run_batch(options)
