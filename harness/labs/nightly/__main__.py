"""Command line of the nightly: ``python -m aftershock.harness.labs.nightly [--budget 30m] [--seed N] [--out DIR]``.

``ci/nightly`` calls the nightly's command line, whose exit code is that of the worst step: 3 ERROR, 1 FAIL, 2
INCONCLUSIVE, 0 PASS; 130 means interrupted.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from aftershock.errors import AftershockError
from aftershock.faults.plan.units import parse_duration_ms
from aftershock.harness.labs.explore.search import format_duration
from aftershock.harness.labs.nightly.night import STEPS, Night, allot, run_command, run_night


def main() -> int:
    today = datetime.now(UTC).date()
    parser = argparse.ArgumentParser(prog="ci/nightly", description="Run tonight's steps.")
    parser.add_argument(
        "--budget", metavar="TIME", help="time budget, for example 30m; default: all steps at full length"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=int(today.strftime("%Y%m%d")),
        help="seed of the night (default: the date, for example 20261122)",
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for the runs")
    arguments = parser.parse_args()
    try:
        allotted = allot(STEPS, parse_duration_ms(arguments.budget) / 1000 if arguments.budget else None)
        _log(f"the night takes about {format_duration(allotted.takes_s)} in total, less the time of finished steps")
        return run_night(Night(arguments.out, today, arguments.seed), allotted, run_command, _log)
    except (AftershockError, ValueError) as error:
        _log(str(error))
        return 3
    except KeyboardInterrupt:
        return 130


def _log(line: str) -> None:
    sys.stderr.write(f"nightly: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
