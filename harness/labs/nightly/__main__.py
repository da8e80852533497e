"""``python -m aftershock.harness.nightly [--budget 30m] [--seed N] [--out DIR]``: what ``ci/nightly`` calls.

Exits with the worst of its steps: 3 ERROR, 1 FAIL, 2 INCONCLUSIVE, 0 PASS; 130 interrupted.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from aftershock.errors import AftershockError
from aftershock.faults.plan.units import parse_duration_ms
from aftershock.harness.labs.explore.search import shown
from aftershock.harness.labs.nightly.night import STEPS, Night, allot, do, go


def main() -> int:
    """The night's exit code."""
    today = datetime.now(UTC).date()
    parser = argparse.ArgumentParser(prog="ci/nightly", description="The night's work.")
    parser.add_argument("--budget", metavar="TIME", help="30m, say; by default all of it, for as long as it takes")
    parser.add_argument("--seed", type=int, default=int(today.strftime("%Y%m%d")), help="default: the day, 20261122")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="the folder that holds the runs")
    asked = parser.parse_args()
    try:
        allotted = allot(STEPS, parse_duration_ms(asked.budget) / 1000 if asked.budget else None)
        _say(f"about {shown(allotted.takes_s)} in all, but for what was done before")
        return go(Night(asked.out, today, asked.seed), allotted, do, _say)
    except (AftershockError, ValueError) as error:
        _say(str(error))
        return 3
    except KeyboardInterrupt:
        return 130


def _say(line: str) -> None:
    sys.stderr.write(f"nightly: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
