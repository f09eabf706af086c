"""The server: one process asked by HTTP, Flight SQL and MCP, with tokens and their budgets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError
from kartosql.serve import command, mcp
from kartosql.serve.command import serve
from kartosql.serve.http import HttpServer
from kartosql.serve.service import Client, Service, read_tokens, without_constants

OWNER, GUEST = "token-of-the-owner", "token-of-the-guest"
TOKENS = f"""
owner = "{OWNER}"
[guest]
token = "{GUEST}"
tables = ["t"]
rows = 3
max_bytes = 2000
[hasty]
token = "token-of-the-hasty"
seconds = 0.01
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    with kartosql.connect(folder) as con:
        con.sql("CREATE DATASET t PARTITION BY (p) INDEX (k) AS SELECT i % 4 p, i k, 'x' || i s FROM range(200) r(i)")
        con.sql("CREATE DATASET hidden AS SELECT 1 AS a")
        con.sql("CREATE VIEW v AS SELECT a FROM hidden")
    return folder


@pytest.fixture(scope="module")
def server(store, tmp_path_factory):
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    tokens.write_text(TOKENS)
    arguments = [sys.executable, "-m", "kartosql", "serve", str(store), "--token-file", str(tokens), "--workers", "2"]
    arguments += ["--timeout", "300"]  # a busy machine may need more than the default
    log = tokens.with_name("audit.log")
    process = subprocess.Popen([*arguments, "--audit-log", str(log)], stdout=subprocess.PIPE, text=True)
    end = threading.Timer(3600, process.kill)
    end.start()
    with process:
        lines = [line.split() for line in iter(process.stdout.readline, "ready\n") if line]
        assert [line[0] for line in lines] == ["flight", "http", "mcp"]
        yield {**dict(lines), "log": log, "tokens": tokens, "process": process}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    end.cancel()


def _ask(server, method, path, body=None, token=OWNER, **headers):
    connection = http.client.HTTPConnection(server["http"].removeprefix("http://"), timeout=120)
    given = {"Authorization": f"Bearer {token}"} if token else {}
    content = json.dumps(body) if isinstance(body, dict) else body
    connection.request(method, path, content, {**given, **headers})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    is_json = answer.getheader("Content-Type") == "application/json"
    return answer.status, json.loads(data) if is_json and data else data


def test_statements_are_answered_as_json_and_arrow(server):
    body = {"sql": "SELECT k, s FROM t WHERE k = ?", "parameters": [7]}
    status, found = _ask(server, "POST", "/sql", body)
    assert (status, found["rows"], [c["name"] for c in found["columns"]]) == (200, [[7, "x7"]], ["k", "s"])
    assert found["report"]["scans"][0]["table"] == "t"
    _, data = _ask(server, "POST", "/sql", body, Accept="application/vnd.apache.arrow.stream")
    assert pa.ipc.open_stream(data).read_all().to_pylist() == [{"k": 7, "s": "x7"}]


def test_reports_tables_health_metrics_and_the_page_are_there(server):
    assert _ask(server, "GET", "/health", token=None) == (200, {"status": "ok"})
    assert _ask(server, "GET", "/explain?sql=SELECT%20s%20FROM%20t%20WHERE%20k=7")[1]["engine"] == "duckdb"
    assert {"table": "v", "kind": "view"} in _ask(server, "GET", "/tables")[1]["tables"]
    assert b"kartosql_statements_total" in _ask(server, "GET", "/metrics")[1]
    assert b"<textarea" in _ask(server, "GET", "/", token=None)[1]


