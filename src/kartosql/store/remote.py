"""Object stores: through fsspec, and by the low-level calls of its drivers where they have conditions.

On S3 the high-level calls drop the condition when an object is uploaded in parts, and ask for the size of an object
before they read its end. Workers that have neither
fsspec nor its drivers read and write by pyarrow alone, without conditions.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import email.utils
import importlib
import os
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import IO, Any, TypeVar, cast
from urllib.parse import quote
from weakref import WeakKeyDictionary, WeakSet

from kartosql.errors import StoreError
from kartosql.store.keys import (
    Detail,
    Fetched,
    OutcomeUnknown,
    PreconditionFailed,
    Unsupported,
    Version,
    settling,
    version_of,
)

SPOOL_BYTES = 32 << 20
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated")
_PROBE_ATTEMPTS = 6
_ATTEMPTS = 5  # to read an object of which the bytes do not come to their end
MAX_AT_ONCE = 64  # requests
_T = TypeVar("_T")
Counting = Callable[[str, int], None]  # told of each answer: the key, and how many bytes came
_memory_lock = threading.RLock()


def _release() -> None:
    """Release what a thread of the parent held when this process was forked."""
    global _memory_lock
    _memory_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release)


Span = tuple[int, int | None]  # from where to where; a negative number for so many bytes at the end


class RemoteWriter:
    """A store on any fsspec filesystem; it offers no conditional writes."""

    has_ranges = False  # with conditions, and of the end without asking for the size

    def __init__(self, fs: Any, root: str) -> None:
        self.fs = fs
        self.root = root
        self.checks_by_reading = False

    def path(self, key: str) -> str:
        """Return the path of ``key`` in the filesystem."""
        return f"{self.root}/{key}"

    def _split(self, key: str) -> tuple[str, str]:
        bucket, name = self.fs.split_path(self.path(key))[:2]
        return bucket, name

    def _run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        from fsspec.asyn import sync

        return sync(self.fs.loop, call, *arguments)

    # -- reading ---------------------------------------------------------------------------

    def get(self, key: str, span: Span | None = None, *, unless: str = "", only: str = "") -> Fetched:
        """Return an object or a range of it.

        Stores with conditions send no bytes if the ETag is ``unless``, and raise PreconditionFailed if it is not
        ``only``, with its quotes; the others take no notice of them.
        """
        return self._finished(self._get(key, span, unless, only))

    async def _get(self, key: str, span: Span | None = None, unless: str = "", only: str = "") -> Fetched:
        path, (start, end) = self.path(key), span or (0, None)
        if start < 0:
            size = self.fs.size(path)
            start = max(0, size + start)
            return Fetched(self.fs.cat_file(path, start=start, end=size), start, size)
        data: bytes = self.fs.cat_file(path, start=start, end=end) if span else self.fs.cat_file(path)
        return Fetched(data, start, start + len(data))

    async def _get_end(self, key: str, length: int, wanted: Callable[[Fetched], int], count: Counting) -> Fetched:
        """Return so many bytes at the end, and as many before them as are ``wanted`` then."""
        if not self.has_ranges:
            size = self.fs.size(self.path(key))
            length = max(length, wanted(Fetched(b"", size or 0, size or 0)))
            found = await self._get(key, None if size is None or length >= size else (size - length, size))
            found = found._replace(size=found.start + len(found.data))
        else:
            found = await self._get(key, (-length, None))
        count(key, len(found.data))
        begin = max(0, found.size - wanted(found))
        if begin >= found.start:
            return found
        more = await self._get(key, (begin, found.start), only=found.etag)
        count(key, len(more.data))
        if more.start != begin or len(more.data) != found.start - begin:
            raise OSError(f"{key}: the store sent another range than it was asked for")
        return found._replace(data=more.data + found.data, start=begin)

    def start(
        self, lengths: Mapping[str, int], wanted: Callable[[Fetched], int], count: Counting
    ) -> dict[str, Future[Fetched]]:
        """Start to read the ends of objects, see ``Store.start_reading``."""
        pool = ThreadPoolExecutor(min(MAX_AT_ONCE, len(lengths)))
        try:
            return {
                key: pool.submit(lambda k, n: self._finished(self._get_end(k, n, wanted, count)), key, length)
                for key, length in lengths.items()
            }
        finally:
            pool.shutdown(wait=False)

    def _finished(self, reading: Coroutine[Any, Any, _T]) -> _T:
        """Return what comes of reading, which never waits for a loop here."""
        try:
            reading.send(None)
        except StopIteration as e:
            return cast("_T", e.value)
        raise AssertionError

    # -- whole objects ---------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self.fs.pipe_file(self.path(key), data)

    @contextlib.contextmanager
    def output(self, key: str, **_: bool) -> Iterator[IO[bytes]]:
        """Collect an object bit by bit, on disk when it grows, and upload it at the end."""
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
            yield cast("IO[bytes]", spool)
            size = spool.seek(0, 2)
            spool.seek(0)
            if size <= SPOOL_BYTES:
                self.put(key, spool.read())
                return
            try:
                with self.fs.open(self.path(key), "wb") as target:
                    shutil.copyfileobj(spool, target, SPOOL_BYTES)
            except BaseException:
                with contextlib.suppress(Exception):
                    self.fs.rm_file(self.path(key))
                raise

    def duplicate(self, old: str, new: str) -> None:
        """Let the store copy an object."""
        self.fs.cp_file(self.path(old), self.path(new))

    def sync(self, keys: Iterable[str]) -> None:
        """Do nothing: what an object store acknowledged is durable."""

    def delete(self, keys: Sequence[str], call_all: Callable[[Any, Sequence[Any]], Any]) -> None:
        """Remove objects, those that are not there silently."""
        call_all(self._delete_one, keys)

    def _delete_one(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.path(key))

    # -- compare and swap ------------------------------------------------------------------

    def read_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return an object and its version."""
        data: bytes = self.fs.cat_file(self.path(key))
        return data, version_of(data)

    def put_if(self, key: str, data: bytes, expected: Version | None) -> Version:
        """Write ``data`` if the object has the expected version, None for no object."""
        if not self.checks_by_reading:
            return self.put_atomically(key, data, expected)
        if self._version(key) != expected:
            raise PreconditionFailed(key)
        with settling(key, lambda: self._version(key) == expected):
            self.put(key, data)
        try:
            found, version = self.read_versioned(key)
        except Exception as e:
            raise OutcomeUnknown(f"{key} is written, but cannot be read: {e}") from e
        if found != data:
            raise OutcomeUnknown(f"{key} is not what was written")
        return version

    def delete_if(self, key: str, expected: Version) -> None:
        """Remove the object if it has the expected version; do nothing if it is missing."""
        self.delete_checked(key, expected)

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
        """Write as one step of the store."""
        raise Unsupported(key)

    def delete_checked(self, key: str, expected: Version) -> None:
        """Remove the object after a look at its version; only for a single writer."""
        version = self._version(key)
        if version is None:
            return
        if version != expected:
            raise PreconditionFailed(key)
        with settling(key, lambda: self._version(key) == expected):
            self._delete_one(key)

    def _version(self, key: str) -> Version | None:
        try:
            return self.read_versioned(key)[1]
        except FileNotFoundError:
            return None

    def probe(self, key: str) -> tuple[bool, bool]:
        """Return whether writes and deletes heed their condition, tried on an object of its own."""
        try:
            first = _insist(self, key, b"1", None)
            second = _insist(self, key, b"22", first)
            puts = _refuses(self, key, b"22", lambda: self.put_atomically(key, b"3", None))
            puts = puts and _refuses(self, key, b"22", lambda: self.put_atomically(key, b"3", first))
            return puts, puts and _refuses(self, key, b"22", lambda: self.delete_if(key, first)) and second != first
        except Unsupported:
            return False, False
        finally:
            with contextlib.suppress(Exception):
                self._delete_one(key)

    # -- current state ----------------------------------------------------------------------

    def detail(self, key: str, info: dict[str, Any]) -> Detail:
        """Return size and time of an object, given its entry ``info`` in a listing; raises FileNotFoundError."""
        return Detail(int(info.get("size") or 0), self._modified(self.path(key), info))

    def _modified(self, path: str, info: dict[str, Any]) -> dt.datetime:
        times = (info.get(name) for name in _TIMES)
        time: dt.datetime = next((t for t in times if isinstance(t, dt.datetime)), None) or self.fs.modified(path)
        return time if time.tzinfo else time.replace(tzinfo=dt.timezone.utc)

    def now(self) -> dt.datetime:
        """Return the time by the clock of the store: that of an object written for it."""
        path = self.path(f".kartosql-clock-{uuid.uuid4().hex}")
        self.fs.pipe_file(path, b"x")
        try:
            return self._modified(path, {})
        finally:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(path)


