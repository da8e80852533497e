"""Conformance checks of a client program (``python -m aftershock.workloads.adapters.conformance -- command``).

The command starts the client program, which is checked against librdkafka's mock cluster, or against the cluster at
``--bootstrap``. The exit status is 1 if the client program fails a check.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.conformance import commit, consume, produce
from aftershock.workloads.adapters.conformance.bench import Bench, NotExaminable, StandingCluster, Violation
from aftershock.workloads.adapters.conformance.mock_cluster import MockCluster

Check = Callable[[Bench], None]

CHECKS: dict[str, Sequence[Check]] = {"produce": produce.CHECKS, "consume": consume.CHECKS, "commit": commit.CHECKS}


def judge(check: Check, bench: Bench) -> tuple[str, str]:
    """Run a conformance check; return ``ok``, ``FAILS`` or, if the check was skipped, ``-``, and the reason."""
    try:
        check(bench)
    except NotExaminable as reason:
        return "-", f"skipped: {reason}"
    except (Violation, WorkloadError) as violation:
        return "FAILS", str(violation)
    return "ok", ""


def examine(bench: Bench, ops: Iterable[str], log: Callable[[str], object]) -> int:
    """Run the conformance checks of the operations ``ops``, log the results, and return how many checks failed."""
    failures = 0
    for op in ops:
        for check in CHECKS[op]:
            result, reason = judge(check, bench)
            failures += result == "FAILS"
            log(f"{result:5} {op}: {check.__doc__}" + (f"\n      {reason}" if reason else ""))
    return failures


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="aftershock.workloads.adapters.conformance",
        description="Check that a client program conforms to the protocol of docs/EXEC.md.",
    )
    parser.add_argument(
        "--op",
        action="append",
        choices=CHECKS,
        help="operation of the client program to check (repeatable); default: produce and consume",
    )
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help="address of a cluster to check against, whose brokers are never stopped; default: a mock cluster",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time limit for every report of the client program; default: 30",
    )
    parser.add_argument("command", nargs="+", help="command that starts the client program, after --")
    arguments = parser.parse_args(argv)
    with nullcontext(StandingCluster(arguments.bootstrap)) if arguments.bootstrap else MockCluster() as cluster:
        bench = Bench(arguments.command, cluster, arguments.patience)
        failures = examine(bench, arguments.op or ["produce", "consume"], _print)
    _print(
        f"the client fails {failures} of the conformance checks" if failures else "the client conforms to the protocol"
    )
    return 1 if failures else 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
