"""Conditional writes on S3: careless stores, refusals, failures."""

from __future__ import annotations

import pytest

from kartosql.errors import FormatError, StoreError
from kartosql.store import OutcomeUnknown, PreconditionFailed, Store
from kartosql.store.keys import Version
from s3_server import BUCKET, serve

DOC = "u.by-dataset-metadata.json"

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def open_store(server) -> Store:
    return Store(f"s3://{BUCKET}/x", server.storage_options)


def test_a_store_that_ignores_the_condition_of_puts_is_refused():
    with serve(ignore_put_conditions=True, ignore_delete_conditions=True) as server:
        store = open_store(server)
        for _ in range(2):
            with pytest.raises(StoreError) as e:
                store.require_conditional_put("u/.commit")
            assert e.value.code == "no-conditional-put"
            assert "single_writer" in e.value.hint
            assert store.url in e.value.message
        assert server.keys() == []


def test_a_single_writer_may_use_a_store_that_ignores_conditions():
    with serve(ignore_put_conditions=True, ignore_delete_conditions=True) as server:
        store = open_store(server)
        store.single_writer = True
        store.require_conditional_put("u/.commit")
        first = store.put_if(DOC, b"one", None)
        second = store.put_if(DOC, b"two", first)
        for expected in (None, first):
            with pytest.raises(PreconditionFailed):
                store.put_if(DOC, b"three", expected)
        with pytest.raises(PreconditionFailed):
            store.delete_if(DOC, first)
        assert store.read_versioned(DOC) == (b"two", second)
        store.delete_if(DOC, second)
        assert server.keys() == []


def test_a_store_that_ignores_the_condition_of_deletes_is_refused_only_for_them():
    with serve(ignore_delete_conditions=True) as server:
        store = open_store(server)
        store.require_conditional_put()
        version = store.put_if(DOC, b"one", None)
        with pytest.raises(StoreError) as e:
            store.delete_if(DOC, version)
        assert e.value.code == "no-conditional-delete"
        assert DOC in e.value.message
        assert store.read(DOC) == b"one"
        store.single_writer = True
        with pytest.raises(PreconditionFailed):
            store.delete_if(DOC, Version('"other"'))
        store.delete_if(DOC, version)
        assert server.keys() == []


def test_the_probe_asks_once_and_survives_lost_answers():
    with serve(lose=0.4, seed=1) as server:
        store = open_store(server)
        store.require_conditional_put("u/.commit")
        before = server.requests.total()
        store.require_conditional_put("u/.commit")
        assert server.requests.total() == before
        assert server.lost


@pytest.mark.parametrize(
    ("status", "code"), [(403, "access-denied"), (400, "store-failed"), (501, "no-conditional-put")]
)
def test_a_refused_put_is_a_named_error(s3, s3_server, status, code):
    version = s3.put_if(DOC, b"old", None)
    s3_server.refuse = {"PUT": status}
    with pytest.raises(StoreError) as e:
        s3.put_if(DOC, b"new", version)
    assert e.value.code == code
    s3_server.refuse = {}
    assert s3.read_versioned(DOC) == (b"old", version)


@pytest.mark.parametrize(("status", "error"), [(500, OutcomeUnknown), (503, OutcomeUnknown), (409, PreconditionFailed)])
def test_what_a_server_in_trouble_says_is_not_taken_for_certain(s3, s3_server, status, error):
    version = s3.put_if(DOC, b"old", None)
    s3_server.refuse = {"PUT": status, "DELETE": status}
    with pytest.raises(error):
        s3.put_if(DOC, b"new", version)
    s3_server.refuse = {}


def test_a_server_that_is_gone_is_an_unknown_outcome():
    with serve() as server:
        store = open_store(server)
        version = store.put_if(DOC, b"old", None)
    with pytest.raises(OutcomeUnknown):
        store.put_if(DOC, b"new", version)


@pytest.mark.parametrize("write", [lambda s: s.put_if("a/b", b"1", None), lambda s: s.put("a/b", b"1")])
def test_a_write_without_credentials_says_how_they_are_given(s3_server, monkeypatch, tmp_path, write):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    options = {k: v for k, v in s3_server.storage_options.items() if k not in ("key", "secret")}
    with pytest.raises(StoreError) as found:
        write(Store(f"s3://{BUCKET}/x", options))
    assert found.value.code == "access-denied"
    assert "AWS" in (found.value.hint or "")


def test_what_others_wrote_and_deleted_after_a_listing_is_seen(s3, s3_server):
    s3.put("u/gone", b"1")
    s3.put("u/changed", b"1")
    names = ["u/changed", "u/gone"]
    assert sorted(s3.list_below("u/")) == sorted(s3.details("u/")) == names
    assert [e.name for e in s3.list_root()] == ["u"]
    other = Store(s3.url, s3_server.storage_options)
    other.put("u/new", b"123")
    other.put("u/changed", b"12345")
    other.put("new", b"12")
    other.delete(["u/gone"])
    assert s3.read("u/new") == b"123"
    assert s3.sizes(["u/new", "u/changed", "new"]) == {"u/new": 3, "u/changed": 5, "new": 2}
    assert s3.info("u/changed")["size"] == 5
    assert s3.read("new") == b"12"
    for ask in (s3.read, s3.size):
        with pytest.raises(KeyError):
            ask("u/gone")
    assert sorted(s3.list_below("u/")) == ["u/changed", "u/new"]