class _MemoryWriter(RemoteWriter):
    """The writing side of fsspec's memory, which all threads of a process share."""

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
        with _memory_lock:
            if self._version(key) != expected:
                raise PreconditionFailed(key)
            self.put(key, data)
        return version_of(data)

    def probe(self, key: str) -> tuple[bool, bool]:
        return True, True

    def delete_if(self, key: str, expected: Version) -> None:
        with _memory_lock:
            self.delete_checked(key, expected)

    def put(self, key: str, data: bytes) -> None:
        with _memory_lock:
            super().put(key, data)

    def delete(self, keys: Sequence[str], call_all: Callable[[Any, Sequence[Any]], Any]) -> None:
        for key in keys:
            with _memory_lock:
                self._delete_one(key)

    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.timezone.utc)


def _insist(writer: RemoteWriter, key: str, data: bytes, expected: Version | None) -> Version:
    """Write the object of a probe, also where answers are lost."""
    for _ in range(_PROBE_ATTEMPTS):
        try:
            return writer.put_atomically(key, data, expected)
        except (PreconditionFailed, OutcomeUnknown) as e:
            lost = e
            with contextlib.suppress(FileNotFoundError):
                found, version = writer.read_versioned(key)
                if found == data:
                    return version
    raise lost


def _refuses(writer: RemoteWriter, key: str, unchanged: bytes, write: Callable[[], object]) -> bool:
    """Return whether a write with a wrong condition is refused, and the object as it was."""
    for _ in range(_PROBE_ATTEMPTS):
        try:
            write()
        except PreconditionFailed:
            break
        except OutcomeUnknown:
            continue
        return False
    try:
        return writer.read_versioned(key)[0] == unchanged
    except FileNotFoundError:
        return False


