"""The command line from its arguments to its exit code."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from kartosql.cli import output
from kartosql.cli.main import INTERRUPTED, end_at_once
from kartosql.cli.options import command_parser, parse_demo, parse_options


class Terminated(KeyboardInterrupt):
    """Ends the command as Ctrl-C does; ``number`` is that of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def run(arguments: Sequence[str] | None, answer: bytes | None = None) -> int:
    """Run a command line, None is the one of the process, and return its exit code.

    ``answer`` is what is left to print of what is known already. Nothing is raised: errors go to stderr.
    """
    if arguments is None:
        # numpy is optional for pyarrow, and takes a third of the time of a small query to import.
        sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]
        # What is imported stays, so there is little to find for the collector of cycles.
        gc.set_threshold(200_000, 20, 20)
    given = sys.argv[1:] if arguments is None else list(arguments)
    output.debug("--debug" in given)
    with output.telling_warnings(output.say):
        try:
            if answer is None:
                _run(given)
            else:
                with output.opened(None) as out:
                    out.write(answer)
            if sys.stdout is not None:
                sys.stdout.flush()
        except SystemExit as e:
            return e.code if isinstance(e.code, int) else output.FINE
        except Terminated as e:
            output.say("terminated")
            return 128 + e.number
        except KeyboardInterrupt:
            output.say("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            output.drop_stdout()  # whoever reads, as head does, has enough
        except Exception as e:  # noqa: BLE001
            error = output.translated(e)
            output.say("\n".join([*output.traced(error), *output.described(error)]))
            return output.exit_code(error)
        return output.FINE


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["--complete"]:
        from kartosql.cli.spec import lines

        print("\n".join(lines(command_parser(), arguments[1:])))
        return
    if arguments[:1] == ["demo"]:
        folder = parse_demo(arguments[1:])
        from kartosql.cli.demo import run_demo

        end_on_signals()
        raise_on_ctrl_c()
        run_demo(folder)
        return
    if arguments[:1] == ["serve"]:
        from kartosql.serve.command import serve

        raise_on_ctrl_c()
        serve(arguments[1:])
        return
    if arguments[:1] == ["cube"]:
        from kartosql.cli.cube import parse_cube, run_cube

        asked = parse_cube(arguments[1:])
        options = asked.options
        if not asked.is_session:
            end_on_signals()
            raise_on_ctrl_c()
            run_cube(asked)
            return
    else:
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
