"""Command ``plan new``, which writes a plan from what the user fears."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from aftershock.errors import AftershockError
from aftershock.harness.cli import plans

STEADY_S, RECOVERY_S, CALM_S = 20, 20, 5
"""Lengths of phases, in which most of the time is judged; a recovery is observed for CALM_S after its limit."""


@dataclass(frozen=True)
class Fear:
    """A failure in a user's words, and the fault that causes it.

    ``within_s`` limits the recovery (None: it is not limited), ``slo`` is what else must hold, ``cluster`` what the
    fault needs. ``lasts_s`` is 0 for a single action.
    """

    question: str
    kind: str
    parameters: str
    lasts_s: int = 8
    within_s: int | None = None
    slo: str = ""
    cluster: str = ""


_LEADER, _NETWORK = "broker: leader of orders/0", 'link: "client(a) <-> broker"'
FEARS = {
    "leader-dies": Fear("the broker that leads a partition dies", "kill", _LEADER, within_s=15),
    "host-vanishes": Fear("its host vanishes and closes no connection", "kill", f"{_LEADER}, host: silent", 12, 40),
    "broker-hangs": Fear("it hangs and keeps its connections", "pause", _LEADER, within_s=40),
    "rack-lost": Fear("a rack loses all its brokers", "lose_rack", "rack: b", within_s=20),
    "leaders-move": Fear("leaders move to other brokers", "reassign", "topic: orders, rotate: 1", 0, 10),
    "rolling-restart": Fear("all brokers restart in turn", "rolling_restart", "", 0, slo="produce.success >= 99%"),
    "slow-network": Fear(
        "the network is slow",
        "latency",
        f"{_NETWORK}, delay: 50ms, jitter: 10ms",
        slo="produce.latency p95 < 500ms in fault/{id}",
    ),
    "lossy-network": Fear(
        "the network loses packets",
        "packet_loss",
        f"{_NETWORK}, share: 5%",
        slo="produce.latency p95 < 1s in fault/{id}",
    ),
    "broker-unreachable": Fear(
        "the clients can't reach one broker",
        "cut",
        'link: "client(a) <-> broker(leader of orders/0)"',
        within_s=40,
    ),
    "disk-full": Fear(
        "the disk of a broker is full", "disk_full", _LEADER, within_s=30, cluster="disks: {size: 128MiB}"
    ),
    "consumer-dies": Fear(
        "a consumer dies",
        "kill_client",
        "client: mine member 1, op: consume",
        50,
        slo="consume.gap < 50s in fault/{id}",
    ),
    "coordinator-dies": Fear(
        "the coordinator of the consumers' group dies",
        "kill",
        "broker: coordinator of readers-mine",
        slo="consume.gap < 15s in fault/{id}",
    ),
}
"""What ``--fear`` takes, in the order of the questions."""


def plan_of(name: str, fears: Sequence[str], client: str, rate: str) -> str:
    """Return a plan as YAML, in which the faults follow one another, each with time for its recovery."""
    from aftershock.faults.kinds.registry import KINDS

    faults, slos, at_s, recovery_s = [], ['  - "lost == 0"'], 0, RECOVERY_S
    for word in fears:
        fear = FEARS[word]
        lasts = f"for: {fear.lasts_s}s, " if fear.lasts_s else ""
        parameters = f", {fear.parameters}" if fear.parameters else ""
        faults.append(f"  - {{id: {word}, at: {at_s}s, {lasts}kind: {fear.kind}{parameters}}}  # {fear.question}")
        if fear.within_s is not None:
            slos.append(f'  - "recovery < {fear.within_s}s after {word}"')
        if fear.slo:
            slos.append(f'  - "{fear.slo.format(id=word)}"')
        observed_s = (fear.within_s or 0) + CALM_S
        healed_s = fear.lasts_s + -(-KINDS[fear.kind].allowance_ms // 1000)
        recovery_s = max(RECOVERY_S, fear.lasts_s + CALM_S, observed_s - healed_s)
        at_s += healed_s + recovery_s
    cluster = ", ".join(
        ["racks: {a: 1, b: 1, c: 1}", *dict.fromkeys(FEARS[w].cluster for w in fears if FEARS[w].cluster)]
    )
    return "\n".join(
        [
            "# Put your own settings, rate, sizes and limits here; `aftershock plan check` says what fits.",
            f"name: {name}",
            f"why: what happens to our clients if {', or if '.join(FEARS[word].question for word in fears)}",
            f"cluster: {{{cluster}}}",
            "topics:",
            "  - {name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}",
            "workloads:",
            "  - name: orders",
            f"    produce: {{topic: orders, rate: {rate}, record_size: 1kB, acks: all, idempotence: true, rack: a}}",
            "    consume: {topic: orders, group: readers, members: 2, rack: b}",
            "    arms:",
            f"      mine: {{client: {client}, settings: {{}}}}",
            f"timing: {{warmup: {{min: 5s, max: 60s}}, steady: {STEADY_S}s, recovery: {recovery_s}s}}",
            "faults:",
            *faults,
            "slo:",
            *slos,
            "",
        ]
    )


def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The plan to write, such as chaos/ours.yaml.")],
    fear: Annotated[
        list[str] | None,
        typer.Option("--fear", metavar="FEAR", help=f"What may happen; repeatable: {', '.join(FEARS)}."),
    ] = None,
    client: Annotated[
        Literal["confluent", "java", "reference"], typer.Option(help="The client: confluent, java or reference.")
    ] = "confluent",
    rate: Annotated[str, typer.Option(metavar="RATE", help="Records per second.")] = "60/s",
) -> int:
    """Write a plan from what you fear, and check it; without --fear, ask. An existing file is not changed."""
    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.sections.document import did_you_mean

    name = re.sub(r"[^a-z0-9_.-]+", "-", file.stem.lower()).strip("-._")[:40]
    if file.suffix not in (".yaml", ".yml") or not name:
        raise AftershockError(f"{file}: a plan's name ends in .yaml; name another file")
    words = fear or _ask()
    for word in words:
        if word not in FEARS:
            raise AftershockError(f"--fear {word}: not known; {did_you_mean(word, FEARS)}")
    text = plan_of(name, list(dict.fromkeys(words)), client, rate)
    load_plan(text)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise AftershockError(f"{file} is there already, so nothing was written; name another file") from error
    return plans.check([str(file)])


def _ask() -> list[str]:
    """Ask for numbers of FEARS; raise AftershockError if there is no terminal."""
    if not sys.stdin.isatty():
        raise AftershockError(f"--fear is missing; name one or more of {', '.join(FEARS)}")
    for number, (word, fear) in enumerate(FEARS.items(), 1):
        print(f"{number:3}  {word:20}{fear.question}", file=sys.stderr)
    answer = typer.prompt("What do you fear? Numbers or names, separated by spaces", err=True)
    names = list(FEARS)
    return [
        names[int(word) - 1] if word.isdecimal() and 0 < int(word) <= len(names) else word for word in answer.split()
    ]