DELETES_PER_CALL = 1000
# Raised before anything is sent, whatever the number of attempts.
_NOT_SENT = ("NoCredentialsError", "PartialCredentialsError", "NoRegionError", "ParamValidationError")


_asking: ContextVar[tuple[str, str]] = ContextVar("asking")  # the bucket and the name in it
_Alike = tuple[Any, str, dict[str, str], dict[str, Any]]  # class, URL of a bucket, headers and context of a request
_OF_ONE_REQUEST = ("range", "if-", "amz-sdk-", "authorization", "x-amz-date")


class _S3Writer(RemoteWriter):
    """A store on S3; versions are etags."""

    has_ranges = True

    def __init__(self, fs: Any, root: str) -> None:
        super().__init__(fs, root)
        self._alike: WeakKeyDictionary[Any, dict[str, _Alike]] = WeakKeyDictionary()
        self._prompt: WeakSet[Any] = WeakSet()  # clients that do not ask whether a body may be sent

    def read_versioned(self, key: str) -> tuple[bytes, Version]:
        found = self.get(key)
        return found.data, Version(found.etag)

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected.token}
        try:
            answer = self._call("put_object", key, Body=data, **condition)
        except FileNotFoundError:
            raise PreconditionFailed(key) from None
        self.fs.invalidate_cache(self.path(key))
        return Version(answer["ETag"])

    def delete_if(self, key: str, expected: Version) -> None:
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
        call_all(self._delete_some, [keys[i : i + DELETES_PER_CALL] for i in range(0, len(keys), DELETES_PER_CALL)])
        self.fs.invalidate_cache()

    def _delete_some(self, keys: Sequence[str]) -> None:
        paths = [self._split(key) for key in keys]
        objects = {"Objects": [{"Key": name} for _, name in paths], "Quiet": True}
        answer = self.fs.call_s3("delete_objects", Bucket=paths[0][0], Delete=objects)
        for error in answer.get("Errors") or ():
            if error.get("Code") != "NoSuchKey":
                kind = PermissionError if error.get("Code") == "AccessDenied" else OSError
                raise kind(f"{error.get('Key')}: {error.get('Code')}: {error.get('Message')}")

    def now(self) -> dt.datetime:
        bucket, prefix = self._split("x")
        answer = self.fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
        date: str = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
        return email.utils.parsedate_to_datetime(date)

    def _finished(self, reading: Coroutine[Any, Any, _T]) -> _T:
        return cast("_T", self._run(lambda: reading))

    def start(
        self, lengths: Mapping[str, int], wanted: Callable[[Fetched], int], count: Counting
    ) -> dict[str, Future[Fetched]]:
        gate = asyncio.Semaphore(MAX_AT_ONCE)

        async def one(key: str, length: int) -> Fetched:
            async with gate:
                return await self._get_end(key, length, wanted, count)

        loop = self.fs.loop
        return {key: asyncio.run_coroutine_threadsafe(one(key, n), loop) for key, n in lengths.items()}

    async def _get(self, key: str, span: Span | None = None, unless: str = "", only: str = "") -> Fetched:
        bucket, name = self._split(key)
        asked = {"IfNoneMatch": unless and f'"{unless}"', "IfMatch": only, "Range": _range(span)}
        if span is not None and not unless and (found := await self._get_alike(bucket, name, asked)) is not None:
            return _checked(found, key, only)
        _asking.set((bucket, name))
        for attempt in range(_ATTEMPTS):
            given = {option: value for option, value in asked.items() if value}
            try:
                answer = await self.fs._call_s3("get_object", Bucket=bucket, Key=name, **given)
            except OSError as e:
                response = getattr(e.__cause__, "response", None) or {}
                status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
                if status == 416 and span is not None and span[0] < 0:
                    asked["Range"] = ""  # of an object without bytes
                    continue
                if status == 412:
                    raise PreconditionFailed(key) from None
                if status != 304 or not unless:
                    raise
                return _fetched(response)._replace(unchanged=True)
            try:
                return _checked(_fetched(answer, await answer["Body"].read()), key, only)
            except PreconditionFailed:
                raise
            except Exception:
                if attempt == _ATTEMPTS - 1:
                    raise
            finally:
                answer["Body"].close()
        raise AssertionError

    async def _get_alike(self, bucket: str, name: str, asked: Mapping[str, str]) -> Fetched | None:
        """Return a range by a request like an earlier one, signed and sent by the parts of the client for it.

        Its whole way to a request takes three times the CPU time. None where it has to be gone: for the first request,
        and for any answer but a range, as the client repeats requests, follows redirects, and reports what is wrong.
        """
        client = await self.fs.get_s3(bucket)
        if client is None:
            return None
        if client not in self._alike:
            known = self._alike[client] = {}
            client.meta.events.register("before-sign.s3.GetObject", partial(_note, known))
        if bucket not in self._alike[client]:
            return None
        kind, url, headers, context = self._alike[client][bucket]
        try:
            own = {"Range": asked["Range"], **({"If-Match": asked["IfMatch"]} if asked["IfMatch"] else {})}
            request = kind("GET", url=url + quote(name, safe="/~"), headers={**headers, **own})
            request.context.update(context)
            await client._request_signer.sign("GetObject", request)
            answer = await client._endpoint.http_session.send(request.prepare())
            about = {"HTTPStatusCode": answer.status_code, "HTTPHeaders": answer.headers}
            data = await answer.content
            return _fetched({"ResponseMetadata": about}, data) if answer.status_code == 206 else None
        except Exception:  # noqa: BLE001 - the client will say what it is
            return None

    def _call(self, method: str, key: str, **condition_and_body: Any) -> Any:
        try:
            return self._run(self._once, method, key, condition_and_body)
        except Exception as e:
            if type(e).__name__ in _NOT_SENT:
                raise
            raise self._meaning(e, key) from e

    async def _once(self, method: str, key: str, arguments: dict[str, Any]) -> Any:
        # Not through fs.call_s3: it repeats requests and does not say that it did.
        bucket, name = self._split(key)
        await self.fs.set_session()
        client = await self.fs.get_s3(bucket)
        if client not in self._prompt:
            # Expect: 100-continue is a round trip of its own, for a body of some kilobytes.
            self._prompt.add(client)
            handlers = importlib.import_module("botocore.handlers")
            client.meta.events.unregister("before-call.s3", handlers.add_expect_header)
        call = getattr(client, method)
        return await call(**self.fs._get_s3_method_kwargs(call, Bucket=bucket, Key=name, **arguments))

    def _meaning(self, error: Exception, key: str) -> Exception:
        """Return what the failure of a conditional write means; unknown unless it is certain."""
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


