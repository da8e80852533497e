"""The known-bad clients as a section of ``docs/CHECKS.md``."""

from aftershock.faults.plan.check import load_plan
from aftershock.tests.chaos.known_bad.catalogue import KnownBad, known_bad, plan

PLANS = ("answers", "leaders", "members", "excuses", "fencing")
_TITLE = """## Known-bad clients

The same on a real cluster: a client with one defect (`tests/chaos/known_bad/clients/`) beside good ones, under faults
that bring it out (`tests/chaos/test_known_bad.py`; the plan `answers` in every test run, the others in the nightly).
Five of `members` are applications of confluent-kafka, the others are variants of the reference client. Those of
`excuses` err beside a setting or a fault that explains other anomalies, but not theirs. The check in the table must
fail the client, with the reason that the test expects, and no other client may fail. Without the defects, the {clean}
clients of these plans must raise no alarm.

| client | brought out by | caught by | plan |
| --- | --- | --- | --- |"""


def section() -> list[str]:
    """Return the lines of the section."""
    arms = {name: [arm for each in load_plan(plan(name)).plan.workloads for arm in each.arms] for name in PLANS}
    every = [arm for names in arms.values() for arm in names]
    clean = len(every) + sum(arm not in known_bad() for arm in every)
    rows = [_row(bad, name) for name in PLANS for arm, bad in known_bad().items() if arm in arms[name]]
    return [_TITLE.format(clean=clean), *rows, ""]


def _row(bad: KnownBad, name: str) -> str:
    return f"| {bad.what.rstrip('.')} | {bad.fault} | `{bad.caught}` | {name} |"