@pytest.mark.parametrize(
    ("method", "path", "body", "token", "status", "code"),
    [
        ("POST", "/sql", {"sql": "SELECT 1"}, None, 401, "not-allowed"),
        ("POST", "/sql", {"sql": "SELECT 1"}, "token-of-nobody", 401, "not-allowed"),
        ("GET", "/tables", None, None, 401, "not-allowed"),
        ("POST", "/sql", {"sql": "SELECT nope FROM t"}, OWNER, 400, "unknown-column"),
        ("POST", "/sql", {"sql": "DROP DATASET t"}, OWNER, 400, "not-allowed"),
        ("POST", "/sql", {"sql": "SET timeout = 1"}, OWNER, 400, "not-allowed"),
        ("POST", "/sql", {"sql": 7}, OWNER, 400, "invalid-request"),
        ("POST", "/sql", {"sql": "SELECT ?", "parameters": "x"}, OWNER, 400, "invalid-parameters"),
        ("POST", "/sql", "{" * 5000, OWNER, 400, "invalid-request"),
        ("POST", "/nope", {}, OWNER, 404, "unknown-path"),
        ("POST", "/sql", {"sql": "SELECT * FROM hidden"}, GUEST, 400, "not-allowed"),
        ("POST", "/sql", {"sql": "SELECT * FROM v"}, GUEST, 400, "not-allowed"),
        ("POST", "/sql", {"sql": "EXPLAIN SELECT * FROM hidden"}, GUEST, 400, "not-allowed"),
        ("POST", "/sql", {"sql": "DESCRIBE hidden"}, GUEST, 400, "not-allowed"),
        ("POST", "/sql", {"sql": "SHOW FILES FROM hidden"}, GUEST, 400, "not-allowed"),
        ("POST", "/sql", {"sql": "SELECT * FROM information_schema.tables"}, GUEST, 400, "not-allowed"),
        ("POST", "/sql", {"sql": "SELECT s FROM t WHERE p = 1"}, GUEST, 400, "limit-exceeded"),
        ("POST", "/sql", {"sql": "SELECT s FROM t"}, GUEST, 400, "byte-budget"),
        ("POST", "/sql", {"sql": "SELECT count(*) FROM range(10000000000)"}, "token-of-the-hasty", 504, "timeout"),
    ],
)
def test_what_is_wrong_or_not_allowed_is_an_error_with_a_code(server, method, path, body, token, status, code):
    found = _ask(server, method, path, body, token)
    assert (found[0], found[1]["error"]["code"]) == (status, code)


def test_a_body_that_is_too_large_is_not_read(server):
    status, found = _ask(server, "POST", "/sql", b"", **{"Content-Length": "999999999"})
    assert (status, found["error"]["code"]) == (413, "request-too-large")


def test_a_budget_lets_pass_what_is_within_it(server):
    assert _ask(server, "POST", "/sql", {"sql": "SELECT s FROM t WHERE k = 7"}, GUEST)[1]["rows"] == [["x7"]]
    assert _ask(server, "GET", "/tables", token=GUEST)[1]["tables"] == [{"table": "t", "kind": "dataset"}]


def test_the_log_has_statements_without_their_constants(server):
    _ask(server, "POST", "/sql", {"sql": "SELECT s FROM t WHERE s = 'a secret' AND k = 123456"}, GUEST)
    text = server["log"].read_text()
    assert '"who": "guest"' in text
    assert "a secret" not in text
    assert "123456" not in text


_TEXTS = ["'secret'", "'a/secret'", "'it''s secret'", "E'a\\'secret'", "'\\secret", "'secret", f"'{'x' * 2000}secret'"]
_TEXTS += ["'C:\\' AND b = 'secret'", "'it\\'s secret'", "E'secret\\", "/* a /* b */ secret */"]
_TEXTS += ["$$secret$$", "$t$a $$ secret$t$", "$$secret", "-- secret", "/* secret */", "/* secret"]


@pytest.mark.parametrize("text", _TEXTS)
def test_no_form_of_a_constant_is_in_the_log(text):
    shown = without_constants(f'SELECT "name", t1 FROM t WHERE a = {text}')
    assert "secret" not in shown
    assert shown.startswith('SELECT "name", t1 FROM t WHERE a = ?')


@pytest.mark.parametrize("number", ["123456", "1.5e10", ".5", "1_000", "0xFF"])
def test_no_number_is_in_the_log(number):
    assert not any(c.isdigit() for c in without_constants(f"SELECT {number}"))


def test_flight_sql_answers_adbc(server):
    dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")
    options = {"adbc.flight.sql.authorization_header": f"Bearer {OWNER}"}
    with dbapi.connect(server["flight"], db_kwargs=options, autocommit=True) as con, con.cursor() as cursor:
        cursor.execute("SELECT k, s FROM t WHERE k < 2 ORDER BY k")
        assert cursor.fetchall() == [(0, "x0"), (1, "x1")]
        cursor.execute("SELECT s FROM t WHERE k = ?", [9])
        assert cursor.fetchall() == [("x9",)]
        assert con.adbc_get_table_types() == ["TABLE", "VIEW"]
        assert con.adbc_get_info()["vendor_name"] == "kartosql"
        catalog = con.adbc_get_objects(depth="columns").read_all().to_pylist()[0]
        tables = {t["table_name"]: t for schema in catalog["catalog_db_schemas"] for t in schema["db_schema_tables"]}
        assert tables.keys() == {"t", "hidden", "v"}
        assert {c["column_name"] for c in tables["t"]["table_columns"]} == {"p", "k", "s"}
        with pytest.raises(dbapi.Error, match="unknown-column"):
            cursor.execute("SELECT nope FROM t")
        with pytest.raises(dbapi.Error, match="not-allowed"):
            cursor.execute("DROP DATASET t")
    without = dbapi.connect(server["flight"], autocommit=True)
    with without as con, con.cursor() as cursor, pytest.raises(dbapi.Error, match="token"):
        cursor.execute("SELECT 1")


