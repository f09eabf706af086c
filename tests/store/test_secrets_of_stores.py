"""Credentials of a store show nowhere, whatever its driver tells when it fails."""

from __future__ import annotations

import io
import json
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import kartosql
from kartosql.cli.command import run as main
from kartosql.errors import KartosqlError

SECRETS = ("pa55word", "51gnature", "0pt10n")
CALLS = ("ls", "find", "cat_file", "info", "isfile", "size", "_open", "pipe_file", "rm_file", "modified")


class Leaky(MemoryFileSystem):
    """A driver whose errors tell all that it knows."""

    protocol = ("leaky",)
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failing: ClassVar[set[str]] = set()
    kind: ClassVar[type[Exception]] = OSError

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(urlsplit(path).path if "://" in path else path)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._fail("__init__")

    def _fail(self, call: str) -> None:
        if call in self.failing:
            try:
                raise ValueError(f"bad {self.storage_options}")
            except ValueError as e:
                own = self.storage_options
                raise self.kind(f"{call}: {URL} by {own}: '{own.get('secret')}'") from e


def _guarded(name: str) -> Any:
    original = getattr(MemoryFileSystem, name)

    def call(self: Leaky, *args: Any, **given: Any) -> Any:
        self._fail(name)
        return original(self, *args, **given)

    return call


for _name in CALLS:
    setattr(Leaky, _name, _guarded(_name))
URL = f"leaky://user:{SECRETS[0]}@host/store?sig={SECRETS[1]}"
OPTIONS = {"secret": SECRETS[2], "skip_instance_cache": True}


@pytest.fixture
def leaky() -> Iterator[type[Leaky]]:
    fsspec.register_implementation("leaky", Leaky, clobber=True)
    Leaky.store.clear()
    Leaky.pseudo_dirs[:] = ["", "/store"]
    Leaky.failing.clear()
    Leaky.kind = OSError
    yield Leaky
    Leaky.failing.clear()


def below(path: str) -> str:
    return f"leaky://user:{SECRETS[0]}@host/{path}?sig={SECRETS[1]}"


def filled() -> None:
    with kartosql.connect(URL, storage_options=OPTIONS, single_writer=True) as con:
        con.create_dataset("d", pa.table({"p": [1, 2], "k": [3, 4]}), partition_on=["p"], index_columns=["k"])
        cube = kartosql.Cube("c", ["x"], ["p"])
        con.build_cube(cube, {"seed": pa.table({"x": [1], "p": [1]})})
    out = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), out)
    fs = Leaky(**OPTIONS)
    fs.pipe_file("/folder/x.parquet", out.getvalue())
    fs.pipe_file("/texts/x.csv", b"a\n1\n")


STATEMENTS = (
    "SHOW TABLES",
    "SHOW CUBES",
    "SHOW FILES FROM d",
    "SELECT * FROM d WHERE k = 3",
    "EXPLAIN SELECT * FROM d WHERE k = 3",
    "EXPLAIN ANALYZE SELECT * FROM c",
    "INSERT INTO d VALUES (1, 5)",
    "CREATE DATASET e AS SELECT 1 AS a",
    "CHECK d FULL",
    "CLEANUP d",
    "DELETE FROM d WHERE p = 1",
    "DROP CUBE IF EXISTS c",
    f"ATTACH '{below('folder')}' AS f (TYPE parquet)",
    f"ATTACH '{below('folder')}' AS f2 (TYPE parquet, METADATA '{below('meta')}')",
    f"ATTACH '{below('texts')}' AS t (TYPE csv)",
    f"ATTACH '{below('store')}' AS s (TYPE kartothek)",
    f"ATTACH '{below('odf')}' AS o (TYPE odf)",
    f"ATTACH '{below('folder')}' AS g (TYPE nope)",
    f"ATTACH '{below('folder')}' AS (TYPE parquet)",
    f"ATTACH '{below('nowhere')}' AS n (TYPE parquet)",
    f"ATTACH '{below('folder')}' AS k (TYPE parquet, METADATA_KEYS '{SECRETS[2]}')",
    f"ATTACH '{below('folder')}' AS k2 (TYPE parquet, METADATA '{below('m')}', METADATA_KEYS {{'l': '{SECRETS[2]}'}})",
    "SELECT * FROM f, t",
    "EXPLAIN SELECT * FROM f",
    "SELECT * FROM s.d",
    "SHOW ATTACHED",
    "SHOW SETTINGS",
    f"COPY CUBE c TO '{below('copy')}'",
    f"EXPORT (SELECT 1 AS a) TO '{below('export')}' (TYPE odf)",
    f"EXPORT SCHEMA HISTORY OF d TO '{below('history')}'",
)


