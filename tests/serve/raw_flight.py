"""A client of Flight that sends what no library would: damaged messages of all calls, below protobuf and Arrow.

``python -m tests.serve.raw_flight HOST:PORT SEED COUNT`` prints how often which status of gRPC was answered, and what
parameters with offsets beyond their values led to. It is a process of its own, as gRPC's threads bear no fork.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable

import grpc
import pyarrow as pa

from kartosql.serve.flight import PREFIX, _command, _fields, _message, _varint

SERVICE = "/arrow.flight.protocol.FlightService/"
SECONDS = 120  # for a call that takes none
BODY = 1000  # the number of the field of FlightData with the buffers


def descriptor(name: str, content: bytes) -> bytes:
    """Return a FlightDescriptor of a command of Flight SQL."""
    return _message(f1=2, f2=_message(f1=(PREFIX + name).encode(), f2=content))


def parameters(array: pa.Array) -> list[bytes]:
    """Return the messages of FlightData of a row of parameters, without the descriptor in the first one."""
    batch = pa.record_batch({"a": array})
    found = []
    for buffer in (batch.schema.serialize(), batch.serialize()):
        message = pa.ipc.read_message(buffer)
        body = b"" if message.body is None else message.body.to_pybytes()
        found.append(_message(f2=message.metadata.to_pybytes()) + _varint(BODY << 3 | 2) + _varint(len(body)) + body)
    return found


class Client:
    """Calls of Flight by bytes."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)])

    def ask(self, call: str, *messages: bytes) -> tuple[str, list[bytes]]:
        """Return the status of a call with its detail, and what was answered."""
        many = call in ("DoPut", "DoExchange", "Handshake")
        kind = self._channel.stream_stream if many else self._channel.unary_stream
        asked: bytes | Iterable[bytes] = iter(messages) if many else messages[0]
        try:
            return "OK", list(kind(SERVICE + call)(asked, timeout=SECONDS))
        except grpc.RpcError as e:
            return f"{e.code().name}: {e.details()}", []

    def prepared(self, sql: str) -> bytes:
        """Return the descriptor of a statement that is prepared."""
        action = _message(f1=(PREFIX + "ActionCreatePreparedStatementRequest").encode(), f2=_message(f1=sql.encode()))
        _, (result,) = self.ask("DoAction", _message(f1=b"CreatePreparedStatement", f2=action))
        handle = _command(_fields(result)[1][0])[1][1][0]
        return descriptor("CommandPreparedStatementQuery", _message(f1=handle))


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return bytes that are changed in a few places, cut off, or longer."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(found) + 1)
        found[at : at + chance.randint(0, 2)] = chance.choice([chance.randbytes(1), b"\xff" * 4, b"\0" * 4])
    return bytes(found[: chance.randrange(len(found) + 1)] if chance.random() < 0.1 else found)


def beyond(client: Client) -> str:
    """Return what parameters lead to whose offsets are beyond their values: memory of the server, if it read them."""
    asked = client.prepared("SELECT ?")
    schema, row = parameters(pa.array(["abcdefgh"]))
    at = row.rindex(struct.pack("<ii", 0, 8))  # in the buffers
    wrong = row[:at] + struct.pack("<ii", 0, 1 << 20) + row[at + 8 :]
    return client.ask("DoPut", _message(f1=asked) + schema, wrong)[0]


def main() -> None:
    client, chance = Client(sys.argv[1]), random.Random(int(sys.argv[2]))
    asked, array = client.prepared("SELECT len(?)"), pa.array([[1, None, 3]])
    schema, row = parameters(array)
    statement = descriptor("CommandStatementQuery", _message(f1=b"SELECT 1 AS a"))
    action = _message(f1=b"ClosePreparedStatement", f2=b"\n\0")
    calls: list[Callable[[], tuple[str, list[bytes]]]] = [
        lambda: client.ask("GetFlightInfo", damaged(chance, statement)),
        lambda: client.ask("GetSchema", damaged(chance, statement)),
        lambda: client.ask("DoGet", damaged(chance, _message(f1=statement))),
        lambda: client.ask("DoAction", damaged(chance, action)),
        lambda: client.ask("DoPut", damaged(chance, _message(f1=asked) + schema), row),
        lambda: client.ask("DoPut", _message(f1=asked) + schema, damaged(chance, row)),
        lambda: client.ask("DoPut", _message(f1=asked) + schema, row, damaged(chance, row)),
        lambda: client.ask("DoExchange", damaged(chance, _message(f1=asked) + schema), row),
        lambda: client.ask("Handshake", damaged(chance, b"\n\5abcde")),
        lambda: client.ask(
            chance.choice(["ListFlights", "ListActions", "PollFlightInfo", "Nope"]), damaged(chance, b"\n\1a")
        ),
    ]
    found = Counter(chance.choice(calls)()[0].split(":")[0] for _ in range(int(sys.argv[3])))
    print(
        json.dumps(
            {
                "found": found,
                "beyond": beyond(client),
                "whole": client.ask("DoPut", _message(f1=asked) + schema, row)[0],
            }
        )
    )


if __name__ == "__main__":
    main()