def _call(server, name, **arguments):
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    result = _ask(server, "POST", "/mcp", call)[1]["result"]
    return result.get("isError", False), json.loads(result["content"][0]["text"])


def test_tools_for_agents_answer_with_rows_reports_and_hints(server):
    assert {"table": "t", "kind": "dataset"} in _call(server, "list_tables")[1]
    assert [c["column"] for c in _call(server, "describe", table="t")[1]] == ["p", "k", "s"]
    price = _call(server, "explain", sql="SELECT s FROM t WHERE k = 7")[1]
    assert (price["files_selected"], price["files_total"]) == (1, 4)
    assert price["bytes_selected"] > 0
    assert "bytes of columns" in price["cost"]
    found = _call(server, "query", sql="SELECT k FROM t ORDER BY k", max_rows=2)[1]
    assert (found["rows"], found["row_count"], "more rows" in found["note"]) == ([[0], [1]], 2, True)
    found = _call(server, "query", sql="SELECT * FROM range(1000000000000) r(i)", max_rows=3)[1]  # stops behind them
    assert found["rows"] == [[0], [1], [2]]
    assert "note" not in _call(server, "query", sql="SELECT k FROM t WHERE k < 2", max_rows=2)[1]
    assert isinstance(_call(server, "advise", sql="SELECT k FROM t WHERE s = 'x7'")[1], str)
    is_error, error = _call(server, "query", sql="SELECT nope FROM t")
    assert (is_error, error["code"], error["hint"]) == (True, "unknown-column", "Columns: k, p, s.")


@pytest.mark.parametrize("tool", ["explain", "advise"])
def test_lines_of_a_report_are_no_rows_of_a_budget(server, tool):
    call = {"name": tool, "arguments": {"sql": "SELECT s FROM t WHERE k = 7"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    result = _ask(server, "POST", "/mcp", message, GUEST)[1]["result"]
    assert "isError" not in result


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (None, -32600),
        ([], -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "nope"}, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "nope"}}, -32602),
        (
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "query", "arguments": {"sql": 1}}},
            -32602,
        ),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": 7}, -32602),
    ],
)
def test_messages_that_are_no_calls_are_errors_of_json_rpc(message, code):
    answer = mcp.respond(Service(None), Client("anyone"), message)  # type: ignore[arg-type]
    assert answer["error"]["code"] == code


def test_a_client_shakes_hands_and_lists_the_tools():
    service, client = Service(None), Client("anyone")  # type: ignore[arg-type]
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-03-26"}}
    assert mcp.respond(service, client, hello)["result"]["protocolVersion"] == "2025-03-26"
    assert mcp.respond(service, client, {"jsonrpc": "2.0", "method": "notifications/initialized"}) is None
    tools = mcp.respond(service, client, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})["result"]["tools"]
    assert [t["name"] for t in tools] == ["list_tables", "describe", "explain", "query", "advise"]


def test_statements_above_the_concurrency_of_a_token_are_refused():
    client = Client("one", concurrency=1)
    with client.at_work(), pytest.raises(KartosqlError) as caught, client.at_work():
        pass
    assert caught.value.code == "too-many-statements"


@pytest.mark.parametrize(
    "text", ["", "short", "a = 1", '[a]\ntoken = "12345678"\nnope = 1', '[a]\ntoken = "12345678"\nrows = -1']
)
def test_token_files_that_cannot_be_used_are_refused(tmp_path, text):
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(KartosqlError) as caught:
        read_tokens(str(tmp_path / "tokens"))
    assert caught.value.code == "invalid-argument"


def test_a_token_in_each_line_is_a_client(tmp_path):
    (tmp_path / "tokens").write_text("# tokens\nfirst-token\nother-token\n")
    assert read_tokens(str(tmp_path / "tokens")).keys() == {"first-token", "other-token"}


def test_options_of_the_store_may_be_json_and_are_not_shown(store, monkeypatch):
    found = []
    monkeypatch.setattr(command, "connect", lambda url, **given: found.append(given["storage_options"]) or 1 / 0)
    given = ['a={"b": [1]}', "c=[2]", "d=true", "e=12", "f=x=y", "g="]
    with pytest.raises(ZeroDivisionError):
        serve([str(store), *(part for one in given for part in ("--storage-option", one))])
    assert found == [{"a": {"b": [1]}, "c": [2], "d": True, "e": "12", "f": "x=y", "g": ""}]
    with pytest.raises(KartosqlError) as caught:
        serve([str(store), "--storage-option", "a={s3cret"])
    assert caught.value.code == "invalid-argument"
    assert "s3cret" not in str(caught.value)