def test_a_document_is_read_with_one_request(s3, s3_server):
    s3.put("u/a", b"1")
    before = s3_server.requests.copy()
    assert s3.read_metadata("u/a") == b"1"
    assert s3_server.requests - before == {"GET": 1}


def test_a_bucket_that_is_not_there_is_a_named_error(s3_server):
    store = Store("s3://another-bucket/x", s3_server.storage_options)
    for write in (
        lambda: store.put_if(DOC, b"1", None),
        lambda: store.put_if(DOC, b"1", Version('"x"')),
        lambda: store.put("u/x", b"1"),
        store.require_conditional_put,
    ):
        with pytest.raises(StoreError) as e:
            write()
        assert e.value.code == "store-failed"


def test_deletes_that_the_server_refuses_are_named(s3, s3_server):
    s3.put("u/a", b"1")
    s3_server.refuse = {"POST": 403}
    with pytest.raises(StoreError) as e:
        s3.delete(["u/a"])
    assert e.value.code == "access-denied"


def test_a_thousand_objects_are_deleted_with_one_request(s3, s3_server):
    keys = [f"u/t/{i:04}" for i in range(1001)]
    s3.put(keys[0], b"1")
    s3.delete(keys)
    assert s3_server.requests["POST"] == 2
    assert s3_server.keys() == []


def test_versions_are_those_of_listings(s3):
    version = s3.put_if(DOC, b"one", None)
    (entry,) = s3.list_root()
    assert Version(f'"{entry.stamp.etag}"') == version


def test_a_delete_that_was_perhaps_sent_twice_is_unknown_where_nobody_can_look(monkeypatch):
    with serve() as server:
        store = open_store(server)
        store.require_conditional_put()
        version = store.put_if(DOC, b"one", None)
        monkeypatch.setattr(store._writer, "_call", _raising(PreconditionFailed(DOC)))
        monkeypatch.setattr(store._writer, "_version", _raising(TimeoutError("no answer")))
        with pytest.raises(OutcomeUnknown):
            store.delete_if(DOC, version)


@pytest.mark.parametrize("method", ["put", "read_versioned", "_delete_one"])
def test_without_conditions_a_write_without_an_answer_is_unknown(monkeypatch, method):
    with serve(ignore_put_conditions=True, ignore_delete_conditions=True) as server:
        store = open_store(server)
        store.single_writer = True
        version = store.put_if(DOC, b"one", None)
        real, calls = getattr(store._writer, method), []

        def lost(*args):
            calls.append(args)
            if method == "read_versioned" and len(calls) == 1:
                return real(*args)  # the look before the write
            raise TimeoutError("no answer")

        monkeypatch.setattr(store._writer, method, lost)
        act = store.delete_if if method == "_delete_one" else lambda key, version: store.put_if(key, b"two", version)
        with pytest.raises(OutcomeUnknown):
            act(DOC, version)


def _raising(error: Exception):
    def call(*args, **options):
        raise error

    return call


NAMES = ["d/plain", "d/a b+c", "d/100%", "d/%2F", "d/ä=ö&ü", "d/~x'(y)*!", "d/p=a:b,c;d@e$", "d/\U0001f600", "d/?q#f"]


@pytest.mark.parametrize("name", NAMES)
def test_ranges_asked_for_like_an_earlier_one_are_those_that_the_client_gets(s3_server, monkeypatch, name):
    store = open_store(s3_server)
    store.put(name, bytes(range(200)))
    assert store.read(name, start=3, end=9) == bytes(range(3, 9)), "by the client"
    asked = len(s3_server.answers)
    assert store.read(name, start=3, end=9) == bytes(range(3, 9))
    assert store.read(name, start=190) == bytes(range(190, 200))
    assert [a.status for a in s3_server.answers[asked:]] == [206, 206]
    called = []
    original = store.fs._call_s3
    monkeypatch.setattr(store.fs, "_call_s3", lambda *a, **k: called.append(a) or original(*a, **k))
    for other in NAMES:
        store.put(other, other.encode() * 9)
        assert store.read(other, start=2, end=30) == (other.encode() * 9)[2:30]
    assert "get_object" not in [a[0] for a in called], "none of these went by the client's whole way"


def test_what_is_no_range_goes_by_the_client(s3_server):
    store = open_store(s3_server)
    store.put("d/a", b"0123456789")
    etag = f'"{s3_server.etag_of(b"0123456789")}"'
    for _ in range(2):
        assert store.read("d/a", start=1, end=3, only=etag) == b"12"
        with pytest.raises(KeyError):
            store.read("d/none", start=1, end=3)
        with pytest.raises(FormatError, match="written anew"):
            store.read("d/a", start=1, end=3, only='"other"')
    s3_server.refuse = {"GET": 403}
    with pytest.raises(StoreError) as denied:
        store.read("d/a", start=1, end=3)
    assert denied.value.code == "access-denied"
    s3_server.refuse = {}
    s3_server.ignore_ranges = True
    assert store.read("d/a", start=1, end=3) == b"12"
    s3_server.ignore_ranges, s3_server.ignore_get_conditions = False, True
    with pytest.raises(FormatError, match="written anew"):
        store.read("d/a", start=1, end=3, only='"other"')


def test_answers_that_get_lost_are_asked_for_again(s3_server):
    store = open_store(s3_server)
    store.put("d/a", b"0123456789")
    assert store.read("d/a", start=1, end=3) == b"12"
    s3_server.lose, s3_server.losing = 0.3, frozenset({"GET"})
    for start in range(9):
        assert store.read("d/a", start=start, end=10) == b"0123456789"[start:]
