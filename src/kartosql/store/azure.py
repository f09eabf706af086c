"""Conditional writes on Azure Blob Storage, by the blob clients of adlfs."""

from __future__ import annotations

import importlib
from typing import Any

from kartosql.errors import StoreError
from kartosql.store.conditional import OutcomeUnknown, PreconditionFailed, Version
from kartosql.store.remote import RemoteWriter


class AzureWriter(RemoteWriter):
    """The writing side of a store on Azure; versions are etags."""

    def read_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return a blob and its etag, from one download."""
        from fsspec.asyn import sync

        try:
            data, etag = sync(self.fs.loop, self._get, key)
        except Exception as e:
            if getattr(e, "status_code", None) == 404:
                raise FileNotFoundError(key) from e
            raise
        return data, Version(etag)

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
        """Upload under the etag, or as a new blob."""
        try:
            answer = self._call("upload_blob", key, expected, data=data, overwrite=expected is not None)
        except FileNotFoundError:
            raise PreconditionFailed(key) from None
        return Version(answer["etag"])

    def delete_if(self, key: str, expected: Version) -> None:
        """Remove under the etag; silent when there is no blob."""
        try:
            self._call("delete_blob", key, expected)
        except FileNotFoundError:
            return

    def _call(self, method: str, key: str, expected: Version | None, **arguments: Any) -> Any:
        from fsspec.asyn import sync

        if expected is not None:
            conditions = importlib.import_module("azure.core").MatchConditions
            arguments |= {"etag": expected.token, "match_condition": conditions.IfNotModified}
        try:
            answer = sync(self.fs.loop, self._once, method, key, arguments)
        except Exception as e:
            raise _meaning(e, key) from e
        self.fs.invalidate_cache()
        return answer

    def _client(self, key: str) -> Any:
        container, blob = self.fs.split_path(self.path(key))[:2]
        return self.fs.service_client.get_blob_client(container=container, blob=blob)

    async def _once(self, method: str, key: str, arguments: dict[str, Any]) -> Any:
        async with self._client(key) as client:
            return await getattr(client, method)(**arguments)

    async def _get(self, key: str) -> tuple[bytes, str]:
        async with self._client(key) as client:
            stream = await client.download_blob()
            return await stream.readall(), stream.properties.etag


def _meaning(error: Exception, key: str) -> Exception:
    """Return what the failure of a conditional write means; unknown unless it is certain.

    The client repeats requests that got no answer, so that a refusal of the last attempt
    says nothing of the first, except that the condition did not hold any more.
    """
    status = getattr(error, "status_code", None)
    if status in (409, 412):
        return PreconditionFailed(key)
    if status == 404 and getattr(error, "error_code", None) != "ContainerNotFound":
        return FileNotFoundError(key)
    if status not in (400, 401, 403, 404) or _repeated(error):
        return OutcomeUnknown(f"{key}: {error}")
    return StoreError(f"Cannot write {key!r}: {error}", code="access-denied" if status in (401, 403) else None)


def _repeated(error: Exception) -> bool:
    """Return whether the client sent the request more than once."""
    history = getattr(getattr(error, "response", None), "context", {}) or {}
    return bool(history.get("history"))
