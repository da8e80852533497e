"""The trace of a run in the output of a real OpenTelemetry Collector, built from its Go modules."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from aftershock.results.report.trace import export_trace, trace_of
from aftershock.tests.unit.results.report.test_trace import home, spans_of  # noqa: F401 -- a fixture

SOURCE = Path(__file__).parents[1] / "collector"
CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{debug: {{verbosity: detailed}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{traces: {{receivers: [otlp], exporters: [debug]}}}}
"""
FIELD = re.compile(r"^    (Name|Start time|End time) +: (.*)$", re.MULTILINE)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def time_us(text: str) -> int:
    """Return a time of the collector, such as ``2026-11-27 10:00:00.123456 +0000 UTC``, in microseconds."""
    whole, _, fraction = text.removesuffix(" +0000 UTC").partition(".")
    seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return int(seconds) * 1_000_000 + int(fraction[:6].ljust(6, "0"))


def wait_until(done: Callable[[str], bool], output: Path) -> None:
    deadline_s = time.monotonic() + 30
    while not done(text := output.read_text()):
        assert time.monotonic() < deadline_s, text
        time.sleep(0.05)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_collector_prints_each_span(home: Path, tmp_path: Path) -> None:  # noqa: F811 -- the fixture
    if not shutil.which("go"):
        pytest.skip("go is not on the PATH; it builds the collector")
    program = tmp_path / "collector"
    subprocess.run(["go", "build", "-o", program, "."], cwd=SOURCE, check=True, env={**os.environ, "CGO_ENABLED": "0"})
    port, output = free_port(), tmp_path / "output"
    command = [program, f"--config=yaml:{CONFIG.format(port=port)}"]
    with output.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as collector:
        try:
            wait_until(lambda text: "Everything is ready" in text, output)
            root = trace_of(home)
            export_trace(root, f"http://127.0.0.1:{port}")
            expected = [(span.name, span.start_us, span.end_us) for span in spans_of(root)]
            wait_until(lambda text: text.count("Span #") >= len(expected), output)
        finally:
            collector.terminate()
    values = [value for _, value in FIELD.findall(output.read_text())]
    printed = [(name, time_us(start), time_us(end)) for name, start, end in zip(*[iter(values)] * 3, strict=True)]
    assert sorted(printed) == sorted(expected)
