"""Partitions of a document as bytes, for documents as the originals write them: most commits copy most of them."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa

from kartosql.memo import memoized

KEPT_BYTES = 32 << 20  # of partitions, up to which labels and keys are kept beside them
_WINDOW = 1 << 19  # bytes that are read at once: what is made of them stays in the caches of the processor
_SEPARATOR = b'"}}, "'
_CONTROLS = bytes(c for c in range(32) if c != ord("\n"))
_NO_CONTROLS = bytes(range(32, 256))
_FOUND_ONE_BY_ONE = 16
_MOST_PROVEN = 64
# Of a table, where it lies, and the digest of its partitions: how many there are, and where all keys lie.
_proven: dict[tuple[str, str, str], tuple[int, str | None]] = {}
_SHORT = b"\1"  # which JSON does not hold


def prove(about: tuple[str, str, str], proof: tuple[int, str | None]) -> None:
    """Let partitions with such bytes be read without a look at each."""
    if len(_proven) >= _MOST_PROVEN:
        _proven.clear()
    _proven[about] = proof


def shortened(text: bytes, front: bytes) -> bytes:
    """Return a text of partitions without what is the same in all of them, and another one where they are moved."""
    return text.replace(front, _SHORT)


class StoredPartitions:
    """The partitions of a document in which each has one file, of the same table.

    They are ``data[start:end]``, the content of the braces of ``partitions``, followed by ``more``. Labels and keys
    hold neither quotes nor escapes, and no label occurs twice.
    """

    def __init__(self, table: str, data: bytes, start: int, end: int, more: bytes, count: int) -> None:
        self.table = table
        self.count = count
        self._place = (data, start, end, more)
        self.safe_below: str | None = None  # where all keys lie, once it is known that each is safe
        self._hashed: Any = None  # the text, once its digest was asked for

    @classmethod
    def read(cls, table: str, data: bytes, start: int, end: int) -> StoredPartitions:
        """Return the partitions of a document; raises ValueError for partitions in any other form."""
        found = cls(table, data, start, end, b"", 0)
        if _proven and data.find(_SHORT, start, end) < 0 and (proof := _proven.get(found._about)) is not None:
            found.count, found.safe_below = proof
            return found
        if end - start <= KEPT_BYTES:
            found.count = len(found.columns[0])
            different = len(set(found.columns[0]))
        else:
            hashes = array("q")
            for number, texts in enumerate(found.windows()):
                if not number:
                    found.safe_below = texts[1][0].partition("/")[0] + "/"
                if found.safe_below is not None and not are_plain(texts[1], found.safe_below):
                    found.safe_below = None
                hashes.extend(map(hash, texts[0]))
            found.count = len(hashes)
            different = len(pa.Array.from_buffers(pa.int64(), found.count, [None, pa.py_buffer(hashes)]).unique())
        if different != found.count:
            raise ValueError("a label occurs twice")
        return found

    @property
    def pieces(self) -> tuple[bytes | memoryview, ...]:
        """The bytes between the braces."""
        data, start, end, more = self._place
        return (memoryview(data)[start:end], *([more] if more else ()))

    @memoized
    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Labels and keys of files."""
        labels: list[str] = []
        keys: list[str] = []
        for some, files in self.windows():
            labels += some
            keys += files
        return tuple(labels), tuple(keys)

    @property
    def texts(self) -> tuple[Texts, Texts]:
        """Labels and keys of files, which are read when they are asked for."""
        return Texts(self, 0), Texts(self, 1)

    def windows(self) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        """Yield some labels and keys after the others; raises ValueError where the bytes have another form."""
        if "columns" in vars(self):
            yield self.columns
            return
        data, start, end, more = self._place
        middle = f'": {{"files": {{"{self.table}": "'.encode()
        yield from _windows(data, start, end, middle)
        if more:
            yield from _windows(more, 2, len(more), middle)

    @property
    def digest(self) -> str:
        """The digest of the bytes as of ``shortened``, which goes on where partitions are added."""
        if self._hashed is None:
            self._hashed = hashlib.sha256()
            data, at, end, more = self._place
            while at < end:
                stop = data.find(_SEPARATOR, at + _WINDOW, end)
                stop = end if stop < 0 else stop
                self._hashed.update(shortened(data[at:stop], self._front))
                at = stop
            self._hashed.update(shortened(more, self._front))
        return str(self._hashed.hexdigest())

    @memoized
    def _front(self) -> bytes:
        """Return what stands between a label and the rest of a key."""
        data, start, end, _ = self._place
        middle = f'": {{"files": {{"{self.table}": "'.encode()
        at = data.find(middle, start, end) + len(middle)
        return middle + data[at : data.find(b"/", at, end)] + f"/{self.table}/".encode()

    @property
    def _about(self) -> tuple[str, str, str]:
        return self.table, self._front.decode(), self.digest

    @property
    def is_ascii(self) -> bool:
        """Whether these are the bytes that encoding the partitions gives."""
        data, _, _, more = self._place
        return data.isascii() and more.isascii()

    @property
    def proof(self) -> tuple[tuple[str, str, str], tuple[int, str | None]]:
        """What need not be looked at again where the same bytes are read: the key and value for ``prove``."""
        return self._about, (self.count, self.safe_below)

    def with_more(self, added: Mapping[str, Mapping[str, str]]) -> StoredPartitions | None:
        """Return these partitions and behind them others, each with its files; None if they are not of this form."""
        if not added:
            return self
        labels, keys = tuple(added), tuple(files.get(self.table, '"') for files in added.values())
        new = self._entries(added)
        if new is None:
            return None
        data, start, end, more = self._place
        last = "".join(map(", ".__add__, new)).encode()
        more += last
        if len(more) > max(_WINDOW, (end - start) // 8):
            data, start, end, more = (both := data[start:end] + more), 0, len(both), b""
        made = StoredPartitions(self.table, data, start, end, more, self.count + len(new))
        if self.safe_below is not None and are_plain(keys, self.safe_below):
            made.safe_below = self.safe_below
        if "columns" in vars(self):
            vars(made)["columns"] = (self.columns[0] + labels, self.columns[1] + keys)
        if self._hashed is not None:
            made._hashed = self._hashed.copy()
            made._hashed.update(shortened(last, self._front))
        return made

    def _entries(self, added: Mapping[str, Mapping[str, str]]) -> list[str] | None:
        """Return the texts of partitions; None if they are not of this form, or there already."""
        keys = [files.get(self.table, '"') for files in added.values()]
        new = [json.dumps({label: {"files": dict(files)}})[1:-1] for label, files in added.items()]
        plain = "".join(map('"{}": {{"files": {{"{}": "{}"}}}}'.format, added, (self.table,) * len(new), keys))
        if "".join(new) != plain or plain.count('"') != 8 * len(new) or "\\" in plain or self._holds_any(tuple(added)):
            return None
        return new

    def changed(
        self,
        removed: Set[str],
        added: Mapping[str, Mapping[str, str]],
        positions: Mapping[str, str],
        columns: tuple[tuple[str, ...], tuple[str | None, ...]],
    ) -> StoredPartitions | None:
        """Return these partitions without some, and with others before the labels at their ``positions``, or last.

        ``columns`` are labels and keys then. None for many, and for those of another form.
        """
        places: dict[str, list[str]] = {label: [] for label in (*removed, *positions.values())}
        data, start, end, more = self._place
        is_small = len(places) <= _FOUND_ONE_BY_ONE and end - start + len(more) <= KEPT_BYTES
        new = self._entries(added) if is_small and columns[0] else None
        if new is None:
            return None
        last: list[str] = []
        for label, text in zip(added, new, strict=True):
            (places[positions[label]] if label in positions else last).append(text)
        whole, middle, cuts = data[start:end] + more, f'": {{"files": {{"{self.table}": "', []
        for label, texts in places.items():
            at = whole.find(f'"{label}{middle}'.encode())
            stop = whole.find(b'"}}', at + len(label) + len(middle)) + 3
            if at < 0:
                return None
            cuts.append(
                (at, stop, [*(text.encode() for text in texts), *([] if label in removed else [whole[at:stop]])])
            )
        runs, at = list[bytes](), 0
        for start, stop, entries in sorted(cuts):
            runs += [whole[at : max(at, start - 2)], *entries]
            at = stop + 2
        runs += [whole[at:], *(text.encode() for text in last)]
        data = b", ".join(filter(None, runs))
        made = StoredPartitions(self.table, data, 0, len(data), b"", len(columns[0]))
        if self.safe_below is not None and are_plain([f.get(self.table) for f in added.values()], self.safe_below):
            made.safe_below = self.safe_below
        vars(made)["columns"] = columns
        return made

    def _holds_any(self, labels: Sequence[str]) -> bool:
        data, start, end, more = self._place
        # The end of a label is that of a write, and found sooner than all of it.
        ends = [f'{label[-32:]}": {{"files"'.encode() for label in labels]
        if len(ends) <= _FOUND_ONE_BY_ONE and not any(
            data.find(text, start, end) >= 0 or text in more for text in ends
        ):
            return False
        return not set(labels).isdisjoint(self.columns[0])


def are_plain(keys: Sequence[Any], prefix: str) -> bool:
    """Return whether a few tests over all keys at once already show that each is safe."""
    try:
        joined = "\n" + "\n".join(keys)
    except TypeError:
        return False
    return (
        joined.isascii()
        and joined.count("\n") == joined.count("\n" + prefix) == len(keys)
        and len(joined.encode().translate(None, _CONTROLS)) == len(joined)
        and not any(bad in joined for bad in ("..", "/./", "/.\n", "://"))
        and max(map(len, keys), default=0) < 256
    )


class Texts(Sequence[str]):
    """The labels or keys of stored partitions, equal to a tuple of them."""

    def __init__(self, partitions: StoredPartitions, which: int) -> None:
        self.partitions = partitions
        self.which = which

    @property
    def all(self) -> tuple[str, ...]:
        """All of them."""
        return self.partitions.columns[self.which]

    def __len__(self) -> int:
        return self.partitions.count

    def __getitem__(self, at: Any) -> Any:
        return self.all[at]

    def __iter__(self) -> Iterator[str]:
        return iter(self.all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, Texts)) and self.all == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.all)