def _note(known: dict[str, _Alike], request: Any, **_: Any) -> None:
    """Note what the client made of a request, so that others can be made like it."""
    bucket, name = _asking.get(("", ""))
    end = quote(name, safe="/~")
    if bucket and bucket not in known and name and request.url.endswith(f"/{end}"):
        headers = {n: v for n, v in request.headers.items() if not n.lower().startswith(_OF_ONE_REQUEST)}
        known[bucket] = (type(request), request.url[: -len(end)], headers, dict(request.context))


def _checked(found: Fetched, key: str, only: str) -> Fetched:
    """Return what was read; raises PreconditionFailed for another ETag than the only one, also of careless stores."""
    if only and found.etag not in ("", only):
        raise PreconditionFailed(key)
    return found


def _range(span: Span | None) -> str:
    """Return a range as HTTP has it."""
    if span is None:
        return ""
    start, end = span
    return f"bytes={start}" if start < 0 else f"bytes={start}-{'' if end is None else end - 1}"


def _fetched(answer: dict[str, Any], data: bytes = b"") -> Fetched:
    """Return what S3 answered; raises OSError for bytes that are not the range which they are said to be."""
    about = answer["ResponseMetadata"]
    headers = about["HTTPHeaders"]
    modified, now = (headers.get(name) for name in ("last-modified", "date"))
    start, size = 0, len(data)
    if about["HTTPStatusCode"] == 206:
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers.get("content-range", ""))
        start, last, size = map(int, match.groups()) if match else (0, -2, 0)
        if last - start + 1 != len(data) or size <= last:
            raise OSError("the store does not say which range it sent")
    return Fetched(
        data,
        start,
        size,
        headers.get("etag", ""),
        email.utils.parsedate_to_datetime(modified) if modified else None,
        email.utils.parsedate_to_datetime(now) if now else None,
    )


