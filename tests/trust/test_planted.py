"""Secrets that are planted wherever one is given, and looked for in whatever is told, logged, cached or written.

Credentials of the store, tokens of clients, and, in what a server notes of statements of others, their constants.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import kartosql
from kartosql import session_pool
from kartosql.errors import KartosqlError
from s3_server import BUCKET, S3Server, serve

PLANTED = {
    "secret": "s3cretPlanted", "session token": "t0kenPlanted", "client token": "cl1entTokenPlanted",
    "constant": "c0nstantPlanted", "parameter": "p4rameterPlanted",
}  # fmt: skip
CREDENTIALS = [PLANTED["secret"], PLANTED["session token"]]
URL = f"s3://{BUCKET}/store"
CUBE = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
STATEMENTS = (
    "SHOW TABLES", "SHOW SETTINGS", "SHOW ATTACHED", "SHOW HISTORY FROM d", "SHOW METADATA FROM d", "SHOW STATS FROM c",
    "SELECT * FROM d WHERE k = 3", "SELECT * FROM c", "EXPLAIN SELECT * FROM d WHERE k = 3",
    "EXPLAIN ANALYZE SELECT * FROM c WHERE i = 'a'", "SELECT * FROM d AT (VERSION => 1)", "INSERT INTO d VALUES (1, 5)",
    "UPDATE d SET k = 9 WHERE k = 4", "CREATE SKIPPING INDEX ON d MINMAX (k)", "CHECK d FULL", "COMPACT d", "CLEANUP d",
    "SELECT * FROM nowhere", "SELECT no_column FROM d", "SELEC 1", "SELECT CAST('x' AS INTEGER) FROM d",
    "SELECT getenv('AWS_SECRET_ACCESS_KEY')", "SELECT * FROM duckdb_secrets()", "SELECT * FROM duckdb_settings()",
    "ATTACH 's3://no-bucket/x' AS n (TYPE parquet)", f"ATTACH '{URL}/d/table' AS f (TYPE parquet)",
    "SELECT * FROM f ORDER BY 1",
)  # fmt: skip


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store whose credentials are planted, and folders of our own for caches, homes and temporary files."""
    for name in ("home", "tmp", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED["secret"])
    monkeypatch.setattr(tempfile, "tempdir", None)
    with serve() as found:
        yield found
    session_pool.clear()


def options(server: S3Server) -> dict[str, object]:
    return server.storage_options | {"secret": PLANTED["secret"], "token": PLANTED["session token"]}


def filled(server: S3Server) -> None:
    with kartosql.connect(URL, storage_options=options(server), single_writer=True) as con:
        con.create_dataset("d", pa.table({"p": [1, 2], "k": [3, 4]}), partition_on=["p"], index_columns=["k"])
        rows = {"seed": pa.table({"x": [1], "p": [1], "i": ["a"]})}
        con.build_cube(CUBE, rows)


def told_by(error: BaseException) -> list[str]:
    lines = [*traceback.format_exception(error), repr(error), repr(error.args)]
    return [*lines, json.dumps(error.to_dict())] if isinstance(error, KartosqlError) else lines


