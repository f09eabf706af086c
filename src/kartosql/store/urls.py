"""URLs of stores: which lie below another one, whatever way both are written, and the filesystems behind them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any
from urllib.parse import unquote

from kartosql.errors import StoreError, closest, first_line
from kartosql.text.secrets import harmless

_LOCAL = ("file", "local")
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
_WEB = ("http", "https")
# Their drivers remember listings for ever, and believe them when they are asked for a file or its size.
_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "azure"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
}
CONNECTIONS = 64
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError", "TokenRetrievalError")
_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the storage options key and "
    "secret; for public buckets the storage option anon=true."
}


def is_local_url(url: str) -> bool:
    """Return whether a URL or path is one of a local disk."""
    scheme, mark, _ = url.partition("://")
    return "::" not in url and (not mark or scheme.lower() in _LOCAL)


def is_encodable(url: str) -> bool:
    """Return whether the names of files of this machine can spell a URL or path."""
    try:
        os.fsencode(url)
    except UnicodeEncodeError:
        return False
    return True


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
    return inner is not None and outer is not None and inner[: len(outer)] == outer


def _place(url: str) -> tuple[str, ...] | None:
    """Return the scheme of a URL, host or bucket, and the folders below it; None where that is in doubt."""
    if not url or "::" in url or any(char < " " or char == "\x7f" for char in url):
        return None
    if is_local_url(url):
        path = os.path.realpath(path_of(url))
        return ("file", *filter(None, path.split(os.sep)))
    scheme, _, rest = url.partition("://")
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    if "\\" in rest:
        return None  # a slash to some readers of URLs
    if scheme in _WEB:
        host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
        rest = host.rpartition("@")[2].lower() + slash + unquote(path)
    if _is_doubtful(rest):
        return None
    return (scheme, *(rest.rstrip("/").split("/") if rest.strip("/") else ()))


def _is_doubtful(path: str) -> bool:
    """Return whether whoever reads a path may take it for another one."""
    while True:
        if "\\" in path or any(part in (".", "..") for part in path.split("/")):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded


# -- the filesystem of a URL -------------------------------------------------------------------


def filesystem_of(url: str, options: Mapping[str, Any], *, without_driver: bool = False) -> tuple[Any, str]:
    """Return the filesystem of a URL, None for local disks, and the path in it; raises ``store-failed``.

    ``without_driver`` takes one of pyarrow where that of fsspec is not installed.
    """
    if "://" not in url and "::" not in url:
        if options:
            raise StoreError(f"A local path takes no storage options, but {sorted(options)[0]!r} was given.")
        return None, os.path.abspath(os.path.expanduser(url))
    if url.partition("://")[0] in _EXTRAS and "::" not in url:
        options = {**options, "use_listings_cache": False}
        if _EXTRAS[url.partition("://")[0]] == "s3":
            # Ten connections are what the client opens otherwise.
            config = {"max_pool_connections": CONNECTIONS, **(options.get("config_kwargs") or {})}
            options["config_kwargs"] = config
    try:
        from fsspec.core import url_to_fs

        filesystem, root = url_to_fs(url, **options)
    except Exception as e:  # noqa: BLE001 - drivers raise anything
        if without_driver and isinstance(e, ImportError):
            from kartosql.store.remote import arrow_files

            if (found := arrow_files(url, options)) is not None:
                return found
        why = harmless(e, dict(options))
        raise not_opened(url, why) from why
    return (None if "file" in protocols_of(filesystem) else filesystem), root


def protocols_of(filesystem: Any) -> tuple[str, ...]:
    """Return the names that a filesystem of fsspec gives itself."""
    return (filesystem.protocol,) if isinstance(filesystem.protocol, str) else tuple(filesystem.protocol)


def not_opened(url: str, error: Exception) -> StoreError:
    """Return the error about a store of which the driver cannot be used."""
    protocol = _protocol_of(url)
    extra = _EXTRAS.get(protocol)
    if isinstance(error, ImportError):
        return StoreError(
            f"Cannot open the store {url!r}: the driver of {protocol}:// is not installed.",
            code="missing-extra",
            hint=f"pip install 'kartosql[{extra}]'" if extra else first_line(error),
        )
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return StoreError(
            f"Cannot open the store {url!r}: there is no driver of {protocol}://.", hint=_protocol_hint(protocol)
        )
    return StoreError(f"Cannot open the store {url!r}: {first_line(error)}")


def no_answer(url: str, action: str, error: BaseException, told: BaseException) -> StoreError:
    """Return the error about a call of a driver that failed, with how credentials are given if it is them it misses.

    ``told`` is ``error`` as it may be shown.
    """
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ in _NO_CREDENTIALS:
            hint = _CREDENTIALS.get(_EXTRAS.get(_protocol_of(url), ""))
            return StoreError(f"{action}: {told}", code="access-denied", hint=hint)
        seen = seen.__cause__ or seen.__context__
    return StoreError(f"{action}: {told}")


def _protocol_of(url: str) -> str:
    return url.partition("://")[0].partition("::")[0].lower()


def _protocol_hint(protocol: str) -> str:
    from fsspec import available_protocols

    close = closest(protocol, ["s3", "abfs", "gs", "file", *available_protocols()])
    listed = "Protocols are s3://, abfs://, gs://, http:// and others of fsspec; local folders are written as paths."
    return f"Did you mean {close}://? {listed}" if close else listed


def way_out(root: str) -> str:
    """Return what to do about a local store that is no folder: take the one of a file, or one of a name like it."""
    if os.path.isfile(root):
        return f"A store is a folder. That of this file is {os.path.dirname(root)!r}, where its rows are a table."
    begin = "To begin a new store: connect(..., read_only=False) in Python, --write on the command line."
    close = similar_folder(root)
    if close is None:
        return f"Check the path. {begin}"
    return f"Did you mean {close!r}? {'For a new store beside it, make its folder first.' if _is_slip(root) else begin}"


def may_begin(root: str) -> bool:
    """Return whether a new store may begin at a path, below a folder that holds nothing it is a slip of."""
    return not os.path.lexists(root) and os.path.isdir(os.path.dirname(root)) and not _is_slip(root)


def _is_slip(root: str) -> bool:
    """Return whether a path is nearly that of a folder beside it, in more than digits: ``sales2`` is not ``sales3``."""
    close = similar_folder(root, 0.8)
    return close is not None and re.sub(r"\d", "", close) != re.sub(r"\d", "", root)


def similar_folder(root: str, cutoff: float = 0.6) -> str | None:
    """Return the folder that stands beside a path and has a name like it, if there is one."""
    folder, name = os.path.split(root)
    with contextlib.suppress(OSError), os.scandir(folder or "/") as entries:
        if close := closest(name, (entry.name for entry in islice(entries, 1_000) if entry.is_dir()), cutoff):
            return os.path.join(folder, close)
    return None
