"""Fixtures of the store tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from kartosql.store import Store
from s3_server import BUCKET, S3Server, serve


@pytest.fixture
def s3_server() -> Iterator[S3Server]:
    with serve() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server) -> Store:
    return Store(f"s3://{BUCKET}/some/prefix", s3_server.storage_options)


@pytest.fixture(params=["local", "memory", "s3"])
def any_store(request: pytest.FixtureRequest) -> Store:
    """An empty store of each kind that can be tried without a cloud."""
    if request.param == "memory":
        return Store(f"memory://{uuid.uuid4().hex}")
    found: Store = request.getfixturevalue(request.param)
    return found
