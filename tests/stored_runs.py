"""Documents of a judged run with blocks, with the parts that comparisons and the ledger read."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

ARMS = ("baseline", "kip951")
Values = Mapping[str, Sequence[float | None]]


def documents(p95_us: Values, recovered_us: Values | None = None, n: int = 600, run_id: str = "r1") -> dict[str, Any]:
    """Return ``run``, ``timeline``, ``analysis`` and ``verdict`` of a run whose arms have these values per block.

    Recovery takes 25 times the p95 by default.
    """
    usual = {arm: [None if value is None else 25 * value for value in values] for arm, values in p95_us.items()}
    blocks = range(1, len(next(iter(p95_us.values()))) + 1)
    arms = {arm: {"client": "reference", "settings": {}} for arm in p95_us}
    produce = {"topic": "orders", "rate_per_s": 60.0, "acks": "all", "rack": "a"}
    return {
        "run": {
            "run_id": run_id, "plan": "rotation", "seed": 7, "status": "complete", "rehearse": False, "git": "abc",
            "started_at": "2026-11-21T02:00:00+00:00", "versions": {"kafka": "4.3.1"}, "host": {"hostname": "ci-1"},
        },
        "timeline": {
            "schema_version": 1, "name": "rotation", "seed": 7, "slo": [],
            "topics": [{"name": "orders", "partitions": 6, "replication": 3}],
            "cluster": {"kafka": "default", "profile": "fast", "racks": {"a": 1}},
            "timing": {"steady_ms": 10_000, "fault_ms": 5_000},
            "workloads": [{"name": "orders", "produce": produce, "consume": None, "arms": arms}],
            "steps": [
                {"id": f"kill-1-{block}", "entry": "kill-1", "block": block, "kind": "kill", "at_ms": block * 1000}
                for block in blocks
            ],
        },
        "analysis": {
            "schema_version": 1,
            "distributions": [_spread(arm, window, n) for arm in p95_us for window in ("steady", "fault", "recovery")],
            "gaps": [
                {"metric": "produce.gap", "client": f"orders/{arm}", "window": "fault", "n": 90, "longest_us": 2_000}
                for arm in p95_us
            ],
            "recoveries": [
                {"fault": f"kill-1-{block}", "client": f"orders/{arm}", "n": 900, "recovered_us": _whole(value)}
                for arm, values in (recovered_us or usual).items()
                for block, value in enumerate(values, 1)
            ],
            "cuts": [_cut(arm, values, n) for arm, values in p95_us.items()],
        },
        "verdict": {
            "schema_version": 1, "run_id": run_id, "status": "PASS", "plan": "rotation", "seed": 7, "arms": [*p95_us],
            "checks": [
                _check("harness/host", "harness"),
                *(_check(f"witness/kill-1-{block}", "witness") for block in blocks),
            ],
        },
    }  # fmt: skip


def write(home: Path, made: Mapping[str, Any]) -> Path:
    """Write the run directory ``home``."""
    home.mkdir(parents=True)
    for name, document in made.items():
        (home / f"{name}.json").write_text(json.dumps(document))
    return home


def spoilt(made: Mapping[str, Any], check: str, why: str) -> dict[str, Any]:
    """Return the run with one INCONCLUSIVE check."""
    other = deepcopy(dict(made))
    (result,) = (each for each in other["verdict"]["checks"] if each["id"] == check)
    result |= {"status": "INCONCLUSIVE", "why": why}
    return other


def _spread(arm: str, window: str, n: int) -> dict[str, Any]:
    named = {"metric": "produce.latency", "client": f"orders/{arm}", "window": window}
    return named | {
        "n": 8 * n,
        "censored": 0,
        "slowest_us": 90_000,
        "at": {"0.5": 6000, "0.95": 30_000, "0.99": 60_000},
    }


def _cut(arm: str, values: Sequence[float | None], n: int) -> dict[str, Any]:
    slices = [
        {"subject": f"block={block}", "start_us": None, "n": n, "censored": 0, "slowest_us": 9}
        | {"at": {"0.95": _whole(value)}}
        for block, value in enumerate(values, 1)
    ]
    named = {"metric": "produce.latency", "window": "fault", "each": "block", "every_us": None}
    return named | {"client": f"orders/{arm}", "slices": slices}


def _whole(value_us: float | None) -> int | None:
    return None if value_us is None else round(value_us)


def _check(name: str, kind: str) -> dict[str, Any]:
    return {
        "id": name, "kind": kind, "subject": "run", "status": "PASS", "n": 1, "minimum": 1, "unit": "", "why": "seen",
        "samples": [],
    }  # fmt: skip
