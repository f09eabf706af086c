"""The command line: options, and values in the form ``k=v``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kartosql import __version__
from kartosql.errors import UsageError, did_you_mean, shorten

FORMATS = (
    "box", "markdown", "vertical", "csv", "tsv", "unaligned", "json", "jsonl", "html", "parquet", "arrow", "none",
)  # fmt: skip
SHELLS = ("bash", "zsh", "fish")
_INTEGER = re.compile(r"-?(0|[1-9]\d*)")
_FLOAT = re.compile(r"-?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_PAIRS = "The option is repeated for each name."

_EPILOG = """\
Rows go to stdout, everything else to stderr. Several statements are separated by
semicolons; the first one that fails ends the run. On a terminal, without -c, -f and -,
it is an interactive shell.

  kartosql ./store                                  the shell
  kartosql demo [DIR]                               build a sample cube and query it
  kartosql serve URL                                serve it by Flight SQL, HTTP and MCP
  kartosql cube COMMAND URL CUBE                    look at a cube, copy, tidy or delete it
  kartosql ./store -c "SHOW TABLES"
  kartosql s3://bucket/store -c "SELECT * FROM sales WHERE x = $1" --param 1=5
  kartosql ./store -f report.sql -o report.parquet
  kartosql ./store -At -c "SELECT max(x) FROM sales"

exit codes: 0 fine, 1 statement failed, 2 usage or config, 3 store or connection,
4 timeout or budget, 70 a bug of kartosql, 130 interrupted
"""


@dataclass(frozen=True)
class StatementSource:
    """Where statements come from: ``-c`` with their text, ``-f`` with a file, ``-`` for stdin."""

    kind: str
    value: str


@dataclass(frozen=True)
class Options:
    """What a command line asks for; without a ``url`` it is the shell, over no store yet."""

    url: str
    sources: list[StatementSource]
    format: str | None = None
    output: str | None = None
    partition_by: tuple[str, ...] = ()
    header: bool = True
    null: str | None = None
    separator: str | None = None
    cube: str = ""  # which commands of the shell mean if they name none
    stats: bool = False
    write: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    storage_options: dict[str, Any] = field(default_factory=dict)


class Parser(argparse.ArgumentParser):
    """A parser whose errors look like all others, with a hint of their own if there is one."""

    hint = ""

    def error(self, message: str) -> NoReturn:
        """Raise ``invalid-argument``, with an option or value that may be meant."""
        hint = self.hint or f"{self.prog} --help shows the options."
        if message.startswith("unrecognized arguments: "):
            known = [option for action in self._actions for option in action.option_strings]
            wrong = message.partition(": ")[2].split()[0].partition("=")[0]
        else:
            choices = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
            wrong, known = (choices[1], re.findall(r"\w+", choices[2])) if choices else ("", [])
        if meant := did_you_mean(wrong, known):
            hint = f"{meant} {hint}"
        raise UsageError(f"{message[:1].upper()}{message[1:]}.", hint=hint)


def parse_options(arguments: Sequence[str]) -> Options:
    """Return what a command line asks for, or raise ``invalid-argument``.

    Printing the help or the version ends in SystemExit, as argparse does it.
    """
    # Intermixed, as "URL -c SQL -" has an option between its two places.
    found = command_parser().parse_intermixed_args(list(arguments))
    places: list[str] = found.places
    if places[:1] == ["-"] or (not places and found.sources):
        raise UsageError("The store is missing.", hint="kartosql URL -c SQL; kartosql demo shows a sample cube.")
    if places[:1] == ["demo"]:
        raise UsageError(
            "demo takes no options but a folder, and stands first.", hint="A folder of that name is opened as ./demo."
        )
    if places[1:] not in ([], ["-"]):
        raise UsageError(f"Unexpected {places[1]!r}.", hint="Statements are given with -c SQL, -f FILE or - for stdin.")
    return options_of(found)


def options_of(found: argparse.Namespace) -> Options:
    """Return what the options of ``command_parser`` ask for; raises ``invalid-argument``."""
    places: list[str] = found.places
    if found.unaligned and found.format not in (None, "unaligned"):
        raise UsageError(f"-A and --format {found.format} do not go together.")
    settings = pairs("--set", found.set)
    settings |= {k: v for k in ("engine", "timeout", "max_bytes") if (v := getattr(found, k)) is not None}
    return Options(
        url=places[0] if places else "",
        sources=found.sources + [StatementSource("-", "-")] * max(0, len(places) - 1),
        format="unaligned" if found.unaligned else found.format,
        output=None if found.output == "-" else found.output,
        partition_by=tuple(found.partition_by.split(",")) if found.partition_by else (),
        header=not found.no_header,
        null=found.null_value,
        separator=None if found.separator is None else found.separator.replace("\\t", "\t"),
        stats=found.stats,
        write=found.write,
        parameters={k: value(v) for k, v in pairs("--param", found.param).items()},
        settings=settings,
        storage_options={k: _json_value(k, v) for k, v in pairs("--storage-option", found.storage_option).items()},
    )


def parse_demo(arguments: Sequence[str]) -> str:
    """Return the folder of ``kartosql demo [DIR]``."""
    parser = Parser(prog="kartosql demo", description="Build the sample cube flights and query it.")
    parser.add_argument("folder", metavar="DIR", nargs="?", default="kartosql-demo", help="default: ./kartosql-demo")
    folder: str = parser.parse_args(list(arguments)).folder
    return folder


def command_parser() -> Parser:
    """Return the parser of the command line, without that of ``demo``."""
    parser = Parser(
        prog="kartosql",
        usage="kartosql [options] [URL|PROFILE] [-c SQL | -f FILE | -] ...",
        description="Type SQL at Parquet files in a folder or a bucket: tables, cubes, datasets and lakes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    places = "folder, fsspec URL or profile; - behind it reads statements from stdin"
    add("places", metavar="URL", nargs="*", help=places)
    add("-c", metavar="SQL", dest="sources", action="append", default=[], type=_source("-c"), help="run statements")
    add("-f", metavar="FILE", dest="sources", action="append", type=_source("-f"), help="run the statements of a file")
    add("-o", metavar="FILE", dest="output", help="write the rows to a file or URL, by its suffix; - is stdout")
    add("--partition-by", metavar="COLUMNS", help="with -o a folder of files, by values of columns: a,b")
    add("--format", choices=FORMATS, help="default: box on a terminal, else csv with header")
    add("-t", "--no-header", action="store_true", help="rows without the names of their columns")
    add("-A", dest="unaligned", action="store_true", help="bare values with | between, as --format unaligned")
    add("--separator", metavar="TEXT", help="what stands between the values of csv, tsv and -A")
    add("--null-value", metavar="TEXT", help="what is shown for NULL")
    add("--param", metavar="K=V", action="append", default=[], help="parameter :K or $K; 1=V is $1 or the first ?")
    add("--engine", metavar="NAME", help="auto, duckdb or spark")
    add("--stats", action="store_true", help="tell on stderr what was read, one line of JSON per statement")
    add("--timeout", metavar="SECONDS", help="stop statements that run longer")
    add("--max-bytes", metavar="SIZE", help="refuse scans of more bytes, e.g. 2GiB")
    add("--write", action="store_true", help="allow statements that write")
    add("--debug", action="store_true", help="show tracebacks of errors, as KARTOSQL_DEBUG=1 does")
    add("--storage-option", metavar="K=V", action="append", default=[], help="option of the filesystem; V may be JSON")
    add("--set", metavar="NAME=VALUE", action="append", default=[], help="any other setting, e.g. memory_limit=4GB")
    printed = "print what bash, zsh or fish complete with"
    add("--completion", metavar="SHELL", choices=SHELLS, action=_Print, help=printed)
    add("--spec", nargs=0, action=_Print, help="print options, commands, settings and error codes as JSON")
    add("--version", action="version", version=f"kartosql {__version__}", help="show the version and exit")
    return parser


class _Print(argparse.Action):
    """Prints the completion of a shell, or the description of the command, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        from kartosql.cli import resources, spec

        sys.stdout.write(resources.completion(values) if values else spec.spec(parser) + "\n")
        parser.exit()


