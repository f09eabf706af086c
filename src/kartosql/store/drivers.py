"""The drivers of fsspec: what is missing where one cannot be used, and what helps."""

from __future__ import annotations

import difflib

from kartosql.errors import StoreError

_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "azure"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
}
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError", "TokenRetrievalError")
_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the storage options key and "
    "secret; for public buckets the storage option anon=true.",
}


def protocol_of(url: str) -> str:
    """Return the protocol of a URL, the outermost of several."""
    return url.partition("://")[0].partition("::")[0].lower()


def not_opened(url: str, error: Exception) -> StoreError:
    """Return the error about a store of which the driver cannot be used."""
    protocol = protocol_of(url)
    extra = _EXTRAS.get(protocol)
    if isinstance(error, ImportError):
        return StoreError(
            f"Cannot open the store {url!r}: the driver of {protocol}:// is not installed.",
            code="missing-extra",
            hint=f"pip install 'kartosql[{extra}]'" if extra else _first_line(error),
        )
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return StoreError(f"Cannot open the store {url!r}: there is no driver of {protocol}://.", hint=_known(protocol))
    return StoreError(f"Cannot open the store {url!r}: {_first_line(error)}")


def no_answer(url: str, action: str, error: BaseException, told: BaseException) -> StoreError:
    """Return the error about a call of a driver that failed, with how credentials are given if it is them it misses.

    ``told`` is what may be shown of ``error``.
    """
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ in _NO_CREDENTIALS:
            hint = _CREDENTIALS.get(_EXTRAS.get(protocol_of(url), ""))
            return StoreError(f"{action}: {told}", code="access-denied", hint=hint)
        seen = seen.__cause__ or seen.__context__
    return StoreError(f"{action}: {told}")


def _first_line(error: BaseException) -> str:
    """Return the first line of what a driver says; some go on for pages."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _known(protocol: str) -> str:
    from fsspec import available_protocols

    close = difflib.get_close_matches(protocol, ["s3", "abfs", "gs", "file", *available_protocols()], 1)
    listed = "Protocols are s3://, abfs://, gs://, http:// and others of fsspec; local folders are written as paths."
    return f"Did you mean {close[0]}://? {listed}" if close else listed
