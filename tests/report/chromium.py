"""Headless Chromium, driven through a pipe by the DevTools protocol: no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
SECONDS = 120.0
"""Longest wait for an answer; a crowded machine is slow, a crashed browser is silent."""

_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38}
_KEYS |= {"ArrowRight": 39, "ArrowDown": 40}
_TEXT = {"Enter": "\r", " ": " "}


class Chromium:
    """A browser with one tab.

    Args:
        profile: Folder for its profile, and for what it says on standard error.
    """

    def __init__(self, profile: Path) -> None:
        assert EXECUTABLE is not None
        profile.mkdir(parents=True, exist_ok=True)
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        shell = f'exec "$@" 3</dev/fd/{commands} 4>/dev/fd/{answers}'
        with (profile / "stderr.txt").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", shell, "chromium", EXECUTABLE, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
                pass_fds=(commands, answers),
                stdout=log,
                stderr=log,
            )
        os.close(commands)
        os.close(answers)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self.call("Browser.close")
        os.close(self._commands)
        self._process.wait(timeout=SECONDS)
        os.close(self._answers)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come in between are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], SECONDS)
            part = os.read(self._answers, 1 << 20) if ready else b""
            assert part, f"Chromium does not answer (exit code {self._process.poll()})"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, path: Path, *, width: int = 1440, height: int = 900) -> None:
        """Open a file in a window of this size, and wait until it is loaded and its script has run."""
        self.resize(width, height)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())
        assert self.run("document.documentElement.dataset.ready") == "yes", self.complaints

    def resize(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, scheme: str) -> None:
        """Set the system's colour scheme, ``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + SECONDS
        while not self.run(condition):
            assert time.monotonic() < until, f"never true: {condition}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press and release a key, such as ``Tab`` or ``ArrowRight``, or a letter."""
        text = _TEXT.get(key, key if len(key) == 1 else "")
        code = _KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        shared = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **shared)
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def click(self, selector: str) -> None:
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str) -> None:
        x, y = self._middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def leave(self) -> None:
        """Move the mouse to the corner of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)

    def _middle(self, selector: str) -> tuple[float, float]:
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        return place[0], place[1]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Save what is seen as PNG: the whole page, or the part in view."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": clip} if whole else {}))
        path.write_bytes(base64.b64decode(shot["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings on the console since the page was opened."""
        self.run("0")  # brings the events of what was done before
        found = []
        for event in self.events:
            match event.get("method"), event.get("params", {}):
                case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                    found.append(str(details.get("exception", details)))
                case "Runtime.consoleAPICalled", {"type": "error" | "warning" | "assert", "args": args}:
                    found.append(str(args))
                case "Log.entryAdded", {"entry": {"level": "error" | "warning"} as entry}:
                    found.append(entry["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses asked for since the page was opened."""
        self.run("0")
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]
