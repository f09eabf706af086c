"""Whether a URL lies below another one, whatever way both are written."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import unquote

_LOCAL = ("file", "local")
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
_WEB = ("http", "https")


class _Place(NamedTuple):
    """A URL as its scheme, and host or bucket with the folders below it."""

    scheme: str
    parts: tuple[str, ...]


def is_local_url(url: str) -> bool:
    """Return whether a URL or path is one of a local disk."""
    scheme, mark, _ = url.partition("://")
    return "::" not in url and (not mark or scheme.lower() in _LOCAL)


def path_of(url: str) -> str:
    """Return the absolute path of a local URL or path; links in it stay."""
    return os.path.abspath(os.path.expanduser(url.partition("://")[2] if "://" in url else url))


def is_below(url: str, root: str) -> bool:
    """Return whether a URL or local path is ``root``, or lies below it; False where that is in doubt.

    Local paths are compared without their links. Names of other stores are compared as they are
    written, but for the case of schemes and web hosts; a URL of several stores (``zip://x::...``),
    or with ``..``, ``.`` or a backslash in its path, even percent-encoded, lies below nothing.
    """
    inner, outer = _place(url), _place(root)
    if inner is None or outer is None or inner.scheme != outer.scheme:
        return False
    return inner.parts[: len(outer.parts)] == outer.parts


def _place(url: str) -> _Place | None:
    if not url or "::" in url or any(char < " " or char == "\x7f" for char in url):
        return None
    if is_local_url(url):
        path = os.path.realpath(path_of(url))
        return _Place("file", tuple(filter(None, path.split(os.sep))))
    scheme, _, rest = url.partition("://")
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    if "\\" in rest:
        return None  # a slash to some readers of URLs
    if scheme in _WEB:
        host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
        rest = host.rpartition("@")[2].lower() + slash + unquote(path)
    if _is_doubtful(rest):
        return None
    return _Place(scheme, tuple(rest.rstrip("/").split("/")) if rest.strip("/") else ())


def _is_doubtful(path: str) -> bool:
    """Return whether whoever reads a path may take it for another one."""
    while True:
        if "\\" in path or any(part in (".", "..") for part in path.split("/")):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded
