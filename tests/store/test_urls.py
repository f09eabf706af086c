from __future__ import annotations

import os

import pytest

from kartosql.store.urls import is_below

INSIDE = [
    ("s3://b/pre", "s3://b/pre"),
    ("s3://b/pre/", "s3://b/pre"),
    ("s3://b/pre", "s3://b/pre/"),
    ("s3://b/pre/x/y.parquet", "s3://b/pre/"),
    ("S3://b/pre/x", "s3://b/pre"),
    ("s3a://b/pre/x", "s3://b/pre"),
    ("s3://b/x", "s3://b"),
    ("s3://b/x", "s3://"),
    ("s3://b/pre/a%20b", "s3://b/pre"),
    ("https://Host/pre/x", "HTTPS://host/pre"),
    ("https://host/%70re/x", "https://host/pre"),
    ("https://host/pre/x.parquet?sig=1", "https://host/pre"),
    ("https://user:pw@host/pre/x", "https://host/pre"),
    ("memory://a/b/c", "memory://a/b"),
    ("abfs://c@account.dfs.core.windows.net/x/y", "abfss://c@account.dfs.core.windows.net/x"),
]
OUTSIDE = [
    ("s3://b/prefix2", "s3://b/pre"),
    ("s3://b/pre2/x", "s3://b/pre/"),
    ("s3://b2/pre", "s3://b/pre"),
    ("s3://b", "s3://b/pre"),
    ("s3://b/PRE/x", "s3://b/pre"),
    ("s3://b/pre/../other", "s3://b/pre"),
    ("s3://b/pre/%2e%2e/other", "s3://b/pre"),
    ("s3://b/pre/%252e%252E/other", "s3://b/pre"),
    ("s3://b/pre/x%2f..%2f..%2fother", "s3://b/pre"),
    ("s3://b/pre/./x", "s3://b/pre"),
    ("s3://b/pre\\..\\other", "s3://b/pre"),
    ("s3://b/%70re/x", "s3://b/pre"),  # another key on S3, where names are not encoded
    ("s3://b//pre/x", "s3://b/pre"),
    ("gs://b/pre", "s3://b/pre"),
    ("http://host/pre", "https://host/pre"),
    ("https://host.evil/pre", "https://host/pre"),
    ("https://host@evil/pre", "https://host/pre"),
    ("https://evil/pre?https://host/pre", "https://host/pre"),
    ("https://evil#@host/pre", "https://host/pre"),
    ("https://evil\\@host/pre", "https://host/pre"),
    ("https://host:8080/pre", "https://host/pre"),
    ("https://host/pre\n/../x", "https://host/pre"),
    ("simplecache::s3://b/pre/x", "s3://b/pre"),
    ("zip://x::s3://b/pre/x.zip", "zip://x"),
    ("file::s3://b/pre", "/"),
    ("", "s3://b"),
    ("abfs://other@account.dfs.core.windows.net/x", "abfs://c@account.dfs.core.windows.net/x"),
]


@pytest.mark.parametrize(("url", "root"), INSIDE)
def test_what_lies_below_a_url_however_it_is_written(url, root):
    assert is_below(url, root)


@pytest.mark.parametrize(("url", "root"), OUTSIDE)
def test_what_lies_elsewhere_or_may(url, root):
    assert not is_below(url, root)


def test_local_paths_are_those_that_they_really_are(tmp_path, monkeypatch):
    (tmp_path / "pre" / "a%2e").mkdir(parents=True)
    (tmp_path / "prefix2").mkdir()
    os.symlink(tmp_path / "prefix2", tmp_path / "pre" / "out")
    os.symlink(tmp_path / "pre", tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    pre = f"{tmp_path}/pre"
    for url in (
        "pre",
        "./pre/x",
        "~/pre/x",
        f"file://{pre}/x",
        f"{pre}//x",
        f"{pre}/../pre/x",
        "in/x",
        f"{pre}/a%2e/x",
    ):
        for root in (pre, f"{pre}/", f"file://{pre}", f"FILE://{pre}/", "pre", "in", "~/pre", f"local://{pre}"):
            assert is_below(url, root), (url, root)
    for url in ("prefix2", f"{pre}/../prefix2", f"{pre}/out/x", f"file://{pre}/../prefix2", "~", "/", "memory://pre"):
        assert not is_below(url, pre), url
    assert is_below("/etc/passwd", "/")