def texts(error: BaseException) -> str:
    told = "".join(line for line in traceback.format_exception(error) if "leaky://" not in line or "File" not in line)
    if isinstance(error, KartosqlError):
        told += str(error) + repr(error) + json.dumps(error.to_dict()) + repr(error.args)
        assert type(error.__cause__).__module__ != __name__
    return told


def run(con: kartosql.Connection) -> str:
    told = [repr(con), repr(con.store), repr(con.settings)]
    for statement in STATEMENTS:
        try:
            query = con.sql(statement)
            told += [str(query.rows()), repr(query), query._repr_html_()]
        except KartosqlError as e:
            told.append(texts(e))
    return "\n".join(told)


@pytest.mark.parametrize("kind", [OSError, PermissionError, RuntimeError])
def test_no_call_of_a_driver_that_fails_tells_credentials(leaky, kind):
    leaky.kind = kind
    seen = ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for call in (None, *CALLS):
            leaky.store.clear()
            filled()
            con = kartosql.connect(URL, storage_options=OPTIONS, single_writer=True, attach=True)
            if call == "_open":
                con.attach(below("folder"), "f", storage_options=OPTIONS)
            leaky.failing = {call} if call else set()
            try:
                seen += run(con)
                con.close()
            finally:
                leaky.failing = set()
        leaky.failing = {"__init__"}
        for statement in ("connect", "attach"):
            try:
                if statement == "connect":
                    kartosql.connect(URL, storage_options=OPTIONS)
                else:
                    with kartosql.connect("memory://x") as con:
                        con.attach(URL, "t", storage_options=OPTIONS)
            except KartosqlError as e:
                seen += texts(e)
    seen += "\n".join(str(w.message) for w in warned)
    assert "leaky://***@host/folder?sig=***" in seen
    assert "by {" in seen  # what the driver said arrived
    for secret in SECRETS:
        assert secret not in seen, next(line for line in seen.splitlines() if secret in line)


def test_the_command_line_tells_no_credentials(leaky, capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("KARTOSQL_CONFIG", str(tmp_path / "config.toml"))
    options = ["--storage-option", f"secret={SECRETS[2]}", "--set", "single_writer=true", "--write"]
    for call in (None, "__init__", "ls", "find", "cat_file"):
        leaky.store.clear()
        leaky.failing = set()
        filled()
        leaky.failing = {call} if call else set()
        for statement in STATEMENTS[:4] + STATEMENTS[12:22]:
            main([URL, *options, "-c", statement])
    main([URL, "--debug", *options, "-c", "SHOW TABLES"])
    main([URL, "--storage-option", SECRETS[2]])
    out, err = capfd.readouterr()
    assert "leaky://***@host" in err
    for secret in SECRETS:
        assert secret not in out + err, next(line for line in (out + err).splitlines() if secret in line)


def test_histories_and_prompts_hold_no_credentials(leaky, tmp_path):
    pytest.importorskip("prompt_toolkit")
    from kartosql.cli.config import Profile
    from kartosql.cli.options import Options
    from kartosql.cli.repl.front import History
    from kartosql.cli.repl.options import ShellOptions
    from kartosql.cli.repl.screen import Screen
    from kartosql.cli.repl.start import Opening, greeting

    history = History(str(tmp_path / "history"), print)
    history.append_string(f"ATTACH '{URL}' AS t (TYPE csv);")
    history.append_string(f".open {URL}")
    kept = (tmp_path / "history").read_text()
    assert "leaky://***@host/store?sig=***" in kept
    behind = Opening(Screen(), ShellOptions(), Options(URL, []), Profile("", URL))
    told = kept + behind.place + greeting(behind.place)
    assert not any(secret in told for secret in SECRETS)


def test_harlequin_names_a_store_without_credentials():
    pytest.importorskip("harlequin")
    from kartosql.harlequin_adapter import HarlequinKartosqlAdapter

    found = HarlequinKartosqlAdapter([URL], storage_option=[f"secret={SECRETS[2]}"])
    assert not any(secret in found.connection_id for secret in SECRETS)
