"""Object stores by pyarrow alone, for workers that have neither fsspec nor its drivers: reads and plain writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ArrowFiles:
    """The part of an fsspec filesystem that tasks need, over one of pyarrow."""

    protocol = ("arrow",)

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of an object, or of its range [start, end)."""
        with self._fs.open_input_file(path) as file:
            begin = start or 0
            stop = file.size() if end is None else min(end, file.size())
            data: bytes = file.read_at(max(0, stop - begin), begin)
            return data

    def size(self, path: str) -> int:
        """Return the size of an object; raises FileNotFoundError."""
        info = self._fs.get_file_info(path)
        if not info.is_file:
            raise FileNotFoundError(path)
        return int(info.size)

    def pipe_file(self, path: str, data: bytes) -> None:
        """Write an object."""
        with self._fs.open_output_stream(path) as file:
            file.write(data)

    def open(self, path: str, mode: str) -> Any:
        """Open an object for writing."""
        assert mode == "wb", mode
        return self._fs.open_output_stream(path)

    def rm_file(self, path: str) -> None:
        """Leave the object where it is: pyarrow would put one for the folder; the driver deletes what failed."""


# Options of s3fs that pyarrow has as well, or that change nothing about what is written.
_KNOWN = {"key", "username", "secret", "password", "token", "anon", "endpoint_url", "client_kwargs"}
_IDLE = {"config_kwargs", "use_ssl", "use_listings_cache", "skip_instance_cache", "default_block_size"}
_CLIENT = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token", "endpoint_url", "region_name"}


def arrow_files(url: str, options: Mapping[str, Any]) -> tuple[ArrowFiles, str] | None:
    """Return the filesystem of a URL by the options of its fsspec driver, and the path in it; None for unknown ones."""
    protocol, _, root = url.partition("://")
    client: Mapping[str, Any] = options.get("client_kwargs") or {}
    if protocol not in ("s3", "s3a") or not set(options) <= _KNOWN | _IDLE or not set(client) <= _CLIENT:
        return None
    from pyarrow.fs import S3FileSystem

    endpoint = str(options.get("endpoint_url") or client.get("endpoint_url") or "")
    scheme, _, host = endpoint.rpartition("://")
    found = {
        "access_key": options.get("key") or options.get("username") or client.get("aws_access_key_id"),
        "secret_key": options.get("secret") or options.get("password") or client.get("aws_secret_access_key"),
        "session_token": options.get("token") or client.get("aws_session_token"),
        "anonymous": options.get("anon"),
        "region": client.get("region_name"),
        "endpoint_override": host,
        "scheme": scheme,
    }
    return ArrowFiles(S3FileSystem(**{name: value for name, value in found.items() if value})), root
