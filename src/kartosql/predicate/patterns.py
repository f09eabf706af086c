"""The texts that each match of a pattern contains: what is certain of LIKE and of regular expressions."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_PATTERN = 10_000  # characters
# What DuckDB and Java read alike of regular expressions; all else tells nothing.
_TOKEN = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])|(?P<some>\\[dDwWsSbBAzntrfv]|[.^$]|\[\^?(?:\\.|\[:\^?\w+:\]|[^\]\\\[])+\])"
    r"|(?P<open>\((?:\?:|(?!\?)))|(?P<close>\))|(?P<either>\|)|(?P<repeated>[*?]|\{\d+(?:,\d*)?\})[?]?|(?P<more>\+\??(?![*+?{]))"
    r"|(?P<letter>[^\\.^$|()\[\]{}*+?])",
    re.DOTALL,
)
_ANY_CASE = "(?i)"
_ASCII = re.compile(r"[\x00-\x7f]+")


class Pieces(NamedTuple):
    """The ``parts`` that a match contains; ``begin`` is what it begins with, the case of letters counts not if told."""

    begin: str
    parts: tuple[str, ...]
    any_case: bool = False


def of_like(pattern: str, escape: str | None = None, *, any_case: bool = False) -> Pieces | None:
    """Return what a match of LIKE contains, None for patterns that are none; without ``begin`` it is not anchored."""
    runs: list[str] = []
    run, at = "", 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == escape:
            at += 1
            if at == len(pattern):
                return None
            run += pattern[at]
        elif letter in "%_":
            runs.append(run)
            run = ""
        else:
            run += letter
        at += 1
    first, *others = *runs, run
    return Pieces(first, tuple(filter(None, others)), any_case)


def of_regex(pattern: str, *, is_whole: bool = False, any_case: bool = False) -> Pieces:
    """Return what a match of a regular expression contains, of the whole text if ``is_whole``.

    Nothing is taken of groups, and nothing at all where there are alternatives to the pattern.
    """
    nothing = Pieces("", ())
    any_case |= pattern.startswith(_ANY_CASE)
    pattern = pattern.removeprefix(_ANY_CASE)
    runs: list[str] = []
    run, depth = "", 0
    if len(pattern) > MAX_PATTERN:
        return nothing
    is_anchored = is_whole or pattern.startswith("^")
    at = int(pattern.startswith("^"))
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            return nothing
        at, kind = token.end(), token.lastgroup
        depth += (kind == "open") - (kind == "close")
        if depth < 0 or (kind == "either" and not depth):
            return nothing
        if depth or kind == "close":
            runs, run = [*runs, run], ""
        elif kind in ("letter", "escaped"):
            run += token[kind]
        else:  # what may be there several times, or not at all, ends a text in front of it or behind it
            runs, run = [*runs, run[:-1] if kind == "repeated" else run], ""
    first, *others = *runs, run
    begin, parts = (first, others) if is_anchored else ("", [first, *others])
    return nothing if depth else Pieces(begin, tuple(filter(None, parts)), any_case)


def ascii_runs(text: str) -> list[str]:
    """Return the longest parts of a text that are ASCII."""
    return _ASCII.findall(text)
