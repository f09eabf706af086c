"""Rows that clients of Flight SQL take piece by piece: how long, and how many bytes of them, the server holds."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Self

import pyarrow as pa

from kartosql.errors import LimitError

SECONDS = 30.0  # in which a client has to take the next piece
BYTES = 1_000_000_000  # of all results that are held; one alone may have more
OPEN = 1_000  # results of a client, as each takes a thread until it is read or its client goes away
PIECE = 1_000_000  # bytes that are sent at a time, and are held as long as a client reads nothing
_NUMBERS = itertools.count()


class Unread:
    """The results that are being sent. Those that no one reads are dropped, so that nobody fills the memory by them."""

    def __init__(
        self, seconds: float = SECONDS, most: int = BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._most, self.clock = seconds, most, clock
        self._lock = threading.Lock()
        self._sent: weakref.WeakSet[_Sent] = weakref.WeakSet()  # one that ended goes by itself

    @property
    def bytes(self) -> int:
        """How many bytes are held."""
        return sum(sent.bytes for sent in list(self._sent))

    def pieces(self, table: pa.Table, client: object) -> _Sent:
        """Return an iterator of the rows of a table; raises ``too-many-statements`` if too many of a client are open.

        Going on with one that was dropped raises ``result-dropped``.
        """
        with self._lock:
            if sum(sent.client is client for sent in list(self._sent)) >= OPEN:
                message = f"{OPEN:,} results of this token are open."
                raise LimitError(message, code="too-many-statements", hint="Read them to their end, or close them.")
            sent = _Sent(table, client, self.clock)
            self._sent.add(sent)
        self.drop()
        return sent

    def drop(self) -> None:
        """Drop results that were not read for too long, and from the one unread the longest what is too much."""
        held = sorted((sent for sent in list(self._sent) if sent.bytes), key=lambda sent: (sent.at, sent.number))
        total = sum(sent.bytes for sent in held)
        for sent in held:
            if self.clock() - sent.at > self._seconds:
                reason = f"No rows were taken for {self._seconds:g} s."
            elif total > self._most and sent is not held[-1]:
                reason = f"More than {self._most:,} bytes wait to be read."
            else:
                continue
            total -= sent.bytes
            sent.drop(reason)

    def watch(self, end: threading.Event) -> None:
        """Drop what is not read until an event is set."""
        while not end.wait(self._seconds / 10):
            self.drop()


class _Sent:
    """An iterator of the pieces of one result, which has a ``schema``."""

    def __init__(self, table: pa.Table, client: object, clock: Callable[[], float]) -> None:
        self.client, self.bytes, self.number, self._clock = client, table.nbytes, next(_NUMBERS), clock
        self.schema: pa.Schema = table.schema
        self.at = clock()  # when it was read for the last time
        self._table: pa.Table | None = table
        self._sent = 0
        self._rows = max(1, table.num_rows * PIECE // max(1, self.bytes))
        self._reason = ""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.Table:
        self.at, table = self._clock(), self._table
        if table is None and self._reason:
            hint = "Ask again, and read the rows as they come."
            raise LimitError(f"{self._reason} The rest was dropped.", code="result-dropped", hint=hint)
        if table is None or self._sent >= table.num_rows:
            self.drop("")
            raise StopIteration
        piece = table.slice(self._sent, self._rows)
        self._sent += self._rows
        return piece if self._rows >= table.num_rows else _copied(piece)

    def drop(self, reason: str) -> None:
        """Hold no rows any more."""
        self._reason, self._table, self.bytes = reason, None, 0


def _copied(table: pa.Table) -> pa.Table:
    """Return rows that hold no buffers of the result which they are part of."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()
