"""Advice on settings of clients that recover late, with the record that shows it, and what a setting saved in a trial.

A client is late in a scenario if it recovers a second after the fastest client, or is marked slow. Advice names the
settings that bound such waits, for clients whose settings are known here (defaults: Kafka's documentation of producer
and consumer configurations, ``CONFIGURATION.md`` of librdkafka). A guess becomes a figure by trying it: an arm
``<client>-advised`` has all these settings, and the saved time is that of both arms in the same repetitions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.results.compare.blocks import Block
from aftershock.results.studies.audit import RECOVERED, Cell, Spread, spread
from aftershock.results.studies.part import Part

ADVISED = "-advised"
LATE_S = 1.0
_US = 1_000_000
_LOST = ("leader-crashes", "host-vanishes", "rack-cut", "rolling-restart", "coordinator-killed", "acks-lost")
_SILENT = ("leader-frozen", "rack-cut", "half-open", "host-vanishes")


@dataclass(frozen=True)
class Lever:
    """Setting that bounds a wait of a client: its default, the value to try, and the scenarios in which it matters."""

    setting: str
    default: str
    value: str
    bounds: str
    scenarios: Sequence[str]


_ANSWER, _CONNECTION = "the wait for the answer of a silent broker", "the wait for a connection"
_KAFKA = (
    Lever("request.timeout.ms", "30000", "5000", _ANSWER, _SILENT),
    Lever("socket.connection.setup.timeout.ms", "10000", "1000", _CONNECTION, _SILENT),
)
_LIBRDKAFKA = (
    Lever("socket.timeout.ms", "60000", "5000", _ANSWER, _SILENT),
    Lever("socket.connection.setup.timeout.ms", "30000", "1000", _CONNECTION, _SILENT),
    Lever("reconnect.backoff.max.ms", "10000", "1000", "the pause between attempts to connect", _LOST),
)
LEVERS: Mapping[str, Sequence[Lever]] = {"confluent": _LIBRDKAFKA, "java": _KAFKA, "reference": _KAFKA}
"""Levers by the kind of a client in a plan."""


@dataclass(frozen=True)
class Advice:
    """Levers for a client that is late in a scenario.

    ``behind`` is the fastest client and ``late_s`` the time by which the client recovers later, None if there is no
    such time. ``record`` describes the client's slowest record. ``saved`` is the time that the advised arm recovered
    earlier, by repetition; its ``n`` is 0 if the advice was not tried.
    """

    scenario: str
    client: str
    levers: Sequence[Lever]
    behind: str | None
    late_s: float | None
    record: str
    saved: Spread

    @property
    def text(self) -> str:
        late = f"{self.late_s:.1f} s later than {self.behind}" if is_late(self.late_s) else "late"
        names = "; ".join(
            f"{lever.setting}={lever.value} (default {lever.default}) bounds {lever.bounds}" for lever in self.levers
        )
        return (
            f"{self.client}, {self.scenario.replace('-', ' ')}: recovers {late} ({self.record}). {names}. {self.tried}"
        )

    @property
    def tried(self) -> str:
        saved = self.saved
        if not saved.n:
            return "Not tried; --try-advice does."
        if saved.median_s is None or saved.low_s is None or saved.high_s is None:
            return "Tried: in some repetitions, one of both did not recover."
        interval = f"{saved.low_s:.1f} to {saved.high_s:.1f}, n = {saved.n}"
        return (
            f"Tried: saves {saved.median_s:.1f} s ({interval})."
            if saved.low_s > 0
            else (f"Tried: makes no difference that shows, {saved.median_s:.1f} s ({interval}).")
        )


def is_late(late_s: float | None) -> bool:
    """Return True if a client recovers so much later than the fastest that this counts."""
    return late_s is not None and late_s >= LATE_S


def advised(arm: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an arm with all settings that advice names and that it does not set itself; None without any."""
    levers = LEVERS.get(arm["client"], ())
    settings = {lever.setting: lever.value for lever in levers}
    return {**arm, "settings": {**settings, **(arm.get("settings") or {})}} if levers else None


def advice_of(scenario: str, part: Part, cells: Sequence[Cell]) -> list[Advice]:
    """Return advice for the clients of a scenario's run that were late in it."""
    (workload,) = part.run.timeline["workloads"]
    own = [cell for cell in cells if not cell.client.endswith(ADVISED)]
    recovered = {cell.client: median for cell in own if (median := cell.recovery.median_s) is not None}
    fastest = min(recovered, key=recovered.__getitem__, default=None)
    found = []
    for cell in own:
        arm = workload["arms"][cell.client]
        levers = [
            lever
            for lever in LEVERS.get(arm["client"], ())
            if scenario in lever.scenarios and lever.setting not in (arm.get("settings") or {})
        ]
        late_s = recovered[cell.client] - recovered[fastest] if fastest and cell.client in recovered else None
        if not levers or (cell.mark != "slow" and not is_late(late_s)):
            continue
        client, other = (f"{workload['name']}/{name}" for name in (cell.client, cell.client + ADVISED))
        tried = cell.client + ADVISED in workload["arms"]
        saved = differences(part.blocks(client, RECOVERED), part.blocks(other, RECOVERED)) if tried else []
        behind = fastest if fastest != cell.client else None
        found.append(Advice(scenario, cell.client, levers, behind, late_s, slowest(part, client), spread(saved)))
    return found


def differences(own: Mapping[int, Block], other: Mapping[int, Block]) -> list[Block]:
    """Return by how much ``other`` is earlier in each block that both have; no value where either has none."""
    found = []
    for n in sorted(own.keys() & other.keys()):
        before_us, after_us = own[n].value_us, other[n].value_us
        found.append(Block(None if before_us is None or after_us is None else before_us - after_us, own[n].n))
    return found


def slowest(part: Part, client: str) -> str:
    """Describe the record of a client that took longest, as ``record 0:1841 took 4.9 s to orders/3``."""
    rows = [row for group in part.slowest(client) for row in group["records"]]
    took = [(row["done_us"] - row["intended_us"], row) for row in rows if row["done_us"] is not None]
    if not took:
        return "no record of it was acknowledged"
    us, row = max(took, key=lambda pair: pair[0])
    return f"record {row['producer_id']}:{row['seq']} of {row['topic']}/{row['partition']} took {us / _US:.1f} s"
