"""Conditional writes on Azure and Google Cloud Storage, against small stand-ins of their clients.

The stand-ins have the methods and the errors of adlfs 2026.8 and gcsfs 2026.10 that are used.
"""

from __future__ import annotations

import sys
import types
import uuid
from enum import Enum

import pytest

from kartosql.errors import StoreError
from kartosql.store import OutcomeUnknown, PreconditionFailed, Store
from kartosql.store import store as store_module
from kartosql.store.keys import Version

pytest.importorskip("fsspec")
DOC = "u.by-dataset-metadata.json"


class MatchConditions(Enum):
    IfNotModified = 2


class AzureError(Exception):
    def __init__(self, status, error_code=None, history=()):
        super().__init__(f"status {status}")
        self.status_code = status
        self.error_code = error_code
        self.response = types.SimpleNamespace(context={"history": list(history)})


class FakeFiles:
    """The calls of fsspec that both clients share."""

    def __init__(self):
        from fsspec.asyn import get_loop

        self.loop = get_loop()
        self.blobs: dict[str, tuple[bytes, str]] = {}
        self.failure: Exception | None = None  # raised instead of doing anything
        self.lost: Exception | None = None  # raised after everything was done

    def split_path(self, path):
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def invalidate_cache(self, path=None):
        pass

    def rm_file(self, path):
        if self.blobs.pop(self.split_path(path)[1], None) is None:
            raise FileNotFoundError(path)

    def begin(self):
        if self.failure is not None:
            raise self.failure

    def end(self):
        lost, self.lost = self.lost, None
        if lost is not None:
            raise lost


class FakeAzure(FakeFiles):
    protocol = ("abfs", "az", "abfss")

    @property
    def service_client(self):
        return self

    def get_blob_client(self, *, container, blob):
        assert container == "a-container"
        return FakeBlob(self, blob)


class FakeBlob:
    def __init__(self, files, name):
        self.files = files
        self.name = name

    async def __aenter__(self):
        return self

    async def __aexit__(self, *args):
        pass

    def _check(self, etag, match_condition):
        self.files.begin()
        found = self.files.blobs.get(self.name)
        if etag is not None:
            assert match_condition is MatchConditions.IfNotModified
            if found is None:
                raise AzureError(404, "BlobNotFound")
            if found[1] != etag:
                raise AzureError(412, "ConditionNotMet")
        return found

    async def upload_blob(self, *, data, overwrite, etag=None, match_condition=None):
        found = self._check(etag, match_condition)
        if found is not None and not overwrite:
            raise AzureError(409, "BlobAlreadyExists")
        self.files.blobs[self.name] = (data, uuid.uuid4().hex)
        self.files.end()
        return {"etag": self.files.blobs[self.name][1]}

    async def delete_blob(self, *, etag=None, match_condition=None):
        if self._check(etag, match_condition) is None:
            raise AzureError(404, "BlobNotFound")
        del self.files.blobs[self.name]
        self.files.end()

    async def download_blob(self):
        data, etag = self.files.blobs.get(self.name) or (None, None)
        if data is None:
            raise AzureError(404, "BlobNotFound")

        async def readall():
            return data

        return types.SimpleNamespace(readall=readall, properties=types.SimpleNamespace(etag=etag))


class FakeGoogle(FakeFiles):
    protocol = ("gs", "gcs")
    _location = "https://storage.googleapis.com"

    def call(self, method, path, *args, json_out=False, headers=None, data=None, **parameters):
        self.begin()
        if method == "POST":
            assert path == f"{self._location}/upload/storage/v1/b/a-container/o"
            assert parameters["uploadType"] == "media"
            name = parameters["name"]
        else:
            assert path == "b/{}/o/{}"
            assert args[0] == "a-container"
            name = args[1]
        found = self.blobs.get(name)
        if method in ("GET", "DELETE") and found is None:
            raise FileNotFoundError(name)
        if method == "GET":
            assert parameters == {"alt": "media"}
            return {"X-Goog-Generation": found[1]}, found[0]
        if parameters["ifGenerationMatch"] != (found[1] if found else "0"):
            raise FileExistsError(name)
        if method == "DELETE":
            del self.blobs[name]
        else:
            self.blobs[name] = (data, str(uuid.uuid4().int))
        self.end()
        assert json_out == (method == "POST")
        return {"generation": self.blobs[name][1]} if json_out else ({}, b"")


