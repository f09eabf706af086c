"""Files from one store to another."""

from __future__ import annotations

from kartosql.errors import FormatError
from kartosql.store import Store

CHUNK_BYTES = 4 << 20


def copy_file(source: Store, target: Store, keys: tuple[str, str]) -> None:
    """Copy the first of two keys to the second; raises ``missing-file``."""
    old, new = keys
    try:
        size = source.size(old)
        with target.output(new, sync_folders=False) as out:
            if size is None:
                out.write(source.read(old))
                return
            for start in range(0, size, CHUNK_BYTES):
                out.write(source.read(old, start=start, end=min(size, start + CHUNK_BYTES)))
    except KeyError:
        raise FormatError(
            f"The file {old!r} is missing.", code="missing-file", hint="CHECK lists such files."
        ) from None
