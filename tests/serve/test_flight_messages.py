"""Messages of Flight that are too large, or that no library sends: errors with a code, and the server goes on."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

import kartosql

pytest.importorskip("pyarrow.flight")
from pyarrow import flight

from kartosql.serve.flight import MAX_FIELDS, MAX_LISTING, PREFIX, FlightServer, _message
from kartosql.serve.service import MAX_BODY, Service

pytestmark = pytest.mark.process
COUNT = 5000 if os.environ.get("KARTOSQL_ABUSE") == "all" else 150


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server in this process."""
    con = kartosql.connect(tmp_path_factory.mktemp("store"), untrusted=True, timeout=300, memory_limit="400MB")
    with con, FlightServer("grpc://127.0.0.1:0", Service(con)) as found:
        yield found


@pytest.fixture(scope="module")
def client(server):
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as found:
        yield found


def _command(name, **fields):
    return _message(f1=(PREFIX + name).encode(), f2=_message(**fields))


def _rows(client, command):
    return client.do_get(flight.Ticket(command)).read_all()


def _code(call):
    with pytest.raises((pa.ArrowException, flight.FlightError)) as caught:
        call()
    return str(caught.value).split("]")[0].split("[")[-1]


def _calls(client, data):
    return {
        "info": lambda: client.get_flight_info(flight.FlightDescriptor.for_command(data)),
        "schema": lambda: client.get_schema(flight.FlightDescriptor.for_command(data)),
        "rows": lambda: _rows(client, data),
        "prepare": lambda: list(client.do_action(flight.Action("CreatePreparedStatement", data))),
        "close": lambda: list(client.do_action(flight.Action("ClosePreparedStatement", data))),
        "cancel": lambda: list(client.do_action(flight.Action("CancelFlightInfo", data))),
    }


def _traced(act, most):
    """Return the most memory that something takes by Python's objects, and what is left of it when it has ended.

    No garbage is collected meanwhile; threads that have answered may take a moment to end.
    """
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        act()
        peak, end = tracemalloc.get_traced_memory()[1], time.monotonic() + 60
        while (left := tracemalloc.get_traced_memory()[0]) > most and time.monotonic() < end:
            time.sleep(0.1)
        return peak, left
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("call", _calls(None, b""))
def test_a_message_above_the_limit_is_an_error_that_takes_its_bytes_once_and_leaves_nothing(client, call):
    data = _command("CommandStatementQuery", f1=b"SELECT 1 -- " + b"x" * 3 * MAX_BODY)
    ask = _calls(client, data)[call]
    assert _code(ask) == "request-too-large"
    peak, left = _traced(lambda: [_code(ask) for _ in range(3)], MAX_BODY)
    assert peak < 2.5 * len(data)  # its bytes in a call, perhaps beside those of the one before
    assert left <= MAX_BODY
    assert _rows(client, _command("CommandStatementQuery", f1=b"SELECT 1 AS a")).to_pylist() == [{"a": 1}]


def test_statements_that_failed_leave_nothing_until_a_collection(client):
    data = _command("CommandStatementQuery", f1=b"SELECT nope -- " + b"x" * 200_000)

    def fail():
        for _ in range(10):
            assert _code(lambda: client.get_flight_info(flight.FlightDescriptor.for_command(data))) == "unknown-column"
            assert _code(lambda: _rows(client, data)) == "unknown-column"

    fail()  # what is imported stays
    assert _traced(fail, 4 * len(data))[1] <= 4 * len(data)


def _bind(client, array, sql="SELECT len(?) AS n"):
    """Prepare a statement, bind a parameter, and return the rows."""
    action = flight.Action("CreatePreparedStatement", _command("", f1=sql.encode()))
    result = next(client.do_action(action)).body.to_pybytes()
    from kartosql.serve.flight import _command as parts

    command = _command("CommandPreparedStatementQuery", f1=parts(result)[1][1][0])
    batch = pa.record_batch({"a": array})
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), batch.schema)
    with writer:
        writer.write_batch(batch)
    return _rows(client, command)


def test_a_small_message_of_parameters_that_stands_for_many_values_takes_no_memory_of_the_server(client):
    assert _bind(client, pa.array([[1, None, 3]])).to_pylist() == [{"n": 3}]
    count = 2**31 - 2  # values that take no bytes in Arrow, and 17 GB as a list of Python
    nulls = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.nulls(count))
    assert _code(lambda: _bind(client, nulls)) in ("worker-lost", "out-of-memory")
    assert _bind(client, pa.array([[1, None, 3]])).to_pylist() == [{"n": 3}]


def test_parameters_above_the_limit_are_an_error(client):
    assert _code(lambda: _bind(client, pa.array([b"x" * 70_000_000]))) == "request-too-large"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (_command("CommandGetTables", f3=b"%_" * MAX_LISTING), "request-too-large"),
        (_message(f1=(PREFIX + "CommandGetSqlInfo").encode(), f2=b"\x08\x01" * MAX_FIELDS), "invalid-request"),
        (_message(f1=(PREFIX + "CommandGetSqlInfo").encode(), f2=_message(f1=b"\1" * 20_000)), "request-too-large"),
        (_command("Nope" * 1000, f1=b""), "not-supported"),
    ],
    ids=["pattern", "fields", "numbers", "name"],
)
def test_commands_that_would_take_long_to_read_are_refused_before(client, command, code):
    assert _code(lambda: _rows(client, command)) == code


def test_calls_that_there_are_not_are_errors_with_a_code(client):
    assert _code(lambda: list(client.list_flights())) == "not-supported"
    assert _code(lambda: client.do_exchange(flight.FlightDescriptor.for_command(b""))[1].read_all()) == "not-supported"
    assert _code(lambda: list(client.do_action(flight.Action("nope", b"")))) == "not-supported"
    assert _code(lambda: client.get_flight_info(flight.FlightDescriptor.for_path("t"))) == "invalid-request"


def test_damaged_messages_below_protobuf_and_arrow_end_no_server(client, server):
    pytest.importorskip("grpc")
    command = [sys.executable, "-m", "tests.serve.raw_flight", f"127.0.0.1:{server.port}", "20", str(COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "DEADLINE_EXCEEDED" not in told["found"]
    assert "UNAVAILABLE" not in told["found"]
    assert sum(told["found"].values()) == COUNT
    assert told["beyond"].startswith("INVALID_ARGUMENT: [invalid-parameters]")
    assert told["whole"] == "OK"
    assert _rows(client, _command("CommandStatementQuery", f1=b"SELECT 1 AS a")).to_pylist() == [{"a": 1}]
