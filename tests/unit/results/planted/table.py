"""Print ``docs/CHECKS.md``, the table of defects planted in evidence and in clients and the checks that report
them, for ``make docs``.
"""

import json
import sys
from collections.abc import Iterator

from aftershock.tests.chaos.known_bad.table import section
from aftershock.tests.chaos.services import exactly_once, service
from aftershock.tests.judge_mutants.result import RESULT, block
from aftershock.tests.unit.results.planted.catalogue import Defect
from aftershock.tests.unit.results.planted.defects import DEFECTS

_HEAD = """# Planted defects and the checks that catch them

Written by `make docs` from `tests/unit/results/planted/` and `tests/chaos/known_bad/`: do not edit. The defects in
the first tables are planted in the evidence of a correct run. The named checks must change their status to FAIL
(unless another status is given), and no other check may change (`test_planted.py`). "No alarm" means that the
configuration or a fault of the plan permits the defect. In addition, 200 clean runs with noise must raise no alarm
(20 of them in every test run), and one lost record is found among ten million (nightly).

The meaning of each rule: `results/model/rules.py`; what explains a breach: `results/checks/explanations/`; how
breaches are counted: `results/checks/findings/`. Terms such as *in doubt* and *torn*: [Glossary](GLOSSARY.md).
"""
_GROUPS = {
    "records": "Records and the log",
    "explained": "Anomalies beside their cause, and beside another one",
    "readers": "Readers, and what brokers report to them",
    "explained_groups": "Anomalies of groups beside their cause, and beside another one",
    "replicas": "Replicas",
    "transactions": "Transactions",
    "stable_offsets": "Last stable offsets",
    "commits": "Commits of groups without readers",
    "members": "Members of consumer groups",
    "pipes": "Services between two topics",
    "latencies": "Time",
    "load": "The load",
    "obligations": "Obligations to make progress",
    "standstills": "Clients that stand still for good, or end",
    "trust": "The experiment itself",
    "inputs": "Unreadable evidence",
}


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *_tables(), *section(), *_services()]) + _mutation_score()


def _services() -> Iterator[str]:
    """Yield the lines of the section about known-bad services."""
    yield "## Known-bad services\n"
    yield "The same for services that copy records between topics, on a real cluster (`tests/chaos/test_services.py`,"
    yield "in the nightly). No other check may fail. Each table is of one run. A broker is killed in the first; the"
    yield "services of the second promise exactly once, and their inputs are in transactions, of which a fifth is"
    yield "aborted.\n"
    for module in (service, exactly_once):
        yield "| service | fault | caught by |\n| --- | --- | --- |"
        for name, what in module.DEFECTS.items():
            check = f"`integrity/{module.CAUGHT[name]}`" if name in module.CAUGHT else module.NOT_CAUGHT[name]
            yield f"| {what} | {module.FAULTS.get(name, '')} | {check} |"
        yield ""


def _mutation_score() -> str:
    """Return the section with the stored result of ``make judge-mutants``; empty before the first campaign."""
    return "\n" + block(json.loads(RESULT.read_text(encoding="utf-8"))) if RESULT.exists() else ""


def _tables() -> Iterator[str]:
    for module, title in _GROUPS.items():
        yield f"## {title}\n\n| planted | caught by |\n| --- | --- |"
        yield from (
            _row(defect) for defect in DEFECTS.values() if defect.spoil.__module__.endswith(f".planted.{module}")
        )
        yield ""


def _row(defect: Defect) -> str:
    checks = [f"`{name}`" + ("" if status == "FAIL" else f" ({status})") for name, status in defect.caught.items()]
    if "evidence" in defect.caught:
        checks = ["ERROR, which names the file"]
    return f"| {defect.what} | {', '.join(checks) or 'no alarm'} |"


if __name__ == "__main__":
    sys.stdout.write(page())
