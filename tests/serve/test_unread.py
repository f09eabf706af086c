"""Rows that clients of Flight SQL ask for and do not read: held for a time, and up to a number of bytes."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.client import HTTPConnection
from types import SimpleNamespace

import pyarrow as pa
import pytest

from kartosql.errors import KartosqlError
from kartosql.result import Query
from kartosql.serve import http, unread
from kartosql.serve.service import Service
from kartosql.serve.unread import PIECE, SECONDS, Unread


class _Clock:
    now = 0.0

    def __call__(self):
        return self.now


def _zeros(count):
    """Return a table of so many bytes, which takes no memory before it is read."""
    return pa.table({"a": pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(bytes(count))])})


def _code(pieces):
    with pytest.raises(KartosqlError) as caught:
        next(pieces)
    return caught.value.code


def test_pieces_are_the_rows_of_the_result_and_hold_no_others():
    held = Unread()
    words = pa.array(["a", None, "bc"] * 300_000)
    table = pa.table({"i": range(900_000), "s": words, "d": words.dictionary_encode(), "l": [[1]] * 900_000})
    for asked in (table, table.slice(3, 5), table.slice(0, 0)):
        pieces = list(held.pieces(asked, "one"))
        assert pa.concat_tables(pieces or [asked]).to_pydict() == asked.to_pydict()
        assert all(piece.get_total_buffer_size() < 2 * PIECE for piece in pieces if asked is table)
    assert held.bytes == 0


def test_rows_that_no_one_takes_for_a_time_are_dropped_and_reading_on_is_an_error():
    clock = _Clock()
    held = Unread(clock=clock)
    slow, stuck = held.pieces(_zeros(5 * PIECE), "one"), held.pieces(_zeros(5 * PIECE), "one")
    for _ in range(3):
        clock.now += SECONDS
        assert next(slow).num_rows == PIECE
        held.drop()
    assert held.bytes == 5 * PIECE  # of the one that is read slowly, but read
    assert _code(stuck) == "result-dropped"
    assert [piece.num_rows for piece in slow] == [PIECE] * 2
    assert held.bytes == 0


def test_above_a_number_of_bytes_the_results_that_were_not_read_the_longest_are_dropped():
    clock = _Clock()
    held = Unread(most=10 * PIECE, clock=clock)
    found = []
    for _ in range(3):
        clock.now += 1
        found.append(held.pieces(_zeros(4 * PIECE), "one"))
    assert held.bytes == 8 * PIECE
    assert _code(found[0]) == "result-dropped"
    clock.now += 1
    next(found[1])
    alone = held.pieces(_zeros(20 * PIECE), "one")  # one may be larger than all may
    assert sum(piece.num_rows for piece in alone) == 20 * PIECE
    assert [_code(pieces) for pieces in found[1:]] == ["result-dropped"] * 2


def test_results_that_ended_or_whose_client_went_away_are_not_counted_and_too_many_of_a_client_refused(monkeypatch):
    monkeypatch.setattr(unread, "OPEN", 2)
    held = Unread()
    for _ in range(5):
        list(held.pieces(_zeros(10), "one"))
        next(held.pieces(_zeros(5 * PIECE), "one"))
    kept = [held.pieces(_zeros(10), "one") for _ in range(2)]
    with pytest.raises(KartosqlError) as caught:
        held.pieces(_zeros(10), "one")
    assert caught.value.code == "too-many-statements"
    assert held.pieces(_zeros(10), "other")
    del kept
    assert held.pieces(_zeros(10), "one")


class _Answers:
    """A connection with one answer, larger than what a client and the network keep unasked."""

    def answer(self, request, is_cancelled=None):
        return Query(_zeros(1 << 30))


def test_a_client_of_flight_that_reads_on_too_late_is_told_so():
    flight = pytest.importorskip("pyarrow.flight")
    from kartosql.serve.flight import PREFIX, FlightServer, _message

    server = FlightServer("grpc://127.0.0.1:0", Service(_Answers()))  # type: ignore[arg-type]
    command = _message(f1=(PREFIX + "CommandStatementQuery").encode(), f2=_message(f1=b"SELECT"))
    with server, flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        rows = client.do_get(flight.Ticket(command))
        assert rows.read_chunk().data.num_rows
        clock, server._unread.clock = server._unread.clock, lambda: clock() + SECONDS + 1
        server._unread.drop()
        assert server._unread.bytes == 0
        with pytest.raises(flight.FlightUnavailableError, match="result-dropped") as caught:
            rows.read_all()
        assert json.loads(caught.value.extra_info)["code"] == "result-dropped"


def test_answers_of_http_that_clients_do_not_read_are_bounded_and_small_ones_pass(monkeypatch):
    monkeypatch.setattr(http, "HELD", 50_000_000)
    sizes = iter([40_000_000, 40_000_000, 10, 40_000_000])
    answers = SimpleNamespace(answer=lambda *_: Query(_zeros(next(sizes))))
    with http.HttpServer(("127.0.0.1", 0), Service(answers)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with _asked(server) as slow:
            assert slow.status == 200  # whose rows are not read
            with _asked(server) as second:
                assert (second.status, json.loads(second.read())["error"]["code"]) == (503, "result-dropped")
            with _asked(server) as small:
                assert small.status == 200
        while server._held > 1000:
            time.sleep(0.01)
        with _asked(server) as last:
            assert (last.status, len(last.read()) > 40_000_000) == (200, True)
        server.shutdown()


@contextlib.contextmanager
def _asked(server):
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=300)
    connection.request("POST", "/sql", json.dumps({"sql": "SELECT"}), {"Accept": http.ARROW})
    with contextlib.closing(connection), connection.getresponse() as answer:
        yield answer
