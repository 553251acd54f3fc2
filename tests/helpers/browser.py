"""Drives a headless Chromium over its DevTools protocol, by two pipes: no driver and no package is needed."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-sync")
AS_THREE_AND_FOUR = 'read=$1 write=$2; shift 2; exec "$@" 3<&"$read" 4>&"$write"'  # where the browser expects its pipe
PATIENCE = 60.0  # seconds for an answer
KEYS = {"Tab": 9, "Enter": 13, "Space": 32, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}


def executable() -> str | None:
    """Return the path of a Chromium; None: there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A headless Chromium with one page.

    Attributes:
        complaints: what was logged as an error or a warning, and exceptions that nobody caught.
        requested: addresses that the page loaded.
    """

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_read, to_write)]  # neither is 3 or 4
        command = [program, *FLAGS, *QUIET, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", AS_THREE_AND_FOUR, "bash", *map(str, ends), *command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_read, to_write, *ends):
            os.close(end)
        self._count, self._buffer, self._session = 0, b"", ""
        self.complaints: list[str] = []
        self.requested: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events before it are kept."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"no answer for {PATIENCE:g} s")
            if not (read := os.read(self._from, 2**20)):
                raise RuntimeError(f"the browser ended with status {self.process.wait()}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, given: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            thrown = given["exceptionDetails"]
            self.complaints.append(
                f"{thrown['text']} {thrown.get('exception')} {thrown.get('url')}:{thrown['lineNumber']}"
            )
        elif event == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(one.get("value")) for one in given["args"]))
        elif event == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            self.requested.append(given["request"]["url"])

    def open(self, page: Path, width: int = 1200, scheme: str = "light", anchor: str = "") -> None:
        """Open a file at a width, in a colour scheme, and wait until it is loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=f"{page.resolve().as_uri()}{anchor}")
        until = time.monotonic() + PATIENCE
        ready = "location.protocol === 'file:' && document.readyState === 'complete'"
        while not self.evaluate(ready):
            if time.monotonic() > until:
                raise TimeoutError(f"{page} was not loaded in {PATIENCE:g} s")
            time.sleep(0.02)
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", expression))
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, as a user does."""
        code = {"windowsVirtualKeyCode": KEYS[key], "key": " " if key == "Space" else key, "code": key}
        text = {"Enter": "\r", "Space": " "}.get(key)
        self.send("Input.dispatchKeyEvent", type="keyDown", **code, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def type(self, text: str) -> None:
        """Type text into what has the focus."""
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Save what is seen as PNG; `whole`: all of the page."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}
        more = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", **more)["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        try:
            self.send("Browser.close")
        except (RuntimeError, OSError):
            self.process.kill()
        self.process.wait()
        os.close(self._to)
        os.close(self._from)


@contextmanager
def browsing(program: str, profile: Path) -> Iterator[Browser]:
    """Run a browser for a while."""
    browser = Browser(program, profile)
    try:
        yield browser
    finally:
        browser.close()
