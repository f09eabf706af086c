from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kartosql.engines.spark.listing import Location, location
from kartosql.errors import StoreError
from kartosql.store import Store


def store(url: str, protocol: Any, root: str, **options: Any) -> Any:
    """A store as far as its place goes; its drivers need not be installed."""
    return SimpleNamespace(
        url=url,
        address=(url, options),
        root=root,
        is_local=False,
        fs=SimpleNamespace(protocol=protocol, storage_options=options),
    )


def test_folders_are_files(local: Store) -> None:
    found = location(local)
    assert found.path("a b/%41.parquet") == f"file://{local.root}/a b/%41.parquet"
    assert not found.options


def test_s3_is_s3a_with_options_for_its_bucket_alone() -> None:
    found = location(
        store(
            "s3://sales/v1",
            ("s3", "s3a"),
            "sales/v1",
            key="K",
            secret="S",
            token="T",
            client_kwargs={"endpoint_url": "http://minio:9000", "region_name": "eu-central-1"},
        )
    )
    assert found.path("t/x.parquet") == "s3a://sales/v1/t/x.parquet"
    assert found.options == {
        "fs.s3a.bucket.sales.access.key": "K",
        "fs.s3a.bucket.sales.secret.key": "S",
        "fs.s3a.bucket.sales.session.token": "T",
        "fs.s3a.bucket.sales.endpoint": "http://minio:9000",
        "fs.s3a.bucket.sales.endpoint.region": "eu-central-1",
        "fs.s3a.bucket.sales.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
        "fs.s3a.bucket.sales.path.style.access": "true",
        "fs.s3a.bucket.sales.connection.ssl.enabled": "false",
    }
    assert "S" not in repr(found).replace("S3", "")


def test_without_options_hadoop_finds_credentials_by_itself() -> None:
    assert location(store("s3://sales", "s3", "sales")) == Location("s3a://sales")
    anonymous = location(store("s3://sales", "s3", "sales", anon=True)).options
    assert list(anonymous.values()) == ["org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"]
    assert location(store("gcs://sales/a", ("gs", "gcs"), "sales/a")) == Location("gs://sales/a")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"account_key": "K"}, "fs.azure.account.key.acc.dfs.core.windows.net"),
        ({"sas_token": "?K"}, "fs.azure.sas.fixed.token.acc.dfs.core.windows.net"),
        (
            {"client_id": "C", "client_secret": "K", "tenant_id": "T"},
            "fs.azure.account.oauth2.client.secret.acc.dfs.core.windows.net",
        ),
    ],
)
def test_azure_urls_hold_the_account(options: dict[str, str], name: str) -> None:
    found = location(store("abfs://sales/v1", "abfs", "sales/v1", account_name="acc", **options))
    assert found.path("t") == "abfss://sales@acc.dfs.core.windows.net/v1/t"
    assert found.options[name] == "K"


def test_google_takes_key_files_and_nobody() -> None:
    assert location(store("gs://b", "gs", "b", token="anon")).options == {"fs.gs.auth.type": "UNAUTHENTICATED"}
    found = location(store("gs://b", "gs", "b", token="/keys/k.json")).options
    assert found["fs.gs.auth.service.account.json.keyfile"] == "/keys/k.json"


def test_hdfs_keeps_its_url() -> None:
    assert location(store("hdfs://node:8020/data/", "hdfs", "/data")).path("t") == "hdfs://node:8020/data/t"


@pytest.mark.parametrize(
    "unreachable",
    [store("memory://x", "memory", "/x"), store("abfs://sales", "abfs", "sales"), store("http://x", "http", "x")],
)
def test_what_spark_cannot_find_is_an_error(unreachable: Any) -> None:
    with pytest.raises(StoreError) as caught:
        location(unreachable)
    assert caught.value.code == "store-unreachable"
    assert caught.value.hint
