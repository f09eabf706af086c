"""Conditional writes on S3, by the low-level calls of s3fs.

The high-level ones drop the condition when an object is uploaded in parts.
"""

from __future__ import annotations

import datetime as dt
import email.utils
from collections.abc import Callable, Sequence
from typing import Any

from kartosql.errors import StoreError
from kartosql.store.conditional import OutcomeUnknown, PreconditionFailed, Unsupported, Version
from kartosql.store.remote import RemoteWriter

DELETES_PER_CALL = 1000
# Raised before anything is sent, whatever the number of attempts.
_NOT_SENT = ("NoCredentialsError", "PartialCredentialsError", "NoRegionError", "ParamValidationError")


class S3Writer(RemoteWriter):
    """The writing side of a store on S3; versions are etags."""

    def read_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return an object and its etag, from one answer."""
        from fsspec.asyn import sync

        data, etag = sync(self.fs.loop, self._get, key)
        return data, Version(etag)

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
        """Write under If-Match, or If-None-Match for an object that must not be there."""
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected.token}
        try:
            answer = self._call("put_object", key, Body=data, **condition)
        except FileNotFoundError:
            raise PreconditionFailed(key) from None
        self.fs.invalidate_cache(self.path(key))
        return Version(answer["ETag"])

    def delete_if(self, key: str, expected: Version) -> None:
        """Remove under If-Match; silent when there is no object."""
        try:
            self._call("delete_object", key, IfMatch=expected.token)
        except FileNotFoundError:
            return
        except PreconditionFailed:
            # Some servers say so of an object that is not there.
            try:
                is_gone = self._version(key) is None
            except Exception as e:
                raise OutcomeUnknown(f"{key}: {e}") from e
            if not is_gone:
                raise
        finally:
            self.fs.invalidate_cache(self.path(key))

    def delete(self, keys: Sequence[str], call_all: Callable[[Any, Sequence[Any]], Any]) -> None:
        """Remove objects, a thousand per request; those that are not there silently."""
        call_all(self._delete_some, [keys[i : i + DELETES_PER_CALL] for i in range(0, len(keys), DELETES_PER_CALL)])
        self.fs.invalidate_cache()

    def _delete_some(self, keys: Sequence[str]) -> None:
        paths = [self.fs.split_path(self.path(key))[:2] for key in keys]
        objects = {"Objects": [{"Key": name} for _, name in paths], "Quiet": True}
        answer = self.fs.call_s3("delete_objects", Bucket=paths[0][0], Delete=objects)
        for error in answer.get("Errors") or ():
            if error.get("Code") != "NoSuchKey":
                kind = PermissionError if error.get("Code") == "AccessDenied" else OSError
                raise kind(f"{error.get('Key')}: {error.get('Code')}: {error.get('Message')}")

    def now(self) -> dt.datetime:
        """Return the time of the server, from the head of an answer."""
        bucket, prefix = self.fs.split_path(self.path("x"))[:2]
        answer = self.fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
        date: str = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
        return email.utils.parsedate_to_datetime(date)

    async def _get(self, key: str) -> tuple[bytes, str]:
        bucket, name = self.fs.split_path(self.path(key))[:2]
        for attempt in range(5):
            answer = await self.fs._call_s3("get_object", Bucket=bucket, Key=name)
            try:
                return await answer["Body"].read(), answer["ETag"]
            except Exception:
                if attempt == 4:
                    raise
            finally:
                answer["Body"].close()
        raise AssertionError

    def _call(self, method: str, key: str, **condition_and_body: Any) -> Any:
        from fsspec.asyn import sync

        try:
            return sync(self.fs.loop, self._once, method, key, condition_and_body)
        except Exception as e:
            raise self._meaning(e, key) from e

    async def _once(self, method: str, key: str, arguments: dict[str, Any]) -> Any:
        # Not through fs.call_s3: it repeats requests and does not say that it did.
        bucket, name = self.fs.split_path(self.path(key))[:2]
        await self.fs.set_session()
        call = getattr(await self.fs.get_s3(bucket), method)
        return await call(**self.fs._get_s3_method_kwargs(call, Bucket=bucket, Key=name, **arguments))

    def _meaning(self, error: Exception, key: str) -> Exception:
        """Return what the failure of a conditional write means; unknown unless it is certain."""
        if type(error).__name__ in _NOT_SENT:
            return StoreError(f"Cannot write {key!r}: {error}")
        response = getattr(error, "response", None)
        if not isinstance(response, dict):
            return OutcomeUnknown(f"{key}: {error}")
        about = response.get("ResponseMetadata", {})
        status = about.get("HTTPStatusCode", 0)
        if status in (409, 412):
            return PreconditionFailed(key)
        if status == 501:
            return Unsupported(key)
        if about.get("RetryAttempts", 0) or not 400 <= status < 500 or status in (408, 429):
            # An earlier attempt may have been carried out although the last one was refused.
            return OutcomeUnknown(f"{key}: {error}")
        if status == 404 and response.get("Error", {}).get("Code") != "NoSuchBucket":
            return FileNotFoundError(f"{key}: {error}")
        code = "access-denied" if status in (401, 403) else None
        return StoreError(f"Cannot write {key!r}: {error}", code=code)