def test_other_addresses_need_tokens(store):
    with pytest.raises(KartosqlError, match="can be reached by others"):
        serve([str(store), "--host", "0.0.0.0"])


ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000000) b"


@contextlib.contextmanager
def _adbc(server, token=OWNER):
    dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")
    options = {"adbc.flight.sql.authorization_header": f"Bearer {token}"}
    with dbapi.connect(server["flight"], db_kwargs=options, autocommit=True) as con, con.cursor() as cursor:
        yield con, cursor


def _all(cursor, sql):
    cursor.execute(sql)
    return cursor.fetchall()


def _wait_for_statements(server, count):
    """Wait until so many statements run."""
    end = time.monotonic() + 60
    while f"kartosql_active {count}\n".encode() not in _ask(server, "GET", "/metrics")[1]:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_types_of_columns_are_told_for_each_table(server):
    with _adbc(server) as (con, _):
        wanted = pa.schema([("k", pa.int64()), ("p", pa.int64()), ("s", pa.string())])
        found = con.adbc_get_table_schema("t", db_schema_filter="main")
        assert sorted((f.name, f.type) for f in found) == sorted((f.name, f.type) for f in wanted)
        catalog = con.adbc_get_objects(depth="tables", table_name_filter="h%").read_all().to_pylist()[0]
        assert catalog["catalog_name"] == "kartosql"
        assert [t["table_name"] for s in catalog["catalog_db_schemas"] for t in s["db_schema_tables"]] == ["hidden"]


_TWO = pa.record_batch({"k": [1, 2]})


def test_parameters_of_all_types_come_back_as_they_were(server):
    values = [7, 1.5, "x'; --", None, b"\x00\xff", True]
    with _adbc(server) as (_, cursor):
        cursor.execute("SELECT ?, ?, ?, ?, ?, ?", values)
        assert cursor.fetchall() == [tuple(values)]
        for ask, values, code in ((cursor.executemany, [[3]], "not-allowed"), (cursor.execute, _TWO, "invalid-param")):
            with pytest.raises(Exception, match=code):
                ask("SELECT k FROM t WHERE k = ?", values)


def test_a_statement_is_cancelled_by_adbc_and_the_next_one_answered(server):
    with _adbc(server) as (_, cursor):
        found = []

        def run():
            with pytest.raises(Exception, match=r"(?i)cancel|interrupted") as caught:
                cursor.fetchall()
            found.append(caught.value)

        cursor.execute(ENDLESS)  # tells its columns while it runs
        thread = threading.Thread(target=run)
        thread.start()
        _wait_for_statements(server, 1)
        cursor.adbc_cancel()
        thread.join(30)
        assert len(found) == 1
        _wait_for_statements(server, 0)  # long before its timeout
        cursor.execute("SELECT 1 AS a")
        assert cursor.fetchall() == [(1,)]


def test_sqlalchemy_and_pandas_ask_the_server_as_they_ask_a_store(server):
    sa, pd = pytest.importorskip("sqlalchemy"), pytest.importorskip("pandas")
    pytest.importorskip("adbc_driver_flightsql")
    sa.dialects.registry.register("kartosql.flight", "kartosql.sqlalchemy_dialect", "KartosqlFlightDialect")
    engine = sa.create_engine(server["flight"].replace("grpc://", f"kartosql+flight://:{OWNER}@"))
    assert (sa.inspect(engine).get_table_names(), sa.inspect(engine).get_view_names()) == (["hidden", "t"], ["v"])
    t = sa.Table("t", sa.MetaData(), autoload_with=engine)
    with engine.connect() as con:
        found = con.execute(sa.select(t.c.s).where(t.c.k.in_([3, 5])).order_by(t.c.k).limit(1)).fetchall()
        assert found == [("x3",)]
        with pytest.raises(sa.exc.ProgrammingError, match="not-allowed"):
            con.execute(sa.delete(t).where(t.c.k == 1))
    assert pd.read_sql("SELECT k FROM t WHERE k < 2 ORDER BY k", engine)["k"].tolist() == [0, 1]
    engine.dispose()
    for wrong in ("kartosql+flight://", "kartosql+flight://host", "kartosql+flight://host:1/path"):
        with pytest.raises(sa.exc.ArgumentError, match="kartosql\\+flight"):
            sa.create_engine(wrong).connect()


