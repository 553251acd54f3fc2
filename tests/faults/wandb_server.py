"""A W&B server on 127.0.0.1 for tests: it accepts W&B runs, and fails from a given stage on."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# the stages of a client, in order: is there a server, open the W&B run, send metrics, finish
STAGES = ("decide", "open", "stream", "finish")
FAULTS = ("silent", "drips", "500", "closes")
PAUSE = 0.05  # seconds between two bytes of a header
MAX_CONNECTIONS = 256  # connections; further ones are closed at once


class Server(ThreadingHTTPServer):
    """Answers every request until the first one of a stage; from then on every request fails.

    Args:
        stage: one of STAGES; None: no request fails.
        fault: "silent" (the request is read, nothing is answered), "drips" (a header that does not end), "500", or
            "closes" (the connection).
        seconds: time after which all connections are closed.
    """

    daemon_threads = True

    def __init__(self, stage: str | None = None, fault: str = "silent", seconds: float = 60) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stage, self.fault = stage, fault
        self.struck = False
        self.end = time.monotonic() + seconds
        self.closing = threading.Event()
        self.asked: list[str] = []  # stages of the requests
        self.streamed = b""  # bytes received for W&B runs
        self.left = MAX_CONNECTIONS

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def open(self) -> bool:
        return not self.closing.is_set() and time.monotonic() < self.end

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self.left -= 1
        return self.open and self.left > 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


@contextmanager
def serving(stage: str | None = None, fault: str = "silent", seconds: float = 60) -> Iterator[Server]:
    """Run a `Server` in a thread of this process."""
    with Server(stage, fault, seconds) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    do_PUT = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _serve(self, body: bytes) -> None:
        stage, reply = self._reply(body)
        self.server.asked.append(stage)
        self.server.struck = self.server.struck or stage == self.server.stage
        with suppress(OSError):  # the client has disconnected
            if self.server.struck:
                self._fail()
            else:
                self._answer(200, json.dumps(reply).encode())

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _fail(self) -> None:
        """Fail as the server's fault says."""
        self.close_connection = True
        if self.server.fault == "500":
            self._answer(500, b"{}")
        elif self.server.fault == "drips":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while self.server.open:
                self.wfile.write(b"x")
                time.sleep(PAUSE)
        elif self.server.fault == "silent":
            self.server.closing.wait(max(0.0, self.server.end - time.monotonic()))

    def _reply(self, body: bytes) -> tuple[str, dict[str, Any]]:
        """Return the stage of a request, and the answer of a working server."""
        if self.path == "/":
            return "decide", {}
        if self.path != "/graphql":
            self.server.streamed += body
            return "finish" if self.command == "PUT" or b'"complete":true' in body else "stream", {}
        asked = json.loads(body)
        given = asked.get("variables") or {}
        name = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
        if name is None or name[1] not in ("UpsertBucket", "CreateRunFiles"):
            return "open", {"data": {}}
        if name[1] == "CreateRunFiles":
            files = [{"name": file, "uploadUrl": f"{self.server.url}/{file}"} for file in given["files"]]
            return "finish", {"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}}
        project = {"id": "1", "name": given["project"], "entity": {"id": "1", "name": "team"}}
        bucket = {"id": "1", "name": given["name"], "displayName": given["displayName"], "config": "{}"}
        bucket |= {"description": None, "sweepName": None, "historyLineCount": 0, "project": project}
        return "open", {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
