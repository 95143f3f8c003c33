"""A browser without a window, by Chromium's DevTools: it goes to pages, waits for them, and takes pictures."""

from __future__ import annotations

import base64
import io
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from PIL import Image
from websockets.sync.client import ClientConnection, connect

_START_TIMEOUT_S: Final = 60.0
_ANSWER_TIMEOUT_S: Final = 30.0
_PAGE_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 20.0
_LOOK_S: Final = 0.25

#: Of a picture that is kept.
_COLOURS: Final = 256

#: It asks nobody for updates, and keeps nothing but in a folder that is removed.
_OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-port=0",
)


class Page:
    """The browser's one page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)

    def size(self, width: int, height: int) -> None:
        """Makes the page so large, in pixels."""
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", shape)

    def go(self, url: str) -> None:
        """Goes to an address; it does not wait for the page."""
        self._call("Page.navigate", {"url": url})

    def run(self, script: str) -> Any:
        """Runs a little JavaScript; what it gives."""
        told = self._call("Runtime.evaluate", {"expression": script, "returnByValue": True})
        if "exceptionDetails" in told:
            raise RuntimeError(f"{script}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def until(self, script: str) -> Any:
        """Waits until a little JavaScript gives something that is true.

        Raises:
            TimeoutError: it never did; the message has the text of the page.
        """
        deadline = time.monotonic() + _PAGE_TIMEOUT_S
        while True:
            # Between two pages there may be nothing to ask.
            with suppress(RuntimeError):
                if found := self.run(script):
                    return found
            if time.monotonic() > deadline:
                text = self.run("document.body.innerText")
                raise TimeoutError(f"{script} on a page that says:\n{text}")
            time.sleep(_LOOK_S)

    def await_text(self, text: str) -> None:
        """Waits until the page shows a text."""
        self.until(f"document.body?.innerText.includes({json.dumps(text)})")

    def picture(
        self, left: int = 0, top: int = 0, right: int | None = None, bottom: int | None = None
    ) -> bytes:
        """What the page looks like between these places, in pixels, as a PNG; by default all of it."""
        width, height = self.run("[innerWidth, innerHeight]")
        width = (width if right is None else right) - left
        height = (height if bottom is None else bottom) - top
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        told = self._call("Page.captureScreenshot", {"format": "png", "clip": clip})
        return base64.b64decode(told["data"])

    def _call(self, method: str, params: Mapping[str, Any]) -> Any:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        # What it tells by itself comes in between.
        while True:
            told = json.loads(self._socket.recv(deadline - time.monotonic()))
            if told.get("id") != number:
                continue
            if "error" in told:
                raise RuntimeError(f"{method}: {told['error']}")
            return told["result"]


@contextmanager
def chromium() -> Iterator[Page]:
    """A browser with one empty page; nothing of it is left at the end.

    Raises:
        FileNotFoundError: there is no ``chromium`` on the path.
    """
    command = shutil.which("chromium")
    if command is None:
        raise FileNotFoundError("there is no chromium on the path")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [command, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with connect(_page_of(process, Path(folder)), max_size=None, proxy=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_END_TIMEOUT_S)


def keep_picture(png: bytes, file: Path) -> None:
    """Writes a picture into a file, with as few colours as a page without photographs needs."""
    with Image.open(io.BytesIO(png)) as picture:
        # So that few pixels of a warning's colour count as well.
        few = picture.convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE)
        few.save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size:,} bytes")


def _page_of(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Where its page listens; it writes its port into its folder."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"chromium has ended with {process.returncode}")
        with suppress(OSError, IndexError):
            port = (folder / "DevToolsActivePort").read_text().splitlines()[0]
            url = f"http://127.0.0.1:{port}/json/list"
            with opener.open(url, timeout=_ANSWER_TIMEOUT_S) as answer:
                [page] = [one for one in json.load(answer) if one["type"] == "page"]
            return str(page["webSocketDebuggerUrl"])
        if time.monotonic() > deadline:
            raise TimeoutError(f"chromium does not listen after {_START_TIMEOUT_S:g} s")
        time.sleep(_LOOK_S)