def files_below(folder: Path) -> dict[str, bytes]:
    """Return names and contents of files; some go away meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        try:
            found[str(path)] = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue
    return found


def leaks(told: dict[str, str | bytes], secrets: list[str]) -> list[tuple[str, str]]:
    """Return where secrets occur, and the text around them."""
    found = []
    for where, content in told.items():
        text = f"{where}\n{content.decode('latin-1') if isinstance(content, bytes) else content}"
        for secret in secrets:
            at = text.find(secret)
            found += [(where, text[max(0, at - 80) : at + 80])] if at >= 0 else []
    return found


def test_credentials_are_in_nothing_that_a_connection_tells_logs_caches_or_writes(server, tmp_path, caplog, capfd):
    caplog.set_level(1, "kartosql")
    told: dict[str, str | bytes] = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        filled(server)
        for refused in ({}, {"GET": 403}, {"PUT": 503}):
            name = " ".join(refused) or "all is well"
            settings = {"storage_options": options(server), "cache": str(tmp_path / "cache"), "single_writer": True}
            with kartosql.connect(URL, attach=True, **settings) as con:
                server.refuse = refused
                shown = [repr(con), str(con), repr(con.store), repr(con.settings)]
                for sql in STATEMENTS:
                    try:
                        query = con.sql(sql)
                        shown += [repr(query.rows()), repr(query), query._repr_html_(), repr(query.report)]
                        shown += [json.dumps(query.report, default=str)]
                    except Exception as e:  # noqa: BLE001
                        shown += told_by(e)
                    told.update(files_below(tmp_path))
                server.refuse = {}
            told[f"statements, {name}"] = "\n".join(shown)
        for bad in ({"endpoint_url": "http://127.0.0.1:1"}, {"config_kwargs": {"no_option": 1}}):
            try:
                with kartosql.connect(URL, storage_options=options(server) | bad) as con:
                    told["a bad store"] = repr(con.sql("SHOW TABLES").rows())
            except Exception as e:  # noqa: BLE001
                told[f"an error of {next(iter(bad))}"] = "".join(told_by(e))
    out, err = capfd.readouterr()
    told |= {"stdout": out, "stderr": err, "logs": caplog.text, "warnings": "".join(str(w.message) for w in warned)}
    told |= {f"object {key}": found.data for (_, key), found in server.objects.items()} | files_below(tmp_path)
    assert len(server.objects) > 5
    assert any("/cache/" in where for where in told)
    assert "all is well" in "".join(told)
    assert "missing-" in told["statements, GET"] or "store-failed" in told["statements, GET"] or "denied" in str(told)
    assert leaks(told, CREDENTIALS) == []


def ask(address: str, method: str, path: str, body: object = None, token: str = PLANTED["client token"]) -> str:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
    connection.request(method, path, json.dumps(body) if body else None, {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    text = f"{answer.status} {answer.getheaders()} {answer.read().decode('utf-8', 'replace')}"
    connection.close()
    return text


def test_secrets_are_in_nothing_that_a_server_tells_logs_caches_or_writes(server, tmp_path):
    filled(server)
    tokens, log = tmp_path / "home" / "tokens", tmp_path / "audit.log"
    tokens.write_text(PLANTED["client token"])
    command = [sys.executable, "-m", "kartosql", "serve", URL, "--workers", "1", "--token-file", str(tokens)]
    command += ["--audit-log", str(log)]
    command += [part for name, value in options(server).items() for part in _option(name, value)]
    told: dict[str, str | bytes] = {}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **streams) as process:
        try:
            lines = list(iter(lambda: process.stdout.readline() or "ready\n", "ready\n"))
            told["what it says"] = "".join(lines)
            address = dict(line.split() for line in lines)["http"]
            for number, sql in enumerate(("SHOW TABLES", *STATEMENTS[6:10], *STATEMENTS[17:24])):
                told[f"answer {number}"] = ask(address, "POST", "/sql", {"sql": sql})
            constant, given = PLANTED["constant"], PLANTED["parameter"]
            for sql in (
                f"SELECT * FROM c WHERE i = '{constant}'",
                f"SELECT '{constant}' + 1 FROM d",
                f"SELEC '{constant}",
            ):
                ask(address, "POST", "/sql", {"sql": sql})
            ask(address, "POST", "/sql", {"sql": "SELECT count(*) FROM c WHERE i = $1", "parameters": [given]})
            told["refused"] = ask(address, "POST", "/sql", {"sql": "SELECT 1"}, token="another-token")
            for path in ("/metrics", "/health", "/tables", "/", "/nowhere"):
                told[path] = ask(address, "GET", path)
            told |= files_below(tmp_path)
        finally:
            process.terminate()
            told["the rest of what it says"] = process.stdout.read()
            process.wait(300)
    told |= files_below(tmp_path) | {f"object {key}": found.data for (_, key), found in server.objects.items()}
    assert "kartosql_statements_total" in told["/metrics"]
    assert told.pop(str(tokens)) == PLANTED["client token"].encode()
    assert '"result": "ok"' in log.read_text()
    assert leaks(told, [*PLANTED.values()]) == []


def _option(name: str, value: object) -> list[str]:
    if name == "skip_instance_cache":
        return []
    return ["--storage-option", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
