"""Conditional writes on Google Cloud Storage, by the JSON calls of gcsfs."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from kartosql.store.conditional import OutcomeUnknown, PreconditionFailed, Version
from kartosql.store.remote import RemoteWriter


class GcsWriter(RemoteWriter):
    """The writing side of a store on Google Cloud Storage; versions are generations."""

    def read_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return an object and its generation, from one answer."""
        bucket, name = self._split(key)
        headers, data = self.fs.call("GET", "b/{}/o/{}", bucket, name, alt="media")
        return data, Version(str(headers["X-Goog-Generation"]))

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
        """Upload in one request under the generation; 0 stands for no object."""
        bucket, name = self._split(key)
        answer = self._call(
            key,
            "POST",
            f"{self.fs._location}/upload/storage/v1/b/{quote(bucket, safe='')}/o",
            uploadType="media",
            name=name,
            ifGenerationMatch="0" if expected is None else expected.token,
            headers={"Content-Type": "application/octet-stream"},
            data=data,
            json_out=True,
        )
        return Version(str(answer["generation"]))

    def delete_if(self, key: str, expected: Version) -> None:
        """Remove under the generation; silent when there is no object."""
        bucket, name = self._split(key)
        try:
            self._call(key, "DELETE", "b/{}/o/{}", bucket, name, ifGenerationMatch=expected.token)
        except FileNotFoundError:
            return

    def _split(self, key: str) -> tuple[str, str]:
        bucket, name = self.fs.split_path(self.path(key))[:2]
        return bucket, name

    def _call(self, key: str, *args: Any, **arguments: Any) -> Any:
        """Send a conditional write; gcsfs repeats it when no answer comes, and does not say so."""
        try:
            answer = self.fs.call(*args, **arguments)
        except FileExistsError:
            raise PreconditionFailed(key) from None  # gcsfs' name for the status 412
        except FileNotFoundError:
            raise
        except Exception as e:
            raise OutcomeUnknown(f"{key}: {e}") from e
        self.fs.invalidate_cache()
        return answer
