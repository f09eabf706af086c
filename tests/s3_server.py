"""A small strict S3 server in this process: every check-and-put is one step under a lock.

It answers what s3fs and boto3 ask of it, heeds If-Match and If-None-Match exactly, and can
lose answers after it carried out a request, or ignore conditions as some stores do.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import email.utils
import hashlib
import random
import socket
import threading
import time
import urllib.parse
import uuid
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

BUCKET = "a-bucket"
PAGE = 1000


@dataclass
class Object:
    data: bytes
    etag: str
    modified: dt.datetime


class Answer(NamedTuple):
    """What was asked, when, the range of it if one was asked for, and the status and the bytes of the answer."""

    method: str
    key: str
    range: str | None
    status: int
    size: int
    start: float = 0.0
    end: float = 0.0


def trips(answers: Iterable[Answer]) -> int:
    """Return how many round trips followed each other: the longest chain of answers, each before the next request."""
    count, end = 0, float("-inf")
    for answer in sorted(answers, key=lambda a: a.end):
        if answer.start >= end:
            count, end = count + 1, answer.end
    return count


@dataclass
class S3Server:
    """The content of the buckets, how the server behaves, and what it was asked.

    ``lose`` is the share of answers that are lost after the request was carried out, of the
    ``losing`` methods; ``ignore_put_conditions``, ``ignore_delete_conditions``, ``ignore_get_conditions`` and
    ``ignore_ranges`` make it careless; ``refuse`` maps a method to the status it is answered with, before anything
    happens; ``latency`` is how many seconds each answer takes. ``etag_of`` makes the ETag of content, its MD5 if it
    is not given; ``always_unmodified`` answers 304 whatever the condition says.
    """

    seed: int = 0
    lose: float = 0.0
    losing: frozenset[str] = frozenset({"PUT", "DELETE", "POST"})
    ignore_put_conditions: bool = False
    ignore_delete_conditions: bool = False
    ignore_get_conditions: bool = False
    ignore_ranges: bool = False
    always_unmodified: bool = False
    etag_of: Callable[[bytes], str] = lambda data: hashlib.md5(data).hexdigest()
    latency: float = 0.0
    refuse: dict[str, int] = field(default_factory=dict)
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    answers: list[Answer] = field(default_factory=list)
    lost: int = 0
    url: str = ""
    clock_ahead: dt.timedelta = dt.timedelta()

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.random = random.Random(self.seed)
        self.uploads: dict[str, dict[int, bytes]] = {}

    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.timezone.utc) + self.clock_ahead

    @property
    def storage_options(self) -> dict[str, Any]:
        return {
            "endpoint_url": self.url,
            "key": "k",
            "secret": "s",
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"retries": {"max_attempts": 2, "mode": "standard"}, "s3": {"addressing_style": "path"}},
            "skip_instance_cache": True,
        }

    def keys(self) -> list[str]:
        with self.lock:
            return sorted(key for _, key in self.objects)


@contextlib.contextmanager
def serve(**options: Any) -> Iterator[S3Server]:
    """Run a server with one empty bucket on a free port."""
    state = S3Server(**options)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.state = state
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        server.hang_up()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    state: S3Server

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that hang up

    def hang_up(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Both halves of an answer in one packet; the other way each waits for an acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *args: Any) -> None:
        pass

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_DELETE = do_POST = do_GET

    def _serve(self) -> None:
        state = self.server.state
        start = time.perf_counter()
        body = self._body()
        path, _, query = self.path.partition("?")
        bucket, _, key = urllib.parse.unquote(path.lstrip("/")).partition("/")
        parameters = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        with state.lock:
            state.requests[self.command] += 1
            if self.command in state.refuse:
                status = state.refuse[self.command]
                answer = _error(status, "AccessDenied" if status == 403 else "Refused")
            else:
                answer = self._answer(state, bucket, key, parameters, body)
            lost = self.command in state.losing and state.random.random() < state.lose
            state.lost += lost
            size = 0 if self.command == "HEAD" else len(answer[2])
            end = time.perf_counter() + state.latency
            state.answers.append(Answer(self.command, key, self.headers.get("Range"), answer[0], size, start, end))
        if state.latency:
            time.sleep(state.latency)
        if lost:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(2)
            return
        self._send(state, *answer)

    def _body(self) -> bytes:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        out, at = [], 0
        while True:
            end = data.index(b"\r\n", at)
            size = int(data[at:end].split(b";")[0], 16)
            if not size:
                return b"".join(out)
            out.append(data[end + 2 : end + 2 + size])
            at = end + 2 + size + 2

    def _send(self, state: S3Server, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Date", email.utils.format_datetime(state.now(), usegmt=True))
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer(
        self, state: S3Server, bucket: str, key: str, parameters: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if bucket != BUCKET:
            return _error(404, "NoSuchBucket")
        if not key:
            if self.command == "POST" and "delete" in parameters:
                return _delete_many(state, body)
            return _list(state, parameters) if self.command == "GET" else (200, {}, b"")
        if "uploads" in parameters or "uploadId" in parameters:
            return self._multipart(state, key, parameters, body)
        if self.command == "PUT":
            return self._put(state, key, body)
        if self.command == "DELETE":
            return self._delete(state, key)
        return self._get(state, key)

    def _put(self, state: S3Server, key: str, data: bytes) -> tuple[int, dict[str, str], bytes]:
        found = state.objects.get((BUCKET, key))
        if not state.ignore_put_conditions:
            if self.headers.get("If-None-Match") and found:
                return _error(412, "PreconditionFailed")
            match = self.headers.get("If-Match")
            if match and found is None:
                return _error(404, "NoSuchKey")
            if match and found and match.strip('"') != found.etag:
                return _error(412, "PreconditionFailed")
        etag = state.etag_of(data)
        state.objects[BUCKET, key] = Object(data, etag, state.now())
        return 200, {"ETag": f'"{etag}"'}, b""

    def _delete(self, state: S3Server, key: str) -> tuple[int, dict[str, str], bytes]:
        found = state.objects.get((BUCKET, key))
        match = self.headers.get("If-Match")
        if found and match and not state.ignore_delete_conditions and match.strip('"') != found.etag:
            return _error(412, "PreconditionFailed")
        state.objects.pop((BUCKET, key), None)
        return 204, {}, b""

    def _get(self, state: S3Server, key: str) -> tuple[int, dict[str, str], bytes]:
        found = state.objects.get((BUCKET, key))
        if found is None:
            return _error(404, "NoSuchKey")
        headers = {
            "ETag": f'"{found.etag}"',
            "Last-Modified": email.utils.format_datetime(found.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Length": str(len(found.data)),
        }
        condition = None if state.ignore_get_conditions else self.headers.get("If-None-Match")
        if condition and (state.always_unmodified or found.etag in (condition.strip('"'), "*")):
            return 304, {name: headers[name] for name in ("ETag", "Last-Modified")} | {"Content-Length": "0"}, b""
        condition = None if state.ignore_get_conditions else self.headers.get("If-Match")
        if condition and condition.strip('"') != found.etag:
            return _error(412, "PreconditionFailed")
        span = self.headers.get("Range")
        if not span or state.ignore_ranges:
            return 200, headers, found.data
        first, _, last = span.removeprefix("bytes=").partition("-")
        size = len(found.data)
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last) + 1, size) if first and last else size
        if start >= size:
            return _error(416, "InvalidRange")
        part = found.data[start:end]
        headers |= {"Content-Range": f"bytes {start}-{end - 1}/{size}", "Content-Length": str(len(part))}
        return 206, headers, part

    def _multipart(
        self, state: S3Server, key: str, parameters: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if "uploads" in parameters:
            upload = uuid.uuid4().hex
            state.uploads[upload] = {}
            inner = f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            return _xml("InitiateMultipartUploadResult", inner)
        upload = parameters["uploadId"]
        if self.command == "DELETE":
            state.uploads.pop(upload, None)
            return 204, {}, b""
        if upload not in state.uploads:
            return _error(404, "NoSuchUpload")
        if self.command == "PUT":
            state.uploads[upload][int(parameters["partNumber"])] = body
            return 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b""
        parts = state.uploads.pop(upload)
        numbers = [int(e.text or 0) for e in ET.fromstring(body).iter() if e.tag.endswith("PartNumber")]
        status, headers, answer = self._put(state, key, b"".join(parts[n] for n in numbers))
        if status != 200:
            return status, headers, answer
        return _xml("CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key><ETag>{headers['ETag']}</ETag>")


def _list(state: S3Server, parameters: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    prefix, delimiter = parameters.get("prefix", ""), parameters.get("delimiter", "")
    after = base64.b64decode(parameters["continuation-token"]).decode() if "continuation-token" in parameters else ""
    limit = min(int(parameters.get("max-keys") or PAGE), PAGE)
    rows, seen, last, more = [], set(), "", False
    for key in sorted(k for _, k in state.objects):
        if not key.startswith(prefix) or key <= after:
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        group = key[: cut + len(delimiter)] if cut >= 0 else ""
        if group and (group in seen or after.startswith(group)):
            last = key
            continue
        if len(rows) == limit:
            more = True
            break
        last = key
        if group:
            seen.add(group)
            rows.append(f"<CommonPrefixes><Prefix>{escape(group)}</Prefix></CommonPrefixes>")
        else:
            found = state.objects[BUCKET, key]
            modified = found.modified.strftime("%Y-%m-%dT%H:%M:%S.000Z")
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
                f"<ETag>&quot;{found.etag}&quot;</ETag><Size>{len(found.data)}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
    token = f"<NextContinuationToken>{base64.b64encode(last.encode()).decode()}</NextContinuationToken>" if more else ""
    head = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(rows)}</KeyCount>"
    head += f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
    return _xml("ListBucketResult", head + "".join(rows))


def _delete_many(state: S3Server, body: bytes) -> tuple[int, dict[str, str], bytes]:
    for element in ET.fromstring(body).iter():
        if element.tag.endswith("Key"):
            state.objects.pop((BUCKET, element.text or ""), None)
    return _xml("DeleteResult", "")


def _xml(name: str, inner: str) -> tuple[int, dict[str, str], bytes]:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{name}>'
    return 200, {"Content-Type": "application/xml"}, text.encode()


def _error(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return status, {"Content-Type": "application/xml"}, text.encode()
