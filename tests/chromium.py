"""A headless Chromium of a test: pages at a width, light or dark, what scripts say of them, what they ask for.

It is spoken to by its DevTools protocol through two pipes: no port, and no driver of the same version.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 300  # on a machine with much else to do
# No sandbox and no /dev/shm, as root and containers have none; nothing that asks the net by itself.
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-sync", "--disable-breakpad"),
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps"),
    "--remote-debugging-pipe",
)


class ProtocolError(Exception):
    """A command that failed, as one over a page that is just left."""


class Browser:
    """A Chromium with one page. What a page asks the net for is in ``requests``."""

    def __init__(self, folder: Path) -> None:
        found = next((path for name in NAMES if (path := shutil.which(name))), None)
        if found is None:
            pytest.skip("no Chromium here; on Debian: apt-get install chromium")
        self.requests: list[str] = []
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._number = 0
        theirs_in, self._in = os.pipe()
        self._out, theirs_out = os.pipe()
        words = [found, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
        place = {name: str(folder) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")}
        self._log = folder / "chromium.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}', *words],
                pass_fds=(theirs_in, theirs_out),
                env={**os.environ, **place},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def _read(self) -> None:
        with open(self._out, "rb") as pipe:
            rest = b""
            while part := pipe.read1(1 << 20):
                *messages, rest = (rest + part).split(b"\0")
                for message in messages:
                    found = json.loads(message)
                    url = found.get("params", {}).get("request", {}).get("url", "data:")
                    if found.get("method") == "Network.requestWillBeSent" and not url.startswith("data:"):
                        self.requests.append(url)
                    self._answers.put(found)
        self._answers.put({})

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command of the protocol."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            asked["sessionId"] = self._session
        view = memoryview(json.dumps(asked).encode() + b"\0")
        while view:
            view = view[os.write(self._in, view) :]
        end = time.monotonic() + SECONDS
        while True:
            found = self._answers.get(timeout=max(0.1, end - time.monotonic()))
            assert found, self._log.read_text("utf-8", "replace")
            if found.get("id") == self._number:
                if "error" in found:
                    raise ProtocolError(found["error"]["message"])
                return found["result"]

    def js(self, expression: str) -> Any:
        """Return the value of an expression, of a promise what it becomes."""
        given = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        found = self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Return the value of an expression once it is true."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(ProtocolError):
                if found := self.js(expression):
                    return found
            time.sleep(0.05)
        raise AssertionError(f"not in {SECONDS} s: {expression}\n" + self.js("document.body.innerText"))

    def open(self, url: str, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Show a page, of which everything has come, at a width."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.requests.clear()
        self.js("window.isOld = true")
        self.call("Page.navigate", url=url)
        self.wait_for("window.isOld === undefined && document.readyState === 'complete'")

    def shot(self, path: Path, whole: bool = False) -> None:
        """Draw what is seen into a PNG, or the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the browser with all its processes."""
        os.close(self._in)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(SECONDS)
        self._reader.join(SECONDS)