def _flight(server, token=OWNER):
    flight = pytest.importorskip("pyarrow.flight")
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    return flight, flight.connect(server["flight"]), options


def _statement(flight, sql):
    from kartosql.serve.flight import PREFIX, _message

    command = _message(f1=(PREFIX + "CommandStatementQuery").encode(), f2=_message(f1=sql.encode()))
    return flight.FlightDescriptor.for_command(command)


def test_the_action_cancel_stops_the_statement_of_its_ticket_alone(server):
    from kartosql.serve.flight import _message

    flight, client, options = _flight(server)
    with client:
        info = client.get_flight_info(_statement(flight, ENDLESS), options)
        other = client.get_flight_info(_statement(flight, ENDLESS), options)
        found = []

        def run():
            with pytest.raises(pa.ArrowException, match="interrupted") as caught:
                client.do_get(info.endpoints[0].ticket, options).read_all()
            found.append(caught.value)

        thread = threading.Thread(target=run)
        thread.start()
        _wait_for_statements(server, 2)  # the other one begins before it is fetched, too
        cancel = lambda of: next(  # noqa: E731
            client.do_action(flight.Action("CancelFlightInfo", _message(f1=of.serialize())), options)
        ).body.to_pybytes()
        assert cancel(info) == b"\x08\x02"
        thread.join(30)
        assert len(found) == 1
        _wait_for_statements(server, 1)  # which no one fetches yet
        assert cancel(info) == b"\x08\x03"  # there is nothing to cancel any more
        assert cancel(other) == b"\x08\x02"
        _wait_for_statements(server, 0)


def test_statements_of_clients_of_http_that_went_away_are_stopped(server):
    host, port = server["http"].removeprefix("http://").split(":")
    body = json.dumps({"sql": ENDLESS})
    head = f"POST /sql HTTP/1.1\r\nAuthorization: Bearer {OWNER}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall((head + body).encode())
        _wait_for_statements(server, 1)
    _wait_for_statements(server, 0)


def test_tickets_that_no_one_fetches_let_nothing_run(server):
    flight, client, options = _flight(server)
    with client:
        for _ in range(20):
            client.get_flight_info(_statement(flight, "SELECT * FROM range(1000000)"), options)
        assert client.do_get(flight.Ticket(_statement(flight, "SELECT 1 AS a").command), options).read_all()["a"][0]
    _wait_for_statements(server, 0)


def test_a_statement_runs_once_and_its_ticket_is_fetched_once_by_its_client(server):
    flight, client, options = _flight(server)
    guest = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {GUEST}".encode())])
    with client:
        lines = len(server["log"].read_text().splitlines())
        asked = _statement(flight, "SELECT k FROM t WHERE k < 3 ORDER BY k")
        info = client.get_flight_info(asked, options)
        ticket = info.endpoints[0].ticket
        with pytest.raises(pa.ArrowException, match="no such statement"):
            client.do_get(ticket, guest).read_all()
        assert client.do_get(ticket, options).read_all() == pa.table({"k": [0, 1, 2]}, schema=info.schema)
        with pytest.raises(pa.ArrowException, match="no such statement"):
            client.do_get(ticket, options).read_all()
        assert client.get_schema(asked, options).schema == info.schema
    lines = [json.loads(line)["asked"] for line in server["log"].read_text().splitlines()[lines:]]
    assert lines == ["rows", "columns"]


def test_the_statements_that_are_kept_for_a_client_are_bounded(monkeypatch):
    flight = pytest.importorskip("kartosql.serve.flight")
    monkeypatch.setattr(flight, "MAX_KEPT", 2)
    monkeypatch.setattr(flight, "MAX_STATEMENT", 100)
    kept, one, other = flight._ClientStatements(), Client("one"), Client("other")
    handles = [kept.keep(one, flight._Statement("SELECT 1")) for _ in range(2)]
    of_other = kept.keep(other, flight._Statement("SELECT 2"))
    assert kept.get(one, handles[0]).sql == "SELECT 1"
    first = kept.get(one, handles[0])
    large = kept.keep(one, flight._Statement("x" * 99))
    assert first.stopped.is_set()
    assert kept.get(one, large).sql == "x" * 99
    assert kept.get(other, of_other).sql == "SELECT 2"
    for handle in (*handles, of_other):
        with pytest.raises(KartosqlError, match="no such statement"):
            kept.get(one, handle)
    with pytest.raises(KartosqlError, match="the limit is 100"):
        kept.keep(one, flight._Statement("SELECT ?", ["x"], 93))


