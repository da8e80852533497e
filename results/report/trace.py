"""A run as a trace for OpenTelemetry, and as annotations for Grafana.

The root span is the run. Its children are the phases, and the faults from intention to heal; below a fault are its
injection, its witnesses and its heal. All times come from the journal and ``phases.json``, moved to the wall clock by
``origin_unix_us`` of ``run.json``, so a trace can be exported at any time after the run, and exporting costs the run
nothing.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from aftershock.errors import AftershockError, EvidenceError, Log
from aftershock.redaction import redact, remember
from aftershock.results.evidence.files import read_json, read_lines, read_object

TIMEOUT_S = 5.0
_NS = 1_000


@dataclass(frozen=True)
class Span:
    """Part of a run; times are in microseconds since 1970. ``error`` is empty if nothing went wrong."""

    name: str
    start_us: int
    end_us: int
    attributes: Mapping[str, str | int | float | bool]
    children: tuple["Span", ...] = ()
    error: str = ""


def trace_of(home: Path) -> Span:
    """Return the trace of a finished run. Raises EvidenceError for a run without wall-clock times, or without load."""
    run = read_object(home / "run.json")
    origin_us, marks = run.get("origin_unix_us"), run.get("marks") or {}
    if not isinstance(origin_us, int) or marks.get("load_end_us") is None:
        raise EvidenceError(
            f"{home}: the run has no times on the wall clock, because it did not finish or is older than this version; "
            "run the plan again"
        )
    phases = tuple(
        Span(
            f"phase {row['name']}",
            origin_us + row["start_us"],
            origin_us + row["end_us"],
            {"block": row.get("block", 0)},
        )
        for row in read_json(home / "phases.json")
        if not row["fault"]
    )
    journal: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(home / "journal.jsonl"):
        journal.setdefault(line["fault"], []).append(line)
    faults = tuple(_fault(fault, lines, origin_us, marks["load_end_us"]) for fault, lines in journal.items())
    attributes: dict[str, str | int | float | bool] = {"run_id": run["run_id"], "plan": run.get("plan", "")}
    attributes |= {"seed": run["seed"], "kafka": str((run.get("versions") or {}).get("kafka", ""))}
    error = ""
    if (home / "verdict.json").is_file():
        attributes["verdict"] = status = str(read_object(home / "verdict.json")["status"])
        error = "" if status == "PASS" else f"the verdict is {status}"
    end_us = max([origin_us + marks["load_end_us"], *(span.end_us for span in faults)])
    return Span(f"run {run['plan']}", origin_us, end_us, attributes, (*phases, *faults), error)


def _fault(fault: str, lines: Sequence[Mapping[str, Any]], origin_us: int, load_end_us: int) -> Span:
    """Return the span of a fault from its lines of the journal; a fault that was never healed ends with the load."""
    first = {line["state"]: line for line in reversed(lines)}
    times_us = {state: origin_us + line["t_us"] for state, line in first.items()}
    start_us = min(times_us.values())
    end_us = times_us.get("healed", times_us.get("failed", origin_us + load_end_us))
    children = []
    if "injected" in times_us:
        children.append(Span("inject", start_us, times_us["injected"], {}))
    for line in lines:
        if witness := line.get("witness"):
            at_us = origin_us + line["t_us"]
            error = "" if witness["ok"] else "the fault did not take effect"
            children.append(Span("witness", at_us, at_us, witness, error=error))
    if {"healing", "healed"} <= times_us.keys():
        children.append(Span("heal", times_us["healing"], times_us["healed"], {}))
    resolved = first.get("injected") or lines[0]
    targets = {name: json.dumps(value) for name, value in (resolved.get("targets") or {}).items() if value}
    attributes = {"kind": str(resolved.get("kind", "")), **targets}
    error = str(first["failed"].get("why") or "not injected") if "failed" in first else ""
    return Span(f"fault {fault}", start_us, end_us, attributes, tuple(children), error)


def export_trace(root: Span, endpoint: str) -> None:
    """Send a trace to an OpenTelemetry collector at ``endpoint`` (``http://HOST:4318``) by OTLP over HTTP.

    Raises AftershockError if the SDK is not installed, or if the collector does not take the trace in time.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult  # noqa: PLC0415
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415
        from opentelemetry.trace import Status, StatusCode, set_span_in_context  # noqa: PLC0415
    except ImportError as error:
        raise AftershockError(
            "the OpenTelemetry SDK is not installed; install it with: pip install opentelemetry-sdk "
            "opentelemetry-exporter-otlp-proto-http"
        ) from error
    finished = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "aftershock"}))
    provider.add_span_processor(SimpleSpanProcessor(finished))
    tracer = provider.get_tracer("aftershock")

    def record(span: Span, parent: Any) -> None:
        texts = {name: redact(value) if isinstance(value, str) else value for name, value in span.attributes.items()}
        attributes = {f"aftershock.{name}": value for name, value in texts.items()}
        started = tracer.start_span(redact(span.name), parent, attributes=attributes, start_time=span.start_us * _NS)
        if span.error:
            started.set_status(Status(StatusCode.ERROR, redact(span.error)))
        for child in span.children:
            record(child, set_span_in_context(started, parent))
        started.end(span.end_us * _NS)

    record(root, None)
    url = f"{endpoint.rstrip('/')}/v1/traces"
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        headers = os.environ.get(name, "")  # read by the exporter, which repeats it in a warning if it is malformed
        for text in (headers, *(header.partition("=")[2] for header in headers.split(","))):
            remember(text.strip())
    try:
        with requests.Session() as session:
            session.hooks["response"].append(_refuse_redirection)
            exporter = OTLPSpanExporter(url, timeout=TIMEOUT_S, session=session)
            result = exporter.export(finished.get_finished_spans())
    except (requests.RequestException, ValueError) as error:
        raise AftershockError(redact(f"the trace could not be sent to {url}: {error}")) from error
    if result is not SpanExportResult.SUCCESS:
        raise AftershockError(
            redact(f"the collector at {url} did not take the trace within {TIMEOUT_S:.0f} s; check the address")
        )


def _refuse_redirection(answer: requests.Response, *_: Any, **__: Any) -> None:
    """Raise HTTPError for an answer that sends the request elsewhere, which the exporter would count as success."""
    if 300 <= answer.status_code < 400:  # noqa: PLR2004 - RFC 9110, section 15.4
        answer.close()
        raise requests.HTTPError(f"answer {answer.status_code}, which redirects", response=answer)


def export_run(home: Path, environment: Mapping[str, str], log: Log) -> None:
    """Export a run where the environment says: OTEL_EXPORTER_OTLP_ENDPOINT, and GRAFANA_URL with GRAFANA_TOKEN.

    Whatever a receiver does is logged; the run's result does not depend on it.
    """
    collector, grafana = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT"), environment.get("GRAFANA_URL")
    if not collector and not grafana:
        return
    try:
        root = trace_of(home)
        if collector:
            export_trace(root, collector)
        if grafana:
            annotate_grafana(root, grafana, environment.get("GRAFANA_TOKEN", ""))
    except Exception as error:  # noqa: BLE001 - an export must not change the result of a finished run
        log(redact(f"the run was not exported: {error}"))


def annotate_grafana(root: Span, url: str, token: str) -> int:
    """Write an annotation for each fault of a run to a Grafana at ``url``; return their number.

    ``token`` is of a service account that may write annotations. Raises AftershockError if Grafana refuses one, or if
    no HTTP header can carry the token.
    """
    token = token.strip()
    remember(token)
    if not (token.isascii() and token.isprintable()):
        raise AftershockError("GRAFANA_TOKEN has characters that an HTTP header can't carry; copy the token again")
    tags = ["aftershock", *(redact(str(root.attributes[name])) for name in ("plan", "run_id"))]
    faults = [span for span in root.children if span.name.startswith("fault ")]
    for span in faults:
        injected_us = next((child.end_us for child in span.children if child.name == "inject"), span.start_us)
        text = redact(f"{span.name.removeprefix('fault ')}: {span.attributes['kind']}")
        body: Any = {"time": injected_us // 1000, "timeEnd": span.end_us // 1000, "tags": tags, "text": text}
        try:
            answer = requests.post(
                f"{url.rstrip('/')}/api/annotations",
                json=body,
                headers={"Authorization": f"Bearer {token}"},
                timeout=TIMEOUT_S,
                hooks={"response": _refuse_redirection},
            )
            answer.raise_for_status()
        except (requests.RequestException, ValueError) as error:
            raise AftershockError(
                redact(f"Grafana at {url} did not take an annotation: {error}; check address and token")
            ) from error
    return len(faults)
