"""Credentials in text: what is shown of URLs, and of whatever else a driver says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "***"
_SHORTEST = 4  # what is shorter would be found everywhere
# Patterns are compiled when a text first needs them, which few do: all of them take 7 ms.
# Up to a blank, a double quote or the next URL of a chain; names in brackets are addresses of version 6.
_URL = r"([A-Za-z][A-Za-z0-9+.-]*)://((?:\[[0-9A-Fa-f:.]*\]|(?!::)[^\s\"<>])*)"
_PORT = r":(?!\d*(?:[/?#,.'\])]|$))"  # a colon with something else than a port behind it
_TOKENS = ("http", "https", "ftp", "git")  # schemes with one secret before the @, where others have names there
_QUERY = r"(?<==)[^&;#\s\"]+?(?=['\").,\]}]*(?:[&;#\s]|$))"
_NAME = (
    r"account_?key|shared_?access_?key|shared_?access_?signature|aws_?secret_?access_?key|secret(?:_?access)?_?key"
    r"|client_?secret|secret|passwd|password|pwd|(?:access_?|refresh_?|session_?|sas_?|security_?)?token|api_?key"
    r"|x-amz-(?:signature|security-token|credential)|connection_?string|credentials?|sig"
)
# Not behind a slash: folders of partitions have names and values, too.
_ASSIGNED = rf"(?i)(?<![\w/])(?:{_NAME})=([^&;,\s'\"]+)"
_MAPPED = rf"(?i)(['\"])(?:{_NAME}|key)\1\s*:\s*(['\"])((?:(?!\2)[^\\]|\\.)+)\2"
_SECRET_NAME = rf"(?i)(?:.*[_-])?(?:{_NAME}|key|sas|auth(?:orization)?)"


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text with ``***`` for credentials: in URLs, behind telling names, and ``secrets`` themselves."""
    return _replaced(text, secrets, lambda hidden: HIDDEN)


def masked(text: str) -> str:
    """Return a text with a star for each character of credentials, so that places in it stay the same."""
    return _replaced(text, (), lambda hidden: "*" * len(hidden))


def harmless(error: Exception, options: Mapping[str, Any]) -> Exception:
    """Return an error of a driver if neither it nor its causes show credentials, else another one in its place.

    ``options`` are those of the filesystem.
    """
    secrets = list(secrets_in(options))
    at: BaseException | None = error
    while at is not None:
        if redacted(str(at), secrets) != str(at):
            return OSError(redacted(f"{type(error).__name__}: {error}", secrets))
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return error


def secrets_in(options: Any, *, named: bool = False) -> Iterator[str]:
    """Yield the texts in options of a filesystem, however deep, whose names say that they are secret."""
    if isinstance(options, str | bytes):
        text = options if isinstance(options, str) else options.decode("utf-8", "replace")
        if named and len(text) >= _SHORTEST:
            yield text
    elif isinstance(options, Mapping):
        for name, value in options.items():
            secret = named or re.fullmatch(_SECRET_NAME, str(name)) is not None
            yield from secrets_in(value, named=secret)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from secrets_in(value, named=named)


def _replaced(text: str, secrets: Iterable[str], hide: Callable[[str], str]) -> str:
    pieces: list[str] = []
    at = end = 0
    for start, stop in sorted(_spans(text, secrets)):
        if start > end or not pieces:
            pieces += [hide(text[at:end]) if end else "", text[end:start]]
            at = start
        end = max(end, stop)
    return "".join([*pieces, hide(text[at:end]), text[end:]]) if pieces else text


def _spans(text: str, secrets: Iterable[str]) -> Iterator[tuple[int, int]]:
    for secret in secrets:
        yield from (m.span() for m in re.finditer(re.escape(secret), text))
    if "=" in text or ":" in text:
        yield from (m.span(1) for m in re.finditer(_ASSIGNED, text))
        yield from (m.span(3) for m in re.finditer(_MAPPED, text))
    if "://" in text:
        for match in re.finditer(_URL, text):
            yield from _spans_of_url(match[1].lower(), match[2], match.start(2))


def _spans_of_url(scheme: str, rest: str, start: int) -> Iterator[tuple[int, int]]:
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    at = authority.rfind("@")
    if ":" in authority[: max(at, 0)] or (at < 0 and re.search(_PORT, authority)):
        at = rest.rfind("@")  # a password that nobody encoded may hold anything
    if at > 0 and (":" in rest[:at] or scheme in _TOKENS):
        yield start, start + at
    query = rest.find("?", max(at, 0))
    hash_ = rest.find("#", max(at, 0))
    begin = min((p for p in (query, hash_) if p >= 0), default=-1)
    if begin < 0:
        return
    found = False
    for value in re.compile(_QUERY).finditer(rest, begin):
        found = True
        yield start + value.start(), start + value.end()
    if not found and query >= 0 and "=" not in rest[query:]:
        bare = rest[query + 1 :].rstrip("'\").,]}")
        yield start + query + 1, start + query + 1 + len(bare)