def digest_of(texts: Sequence[str | None]) -> str:
    """Return the digest of texts in their order, with a NUL between them; None stands for an empty one."""
    joined = "\0".join([text or "" for text in texts])
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def as_tuple(texts: Sequence[str | None]) -> tuple[str | None, ...]:
    """Return texts as a tuple, always the same one."""
    return texts.all if isinstance(texts, Texts) else tuple(texts)


def _windows(data: bytes, start: int, end: int, middle: bytes) -> Iterator[tuple[list[str], list[str]]]:
    while start < end:
        stop = data.find(_SEPARATOR, min(start + _WINDOW, end), end)
        stop = end - 3 if stop < 0 else stop
        some = data[start + 1 : stop]
        # Without the text between them, labels and keys are left, with marks that no text may hold.
        short = some.replace(middle, b"\1").replace(_SEPARATOR, b"\2")
        marks = short.translate(None, _NO_CONTROLS)
        if (
            data[start : start + 1] != b'"'
            or data[stop : stop + 3] != b'"}}'
            or marks != b"\1\2" * (len(marks) // 2) + b"\1"
            or any(byte in short for byte in (b'"', b"\\"))
            or any(byte in some for byte in (b"\1", b"\2"))
        ):
            raise ValueError("it has another form")
        texts = short.decode().replace("\2", "\1").split("\1")
        yield texts[0::2], texts[1::2]
        start = stop + 5
