"""Runs of an audit: a suite of failures, each repeated six times, with the clients of the command side by side.

A scenario is a shipped plan under ``faults/plans/audit``. Its ``why`` says what a good client does; its SLOs say what
counts as slow. The clients of the command replace the plan's arms. All twelve scenarios of ``audit/1`` use one cluster
specification, so one warm cluster serves them all; the further three of ``audit/1+`` use another one.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from aftershock.errors import AftershockError, Log, PlanError
from aftershock.faults.plan.check import check_version, load_plan
from aftershock.faults.plans import find
from aftershock.faults.sections.document import load
from aftershock.faults.sections.workloads import ARMS_MAX
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.campaigns.store import Planned
from aftershock.harness.clients.arms import programs_of
from aftershock.harness.clients.catalogue import parse
from aftershock.results.studies.audit import ADVISED, advised
from aftershock.workloads.load.assignment import parse_setting

NAME = "audit"
BLOCKS = 6
SCENARIOS = (
    "leader-crashes",
    "host-vanishes",
    "leader-frozen",
    "leader-slow",
    "rack-cut",
    "half-open",
    "rolling-restart",
    "leaders-moved",
    "coordinator-killed",
    "acks-lost",
    "disk-full",
    "member-dies",
)
SUITES: Mapping[str, Sequence[str]] = {
    "audit/1": SCENARIOS,
    "audit/1+": (*SCENARIOS, "packet-loss", "slow-disk", "power-loss"),
}
_AROUND_S = 25.0  # lease, warm-up, steady phase, final reads and judging, on a warm cluster
_CLIENTS: Mapping[str, Mapping[str, Any]] = {
    "librdkafka": {"client": "confluent"},
    "java": {"client": "java"},
    "reference": {"client": "reference", "settings": {"group.protocol": "classic"}},  # the default of the others
}
_EXEC = "exec:"
_GROUP = "readers"


Clients: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Clients under audit: the arms of a plan, by name."""


def parse_clients(texts: Sequence[str], settings: Sequence[str]) -> Clients:
    """Return the clients of ``--client`` (``[NAME=]CLIENT``) with their ``--settings`` (``CLIENT:KEY=VALUE``).

    The name of a client is by default the client itself, ``librdkafka-2.3.0`` for ``librdkafka@2.3.0``, or the name of
    its program without suffix. Raises AftershockError for an unknown client, a client named twice, or settings of a
    client that is not audited.
    """
    arms: dict[str, dict[str, Any]] = {}
    for text in texts:
        named = re.fullmatch(r"([a-z0-9][a-z0-9_.-]*)=(.+)", text)
        client = named[2] if named else text
        program = shlex.split(client.removeprefix(_EXEC)) if client.startswith(_EXEC) else []
        arm: dict[str, Any] = {}
        if program:
            arm = {"client": "exec", "command": program}
        elif "@" in client:
            arm = dict(zip(("client", "version"), parse(client), strict=True))
        elif client in _CLIENTS:
            arm = dict(_CLIENTS[client])
        else:
            raise AftershockError(
                f"--client {text} is unknown; name {', '.join(_CLIENTS)}, CLIENT@VERSION or exec:PROGRAM"
            )
        name = named[1] if named else Path(program[0]).stem if program else client.replace("@", "-")
        if name in arms:
            raise AftershockError(
                f"--client {text}: another client is named {name} already; give each a name of its own: NAME={client}"
            )
        arms[name] = arm
    for text in settings:
        name, _, setting = text.partition(":")
        try:
            key, value = parse_setting(setting)
            own = arms[name].get("settings", {})
        except (ValueError, KeyError) as error:
            raise AftershockError(
                f"--settings {text} is not CLIENT:KEY=VALUE with one of the audited clients ({', '.join(arms)})"
            ) from error
        arms[name]["settings"] = {**own, key: value}
    return arms


def with_advised(clients: Clients) -> Clients:
    """Return the clients, and beside each a client with the settings that advice names, if there are any.

    Raises AftershockError if no client has such settings, or if these are more clients than a plan can have.
    """
    arms = dict(clients)
    for name, arm in clients.items():
        if further := advised(arm):
            arms[name + ADVISED] = further
    if len(arms) == len(clients):
        raise AftershockError("--try-advice knows no settings of these clients; name librdkafka, java or reference")
    if len(arms) > ARMS_MAX:
        raise AftershockError(
            f"--try-advice makes {len(arms)} clients of {len(clients)}; a plan has {ARMS_MAX} at most"
        )
    return arms


