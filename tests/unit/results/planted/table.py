"""Prints ``docs/CHECKS.md``: what is planted in evidence and in clients, and what catches it, for ``make docs``."""

import sys
from collections.abc import Iterator

from aftershock.tests.chaos.known_bad.table import section
from aftershock.tests.unit.results.planted.catalogue import Defect
from aftershock.tests.unit.results.planted.defects import DEFECTS

_HEAD = """# What the judge is shown to catch

Written by `make docs` from `tests/unit/results/planted/` and `tests/chaos/known_bad/`: do not edit. Each of the first
defects is planted in the evidence of a run in which all else is well; the checks named must notice, and no other check
may change its status (`test_planted.py`). Where nothing is named, the configuration or a fault of the plan permits it,
and no check may alarm. FAIL unless said otherwise. {extent}

What each rule means, and what a configuration permits: `results/checks/integrity.py` and
`results/checks/permits.py`; how it is found: `results/checks/findings/`.
"""
_EXTENT = (
    "Besides, 200 clean runs full of noise must raise no alarm at all (20 of them in every test run), and one lost "
    "record is found among ten million (nightly)."
)
_GROUPS = {
    "records": "Records and the log",
    "readers": "Readers, and what brokers tell them",
    "commits": "Commits of groups that read nothing",
    "latencies": "Time",
    "trust": "The experiment itself",
    "inputs": "Evidence that can't be read",
}


def page() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD.format(extent=_EXTENT), *_tables(), *section()])


def _tables() -> Iterator[str]:
    for module, title in _GROUPS.items():
        yield f"## {title}\n\n| planted | caught by |\n| --- | --- |"
        yield from (_row(one) for one in DEFECTS.values() if one.spoil.__module__ == f"planted.{module}")
        yield ""


def _row(one: Defect) -> str:
    told = (f"`{name}`" + ("" if status == "FAIL" else f" ({status})") for name, status in one.caught.items())
    if "evidence" in one.caught:
        told = iter(["ERROR, which names it"])
    return f"| {one.what} | {', '.join(told) or 'no alarm'} |"


if __name__ == "__main__":
    sys.stdout.write(page())