def _source(kind: str) -> Any:
    return lambda text: StatementSource("-" if (kind, text) == ("-f", "-") else kind, text)


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return the values by name of a repeated option ``K=V``."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, after = text.partition("=")
        if not equals or not name:
            shown = "a value" if option == "--storage-option" else repr(text)  # which may be a credential
            raise UsageError(f"{option}: {shown} is not of the form name=value.", hint=_PAIRS)
        if name in found:
            raise UsageError(f"{option}: {name!r} is given twice.", hint=_PAIRS)
        found[name] = after
    return found


def value(text: str) -> Any:
    """Return the value that ``text`` stands for.

    Whole numbers are int, decimal numbers float, ``true``, ``false`` and ``null`` are
    themselves, all else is text. Quotes around it make text of anything.
    """
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not (_INTEGER.fullmatch(text) or _FLOAT.fullmatch(text)):
        return text
    from kartosql.sql.tree import number_of  # not at the top: hardly any command line needs it

    number = number_of(text.removeprefix("-"))
    if number is None:
        raise UsageError(f"{shorten(text)} is too large a number.", hint="Quotes around it make it a text.")
    return -number if text.startswith("-") else number


def _json_value(name: str, text: str) -> Any:
    if text[:1] not in ("{", "["):
        return value(text)
    try:
        return json.loads(text)
    except ValueError as e:
        raise UsageError(
            f"--storage-option: the value of {name!r} is no JSON: {e}.", hint="Quotes around it make it a text."
        ) from None
