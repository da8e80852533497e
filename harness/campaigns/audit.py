"""Runs of an audit: a suite of failures, with copies of the clients of the command side by side.

A scenario is a shipped plan under ``faults/plans/audit``. Its ``why`` says what a good client does. The clients of the
command replace the plan's arms, each with as many copies as a plan has room for, and beside them runs the reference
client with ideal settings. Repetitions of the fault times copies are the units by which a card compares clients
(``results/studies/suite.py``). All twelve scenarios of ``audit/2`` use one cluster specification, so one warm cluster
serves them all; the further three of ``audit/2+`` use another one.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from aftershock.errors import AftershockError, Log, PlanError, ProgramError
from aftershock.faults.plan.check import check_version, load_plan
from aftershock.faults.plans import find
from aftershock.faults.sections.document import load
from aftershock.faults.sections.workloads import ARMS_MAX
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.campaigns import store
from aftershock.harness.campaigns.store import Planned, Record
from aftershock.harness.clients.arms import programs_of
from aftershock.harness.clients.catalogue import parse
from aftershock.results.studies.audit import ADVISED, advised
from aftershock.results.studies.suite import CLUSTER, COPIES, IDEAL, client_of, copies, registered
from aftershock.workloads.load.assignment import parse_setting

NAME = "audit"
VERSION = registered().version
SCENARIOS = registered().plans(further=False)
SUITES: Mapping[str, Sequence[str]] = {
    f"{NAME}/{VERSION}": SCENARIOS,
    f"{NAME}/{VERSION}+": registered().plans(further=True),
}
CLIENTS_MAX = ARMS_MAX - 1  # beside the reference client with ideal settings
_AROUND_S = 36.0  # lease, warm-up, 14 s of steady phase, final reads and judging, on a warm cluster
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
        if client_of(name) != name or name.endswith(ADVISED) or name in (IDEAL, CLUSTER):
            raise AftershockError(f"--client {text}: the card has a name like {name} of its own; write NAME={client}")
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

    Raises AftershockError if no client has such settings.
    """
    arms = dict(clients)
    for name, arm in clients.items():
        if further := advised(arm):
            arms[name + ADVISED] = further
    if len(arms) == len(clients):
        raise AftershockError("--try-advice knows no settings of these clients; name librdkafka, java or reference")
    return arms


def scenarios_of(suite: str) -> Sequence[str]:
    """Return the scenarios of a suite; raise AftershockError for an unknown one."""
    if suite in ("audit/1", "audit/1+"):
        raise AftershockError(
            f"--suite {suite} is no longer run, and --from reads its stored cards; name {' or '.join(SUITES)}"
        )
    if suite not in SUITES:
        raise AftershockError(f"--suite {suite} is unknown; name {' or '.join(SUITES)}")
    return SUITES[suite]


def record_in(home: Path, seed: int | None = None) -> Record:
    """Return the record of the audit in ``home``, with the runs of its newest suite, whose version it has.

    Runs of ``audit/1`` have the version 1.
    """
    record = store.read(home, NAME, VERSION, seed, oldest=1)
    version = max((run.version for run in record.runs.values()), default=VERSION)
    return replace(
        record, version=version, runs={name: run for name, run in record.runs.items() if run.version == version}
    )


def layout(clients: int, scenario: str) -> tuple[int, int]:
    """Return how many copies of each client run side by side in a scenario, and how often its fault is repeated.

    Raises AftershockError if these are more clients than a plan can have.
    """
    if clients > CLIENTS_MAX:
        raise AftershockError(
            f"these are {clients} clients, and a plan has room for {CLIENTS_MAX}; --try-advice counts each client twice"
        )
    suite = registered()
    most = suite.copies_max["consume" if suite.compares_readers(scenario) else "produce"]
    count = min(most, CLIENTS_MAX // clients)
    return count, -(-suite.units // count)


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
        count, blocks = layout(len(clients), name)
        plan, changes = f"audit/{name}", (*_changes(name, served, count), f"blocks={blocks}")
        load_ms = compile_checked(load_plan(find(plan), changes), 0).length_ms
        runs.append(Planned(name, plan, _AROUND_S, changes[:-1], blocks, load_ms / 1000 / blocks, kafka))
    if not runs:
        raise AftershockError(f"Kafka {kafka} can serve none of the clients. {next(iter(refused.values()))}")
    return tuple(runs)


def _changes(scenario: str, clients: Clients, count: int = 1) -> tuple[str, ...]:
    """Return changes of a scenario's plan that replace its arms by ``count`` copies of each client and the ideal one.

    They keep the settings that all arms of the plan share. All groups have one coordinator, so that of the first
    client's group stands for all.
    """
    document = load(find(f"audit/{scenario}")).data
    own = [*document["workloads"][0]["arms"].values()]
    settings = [arm.get("settings") or {} for arm in own]
    common = {key: value for key, value in settings[0].items() if all(other.get(key) == value for other in settings)}
    ideal = {"client": "reference", "settings": {**common, **registered().ideal}}
    plain = {name: {**arm, "settings": {**common, **arm.get("settings", {})}} for name, arm in clients.items()}
    every = {copy: arm for name, arm in plain.items() for copy in copies(name, count)}
    further = {name: arm for name, arm in every.items() if name not in plain}
    workloads = []
    for workload in document["workloads"]:
        only_produce = "consume" in workload and further and not registered().compares_readers(scenario)
        workloads.append({**workload, "arms": {**(plain if only_produce else every), IDEAL: ideal}})
        if only_produce:
            name = workload["name"] + COPIES
            workloads.append({"name": name, "produce": workload["produce"], "arms": further})
    changes = [f"workloads={json.dumps(workloads)}"]
    first = next(iter(document["workloads"][0]["arms"]))
    arms = [*workloads[0]["arms"]]
    group, leading = (f"coordinator of {_GROUP}-{name}" for name in (first, arms[0]))
    brokers = {fault["id"]: fault["broker"] for fault in document["faults"] if group in str(fault.get("broker"))}
    changes += [f"faults.{fault}.broker={role.replace(group, leading)}" for fault, role in brokers.items()]
    if scenario == "member-dies":
        kill = {
            key: value for key, value in document["faults"][0]["together"][0].items() if key not in ("id", "client")
        }
        faults = [{"id": f"dead-{n}", **kill, "client": f"{name} member 2"} for n, name in enumerate(arms, 1)]
        changes.append(f"faults.0={json.dumps({'at': '0s', 'together': faults})}")
    return tuple(changes)


def require_programs(runs: Sequence[Planned], log: Log) -> None:
    """Build the clients with a version; raise ProgramError if one can't be built, or lacks what a scenario needs."""
    for run in runs:
        try:
            programs_of(load_plan(find(run.plan), run.settings), log)
        except ProgramError as error:
            # what a client lacks, its copies lack, too
            arms = (re.search(r"arm `([^`]+)`", line) for line in str(error).splitlines())
            lines = zip(arms, str(error).splitlines(), strict=True)
            kept = [line for arm, line in lines if arm is None or client_of(arm[1]) == arm[1]]
            raise ProgramError("\n".join(line.replace("--set workloads", run.name) for line in kept)) from error


def require_budget(runs: Sequence[Planned], budget_s: float | None) -> None:
    """Raise AftershockError if not even the shortest scenario fits the budget."""
    shortest_s = min(run.takes_s for run in runs)
    if budget_s is not None and budget_s < shortest_s:
        raise AftershockError(f"--budget is too small for any scenario; the shortest takes {shortest_s:.0f} s")
