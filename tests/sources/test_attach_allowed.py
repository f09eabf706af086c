"""What may be attached to a connection, and whose credentials are used for it."""

from __future__ import annotations

import http.server
import threading
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql import dbapi
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.opening import connect_as_owner


@pytest.fixture
def place(tmp_path):
    """A store, and the folders ``pre`` and ``prefix2`` beside it with a file each."""
    (tmp_path / "store").mkdir()
    for folder in ("pre", "prefix2"):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"a": [1]}), tmp_path / folder / "x.parquet")
        (tmp_path / folder / "x.csv").write_text("a\n1\n")
    return tmp_path


def code_of(call) -> str | None:
    try:
        call()
    except KartosqlError as e:
        return e.code
    return None


def attaching(con, url, type_="parquet", **options):
    """Attach in both ways; returns the code of each error, or None."""
    name = f"t{uuid.uuid4().hex}"
    given = "".join(f", {k} '{v}'" for k, v in options.items())
    return (
        code_of(lambda: con.sql(f"ATTACH '{url}' AS {name} (TYPE {type_}{given})")),
        code_of(lambda: con.attach(url, f"{name}2", type=type_, **options)),
    )


def test_a_read_only_connection_attaches_nothing_unless_that_is_said(place):
    allowed = {None: True, True: True, False: False}
    for read_only in (False, True):
        for attach, expected in (allowed | ({None: False} if read_only else {})).items():
            with kartosql.connect(place / "store", read_only=read_only, attach=attach) as con:
                code = None if expected else "not-allowed"
                for kind in ("parquet", "csv", "odf", "kartothek"):
                    found = attaching(con, place / "pre" / f"x.{kind}", kind)
                    assert [c == "not-allowed" for c in found] == [not expected] * 2, (read_only, attach, kind)
                assert attaching(con, place / "pre" / "x.parquet") == (code, code)
                assert code_of(lambda c=con: c.sql("SET attach = true")) == "not-allowed"
                assert code_of(lambda c=con: c.sql("RESET attach")) == "not-allowed"


def test_nothing_of_the_process_is_read_by_statements_of_strangers(place):
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/x.csv"
        with kartosql.connect(place / "store", read_only=True) as con:
            for found in ("/etc/passwd", "file:///etc/passwd", url, f"simplecache::{url}", "memory://x"):
                assert attaching(con, found, "csv") == ("not-allowed", "not-allowed")
            assert con.sql("SHOW ATTACHED").rows() == []
            for statement in (
                "EXPORT (SELECT 1 AS a) TO '/tmp/x' (TYPE odf)",
                "COPY CUBE c TO '/tmp/x'",
                "EXPORT SCHEMA HISTORY OF c TO '/tmp/x'",
            ):
                assert code_of(lambda s=statement: con.sql(s)) == "read-only", statement
        assert not asked
    finally:
        server.shutdown()
        server.server_close()


def test_a_list_allows_what_lies_below_and_nothing_beside_it(place, monkeypatch):
    monkeypatch.chdir(place)
    pre = place / "pre"
    (pre / "out").symlink_to(place / "prefix2")
    for prefixes in ([pre], [f"file://{pre}/"], ["pre"], ("memory://m", str(pre))):
        with kartosql.connect(place / "store", read_only=True, attach=prefixes) as con:
            for url in (pre / "x.parquet", f"file://{pre}/x.parquet", f"{pre}/../pre/x.parquet"):
                assert attaching(con, url) == (None, None), url
            for url in (place / "prefix2", f"{pre}/../prefix2", f"{pre}/out/x.parquet", place, "/etc", "memory://m2"):
                assert attaching(con, url) == ("not-allowed", "not-allowed"), url
            shown = con.sql("SHOW ATTACHED").rows()
            con.sql(f"DETACH {shown[0][0]}")
            assert len(con.sql("SHOW ATTACHED").rows()) == len(shown) - 1
    with kartosql.connect(place / "store", attach=["pre"]) as con:
        monkeypatch.chdir("/")  # what was relative is so to the folder of before
        assert attaching(con, pre / "x.parquet") == (None, None)


def test_metadata_lie_where_things_may_be_attached(place):
    with kartosql.connect(place / "store", attach=[place / "pre"]) as con:
        inside, outside = f"{place}/pre/_meta", f"{place}/prefix2/_meta"
        with pytest.warns(KartosqlWarning, match="there are no metadata"):
            assert attaching(con, place / "pre" / "x.parquet", metadata=inside) == (None, None)
        assert attaching(con, place / "pre" / "x.parquet", metadata=outside) == ("not-allowed", "not-allowed")
        assert attaching(con, place / "pre" / "x.parquet", metadata=f"{inside}/../../prefix2")[0] == "not-allowed"


