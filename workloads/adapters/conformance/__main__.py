"""Examines a client of yours: ``python -m aftershock.workloads.adapters.conformance [options] -- command...``.

It runs the command many times, against a Kafka of its own (librdkafka's mock cluster, in a process of its own) or the
one at ``--bootstrap``, says of all that a client must do whether it does it, and ends with status 1 if it fails any.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.conformance import commit, consume, produce
from aftershock.workloads.adapters.conformance.bench import Bench, Complaint, StandingCluster, Unbreakable
from aftershock.workloads.adapters.conformance.mock_cluster import MockCluster

Check = Callable[[Bench], None]

CHECKS: dict[str, Sequence[Check]] = {
    "produce": produce.CHECKS,
    "consume": consume.CHECKS,
    "commit": commit.CHECKS,
}
PATIENCE_S = 30.0


def judge(check: Check, bench: Bench) -> tuple[str, str]:
    """How the client does by one check, ``ok``, ``FAILS`` or ``-`` (not examined), and why."""
    try:
        check(bench)
    except Unbreakable as why:
        return "-", f"not examined: {why}"
    except (Complaint, WorkloadError) as wrong:
        return "FAILS", str(wrong)
    return "ok", ""


def examine(bench: Bench, ops: Iterable[str], say: Callable[[str], object]) -> int:
    """Run the checks of these ops, saying how each went; gives how many the client fails."""
    failures = 0
    for op in ops:
        for check in CHECKS[op]:
            how, why = judge(check, bench)
            failures += how == "FAILS"
            say(f"{how:5} {op}: {check.__doc__}" + (f"\n      {why}" if why else ""))
    return failures


def main(argv: Sequence[str]) -> int:
    """The command line; its exit status is 0 when every check is passed."""
    told = _parser().parse_args(argv)
    with nullcontext(StandingCluster(told.bootstrap)) if told.bootstrap else MockCluster() as cluster:
        failures = examine(Bench(told.command, cluster, told.patience), told.op or ["produce", "consume"], _print)
    _print(f"{failures} of these it fails" if failures else "it keeps the protocol")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aftershock.workloads.adapters.conformance", description="Examine a client.")
    parser.add_argument("--op", action="append", choices=CHECKS, help="what it can do; default: produce and consume")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="examine it on this cluster, where nothing is broken")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, metavar="SECONDS", help="with every answer")
    parser.add_argument("command", nargs="+", help="how to start the client, after --")
    return parser


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
