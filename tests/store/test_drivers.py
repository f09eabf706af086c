"""What is said of stores that have no driver, or no credentials."""

from __future__ import annotations

import sys

import pytest

from kartosql.errors import StoreError
from kartosql.store import Store
from kartosql.store.urls import no_answer, not_opened


class NoCredentialsError(Exception):
    """The name of botocore's."""


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("s3://b/x", "s3fs", "s3"),
        ("abfs://c@a.dfs.core.windows.net/x", "adlfs", "azure"),
        ("az://c/x", "adlfs", "azure"),
        ("gs://b/x", "gcsfs", "gcs"),
        ("gcs://b/x", "gcsfs", "gcs"),
    ],
)
def test_a_missing_driver_is_a_missing_extra(monkeypatch, url, module, extra):
    from fsspec.registry import _registry

    for protocol in ("s3", "s3a", "abfs", "az", "gs", "gcs"):
        monkeypatch.delitem(_registry, protocol, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StoreError) as caught:
        Store(url)
    assert caught.value.code == "missing-extra"
    assert url in caught.value.message
    assert caught.value.hint == f"pip install 'kartosql[{extra}]'"


def test_a_driver_that_is_no_extra_says_itself_what_it_needs():
    error = not_opened("hdfs://h/x", ImportError("Please install hdfs\nand more"))
    assert (error.code, error.hint) == ("missing-extra", "Please install hdfs")


@pytest.mark.parametrize(("url", "near"), [("s33://b/x", "s3://"), ("htp://h/x", "http://"), ("qqqqq://x", None)])
def test_an_unknown_protocol_is_told_which_ones_there_are(url, near):
    with pytest.raises(StoreError, match="there is no driver of") as caught:
        Store(url)
    assert (f"Did you mean {near}?" in caught.value.hint) == (near is not None)
    assert "local folders are written as paths" in caught.value.hint


def test_pages_of_a_driver_are_cut_to_their_first_line():
    assert str(not_opened("x://y", OSError("\n first\nsecond"))) == "Cannot open the store 'x://y': first"


def test_missing_credentials_are_told_how_to_give_them():
    direct = NoCredentialsError("Unable to locate credentials")
    wrapped = OSError("5")
    wrapped.__cause__ = direct
    for error in (direct, wrapped):
        found = no_answer("s3://b/x", "Cannot list 's3://b/x'", error, error)
        assert found.code == "access-denied"
        assert "AWS_ACCESS_KEY_ID" in found.hint
    assert no_answer("s3://b/x", "Cannot list", OSError("gone"), OSError("gone")).code == "store-failed"
