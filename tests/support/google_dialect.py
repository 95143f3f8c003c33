"""Google's XML interface, which obstore uses, in front of a server that only knows Google's JSON interface well.

fake-gcs-server refuses uploads and copies by the XML interface ("invalid uploadType"), lists nothing there, and reads
conditions from the JSON interface's parameters only. Each request is handed on as one of the JSON interface:
objects, generations and conditions are the server's own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

_CONDITION = "x-goog-if-generation-match"
_TIMEOUT_S = 120


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str] = {}
    content: bytes = b""


@contextmanager
def google_dialect(server: str) -> Iterator[str]:
    """Translate for a server of the JSON interface; gives the address to use."""
    uploads: dict[str, dict[int, bytes]] = defaultdict(dict)
    numbers = itertools.count(1)

    class Handler(_Handler):
        def answer(self) -> _Answer:
            return _Translator(server, uploads, numbers).answer(self)

    translator = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    translator.daemon_threads = True
    thread = threading.Thread(target=translator.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{translator.server_port}"
    finally:
        translator.shutdown()
        thread.join()
        translator.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    #: An answer goes out in one piece: in two, the second waits for the first one's acknowledgement.
    wbufsize = -1

    def answer(self) -> _Answer:
        raise NotImplementedError

    def _do(self) -> None:
        answer = self.answer()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests look at what comes of it."""


class _Translator:
    def __init__(
        self, server: str, uploads: dict[str, dict[int, bytes]], numbers: Iterator[int]
    ) -> None:
        self._server, self._uploads, self._numbers = server, uploads, numbers

    def answer(self, request: BaseHTTPRequestHandler) -> _Answer:
        url = urlsplit(request.path)
        query = {
            name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()
        }
        bucket, _, key = url.path.lstrip("/").partition("/")
        length = int(request.headers.get("Content-Length") or 0)
        content = request.rfile.read(length) if length else b""
        answer = self._answer(request, bucket, unquote(key), query, content)
        if answer.status == 404 and self._ask("GET", f"/storage/v1/b/{bucket}").status == 404:
            text = "<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist.</Message></Error>"
            return _Answer(404, {}, text.encode())
        return answer

    def _answer(
        self,
        request: BaseHTTPRequestHandler,
        bucket: str,
        key: str,
        query: Mapping[str, str],
        content: bytes,
    ) -> _Answer:
        source = request.headers.get("x-goog-copy-source")
        match request.command:
            case "GET" if not key:
                return self._listed(bucket, query)
            case "POST" if "uploads" in query:
                number = str(next(self._numbers))
                return _xml("InitiateMultipartUploadResult", f"<UploadId>{number}</UploadId>")
            case "PUT" if "partNumber" in query:
                self._uploads[query["uploadId"]][int(query["partNumber"])] = content
                return _Answer(200, {"ETag": f'"{hashlib.md5(content).hexdigest()}"'})
            case "POST":
                parts = self._uploads.pop(query["uploadId"])
                whole = b"".join(parts[number] for number in sorted(parts))
                done = self._upload(bucket, key, whole, None)
                text = f"<ETag>{escape(done.headers['ETag'])}</ETag>"
                return _xml("CompleteMultipartUploadResult", text, done.headers)
            case "DELETE" if "uploadId" in query:
                self._uploads.pop(query["uploadId"], None)
                return _Answer(204)
            case "PUT" if source is not None:
                path = f"{_object(*unquote(source).split('/', 1))}/rewriteTo"
                return self._ask("POST", path + _object(bucket, key).removeprefix("/storage/v1"))
            case "PUT":
                return self._upload(bucket, key, content, request.headers.get(_CONDITION))
        passed = {name: request.headers[name] for name in ("Range",) if request.headers[name]}
        return self._ask(request.command, f"/{bucket}/{quote(key, safe='')}", headers=passed)

    def _upload(self, bucket: str, key: str, content: bytes, condition: str | None) -> _Answer:
        query = {"uploadType": "media", "name": key}
        if condition is not None:
            query["ifGenerationMatch"] = condition
        path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
        done = self._ask("POST", path, content)
        if done.status != 200:
            return done
        written = json.loads(done.content)
        headers = {
            "ETag": f'"{written["etag"].strip(chr(34))}"',
            "x-goog-generation": written["generation"],
        }
        return _Answer(200, headers)

    def _listed(self, bucket: str, query: Mapping[str, str]) -> _Answer:
        asked = {name: query[name] for name in ("prefix", "delimiter") if name in query}
        if token := query.get("continuation-token"):
            asked["pageToken"] = token
        done = self._ask("GET", f"/storage/v1/b/{bucket}/o?{urlencode(asked)}")
        if done.status != 200:
            return done
        found: dict[str, Any] = json.loads(done.content)
        objects = "".join(
            f"<Contents><Key>{escape(one['name'])}</Key><Size>{one['size']}</Size>"
            f"<LastModified>{one['updated']}</LastModified><ETag>{escape(one['etag'])}</ETag></Contents>"
            for one in found.get("items", ())
        )
        folders = "".join(
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>"
            for one in found.get("prefixes", ())
        )
        following = found.get("nextPageToken")
        more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
        return _xml("ListBucketResult", objects + folders + more)

    def _ask(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> _Answer:
        request = urllib.request.Request(
            f"{self._server}{path}", content, dict(headers or {}), method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as found:
                return _Answer(found.status, _end_to_end(found.headers), found.read())
        except urllib.error.HTTPError as error:
            with error:
                return _Answer(error.code, {}, error.read())


def _object(bucket: str, key: str) -> str:
    return f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}"


def _xml(name: str, content: str, headers: Mapping[str, str] | None = None) -> _Answer:
    return _Answer(200, headers or {}, f"<{name}>{content}</{name}>".encode())


def _end_to_end(headers: Any) -> dict[str, str]:
    dropped = ("transfer-encoding", "connection", "date", "server")
    return {name: value for name, value in headers.items() if name.lower() not in dropped}
