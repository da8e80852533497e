"""A verdict as gauges in Prometheus' text format, for the textfile collector of its node exporter.

===========================================  ==========================================================================
gauge                                        value
===========================================  ==========================================================================
``aftershock_run_status{plan,status}``       1 for the verdict of the run, 0 for the other three
``aftershock_run_start_time_seconds{plan}``  when the run began, since 1970
``aftershock_checks{plan,status}``           number of checks
``aftershock_records_lost{…,permitted}``     records that are missing, with or without a witnessed cause; likewise
                                             ``aftershock_records_duplicated``
``aftershock_stopped_seconds{…,side}``       longest time in which records waited and none succeeded; 0 below a second
``aftershock_recovery_seconds{…}``           when the client was normal again after the injection; missing if never
``aftershock_recovered{…}``                  1 if it was after each injection of the fault, else 0
===========================================  ==========================================================================

The labels … are those of an answer: ``plan``, ``client`` and ``fault`` (``whole run`` for a client with several faults
and losses). What was not observed has no sample.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aftershock.errors import AftershockError
from aftershock.results.model.check import Status, Verdict

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge


def gauges(verdict: Verdict, run: Mapping[str, Any]) -> "CollectorRegistry":
    """Return the gauges of a run; ``run`` is its ``run.json``.

    Raises AftershockError without the package ``prometheus-client``.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise AftershockError(
            "Prometheus' text format needs the package `prometheus-client`: pip install 'aftershock[prometheus]'"
        ) from error
    registry = CollectorRegistry()

    def gauge(name: str, meaning: str, *labels: str) -> "Gauge":
        return Gauge(f"aftershock_{name}", meaning, ("plan", *labels), registry=registry)

    plan, of_answer = verdict.plan, ("client", "fault")
    status = gauge("run_status", "Verdict of the run: 1 for its status.", "status")
    checks = gauge("checks", "Number of checks.", "status")
    for one in Status:
        status.labels(plan, one.value.lower()).set(float(verdict.status is one))
        checks.labels(plan, one.value.lower()).set(sum(check.status is one for check in verdict.checks))
    if started := run.get("started_at"):
        began = gauge("run_start_time_seconds", "When the run began, in seconds since 1970.")
        began.labels(plan).set(datetime.fromisoformat(started).timestamp())
    counted = {
        "lost": gauge("records_lost", "Records that are missing.", *of_answer, "permitted"),
        "twice": gauge("records_duplicated", "Records that are there or were read twice.", *of_answer, "permitted"),
    }
    stopped = gauge("stopped_seconds", "Longest time in which records waited and none succeeded.", *of_answer, "side")
    recovery = gauge("recovery_seconds", "When the client was normal again after the injection.", *of_answer)
    recovered = gauge("recovered", "1 if the client was normal again after each injection.", *of_answer)
    for answer in verdict.answers:
        labels = (plan, answer.client, answer.fault or "whole run")
        for word, of_records in counted.items():
            count, permitted = getattr(answer, word), getattr(answer, f"{word}_permitted")
            if answer.counts and count is not None:
                of_records.labels(*labels, "true").set(permitted)
                of_records.labels(*labels, "false").set(count - permitted)
        for side, us in answer.stopped_us.items():
            stopped.labels(*labels, side).set((us or 0) / 1e6)
        if (normality := answer.normality) and normality.measured:
            whole = normality.recovered == normality.measured
            recovered.labels(*labels).set(float(whole))
            if whole and normality.worst_us is not None:
                recovery.labels(*labels).set(normality.worst_us / 1e6)
    return registry


def gauges_text(verdict: Verdict, run: Mapping[str, Any]) -> str:
    """Return the gauges of a run in the text format."""
    registry = gauges(verdict, run)
    from prometheus_client import generate_latest  # noqa: PLC0415 -- an extra

    return generate_latest(registry).decode()


def write_gauges(verdict: Verdict, run: Mapping[str, Any], file: Path) -> None:
    """Write the gauges of a run to a file, whose name must end in ``.prom`` for the collector; replaced as a whole."""
    registry = gauges(verdict, run)
    from prometheus_client import write_to_textfile  # noqa: PLC0415 -- an extra

    try:
        write_to_textfile(str(file), registry)
    except OSError as error:
        raise AftershockError(f"{file}: can't be written ({error.strerror}); choose another file") from error