def test_what_nobody_waits_for_is_stopped(monkeypatch):
    flight = pytest.importorskip("kartosql.serve.flight")
    monkeypatch.setattr(flight, "SECONDS", 0.1)
    statement, ended = flight._Statement(""), threading.Event()

    def ask(_, is_stopped):
        while not is_stopped():
            time.sleep(0.01)
        ended.set()

    statement.begin(ask)
    assert ended.wait(60)


MESSAGES = 3000 if os.environ.get("KARTOSQL_ABUSE") == "all" else 100


def _damaged(random_, data):
    """Return bytes that are damaged in a few places, cut off, or longer."""
    found = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(found) + 1)
        match random_.randrange(4):
            case 0:
                found[at : at + 1] = random_.randbytes(1)
            case 1:
                del found[at:]
            case 2:
                found[at:at] = random_.randbytes(random_.randint(1, 12))
            case 3:
                found[at:at] = b"\xff" * random_.randint(1, 11)
    return bytes(found)


def _said(call):
    """Return the error that a call raises, as text; [] if there is none."""
    try:
        call()
    except (pa.ArrowException, OSError) as e:
        return str(e)
    return "[]"


def test_damaged_messages_of_flight_are_errors_with_a_code(server):
    from kartosql.serve.flight import PREFIX, _message

    flight, client, options = _flight(server)
    random_ = random.Random(20)
    names = ("CommandStatementQuery", "CommandGetTables", "CommandPreparedStatementQuery", "CommandGetSqlInfo")
    commands = [_message(f1=(PREFIX + name).encode(), f2=_message(f1=b"SELECT 1 AS a", f4=b"TABLE")) for name in names]
    with client:
        info = client.get_flight_info(_statement(flight, "SELECT 1 AS a"), options)
        for _ in range(MESSAGES):
            data = _damaged(random_, random_.choice(commands))
            calls = [
                lambda d=data: client.get_flight_info(flight.FlightDescriptor.for_command(d), options),
                lambda d=data: client.do_get(flight.Ticket(d), options).read_all(),
                lambda d=data: list(client.do_action(flight.Action("CreatePreparedStatement", d), options)),
                lambda: list(
                    client.do_action(flight.Action("CancelFlightInfo", _damaged(random_, info.serialize())), options)
                ),
            ]
            said = _said(random_.choice(calls))
            assert "[" in said
            assert "Traceback" not in said
            assert ".py" not in said
        assert client.do_get(info.endpoints[0].ticket, options).read_all().to_pylist() == [{"a": 1}]