class _AzureWriter(RemoteWriter):
    """The writing side of a store on Azure; versions are etags."""

    def read_versioned(self, key: str) -> tuple[bytes, Version]:
        try:
            data, etag = self._run(self._download, key)
        except Exception as e:
            if getattr(e, "status_code", None) == 404:
                raise FileNotFoundError(key) from e
            raise
        return data, Version(etag)

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
        try:
            answer = self._call("upload_blob", key, expected, data=data, overwrite=expected is not None)
        except FileNotFoundError:
            raise PreconditionFailed(key) from None
        return Version(answer["etag"])

    def delete_if(self, key: str, expected: Version) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call("delete_blob", key, expected)

    def _call(self, method: str, key: str, expected: Version | None, **arguments: Any) -> Any:
        if expected is not None:
            conditions = importlib.import_module("azure.core").MatchConditions
            arguments |= {"etag": expected.token, "match_condition": conditions.IfNotModified}
        try:
            answer = self._run(self._once, method, key, arguments)
        except Exception as e:
            raise _meaning(e, key) from e
        self.fs.invalidate_cache()
        return answer

    def _client(self, key: str) -> Any:
        container, blob = self._split(key)
        return self.fs.service_client.get_blob_client(container=container, blob=blob)

    async def _once(self, method: str, key: str, arguments: dict[str, Any]) -> Any:
        async with self._client(key) as client:
            return await getattr(client, method)(**arguments)

    async def _download(self, key: str) -> tuple[bytes, str]:
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
    context = getattr(getattr(error, "response", None), "context", {}) or {}
    if status not in (400, 401, 403, 404) or context.get("history"):
        return OutcomeUnknown(f"{key}: {error}")
    return StoreError(f"Cannot write {key!r}: {error}", code="access-denied" if status in (401, 403) else None)


