"""``analysis.json`` has every measurement in rows that the report reads."""

import json
from dataclasses import fields

from aftershock.results.evidence.shapes import misfit
from aftershock.results.evidence.stored import analysis_document
from aftershock.results.model.facts import (
    Cut,
    Distribution,
    Facts,
    Finding,
    Lag,
    Outage,
    Perf,
    RackFlow,
    Recovered,
    RecoveryCriterion,
    Slice,
    SlowRecord,
)

UNSAID = {"longest", "recoveries", "produced", "backwards", "left_out", "member_lag", "stable", "write_cycles"}
"""Fields under another name (gaps), of the judge alone, or in verdict.json (write_cycles)."""


def test_every_measurement_is_a_row_with_its_key() -> None:
    """Keys become fields, quantiles become text, no measurement is omitted, and the document is JSON without NaN, which
    the reader of stored documents accepts.
    """
    seen = Distribution(9, 1, 70, {0.99: 50, 1.0: None}, 40.0, {(0.99, 0.95): (45, None)})
    cut = Cut("produce.latency", "fault", each="rack", every_us=1_000_000)
    slow = SlowRecord(0, 7, "orders", 3, None, 1, 2, None, "failed", "TIMED_OUT")
    facts = Facts(
        distributions={("produce.latency", "w/a", "run"): seen},
        spectra={("produce.latency", "w/a", "fault"): ((0.5, 40), (0.99, None))},
        racks=(RackFlow("produce", "w/a", "a", "b", "run", 9, 900, 40, 50),),
        slowest={("produce", "w/a"): (slow,)},
        unavailable={("produce", "w/a", "run"): (Outage(3, 9, 8, 2),)},
        lag={"w/a": (Lag(1_000_000, 3, 70),)},
        stable_lag={"w/a": (Lag(1_000_000, 4, 80),)},
        perf={"w/a": Perf(9, 1.0, 9.0, 0.1, 40.0, 70.0, 40.0, 45.0, 50.0, 50.0)},
        findings={("lost", "consume", "w/a"): Finding("lost", "consume", "w/a", 9, 1, ((0, 7),))},
        cuts={(cut, "w/a"): (Slice("rack=a", 5, seen),)},
        calms={(RecoveryCriterion("kill-1", q=0.99), "w/a"): Recovered(9, None, 8)},
    )
    told = json.loads(json.dumps(analysis_document(facts), allow_nan=False))
    assert {field.name for field in fields(Facts)} - UNSAID <= told.keys()
    assert misfit("analysis.json", told) is None
    assert {"0.99": 50, "1.0": None} == told["distributions"][0]["at"]
    assert [{"q": 0.99, "confidence": 0.95, "low_us": 45, "high_us": None}] == told["distributions"][0]["bands"]
    assert [[0.5, 40], [0.99, None]] == told["spectra"][0]["points"]
    (slowest,) = told["slowest"]
    assert ("produce", "w/a", 7) == (slowest["op"], slowest["client"], slowest["records"][0]["seq"])
    assert [[1_000_000, 3, 70]] == told["lag"][0]["seconds"]
    assert [[1_000_000, 4, 80]] == told["stable_lag"][0]["seconds"]
    (row,) = told["cuts"]
    assert ("fault", "rack", 1_000_000, "w/a") == tuple(row[name] for name in ("window", "each", "every_us", "client"))
    assert ("rack=a", 5, 9) == tuple(row["slices"][0][name] for name in ("subject", "start_us", "n"))
    assert (0.99, "w/a", None) == tuple(told["calms"][0][name] for name in ("q", "client", "recovered_us"))