def test_damaged_requests_of_http_and_json_rpc_are_errors_and_leave_the_server_alone(server):
    host, port = server["http"].removeprefix("http://").split(":")
    random_ = random.Random(20)
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "query", "arguments": {"sql": "SELECT 1"}},
    }
    bodies = [("/sql", json.dumps({"sql": "SELECT ?", "parameters": [1]})), ("/mcp", json.dumps(call))]
    more = f"Host: x\r\nAuthorization: Bearer {OWNER}\r\nConnection: close"
    for _ in range(MESSAGES):
        path, body = random_.choice(bodies)
        data = _damaged(random_, body.encode()) if random_.random() < 0.7 else body.encode()
        head = f"POST {path} HTTP/1.1\r\n{more}\r\nContent-Length: {len(data)}\r\n"
        head_data = _damaged(random_, head.encode()) if random_.random() < 0.3 else head.encode()
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(head_data + b"\r\n" + data)
            if head_data != head.encode():  # which may announce more than there is
                connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda c=connection: c.recv(65536), b""))
        assert b"Traceback" not in answer
        if head_data == head.encode():
            assert answer.startswith(b"HTTP/1.1 ")
    assert _ask(server, "POST", "/sql", {"sql": "SELECT 1 AS a"})[1]["rows"] == [[1]]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:1", "Origin": "http://127.0.0.1:8080"}, 200),
        ({"Host": "pages.example"}, 403),
        ({"Host": "[broken"}, 403),
        ({"Origin": "https://pages.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_pages_of_other_hosts_may_not_ask_a_server_without_tokens(headers, status):
    service = SimpleNamespace(tokens=None, client=lambda _: Client("anyone"), tables=lambda _: [])
    with HttpServer(("127.0.0.1", 0), service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = {"http": f"http://127.0.0.1:{server.server_address[1]}"}
        assert _ask(address, "GET", "/tables", token=None, **headers)[0] == status
        assert _ask(address, "GET", "/health", token=None, **headers)[0] == status
        service.tokens = {}
        assert _ask(address, "GET", "/tables", token=None, **headers)[0] == 200
        server.shutdown()


def test_requests_that_there_are_not_are_errors_with_a_code(server):
    assert _ask(server, "HEAD", "/health", token=None) == (200, b"")
    for method, path, status in (("GET", "/mcp", 405), ("DELETE", "/mcp", 501), ("PUT", "/sql", 501)):
        found = _ask(server, method, path)
        assert (found[0], found[1]["error"]["code"]) == (status, "unknown-path" if status == 405 else "invalid-request")


def test_the_log_and_the_metrics_tell_what_was_asked_and_read(server):
    _ask(server, "POST", "/sql", {"sql": "SELECT s AS logged FROM t WHERE k = 7"})
    _ask(server, "GET", "/explain?sql=SELECT%20s%20AS%20explained%20FROM%20t%20WHERE%20k=7")
    lines = [json.loads(line) for line in server["log"].read_text().splitlines()]
    found = {name: next(line for line in lines if name in line["statement"]) for name in ("logged", "explained")}
    shown = ("who", "asked", "result", "rows", "files")
    assert [found["logged"].get(name) for name in shown] == ["owner", "rows", "ok", 1, 1]
    assert [found["explained"].get(name) for name in shown] == ["owner", "report", "ok", None, 1]
    assert found["logged"]["bytes"] == found["explained"]["bytes"] > 0
    metrics = dict(line.split() for line in _ask(server, "GET", "/metrics")[1].decode().splitlines() if line[0] != "#")
    read = [line for line in lines if line["asked"] == "rows"]
    assert int(metrics["kartosql_bytes_read_total"]) >= sum(line.get("bytes", 0) for line in read) > 0


def _by_mcp(server, asked):
    """Return what a client of MCP's own library is answered."""
    pytest.importorskip("mcp")
    import asyncio

    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    async def run():
        async with contextlib.AsyncExitStack() as stack:
            if isinstance(server, dict):
                headers = {"Authorization": f"Bearer {OWNER}"}
                given = await stack.enter_async_context(create_mcp_http_client(headers=headers))
                streams = streamable_http_client(server["mcp"], http_client=given)
            else:
                arguments = ["-m", "kartosql", "serve", str(server), "--stdio"]
                streams = stdio_client(
                    StdioServerParameters(command=sys.executable, args=arguments, env={**os.environ})
                )
            reader, writer, *_ = await stack.enter_async_context(streams)
            session = await stack.enter_async_context(ClientSession(reader, writer))
            hello = await session.initialize()
            tools = [tool.name for tool in (await session.list_tools()).tools]
            answers = [await session.call_tool(name, arguments) for name, arguments in asked]
            return hello.server_info.name, tools, [(a.is_error, json.loads(a.content[0].text)) for a in answers]

    return asyncio.run(run())


@pytest.mark.parametrize("is_http", [True, False])
def test_an_mcp_client_lists_the_tools_and_asks_by_them(server, store, is_http):
    asked = [
        ("query", {"sql": "SELECT s FROM t WHERE k = ?", "parameters": [7]}),
        ("query", {"sql": "SELECT nope FROM t"}),
        ("describe", {"table": "t"}),
    ]
    name, tools, (found, error, columns) = _by_mcp(server if is_http else store, asked)
    assert (name, tools) == ("kartosql", ["list_tables", "describe", "explain", "query", "advise"])
    assert (found[0], found[1]["rows"]) == (False, [["x7"]])
    assert (error[0], error[1]["code"], error[1]["hint"]) == (True, "unknown-column", "Columns: k, p, s.")
    assert [column["column"] for column in columns[1]] == ["p", "k", "s"]


def test_names_of_tables_that_a_token_may_not_see_are_in_no_error(server):
    for sql in ("SELECT * FROM hiden", "SELECT * FROM hidden2", "DESCRIBE hiddn", "SHOW FILES FROM hidde"):
        assert "hidden'" not in json.dumps(_ask(server, "POST", "/sql", {"sql": sql}, GUEST)[1]).replace(sql, "")


def test_slow_clients_hold_up_no_other(server):
    host, port = server["http"].removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(b"POST /sql HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        assert _ask(server, "POST", "/sql", {"sql": "SELECT 1 AS a"})[1]["rows"] == [[1]]


def test_tokens_that_are_taken_out_of_the_file_are_refused_after_sighup(server):
    text = server["tokens"].read_text()
    new = text.replace(GUEST, "another-token-of-the-guest")
    for content, status in ((new, 401), ("[broken", 401), (text, 200), (new, 401), (text, 200)):
        server["tokens"].write_text(content)
        server["process"].send_signal(signal.SIGHUP)
        while _ask(server, "GET", "/tables", token=GUEST)[0] != status:
            time.sleep(0.02)
        flight, client, options = _flight(server, GUEST)
        with client, contextlib.ExitStack() as stack:
            if status == 401:
                stack.enter_context(pytest.raises(flight.FlightUnauthenticatedError))
            client.do_get(flight.Ticket(_statement(flight, "SELECT s FROM t WHERE k = 7").command), options).read_all()


@contextlib.contextmanager
def _serving(store, *options):
    arguments = [sys.executable, "-m", "kartosql", "serve", str(store), "--workers", "1", *options]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, dict(line.split() for line in iter(process.stdout.readline, "ready\n") if line)
        finally:
            process.terminate()
            process.kill() if sys.exc_info()[0] else process.wait(300)


def test_what_runs_when_the_server_ends_is_answered(store):
    with _serving(store, "--timeout", "500") as (process, server):
        body = {"sql": "SELECT count(*) FROM range(500000000) r(i) WHERE i % 7 = 1"}
        found = []
        thread = threading.Thread(target=lambda: found.append(_ask(server, "POST", "/sql", body)))
        thread.start()
        _wait_for_statements(server, 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(500) == 0
        thread.join()
        assert [(status, answer["rows"]) for status, answer in found] == [(200, [[71428572]])]


def test_a_second_signal_ends_the_server_though_a_client_reads_nothing(store):
    with _serving(store, "--timeout", "500") as (process, server):
        flight, client, _ = _flight(server)
        with client:
            ticket = client.get_flight_info(_statement(flight, "SELECT * FROM range(10000000)")).endpoints[0].ticket
            rows = client.do_get(ticket)
            assert rows.read_chunk().data.num_rows
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            assert process.wait(500) == 0
            rows.cancel()


@pytest.mark.parametrize("is_done", [True, False])
def test_the_end_waits_for_answers_no_longer_than_statements_may_take(is_done, monkeypatch):
    left = []
    monkeypatch.setattr(command.atexit, "register", lambda *call: left.append(call))
    shutdown = SimpleNamespace(shutdown=lambda: None, answering=set() if is_done else {"a request"})
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w"):
        command._end(shutdown, shutdown, reader, 60 if is_done else 0.01)
    assert left == ([] if is_done else [(os._exit, 0)])


@pytest.mark.process
def test_a_store_that_goes_away_is_an_error_and_answers_when_it_is_back(tmp_path):
    (tmp_path / "s").mkdir()
    with kartosql.connect(tmp_path / "s") as con:
        con.sql("CREATE DATASET t AS SELECT 1 AS a")
    with kartosql.connect(tmp_path / "s", untrusted=True) as connection:
        service = Service(connection)
        asked = Client("anyone"), "SELECT * FROM t"
        assert service.query(*asked).rows() == [(1,)]
        (tmp_path / "s").rename(tmp_path / "away")
        for code in ("unknown-table", "store-not-found"):
            with pytest.raises(KartosqlError) as caught:
                service.query(*asked)
            assert caught.value.code == code
            for worker in connection._idle if code == "unknown-table" else ():
                connection._template.end(worker._number)
        (tmp_path / "away").rename(tmp_path / "s")
        assert service.query(*asked).rows() == [(1,)]


def test_certificates_are_those_of_http_and_flight(store, tmp_path):
    dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")
    if shutil.which("openssl") is None:
        pytest.skip("no openssl makes a certificate here")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    made += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(made, check=True, capture_output=True)
    with _serving(store, "--tls-cert", str(cert), "--tls-key", str(key)) as (_, lines):
        host = lines["http"].removeprefix("https://")
        context = ssl.create_default_context(cafile=str(cert))
        connection = http.client.HTTPSConnection(host, timeout=120, context=context)
        connection.request("POST", "/sql", json.dumps({"sql": "SELECT s FROM t WHERE k = 7"}))
        assert json.loads(connection.getresponse().read())["rows"] == [["x7"]]
        connection.close()
        options = {"adbc.flight.sql.client_option.tls_root_certs": cert.read_text()}
        with dbapi.connect(lines["flight"], db_kwargs=options, autocommit=True) as con, con.cursor() as cursor:
            assert _all(cursor, "SELECT s FROM t WHERE k = 7") == [("x7",)]
        sa = pytest.importorskip("sqlalchemy")
        sa.dialects.registry.register("kartosql.flight", "kartosql.sqlalchemy_dialect", "KartosqlFlightDialect")
        url = lines["flight"].replace("grpc+tls://", "kartosql+flight://")
        engine = sa.create_engine(f"{url}?tls=true&tls_root_certs={cert}")
        with engine.connect() as con:
            assert con.execute(sa.text("SELECT s FROM t WHERE k = 7")).fetchall() == [("x7",)]
        engine.dispose()