class _GcsWriter(RemoteWriter):
    """The writing side of a store on Google Cloud Storage; versions are generations."""

    def read_versioned(self, key: str) -> tuple[bytes, Version]:
        bucket, name = self._split(key)
        headers, data = self.fs.call("GET", "b/{}/o/{}", bucket, name, alt="media")
        return data, Version(str(headers["X-Goog-Generation"]))

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
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
        bucket, name = self._split(key)
        with contextlib.suppress(FileNotFoundError):
            self._call(key, "DELETE", "b/{}/o/{}", bucket, name, ifGenerationMatch=expected.token)

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


class _ArrowFiles:
    """The part of an fsspec filesystem that tasks need, over one of pyarrow."""

    protocol = ("arrow",)

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        with self._fs.open_input_file(path) as file:
            begin = start or 0
            stop = file.size() if end is None else min(end, file.size())
            data: bytes = file.read_at(max(0, stop - begin), begin)
            return data

    def size(self, path: str) -> int:
        info = self._fs.get_file_info(path)
        if not info.is_file:
            raise FileNotFoundError(path)
        return int(info.size)

    def pipe_file(self, path: str, data: bytes) -> None:
        with self._fs.open_output_stream(path) as file:
            file.write(data)

    def open(self, path: str, mode: str) -> Any:
        assert mode == "wb", mode
        return self._fs.open_output_stream(path)

    def rm_file(self, path: str) -> None:
        """Leave the object where it is: pyarrow would put one for the folder; the driver deletes what failed."""


# Options of s3fs that pyarrow has as well, or that change nothing about what is written.
_KNOWN = {"key", "username", "secret", "password", "token", "anon", "endpoint_url", "client_kwargs"}
_IDLE = {"config_kwargs", "use_ssl", "use_listings_cache", "skip_instance_cache", "default_block_size"}
_CLIENT = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token", "endpoint_url", "region_name"}


def arrow_files(url: str, options: Mapping[str, Any]) -> tuple[_ArrowFiles, str] | None:
    """Return the filesystem of a URL by the options of its fsspec driver, and the path in it; None for unknown ones."""
    protocol, _, root = url.partition("://")
    client: Mapping[str, Any] = options.get("client_kwargs") or {}
    if protocol not in ("s3", "s3a") or not set(options) <= _KNOWN | _IDLE or not set(client) <= _CLIENT:
        return None
    from pyarrow.fs import S3FileSystem

    endpoint = str(options.get("endpoint_url") or client.get("endpoint_url") or "")
    scheme, _, host = endpoint.rpartition("://")
    found = {
        "access_key": options.get("key") or options.get("username") or client.get("aws_access_key_id"),
        "secret_key": options.get("secret") or options.get("password") or client.get("aws_secret_access_key"),
        "session_token": options.get("token") or client.get("aws_session_token"),
        "anonymous": options.get("anon"),
        "region": client.get("region_name"),
        "endpoint_override": host,
        "scheme": scheme,
    }
    return _ArrowFiles(S3FileSystem(**{name: value for name, value in found.items() if value})), root


def writer_of(protocols: tuple[str, ...]) -> type[RemoteWriter]:
    """Return the writing side for filesystems of some protocols."""
    kinds = {"memory": _MemoryWriter, "s3": _S3Writer, "abfs": _AzureWriter, "gs": _GcsWriter}
    return next((kind for protocol, kind in kinds.items() if protocol in protocols), RemoteWriter)
