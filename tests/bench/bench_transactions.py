"""How fast the judge is on transactions: ``python tests/bench/bench_transactions.py [TRANSACTIONS]``, by default 1 M.

The evidence has ten records for each transaction, and a reader of committed records: 18 M outcomes and 4 M batches and
markers for 1 M transactions. Exits with 1 when a verdict on it takes more than 90 s, or more than 4 GiB: the seconds
are those of a quiet machine with two cores, so the CPU time is printed too.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from aftershock.tests.bench.bench_verdict import LARGE_MIB_MAX, cost_of, figures
from aftershock.tests.bench.transactions_generator import generate_transactions

TRANSACTIONS, S_MAX = 1_000_000, 90.0


def main(transactions: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix="bench-transactions-"))
    try:
        home = generate_transactions(folder / "run", transactions)
        verdict = Path(__file__).with_name("bench_verdict.py")
        cost = cost_of([sys.executable, str(verdict), "--verdict", str(home)])
        statuses: dict[str, int] = {}
        for check in json.loads((home / "verdict.json").read_text())["checks"]:
            statuses[check["status"]] = statuses.get(check["status"], 0) + 1
    finally:
        shutil.rmtree(folder)
    fits = cost.wall_s <= S_MAX and cost.peak_mib <= LARGE_MIB_MAX and "FAIL" not in statuses
    checks = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    print(f"{transactions:,} transactions: {figures(cost)}; {checks}{'  ok' if fits else '  MISSED'}")
    return int(not fits)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else TRANSACTIONS))
