from __future__ import annotations

import pytest

from kartosql.errors import KartosqlError, KartosqlWarning, excerpt
from kartosql.text.secrets import harmless, masked, redacted, secrets_in

SHOWN = {
    "https://user:SECRET@host/x": "https://***@host/x",
    "https://SECRET@host/x": "https://***@host/x",
    "ftp://u:SECRET%40@h": "ftp://***@h",
    "s3://AKID:SEC/RET+@b/x": "s3://***@b/x",
    "https://u:SE@CRET@h/x": "https://***@h/x",
    "https://u:SE/CRET@h/x": "https://***@h/x",
    "https://u:SE/C@RET@h/x": "https://***@h/x",
    "https://u:SEC'RET@h/x": "https://***@h/x",
    "https://h/x?sig=SECRET&se=2026": "https://h/x?sig=***&se=***",
    "https://h/x?X-Amz-Signature=SECRET#y": "https://h/x?X-Amz-Signature=***",
    "https://h/x#access_token=SECRET": "https://h/x#access_token=***",
    "https://h/x?SECRET": "https://h/x?***",
    "abfs://c@a.dfs.core.windows.net/x?AccountKey=SECRET/+==": "abfs://c@a.dfs.core.windows.net/x?AccountKey=***",
    "http://[::1]:80/x?token=SECRET": "http://[::1]:80/x?token=***",
    "zip://x::https://u:SECRET@h/x?sig=SECRET": "zip://x::https://***@h/x?sig=***",
    "Cannot read 'https://u:SECRET@h/a?sig=SECRET', or so.": "Cannot read 'https://***@h/a?sig=***', or so.",
    "AccountName=a;AccountKey=SECRET/+==;EndpointSuffix=x": "AccountName=a;AccountKey=***;EndpointSuffix=x",
    "failed (sig=SECRET)": "failed (sig=***",
    "{'key': 'SECRET', \"token\": \"SE'CRET\", 'x': 'y'}": "{'key': '***', \"token\": \"***\", 'x': 'y'}",
}
PLAIN = [
    "abfs://container@account.dfs.core.windows.net/x",
    "ssh://git@host/x",
    "hdfs://user@host:9000/x",
    "https://h:8080/a@b.parquet",
    "s3://b/a:b@c.parquet",
    "s3://bucket/table/key=5/p=1/x.parquet: damaged",
    "d/table/sig=5/password=6/x.parquet",
    "memory://x/y, 'memory://z'",
    "user@example.com asked: why?",
    "SELECT a = 5 FROM t WHERE key = 'x'",
]


@pytest.mark.parametrize(("text", "shown"), SHOWN.items())
def test_credentials_are_not_shown(text, shown):
    assert redacted(text) == shown
    assert redacted(shown) == shown
    assert len(masked(text)) == len(text)
    for told in (
        redacted(text),
        masked(text),
        str(KartosqlError(text)),
        str(KartosqlWarning(text)),
        excerpt(text, (0, 1)),
    ):
        assert not any(part in told for part in ("SECRET", "SEC", "RET"))


@pytest.mark.parametrize("text", PLAIN)
def test_all_else_is_shown(text):
    assert redacted(text) == text == masked(text)


def test_options_are_known_by_their_names():
    options = {
        "key": "AKID",
        "default_block_size": "5555",
        "anon": False,
        "client_kwargs": {
            "aws_secret_access_key": "SSSS",
            "endpoint_url": "http://x",
            "headers": {"Authorization": b"B C"},
        },
        "account_key": "abcd",
        "token": "abc",  # too short to be looked for
    }
    assert sorted(secrets_in(options)) == ["AKID", "SSSS", "abcd"]


def test_errors_of_drivers_stay_unless_they_tell():
    plain = OSError("no such host")
    assert harmless(plain, {"secret": "SECRET"}) is plain
    cause = ValueError("bad SECRET")
    try:
        try:
            raise cause
        except ValueError:
            raise OSError("no such host") from cause
    except OSError as e:
        other = harmless(e, {"secret": "SECRET"})
    assert other is not plain
    assert str(other) == "OSError: no such host"
    assert other.__cause__ is None
    assert str(harmless(cause, {"secret": "SECRET"})) == "ValueError: bad ***"
