"""The server: one process asked by HTTP, Flight SQL and MCP, with tokens and their budgets."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError
from kartosql.serve import mcp
from kartosql.serve.command import serve
from kartosql.serve.service import Client, Service, read_tokens, without_constants

OWNER, GUEST = "token-of-the-owner", "token-of-the-guest"
TOKENS = f"""
owner = "{OWNER}"
[guest]
token = "{GUEST}"
tables = ["t"]
rows = 3
max_bytes = 2000
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
    command = [sys.executable, "-m", "kartosql", "serve", str(store), "--token-file", str(tokens), "--workers", "2"]
    log = tokens.with_name("audit.log")
    process = subprocess.Popen([*command, "--audit-log", str(log)], stdout=subprocess.PIPE, text=True)
    end = threading.Timer(300, process.kill)
    end.start()
    with process:
        lines = [line.split() for line in iter(process.stdout.readline, "ready\n") if line]
        assert [line[0] for line in lines] == ["flight", "http", "mcp"]
        yield {**dict(lines), "log": log}
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
    assert _call(server, "explain", sql="SELECT s FROM t WHERE k = 7")[1]["files_selected"] == 1
    found = _call(server, "query", sql="SELECT k FROM t ORDER BY k", max_rows=2)[1]
    assert (found["rows"], found["row_count"]) == ([[0], [1]], 200)
    assert isinstance(_call(server, "advise", sql="SELECT k FROM t WHERE s = 'x7'")[1], str)
    is_error, error = _call(server, "query", sql="SELECT nope FROM t")
    assert (is_error, error["code"], error["hint"]) == (True, "unknown-column", "Columns: k, p, s.")


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


def test_other_addresses_need_tokens(store):
    with pytest.raises(KartosqlError, match="can be reached by others"):
        serve([str(store), "--host", "0.0.0.0"])
