"""How the kept clusters are: their nodes, the faults in force on them, and who holds those."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import docker
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aftershock.errors import AftershockError
from aftershock.harness.adhoc.kept import attached, clock_of, how_to_heal, how_to_remove, whose
from aftershock.harness.adhoc.live_faults import LiveFault, live_faults, not_ours
from aftershock.harness.journal import open_faults, read_journal
from aftershock.harness.labels import Standing


@dataclass(frozen=True)
class Status:
    """One kept cluster. ``whereabouts``: as in ``run.json``; ``not_ours``: what no journal accounts for, in words."""

    run_id: str
    whereabouts: dict[str, Any]
    faults: Sequence[LiveFault]
    not_ours: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """The contract of ``cluster status --json`` (`design.md` 5.1), and ``not_ours``."""
        faults = [fault.to_json(self.run_id) for fault in self.faults]
        return {"run_id": self.run_id, **self.whereabouts, "faults": faults, "not_ours": list(self.not_ours)}


def status(client: docker.DockerClient, cluster: Standing) -> Status:
    """Look at one cluster.

    Raises:
        ClusterError: it vanished, or not all of it is left.
        FaultError: its Toxiproxy does not answer.
        EvidenceError: its run.json or its journal can't be read.
    """
    with attached(client, cluster) as found:
        lines = open_faults(read_journal(cluster.home / "journal.jsonl"))
        toxiproxy = found.toxiproxy
        foreign = tuple(not_ours(lines, toxiproxy.toxics(), toxiproxy.disabled()))
        faults = live_faults(cluster.home, clock_of(cluster.home).now_us())
        return Status(cluster.run_id, found.whereabouts(), faults, foreign)


def show(client: docker.DockerClient, clusters: Sequence[Standing], console: Console) -> bool:
    """Print each cluster; whether all of them could be looked at."""
    well = True
    for cluster in clusters:
        try:
            _print(status(client, cluster), console)
        except AftershockError as error:
            console.print(Text(f"{cluster.run_id}: {error}"), soft_wrap=True)
            well = False
        if cluster.owned:
            console.print(Text(f"  {whose(cluster)}, and drives it"), soft_wrap=True)
        else:
            console.print(Text(f"  {how_to_remove(cluster)}"), soft_wrap=True)
    return well


def _print(found: Status, console: Console) -> None:
    console.print(Text(found.run_id, style="bold"))
    for rack, bootstrap in found.whereabouts["bootstrap"].items():
        console.print(Text(f"  bootstrap {rack:<6} {bootstrap}"), soft_wrap=True)
    console.print(Text(f"  toxiproxy        {found.whereabouts['toxiproxy']}"), soft_wrap=True)
    console.print(_brokers(found.whereabouts["brokers"]))
    for fault in found.faults:
        console.print(Text(f"  {fault.told()}"), soft_wrap=True)
    for sentence in found.not_ours:
        console.print(Text(f"  {sentence}"), soft_wrap=True)
    if found.faults:
        console.print(Text(f"  heal it with: {how_to_heal(found.run_id)}"), soft_wrap=True)
    else:
        console.print(Text("  no faults in force"))


def _brokers(brokers: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for column in ("", "node", "rack", "kafka", "state", "container"):
        table.add_column(column, no_wrap=True)
    for broker in brokers:
        style = "" if broker["state"] == "running" else "red"
        state = Text(broker["state"], style=style)
        table.add_row("", f"k{broker['id']}", broker["rack"], broker["kafka"], state, Text(broker["container"]))
    return table