def test_values_of_attach_are_checked(place):
    for bad in ("no", "s3://b", 1, [1], [""], [None], ["a\0b"], {"a": 1}, object(), ["\ud800"], [b"x"]):
        with pytest.raises(KartosqlError) as e:
            kartosql.connect(place / "store", attach=bad)
        assert e.value.code == "invalid-setting", bad
    with kartosql.connect(place / "store", attach=[]) as con:
        assert attaching(con, place / "pre" / "x.parquet") == ("not-allowed", "not-allowed")


def test_who_opens_a_store_and_writes_the_statements_may_do_both(place):
    with connect_as_owner(str(place / "store"), timeout=1) as con:
        assert con.read_only
        assert attaching(con, place / "pre" / "x.parquet") == (None, None)
        con.sql("SET timeout = 60")
        con.sql("SET TimeZone = 'Europe/Berlin'")
        assert code_of(lambda: con.sql("DROP DATASET d")) == "read-only"
    with dbapi.connect(str(place / "store"), read_only=True, attach=[str(place / "pre")]) as db:
        assert attaching(db.native, place / "pre" / "x.parquet") == (None, None)
        assert attaching(db.native, place / "prefix2" / "x.parquet") == ("not-allowed", "not-allowed")


def test_a_connection_for_strangers_only_narrows(place):
    """What one of several users of a connection sets holds for all of them."""
    given = {"timeout": 1, "max_bytes": "1KB", "memory_limit": "200MB", "threads": 1}
    with kartosql.connect(place / "store", read_only=True, **given) as con:
        before = con.sql("SHOW SETTINGS").rows()
        for text in (
            "SET timeout = 6",
            "SET timeout = '1e8'",
            "SET max_bytes = '1TB'",
            "SET memory_limit = '20GB'",
            "SET threads = 2",
            "SET default_collation = 'NOCASE'",
            "SET TimeZone = 'Asia/Tokyo'",
            "SET TIME ZONE 'Asia/Tokyo'",
            "SET engine = 'spark'",
            "SET spark_threshold = 0",
            "SET write_memory = 1",
            "SET grace_period = 3600",
            "SET temp_directory = '/tmp'",
        ):
            assert code_of(lambda t=text: con.sql(t)) == "not-allowed", text
        for text in ("RESET timeout", "SET max_bytes = DEFAULT", "SET memory_limit = NULL", "RESET threads"):
            con.sql(text)
            assert con.sql("SHOW SETTINGS").rows() == before, text
        con.sql("SET timeout = 0.5")
        con.sql("SET timeout = 0.9")  # another user's limit is his own: only the owner's holds for all
        con.sql("RESET timeout")
        assert con.sql("SHOW SETTINGS").rows() == before


@pytest.mark.filterwarnings("ignore::kartosql.KartosqlWarning")
def test_options_of_a_store_are_for_nothing_outside_of_it(monkeypatch):
    name = uuid.uuid4().hex
    opened: dict[str, object] = {}
    from kartosql.sources import folder, folder_metadata, kartothek, odf
    from kartosql.store import Store

    def record(url, options=None, **more):
        opened[url] = options
        return Store(url, options, **more)

    for module in (folder, odf, folder_metadata, kartothek):
        monkeypatch.setattr(module, "Store", record)
    with kartosql.connect(f"memory://{name}/store", storage_options={"secret": "x"}) as con:
        for path in ("store/below", "store2/beside", "other"):
            con.store.fs.mkdirs(f"/{name}/{path}", exist_ok=True)
            with con.store.fs.open(f"/{name}/{path}/x.csv", "wb") as file:
                file.write(b"a\n1\n")
            assert attaching(con, f"memory://{name}/{path}", "csv") == (None, None)
            attaching(con, f"memory://{name}/{path}", "kartothek")
            attaching(con, f"memory://{name}/{path}", "odf")
        con.sql(f"ATTACH 'memory://{name}/store/below' AS m (TYPE csv, METADATA 'memory://{name}/other/meta')")
        con.attach(f"memory://{name}/other", "g", type="csv", storage_options={"own": 1})
        used = {url.removeprefix(f"memory://{name}/").split("/")[0]: set() for url in opened}
        for url, options in opened.items():
            used[url.removeprefix(f"memory://{name}/").split("/")[0]].add(str(options))
        assert used["store"] == {"{'secret': 'x'}"}
        assert used["store2"] == {"None"}
        assert "{'secret': 'x'}" not in used["other"]
        assert opened[f"memory://{name}/other"] == {"own": 1}


def test_the_hints_name_the_types_that_there_are():
    from kartosql.sources import SOURCES
    from kartosql.sql.attach_parse import FORM, TYPES

    assert list(SOURCES) == list(TYPES)
    assert f"(TYPE {' | '.join(SOURCES)}, " in FORM
