"""A hub of models on this machine: what its client library asks of one, and ways to answer badly."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """files: by repository and path. cut: a file's answers end after so many bytes, so many times. asked: paths, with
    the range that was asked for. tokens: if any, one of them must come along."""

    files: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    cut: dict[str, list[int]] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    pause_s: float = 0.0
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def told(self, repo: str) -> dict[str, Any]:
        """What the hub says of a repository."""
        siblings = [
            {
                "rfilename": path,
                "size": len(data),
                "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
                **({"lfs": self._lfs(data)} if path.endswith((".gguf", ".safetensors")) else {}),
            }
            for path, data in self.files[repo].items()
        ]
        return {"id": repo, "modelId": repo, "sha": REVISION, "private": False, "tags": [], "siblings": siblings}

    @staticmethod
    def _lfs(data: bytes) -> dict[str, Any]:
        return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}


@contextmanager
def running_hub(hub: FakeHub) -> Iterator[FakeHub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:  # noqa: C901  # a class that knows its hub
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            hub.asked.append((f"{self.command} {'/'.join(parts)}", self.headers.get("range", "")))
            if parts[:2] == ["api", "models"]:
                self._tell(parts)
            elif len(parts) > 4 and parts[2] == "resolve":
                self._give("/".join(parts[:2]), "/".join(parts[4:]), body=body)
            else:
                self._refuse(404, "EntryNotFound")

        def _tell(self, parts: list[str]) -> None:
            repo = "/".join(parts[2:4])
            if repo not in hub.files:
                self._refuse(404, "RepoNotFound")
                return
            data = json.dumps(hub.told(repo)).encode()
            self._send(200, {"content-type": "application/json"}, data)

        def _give(self, repo: str, path: str, *, body: bool) -> None:
            if repo not in hub.files or path not in hub.files[repo]:
                self._refuse(404, "EntryNotFound" if repo in hub.files else "RepoNotFound")
                return
            if repo in hub.gated and "authorization" not in self.headers:
                self._refuse(401, "GatedRepo")
                return
            whole = hub.files[repo][path]
            start, end = self._range(len(whole))
            data = bytes(reversed(whole))[start:end] if path in hub.damaged else whole[start:end]
            etag = hashlib.sha256(whole).hexdigest()
            headers = {"etag": f'"{etag}"', "x-repo-commit": REVISION, "accept-ranges": "bytes"}
            if (start, end) != (0, len(whole)):
                headers["content-range"] = f"bytes {start}-{end - 1}/{len(whole)}"
            self._send(206 if "content-range" in headers else 200, headers, data, body=body, cut=self._cut(path, body))

        def _range(self, size: int) -> tuple[int, int]:
            text = self.headers.get("range", "")
            if not text.startswith("bytes="):
                return 0, size
            first, _, last = text.removeprefix("bytes=").partition("-")
            return int(first), min(int(last) + 1, size) if last else size

        def _cut(self, path: str, body: bool) -> int | None:
            left = hub.cut.get(path, [])
            return left.pop(0) if body and left else None

        def _refuse(self, status: int, code: str) -> None:
            self._send(status, {"x-error-code": code, "x-error-message": code}, b"")

        def _send(
            self, status: int, headers: dict[str, str], data: bytes, *, body: bool = True, cut: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            if not body:
                return
            self.wfile.write(data if cut is None else data[:cut])
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True
                self.connection.close()

    return Handler
