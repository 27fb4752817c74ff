"""A headless Chromium driven through its debugging pipe, with nothing but the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = 60  # seconds without a word from the browser
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars", "--mute-audio", "--remote-debugging-pipe",
)  # fmt: skip
# In the page: pictures that did not load, links without a target, ids used twice, and what is wider than the
# window without lying in a box that scrolls.
LOOK = """
(async () => {
  await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
  const ids = [...document.querySelectorAll('[id]')].map(element => element.id);
  const width = document.documentElement.clientWidth;
  const inBox = element => element.closest('.scroll') && !element.classList.contains('scroll');
  return {
    images: document.images.length,
    broken: [...document.images].filter(image => !image.complete || !image.naturalWidth)
      .map(image => image.alt),
    links: document.links.length,
    dangling: [...document.links].map(link => link.getAttribute('href'))
      .filter(href => !href.startsWith('#') || !document.getElementById(decodeURIComponent(href.slice(1)))),
    repeated: ids.filter((id, index) => ids.indexOf(id) !== index),
    overflow: document.documentElement.scrollWidth - width,
    wide: [...document.body.querySelectorAll('*')].filter(element => !inBox(element)
      && element.getBoundingClientRect().right > width + 1).slice(0, 5)
      .map(element => element.tagName + '.' + element.className + ': ' + element.textContent.slice(0, 40)),
    background: getComputedStyle(document.body).backgroundColor,
  };
})()
"""


def find_browser() -> str | None:
    """Path of a Chromium or Chrome on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Browser:
    """One page of a running browser; ``messages`` collects what its console said."""

    process: subprocess.Popen[bytes]
    to: int
    of: int
    session: str = ""
    messages: list[str] = field(default_factory=list)
    _sent: int = 0
    _rest: bytes = b""
    _loaded: bool = False

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its result."""
        self._sent += 1
        command: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.to, json.dumps(command).encode() + b"\0")
        while (answer := self._next()).get("id") != self._sent:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path, width: int, dark: bool, height: int = 900) -> dict[str, Any]:
        """Show a file at a window size and colour scheme; what ``LOOK`` finds there."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._next()
        answer = self.call("Runtime.evaluate", expression=LOOK, awaitPromise=True, returnByValue=True)
        found: dict[str, Any] = answer["result"]["value"]
        return found

    def screenshot(self, path: Path, top: int = 0) -> Path:
        """The window as a PNG, scrolled to `top`."""
        self.call("Runtime.evaluate", expression=f"window.scrollTo(0, {top})")
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return path

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self.of], [], [], PATIENCE)[0]:
                raise TimeoutError("the browser says nothing")
            part = os.read(self.of, 1 << 20)
            if not part:
                raise RuntimeError("the browser went away")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.messages.append(str(params["exceptionDetails"].get("text")))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.messages.append(str([a.get("value") for a in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.messages.append(params["entry"]["text"])


def _out_of_the_way(ends: tuple[int, int]) -> tuple[int, int]:
    """The ends of a pipe under numbers that are not 3 or 4, which become the browser's."""
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """A browser with one empty page; ended, with its profile, when the block is left."""
    (child_reads, we_write), (we_read, child_writes) = (_out_of_the_way(os.pipe()) for _ in range(2))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The protocol's ends are file descriptors 3 and 4 of the browser.
        script = f'exec "$@" 3<&{child_reads} 4>&{child_writes}'
        process = subprocess.Popen(
            ["bash", "-c", script, "browser", path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(child_reads, child_writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_reads)
        os.close(child_writes)
        try:
            page = Browser(process, we_write, we_read)
            target = page.call("Target.createTarget", url="about:blank")["targetId"]
            page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                page.call(f"{domain}.enable")
            yield page
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(we_write)
            os.close(we_read)
