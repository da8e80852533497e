"""Run the conformance checks of every client with a version, at its newest one; write the table in ``docs/CLIENTS.md``.

``python -m aftershock.tests.clients.table`` takes about five minutes. A client whose tools are missing has the reason
in its row.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from aftershock.harness.adhoc.conformance import PATIENCE_S, leased_cluster
from aftershock.harness.cluster.engine import DEFAULT_KAFKA
from aftershock.results.evidence.files import write_whole
from aftershock.tests.clients.build import CLIENTS, Client, Missing
from aftershock.workloads.adapters.conformance.bench import Bench, Cluster
from aftershock.workloads.adapters.conformance.checks import CHECKS, Result, examine

PAGE = Path(__file__).parents[2] / "docs" / "CLIENTS.md"
BEGIN, END = "<!-- conformance table: begin -->", "<!-- conformance table: end -->"


def row(client: Client, results: list[Result]) -> str:
    cells = []
    for operation in CHECKS:
        outcomes = [result.outcome for result in results if result.operation == operation]
        made = [outcome for outcome in outcomes if outcome != "skipped"]
        if outcomes and not made:
            cells.append("not offered")
            continue
        cells.append(f"{'passes' if {*made} == {'passed'} else 'FAILS'} ({made.count('passed')}/{len(made)})")
    return f"| {client.library} | {client.version} | {' | '.join(cells)} |"


def rows(cluster: Cluster) -> list[str]:
    lines = []
    for client in CLIENTS:
        try:
            command = client.command
        except Missing as reason:
            lines.append(f"| {client.library} | {client.version} | skipped: {reason} |" + " |" * (len(CHECKS) - 1))
            continue
        results: list[Result] = []
        for result in examine(Bench(command, cluster, PATIENCE_S), CHECKS):
            print(f"{client.library}: {result.operation} {result.check}: {result.outcome} {result.reason}", flush=True)
            results.append(result)
        lines.append(row(client, results))
    return lines


def main() -> None:
    with leased_cluster(None, lambda text: print(text, file=sys.stderr)) as cluster:
        body = rows(cluster)
    operations = list(CHECKS)
    head = [f"| library | version | {' | '.join(operations)} |", "|---" * (2 + len(operations)) + "|"]
    caption = f"On Kafka {DEFAULT_KAFKA}, {datetime.now(UTC):%Y-%m-%d}; in brackets: checks passed of checks made."
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    write_whole(PAGE, "\n".join([before + BEGIN, "", *head, *body, "", caption, "", END + after]).encode())


if __name__ == "__main__":
    main()
