"""A headless Chromium that tests drive over its DevTools protocol, through a pair of pipes and without a network.

Chromium reads commands from file descriptor 3 and writes answers and events to 4, each a JSON document that ends with
a zero byte (``--remote-debugging-pipe``). A ``Tab`` records every request, console message, exception and violation of
the content security policy.
"""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ),
    *("--hide-scrollbars", "--no-sandbox"),  # a container has no namespaces for the sandbox; the pages are our own
)
TROUBLE = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


def find() -> str | None:
    """Return the path of a Chromium, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """A page of the browser; ``messages`` are the events that it sent so far."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers = os.fdopen(to, "wb", buffering=0), os.fdopen(answers, "rb", buffering=0)
        self._rest, self._number, self._session = b"", 0, ""
        self.messages: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self.call("Browser.close")
        self._to.close()
        self._answers.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result. Raises RuntimeError if the browser refuses or dies."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith("Browser."):
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._answers.fileno(), 1 << 20)
            if not read:
                raise RuntimeError("the browser has ended")
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.messages.append(message)
        return message

    def open(
        self, page: Path, *, width: int = 1280, height: int = 900, scripts: bool = True, dark: bool = False
    ) -> None:
        """Open a file and wait until it is loaded."""
        self.messages.clear()
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(message["method"] == "Page.loadEventFired" for message in self.messages):
            self._receive()

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page. Raises RuntimeError with its exception."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def centre(self, selector: str) -> tuple[float, float]:
        """Scroll to the first element of a selector and return the middle of what is visible of it."""
        script = f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{ block: "center" }});
            const {{ left, top, width, height }} = element.getBoundingClientRect();
            return [left + width / 2, top + height / 2];
        }})()"""
        x, y = self.run(script)
        return x, y

    def click(self, selector: str) -> None:
        """Click with the mouse, on whatever is at the middle of the element."""
        self.drag([self.centre(selector)])

    def drag(self, points: Sequence[tuple[float, float]]) -> None:
        """Press the button at the first point, move through the others and release it at the last one."""
        self._mouse("mouseMoved", points[0])
        self._mouse("mousePressed", points[0])
        for point in points[1:]:
            self._mouse("mouseMoved", point)
        self._mouse("mouseReleased", points[-1])

    def move(self, point: tuple[float, float]) -> None:
        self._mouse("mouseMoved", point)

    def wheel(self, point: tuple[float, float], delta: float, *, ctrl: bool) -> None:
        self._mouse("mouseWheel", point, deltaX=0, deltaY=delta, modifiers=2 if ctrl else 0)

    def _mouse(self, kind: str, point: tuple[float, float], **more: Any) -> None:
        button = {"button": "left", "clickCount": 1} if kind in ("mousePressed", "mouseReleased") else {}
        if kind == "mouseMoved":
            button = {"button": "left"}
        self.call("Input.dispatchMouseEvent", type=kind, x=point[0], y=point[1], **button, **more)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    @property
    def requested(self) -> list[str]:
        """Addresses that the page asked for, its own among them."""
        sent = [message for message in self.messages if message["method"] == "Network.requestWillBeSent"]
        return [str(message["params"]["request"]["url"]) for message in sent]

    @property
    def trouble(self) -> list[dict[str, Any]]:
        """Exceptions, console messages and what the browser logs, such as violations of the security policy."""
        return [message for message in self.messages if message["method"] in TROUBLE]


@contextmanager
def tab() -> Iterator[Tab]:
    """Start a browser and yield its page. Raises FileNotFoundError if there is none (``find``)."""
    path = find()
    if path is None:
        raise FileNotFoundError(f"none of {', '.join(NAMES)} is on the PATH")
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()

    def connect() -> None:
        # away from 3 and 4 first, where one of them may already be
        source, sink = os.dup(their_in), os.dup(their_out)
        while source in (3, 4):
            source = os.dup(source)
        while sink in (3, 4):
            sink = os.dup(sink)
        os.dup2(source, 3)
        os.dup2(sink, 4)

    with TemporaryDirectory(prefix="aftershock-browser-") as profile:
        command = [path, *FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=connect,  # noqa: PLW1509 - two calls that are safe between fork and exec
        )
        os.close(their_in)
        os.close(their_out)
        try:
            one = Tab(our_out, our_in)
            try:
                yield one
            finally:
                one.close()
        finally:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