@pytest.fixture(params=[FakeAzure, FakeGoogle])
def cloud(request, monkeypatch):
    module = types.ModuleType("azure.core")
    module.MatchConditions = MatchConditions
    monkeypatch.setitem(sys.modules, "azure.core", module)
    files = request.param()
    monkeypatch.setattr(store_module, "filesystem_of", lambda url, options, without_driver: (files, "a-container/x"))
    return Store("cloud://a-container/x")


def test_puts_heed_the_version(cloud):
    first = cloud.put_if(DOC, b"one", None)
    second = cloud.put_if(DOC, b"two", first)
    for expected in (None, first, Version("7")):
        with pytest.raises(PreconditionFailed):
            cloud.put_if(DOC, b"three", expected)
    assert cloud.read_versioned(DOC) == (b"two", second)
    with pytest.raises(PreconditionFailed):
        cloud.put_if("v.json", b"one", first)


def test_deletes_heed_the_version(cloud):
    first = cloud.put_if(DOC, b"one", None)
    second = cloud.put_if(DOC, b"two", first)
    with pytest.raises(PreconditionFailed):
        cloud.delete_if(DOC, first)
    cloud.delete_if(DOC, second)
    cloud.delete_if(DOC, second)
    with pytest.raises(KeyError):
        cloud.read_versioned(DOC)


def test_the_probe_passes(cloud):
    cloud.require_conditional_put("u/.commit")
    assert cloud.fs.blobs == {}


def test_an_answer_that_is_lost_is_an_unknown_outcome(cloud):
    version = cloud.put_if(DOC, b"one", None)
    cloud.fs.lost = ConnectionError("reset")
    with pytest.raises(OutcomeUnknown):
        cloud.put_if(DOC, b"two", version)
    data, version = cloud.read_versioned(DOC)
    assert data == b"two"
    cloud.require_conditional_put()
    cloud.fs.lost = TimeoutError("slow")
    with pytest.raises(OutcomeUnknown):
        cloud.delete_if(DOC, version)


@pytest.mark.parametrize("cloud", [FakeAzure], indirect=True)
@pytest.mark.parametrize(
    ("failure", "expected", "code"),
    [
        (AzureError(403), StoreError, "access-denied"),
        (AzureError(404, "ContainerNotFound"), StoreError, "store-failed"),
        (AzureError(403, history=["an attempt without answer"]), OutcomeUnknown, None),
        (AzureError(503), OutcomeUnknown, None),
    ],
)
def test_refusals_are_certain_only_after_one_attempt(cloud, failure, expected, code):
    version = cloud.put_if(DOC, b"one", None)
    cloud.fs.failure = failure
    with pytest.raises(expected) as e:
        cloud.put_if(DOC, b"two", version)
    assert getattr(e.value, "code", None) == code
    cloud.fs.failure = None
    assert cloud.read_versioned(DOC) == (b"one", version)


class OnlyFiles(FakeFiles):
    """A filesystem that has no conditional writes."""

    protocol = "ftp"

    def cat_file(self, path, start=None, end=None):
        try:
            return self.blobs[self.split_path(path)[1]][0]
        except KeyError:
            raise FileNotFoundError(path) from None

    def pipe_file(self, path, data):
        self.blobs[self.split_path(path)[1]] = (data, "")


def test_other_filesystems_are_only_for_a_single_writer(monkeypatch):
    files = OnlyFiles()
    monkeypatch.setattr(store_module, "filesystem_of", lambda url, options, without_driver: (files, "a-container/x"))
    store = Store("ftp://a-container/x")
    for write in (store.require_conditional_put, lambda: store.put_if(DOC, b"1", None)):
        with pytest.raises(StoreError) as e:
            write()
        assert e.value.code == "no-conditional-put"
    store.single_writer = True
    first = store.put_if(DOC, b"one", None)
    with pytest.raises(PreconditionFailed):
        store.put_if(DOC, b"two", None)
    store.put_if(DOC, b"two", first)
    assert store.read_versioned(DOC)[0] == b"two"