def scenarios_of(suite: str) -> Sequence[str]:
    """Return the scenarios of a suite; raise AftershockError for an unknown one."""
    if suite not in SUITES:
        raise AftershockError(f"--suite {suite} is unknown; name {' or '.join(SUITES)}")
    return SUITES[suite]


def refusals(clients: Clients, kafka: str | None, scenarios: Sequence[str] = SCENARIOS) -> dict[str, str]:
    """Return why brokers of the version ``kafka`` can't serve a client in a scenario, by ``SCENARIO/CLIENT``."""
    refused = dict[str, str]()
    if kafka is None:
        return refused
    for name, client in product(scenarios, clients):
        checked = load_plan(find(f"audit/{name}"), _changes(name, {client: clients[client]}))
        try:
            check_version(checked, kafka)
        except PlanError as error:
            refused[f"{name}/{client}"] = error.problems[0].partition(": ")[2]
    return refused


def planned(
    clients: Clients, kafka: str | None, refused: Mapping[str, str], scenarios: Sequence[str] = SCENARIOS
) -> tuple[Planned, ...]:
    """Return the run of each scenario, with the clients as the arms of its plan, except those of ``refusals``.

    Raises AftershockError if all are refused everywhere.
    """
    runs = []
    for name in scenarios:
        served = {client: arm for client, arm in clients.items() if f"{name}/{client}" not in refused}
        if not served:
            continue
        plan, changes = f"audit/{name}", _changes(name, served)
        load_ms = compile_checked(load_plan(find(plan), changes), 0).length_ms
        runs.append(Planned(name, plan, _AROUND_S, changes, BLOCKS, load_ms / 1000 / BLOCKS, kafka))
    if not runs:
        raise AftershockError(f"Kafka {kafka} can serve none of the clients. {next(iter(refused.values()))}")
    return tuple(runs)


def _changes(scenario: str, clients: Clients) -> tuple[str, ...]:
    """Return changes of a scenario's plan that replace its arms, which keep the settings that all its arms share.

    All groups have one coordinator, so that of the first client's group stands for all.
    """
    document = load(find(f"audit/{scenario}")).data
    (workload,) = document["workloads"]
    first = next(iter(workload["arms"]))
    settings = [arm.get("settings") or {} for arm in workload["arms"].values()]
    common = {key: value for key, value in settings[0].items() if all(own.get(key) == value for own in settings)}
    arms = {name: {**arm, "settings": {**common, **arm.get("settings", {})}} for name, arm in clients.items()}
    changes = [f"workloads.orders.arms={json.dumps(arms)}"]
    group, own = (f"coordinator of {_GROUP}-{name}" for name in (first, next(iter(clients))))
    brokers = {fault["id"]: fault["broker"] for fault in document["faults"] if group in str(fault.get("broker"))}
    changes += [f"faults.{fault}.broker={role.replace(group, own)}" for fault, role in brokers.items()]
    if scenario == "member-dies":
        kill = {"kind": "kill_client", "for": "5s", "op": "consume"}
        faults = [{"id": f"dead-{n}", **kill, "client": f"{name} member 2"} for n, name in enumerate(clients, 1)]
        changes.append(f"faults.0={json.dumps({'at': '0s', 'together': faults})}")
    return tuple(changes)


def require_programs(runs: Sequence[Planned], log: Log) -> None:
    """Build the clients with a version; raise ProgramError if one can't be built, or lacks what a scenario needs."""
    for run in runs:
        programs_of(load_plan(find(run.plan), run.settings), log)


def require_budget(runs: Sequence[Planned], budget_s: float | None) -> None:
    """Raise AftershockError if not even the shortest scenario fits the budget."""
    shortest_s = min(run.takes_s for run in runs)
    if budget_s is not None and budget_s < shortest_s:
        raise AftershockError(
            f"--budget is too small for six repetitions of any scenario; the shortest takes {shortest_s:.0f} s"
        )
