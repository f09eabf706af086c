"""What is kept beside the user of a remote store: documents, and the ends of indices that they name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from kartosql.store.keys import Fetched, ObjectStamp, version_of
from kartosql.user_cache import UserCache

_DOCUMENT, _END = "document", "end-of-index"
_MAX_END = 1 << 18  # up to here the cache proves each byte


class KeptObjects:
    """Objects of one store in the cache beside the user, for whoever asks the store with the same options.

    A document is kept if its ETag is its MD5, which it never is where the owner of the store has it encrypted by a
    key, and used if a listing has the same ETag. The end of an index belongs to the very document that names its
    file: a file does not change before that. What is read of the file beyond it has to have the ETag that it had.
    """

    def __init__(self, cache: UserCache, url: str, options: Mapping[str, Any]) -> None:
        self._cache = cache
        self._place = [url, repr(sorted(options.items()))]
        self._proven: set[str] = set()  # versions of documents
        self._used: list[list[str]] = []  # names of ends

    def document(self, key: str, stamp: ObjectStamp) -> bytes | None:
        """Return the document in a listing, or None if it is not kept."""
        for found in self._cache.get(_DOCUMENT, [*self._place, key, stamp.etag]) or ():
            if hashlib.md5(found, usedforsecurity=False).hexdigest() == stamp.etag:
                data = bytes(found)
                self._proven.add(version_of(data).token)
                return data
        return None

    def keep_document(self, key: str, data: bytes, proof: ObjectStamp | None) -> None:
        """Keep a document that was read, if its ETag proves it."""
        if proof is not None and proof.modified is None:
            self._proven.add(version_of(data).token)
            self._cache.put(_DOCUMENT, [*self._place, key, proof.etag], [data])

    def end(self, key: str, version: str) -> Fetched | None:
        """Return the end of an index that is named by a version of a document, None if it is not kept."""
        name = [*self._place, key, version]
        found = self._cache.get(_END, name) if version in self._proven else None
        if found is None or len(found) != 3:
            return None
        start, etag, data = map(bytes, found)
        self._used.append(name)
        begin = int.from_bytes(start, "little")
        return Fetched(data, begin, begin + len(data), etag.decode("latin-1"))

    def keep_end(self, key: str, version: str, end: Fetched) -> None:
        """Keep the end of an index that is named by a version of a document."""
        if version in self._proven and end.etag and len(end.data) < _MAX_END:
            buffers = [end.start.to_bytes(8, "little"), end.etag.encode("latin-1", "replace"), end.data]
            self._cache.put(_END, [*self._place, key, version], buffers)

    def forget_ends(self) -> None:
        """Drop the ends that were used, as one of them may be that of another file."""
        while self._used:
            self._cache.put(_END, self._used.pop(), [])
