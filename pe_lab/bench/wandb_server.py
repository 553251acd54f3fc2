"""A W&B server on 127.0.0.1 that takes runs, and misbehaves from a stage on."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# what a client asks for, in order: whether anybody answers, the run, its metrics, its end
STAGES = ("decide", "open", "stream", "finish")
FAULTS = ("silent", "drips", "500", "closes")
PAUSE = 0.05  # seconds between two bytes of a header
MOST = 256  # connections; others are closed at once


class Server(ThreadingHTTPServer):
    """Answers every request until one of the stage comes; that and all that follow get the fault.

    Args:
        stage: one of STAGES, or None: nothing happens.
        fault: "silent" (the request is read, nothing is answered), "drips" (a header that does not end), "500", or
            "closes" (the connection).
        seconds: after which everything is closed, whoever still waits.
    """

    daemon_threads = True

    def __init__(self, stage: str | None = None, fault: str = "silent", seconds: float = 60) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stage, self.fault = stage, fault
        self.struck = False
        self.end = time.monotonic() + seconds
        self.closing = threading.Event()
        self.asked: list[str] = []  # the stage of each request
        self.streamed = b""  # what was sent of runs, as it came
        self.left = MOST

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
        """A client that leaves is no error."""


@contextmanager
def serving(stage: str | None = None, fault: str = "silent", seconds: float = 60) -> Iterator[Server]:
    """A `Server` that runs in a thread of this process."""
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
        """Nothing is printed."""

    def _serve(self, body: bytes) -> None:
        stage, reply = self._reply(body)
        self.server.asked.append(stage)
        self.server.struck = self.server.struck or stage == self.server.stage
        with suppress(OSError):  # the client has left
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
        """The stage of a request, and what a server says to it."""
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
