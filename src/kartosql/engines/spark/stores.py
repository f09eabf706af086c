"""Where Spark finds the files of stores: fsspec's URLs and options as those of Hadoop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kartosql.errors import StoreError
from kartosql.store import Files, Store
from kartosql.store.store import Mounts

_S3 = {"s3", "s3a", "s3n"}
_AZURE = {"abfs", "abfss", "az"}
_GOOGLE = {"gs", "gcs"}
_SAME = {"hdfs", "viewfs", "webhdfs", "oss", "obs", "cosn", "o3fs", "ofs"}  # what Hadoop calls the same


@dataclass(frozen=True)
class Location:
    """A store as Hadoop knows it: the URL that keys follow, and options for its filesystem.

    ``options`` may hold credentials, so they are never shown.
    """

    root: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def path(self, key: str) -> str:
        """Return the URL of ``key``, not encoded."""
        return f"{self.root}/{key}"


def location(store: Store) -> Location:
    """Return where Spark finds a store; raises ``store-unreachable`` for stores in memory and the like."""
    if store.is_local:
        return Location(f"file://{store.local_path('').rstrip('/')}")
    protocols = (store.fs.protocol,) if isinstance(store.fs.protocol, str) else tuple(store.fs.protocol)
    options: Mapping[str, Any] = getattr(store.fs, "storage_options", None) or {}
    if _S3 & {*protocols}:
        return Location(f"s3a://{store.root}", _s3(store.root.split("/")[0], options))
    if _AZURE & {*protocols}:
        return _azure(store, options)
    if _GOOGLE & {*protocols}:
        return Location(f"gs://{store.root}", _google(options))
    for protocol in protocols:
        if protocol in _SAME:
            return Location(store.address[0].rstrip("/"))
    raise StoreError(
        f"Spark cannot read the store {store.url!r}: its workers are other processes, perhaps on other machines.",
        code="store-unreachable",
        hint="Use a folder, s3://, abfs://, gs:// or hdfs://, or engine='duckdb'.",
    )


def _s3(bucket: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of S3A for one bucket, so that others keep theirs."""
    prefix = f"fs.s3a.bucket.{bucket}."
    client: Mapping[str, Any] = options.get("client_kwargs") or {}
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    found = {
        "access.key": options.get("key") or options.get("username") or client.get("aws_access_key_id"),
        "secret.key": options.get("secret") or options.get("password") or client.get("aws_secret_access_key"),
        "session.token": options.get("token") or client.get("aws_session_token"),
        "endpoint": endpoint,
        "endpoint.region": client.get("region_name"),
    }
    if found["session.token"]:
        found["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
    if options.get("anon"):
        found["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    if endpoint:
        # Whatever is not Amazon's own names buckets in the path.
        found["path.style.access"] = "true"
        found["connection.ssl.enabled"] = "false" if str(endpoint).startswith("http://") else "true"
    return {prefix + name: str(value) for name, value in found.items() if value}


def _azure(store: Store, options: Mapping[str, Any]) -> Location:
    account = options.get("account_name") or getattr(store.fs, "account_name", None)
    container, _, folder = store.root.partition("/")
    if not account:
        raise StoreError(
            f"The URL {store.url!r} does not name the storage account.",
            code="store-unreachable",
            hint="Give account_name as storage option; Spark's URLs hold it.",
        )
    host = f"{account}.dfs.core.windows.net"
    found: dict[str, str] = {}
    if options.get("account_key"):
        found[f"fs.azure.account.key.{host}"] = str(options["account_key"])
    elif options.get("sas_token"):
        found[f"fs.azure.account.auth.type.{host}"] = "SAS"
        found[f"fs.azure.sas.fixed.token.{host}"] = str(options["sas_token"]).lstrip("?")
    elif options.get("client_id") and options.get("client_secret") and options.get("tenant_id"):
        found |= {
            f"fs.azure.account.auth.type.{host}": "OAuth",
            f"fs.azure.account.oauth.provider.type.{host}": (
                "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
            ),
            f"fs.azure.account.oauth2.client.id.{host}": str(options["client_id"]),
            f"fs.azure.account.oauth2.client.secret.{host}": str(options["client_secret"]),
            f"fs.azure.account.oauth2.client.endpoint.{host}": (
                f"https://login.microsoftonline.com/{options['tenant_id']}/oauth2/token"
            ),
        }
    root = f"abfss://{container}@{host}" + (f"/{folder}" if folder else "")
    return Location(root, found)


def _google(options: Mapping[str, Any]) -> dict[str, str]:
    token = options.get("token")
    if token == "anon":
        return {"fs.gs.auth.type": "UNAUTHENTICATED"}
    if isinstance(token, str) and token.endswith(".json"):
        return {"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "fs.gs.auth.service.account.json.keyfile": token}
    return {}


class Places:
    """Where Spark finds the files of several stores."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known = {id(files): location(files)} if isinstance(files, Store) else {}

    def of(self, key: str) -> tuple[Location, str]:
        """Return the place of the store of a key, and the key in it; raises ``store-unreachable``."""
        store, rest = self._files.place(key) if isinstance(self._files, Mounts) else (self._files, key)
        assert isinstance(store, Store)
        if id(store) not in self._known:
            self._known[id(store)] = location(store)
        return self._known[id(store)], rest
