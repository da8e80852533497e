"""Validation of a plan, which reports all problems at once, each with its position and a remedy.

First, each part of a YAML plan (a section or list entry) is validated on its own (``parsing.py``). Then all valid parts
of the plan are checked together. A plan built in Python passes the same checks, with positions like
``plan.faults[2].topic``.

Changes from the command line, ``--set timing.steady=5s``, are applied before the plan is checked. The key of a
``--set`` change is a path of names joined by dots; an entry of a list is addressed by its ``id``, its ``name`` or its
index. The value of a ``--set`` change is YAML, as in the plan.

On an attached cluster, a plan may run workloads, Kafka faults on the topics that it names, link faults on the proxies
that it names, and client faults. Faults on an attached cluster that need a container, a network or the wire proxy are
refused before any connection is opened. Limits that depend on the cluster's state (the current leader, for example) are
checked when the fault is injected (``harness/world/world.py``).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aftershock.errors import PlanError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.process.kill import Kill
from aftershock.faults.plan.conflicts import conflicts, fault_warnings
from aftershock.faults.plan.expand import Expansion
from aftershock.faults.plan.kafka_version import version_problems
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.parsing import Draft, draft_of, read_draft
from aftershock.faults.plan.plausibility import plausibility_warnings
from aftershock.faults.plan.references import duplicate_ids, group_warnings, overlong_faults, reference_problems
from aftershock.faults.plan.sample_size import slo_problems, unfailable
from aftershock.faults.plan.unpassable import hardly_passable, unpassable
from aftershock.faults.sections.cluster import RELEASE, Attach
from aftershock.faults.sections.document import (
    Document,
    Location,
    Problem,
    PythonSourceMap,
    SourceMap,
    did_you_mean,
    dump_yaml,
    format_problems,
    load,
)
from aftershock.faults.targets import links, roles


@dataclass(frozen=True)
class CheckedPlan:
    """Valid plan; ``source`` is the name of the plan file, ``text`` the plan's YAML with all ``--set`` changes."""

    plan: Plan
    source: str
    text: str
    slo_positions: tuple[str, ...]
    warnings: tuple[str, ...]
    source_map: SourceMap
    draft: Draft


def load_plan(source: Path | str, changes: Sequence[str] = ()) -> CheckedPlan:
    """Read a plan file (Path) or text (str), apply the changes (``key=value`` each), and check the plan.

    Raises PlanError with all problems of the plan, sorted by line.
    """
    document = load(source)
    apply_changes(document, changes)
    draft, problems = read_draft(document.data)
    problems += _problems(draft)
    if problems:
        raise PlanError(format_problems(problems, document))
    try:
        plan = Plan.model_validate(document.data)
    except ValidationError as error:  # a safety net for rules that no part of the draft covers
        details = "; ".join(f"{detail['loc']}: {detail['msg']}" for detail in error.errors())
        raise PlanError([f"{document.position(())}: the plan is not valid ({details}); correct the plan"]) from error
    text = document.text
    if changes:
        text = f"# {document.name}, changed by: {' '.join(map(repr, changes))}\n{dump_yaml(document.data)}"
    slo_positions = tuple(document.position(("slo", index)) for index in range(len(plan.slo)))
    doubts = [*fault_warnings(draft), *group_warnings(draft), *unfailable(draft), *hardly_passable(draft)]
    doubts += plausibility_warnings(draft)
    warnings = format_problems(doubts, document)
    return CheckedPlan(plan, document.name, text, slo_positions, tuple(warnings), document, draft)


def check(plan: Plan) -> None:
    """Check a plan object; raise PlanError with all problems of the plan."""
    problems = _problems(draft_of(plan))
    if problems:
        raise PlanError(format_problems(problems, PythonSourceMap()))


def _problems(draft: Draft) -> list[Problem]:
    return [
        *reference_problems(draft),
        *version_problems(draft),
        *attachment_problems(draft),
        *kubernetes_problems(draft),
        *conflicts(draft),
        *_slo_problems(draft),
    ]


def _slo_problems(draft: Draft) -> list[Problem]:
    problems = [*slo_problems(draft)]
    refused = {problem.loc for problem in problems}
    return [*problems, *(problem for problem in unpassable(draft) if problem.loc not in refused)]


def check_draws(draft: Draft, expansion: Expansion, seed: int, source_map: SourceMap) -> None:
    """Raise PlanError if a plan is invalid with the draws of a seed, which ``expansion`` contains."""
    if draft.faults.expansion.certain:
        return  # nothing was drawn, and the plan's check has reported all problems
    drawn = replace(draft, faults=replace(draft.faults, expansion=expansion))
    problems = [*expansion.problems, *duplicate_ids(drawn), *overlong_faults(drawn)]
    problems += [*conflicts(drawn), *_slo_problems(drawn)]
    if problems:
        problems = [replace(problem, sentence=f"with seed {seed} {problem.sentence}") for problem in problems]
        raise PlanError(format_problems(problems, source_map))


def check_version(checked: CheckedPlan, kafka: str) -> None:
    """Raise PlanError if ``kafka``, which replaces the plan's version, is no version, or lacks what the plan uses."""
    if not re.fullmatch(RELEASE, kafka):
        raise PlanError([f"--kafka {kafka[:40]}: not a Kafka version; write a released version, such as 4.1.2"])
    if problems := list(version_problems(checked.draft, kafka)):
        raise PlanError(format_problems(problems, checked.source_map))


def apply_changes(document: Document, changes: Iterable[str]) -> None:
    """Apply ``key=value`` changes to a plan's data in place; raise PlanError with every change that is not valid."""
    problems: list[str] = []
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            problems.append(f"--set {change}: write KEY=VALUE, like timing.steady=5s or workloads.0.produce.rate=80/s")
            continue
        steps = key.split(".")
        # Kafka's names contain dots: everything below `config` or `settings` is one key
        length = next((index for index, step in enumerate(steps) if step in ("config", "settings")), len(steps)) + 1
        if steps[length:]:
            steps = [*steps[:length], ".".join(steps[length:])]
        loc: Location = ()
        current: Any = document.data
        try:
            value = load(f"value: {text}", f"--set {key}").data["value"]
            for step in steps[:-1]:
                child = _child_key(current, step, change)
                if isinstance(current, dict):
                    current.setdefault(child, {})
                loc, current = (*loc, child), current[child]
            last = _child_key(current, steps[-1], change)
        except PlanError as error:
            problems += error.problems
        else:
            current[last] = value
            document.relocate((*loc, last), f"--set {key}")
    if problems:
        raise PlanError(problems)


def _child_key(current: Any, step: str, change: str) -> str | int:
    """Return the key or the list index in ``current`` that one step of a ``--set`` path addresses."""
    if isinstance(current, dict):
        return step
    if isinstance(current, list):
        by_name = (
            i
            for i, entry in enumerate(current)
            if isinstance(entry, dict) and step in (entry.get("id"), entry.get("name"))
        )
        index = next(by_name, int(step) if step.isdecimal() and int(step) < len(current) else None)
        if index is not None:
            return index
    raise PlanError(
        [f"--set {change}: the plan has no `{step}` at this place of the path; use a key, an id, a name or an index"]
    )


REFUSED_KINDS = {
    "move_controller": "restarting, pausing or killing a node only works on a launched cluster",
    "kill_controller": "killing a node only works on a launched cluster",
    "fence_broker": "cutting the link between a broker and the controllers only works on a launched cluster",
    "recreate_topic": "a fault may delete only topics in `attach.create`",
    "flood": "a fault must not overload brokers that others may use",
    "delete_records": "a fault may delete records only of topics in `attach.create`",
}


def attachment_problems(draft: Draft) -> Iterator[Problem]:
    """Yield a problem for each part of a plan that is not permitted on an attached cluster."""
    attach = draft.attach
    if attach is None:
        return
    declared = {topic.name for topic in draft.topics.values()} | draft.unreadable_topics
    for index, name in enumerate(attach.create):
        if name not in declared:
            sentence = f"the topic `{name}` is not among the plan's `topics`; {did_you_mean(name, declared)}"
            yield Problem(("cluster", "attach", "create", index), sentence)
    for index, workload in draft.workloads.items():
        loc: Location = ("workloads", index)
        for op in ("produce", "consume", "commit", "pipe"):
            if getattr(getattr(workload, op), "rack", None) not in (None, attach.rack):
                sentence = f"all clients of an attached cluster are in rack {attach.rack}: remove the workload's `rack`"
                yield Problem((*loc, op, "rack"), sentence)
        for name, arm in workload.arms.items():
            # an `exec` program accepts any setting; other clients refuse security settings anyway
            for setting in arm.settings:
                if arm.client == "exec" and setting.startswith(("sasl.", "ssl.", "security.")):
                    sentence = (
                        f"`attach.security` passes the setting `{setting}` to the program: remove it from the arm"
                    )
                    yield Problem((*loc, "arms", name, "settings", setting), sentence, on_key=True)
    for located in draft.faults.readable:
        yield from _attached_fault(located.fault, located.loc, attach)


_NOT_ON_KUBERNETES = {
    "disks": "a file system in memory would not outlive the pod of its broker",
    "block_device": "loop devices belong to one host",
    "packets": "they need the network namespace of a container on this host's Docker engine",
    "hosts": "a pod can't lose its network while its broker runs",
    "gc_pauses": "the agent is put into the containers of the Docker engine",
    "clocks": "the library is put into the containers of the Docker engine",
}
"""Keys of ``cluster`` that a cluster on Kubernetes can't have, with the reason."""
_NEEDS_ON_DOCKER = _NOT_ON_KUBERNETES | {"disk_layer": _NOT_ON_KUBERNETES["block_device"]}
_KINDS_ON_DOCKER = {
    "cpu_quota": "the limits of a running pod are not changed yet",
    "memory_limit": "the limits of a running pod are not changed yet",
    "rolling_upgrade": "the pods of nodes keep their image",
}


def kubernetes_problems(draft: Draft) -> Iterator[Problem]:
    """Yield a problem for each part of a plan that only a cluster on Kubernetes can have, or that none can have."""
    cluster = draft.cluster
    for index, workload in draft.workloads.items():
        if workload.run_on and workload.run_on.kubernetes and not (cluster and cluster.kubernetes):
            sentence = (
                "pods of clients are beside brokers that the plan launches in pods: write `cluster: {kubernetes: {}}`, "
                "run the plan with --on kubernetes, or give `workers` of this host"
            )
            yield Problem(("workloads", index, "run_on", "kubernetes"), sentence)
    if cluster is None:
        return
    if cluster.kubernetes is None:
        for located in draft.faults.readable:
            if "kubernetes" in located.fault.cluster_needs() and not (draft.attach and draft.attach.kubernetes):
                sentence = f"a {located.fault.kind} needs brokers in pods: write `cluster: {{kubernetes: {{}}}}`"
                yield Problem((*located.loc, "kind"), f"{sentence}, or run the plan with --on kubernetes")
        return
    remedy = "remove `kubernetes`, or leave out --on kubernetes, to launch on the Docker engine"
    for key, reason in _NOT_ON_KUBERNETES.items():
        if getattr(cluster, key):
            sentence = f"`{key}` is impossible on Kubernetes, because {reason}: remove it, or {remedy}"
            yield Problem(("cluster", key), sentence)
    for located in draft.faults.readable:
        fault = located.fault
        if fault.kind == "drain" and not cluster.kubernetes.nodes:
            yield Problem((*located.loc, "kind"), f"a drain {_NEEDS_NODES.format('cluster.kubernetes')}")
        needs = [need for need in fault.cluster_needs() if need in _NEEDS_ON_DOCKER]
        if isinstance(fault, Kill) and fault.host == "stays":
            needs = []  # a pod outlives its broker's process
        why = _NEEDS_ON_DOCKER[needs[0]] if needs else _KINDS_ON_DOCKER.get(fault.kind)
        if why is None and fault.family == "disk":
            why = "the files of the volumes are not changed yet"
        if why:
            sentence = f"a {fault.kind} is impossible on Kubernetes, because {why}: remove the fault, or {remedy}"
            yield Problem((*located.loc, "kind"), sentence)


IN_CONTAINERS = ("kill", "crash_loop", "stop", "restart", "pause", "rolling_restart", "cpu_quota", "memory_limit")
"""Fault kinds for which the Docker container of a broker is enough."""
IN_NETWORKS = ("cut", "packet_loss", "packet_delay", "packet_reorder", "packet_duplicate", "packet_corrupt")
"""Fault kinds for which the network namespace of a broker's Docker container is enough."""
IN_PODS = ("delete_pod", "drain")
"""Fault kinds for which the pod of a broker is enough."""
BY_AGENTS = ("kill", "stop", "restart", "pause", "rolling_restart")
"""Fault kinds that need an agent beside the pod of a broker."""
_NOT_IN_PODS = {
    "crash_loop": "the kubelet starts a container later after each crash (CrashLoopBackOff), so it can't go on",
    "cpu_quota": "the limits of a pod are not changed yet",
    "memory_limit": "the limits of a pod are not changed yet",
    **{kind: "the packets of pods are not changed yet" for kind in IN_NETWORKS if kind != "cut"},
}
_NEED_AGENT = (
    "signals from inside a container do nothing to its process 1; permit a privileged pod beside the brokers with "
    "`agent: true` under `attach.kubernetes`"
)
_NEEDS_NODES = (
    "takes a Kubernetes node out of service, on which then no pod of anybody is placed; permit that with "
    "`nodes: true` under `{}`"
)
_REASONS = {
    "clock": "a container has the clock of its host, which faults must not move",
    "disk": "the files and disks of the brokers are yours, and a fault on them may destroy records for good",
    "protocol": "clients reach its brokers without Aftershock's wire proxy",
}
_NEED_CONTAINERS = (
    "Aftershock did not start the cluster; name the brokers' Docker containers under `attach.containers`, or select "
    "them with `attach.compose` or `attach.labels`"
)


def refusal(kind: type[Fault], attach: Attach) -> str | None:
    """Return why faults of a kind can't be injected into an attached cluster; None if its parameters decide it."""
    name = kind.model_fields["kind"].default
    if name in REFUSED_KINDS:
        return REFUSED_KINDS[name]
    if (pods := attach.kubernetes) and name in (*IN_PODS, *BY_AGENTS, *_NOT_IN_PODS):
        lacking = _NEED_AGENT if name in BY_AGENTS and not pods.agent else None
        if name == "drain" and not pods.nodes:
            lacking = f"it {_NEEDS_NODES.format('attach.kubernetes')}"
        return lacking or _NOT_IN_PODS.get(name)
    if name in IN_PODS:
        return "no pods of brokers are known; name them under `attach.kubernetes`"
    if name in IN_CONTAINERS or (name in IN_NETWORKS and kind.needs):
        return None if attach.has_containers else _NEED_CONTAINERS
    if name == "cut":
        return None if attach.has_containers or attach.has_proxies else _NEED_CONTAINERS
    if kind.family in _REASONS:
        return _REASONS[kind.family]
    if kind.family not in ("link", "Kafka", "client") or kind.needs:
        return "Aftershock did not start the cluster's processes, disks and networks"
    return None


def _in_container(fault: Fault, loc: Location, attach: Attach) -> Iterator[Problem]:
    """Yield a problem if a fault needs more than containers or pods, or names a broker that has none."""
    if needs := [need for need in fault.cluster_needs() if need not in ("packets", "kubernetes")]:
        sentence = f"a {fault.kind} with these parameters needs `{', '.join(needs)}`, which only a launched cluster has"
        yield Problem((*loc, "kind"), f"{sentence}: remove the parameter")
    named = list[tuple[Location, int]]()
    for place, text in fault.roles().items():
        role = roles.parse(text)
        if isinstance(role, roles.Node):
            named.append((place, role.broker))
    for group in getattr(fault, "between", None) or ():
        named += [(("between",), int(member)) for member in group if member.isdecimal()]
    for at, broker in named:
        # containers and pods that are selected are known when the run begins
        known = attach.containers or attach.pods
        if known and broker not in known:
            brokers = ", ".join(map(str, known))
            what, key = ("pod", "kubernetes.brokers") if attach.pods else ("container", "containers")
            sentence = f"broker {broker} has no {what} under `attach.{key}`, which has those of {brokers}"
            yield Problem((*loc, *at), f"{sentence}: add it")
    for place, text in fault.links().items():
        link = links.parse(text)
        if isinstance(link, links.ToBroker) and link.channel == "controller":
            sentence = "the containers of brokers have links from clients and from each other"
            yield Problem(
                (*loc, *place), f"{sentence}: write `client(…) -> broker(…)` or `replication(…) -> broker(…)`"
            )
        elif isinstance(link, links.ToBroker) and link.channel == "client" and link.source not in ("*", attach.rack):
            sentence = f"all clients are in rack {attach.rack}, so rack {link.source} has no links: use {attach.rack}"
            yield Problem((*loc, *place), sentence)


def _attached_fault(fault: Fault, loc: Location, attach: Attach) -> Iterator[Problem]:
    may_delete = fault.kind in ("recreate_topic", "delete_records") and {*fault.topics().values()} <= {*attach.create}
    why = None if may_delete else refusal(type(fault), attach)
    process_kinds = (*IN_CONTAINERS, *IN_NETWORKS) if attach.has_containers else (*IN_PODS, *BY_AGENTS)
    if not why and fault.kind in process_kinds and attach.changes_processes:
        yield from _in_container(fault, loc, attach)
        return
    if not why and fault.kind == "cut" and not fault.links():
        why = "without containers of brokers, only links from clients can be cut"
    if why:
        sentence = (
            f"a {fault.kind} is refused on an attached cluster: {why}; remove the fault, or let Aftershock launch the "
            "cluster"
        )
        yield Problem((*loc, "kind"), sentence)
        return
    for place, topic in fault.topics().items():
        if topic.startswith("__"):
            sentence = f"the topic `{topic}` is shared by all users of an attached cluster: name a topic of the plan"
            yield Problem((*loc, *place), sentence)
    for place, text in fault.links().items():
        link, at = links.parse(text), (*loc, *place)
        if not isinstance(link, links.ToBroker) or link.channel != "client":
            yield Problem(at, "an attached cluster only has links from clients: write `client(…) -> broker(…)`")
        elif not attach.has_proxies:
            sentence = "a fault on links needs your `toxiproxy` and its `proxies`: name them under `attach`"
            yield Problem(at, f"{sentence}, or write `proxy: insert` (docs/ATTACH.md)")
        elif link.source not in ("*", attach.rack):
            sentence = f"all clients are in rack {attach.rack}, so rack {link.source} has no links: use {attach.rack}"
            yield Problem(at, sentence)
        elif link.role and isinstance(node := roles.parse(link.role), roles.Node):
            reached = sorted(attach.proxies.values())
            if not attach.proxy and node.broker not in reached:
                brokers = ", ".join(map(str, reached))
                yield Problem(at, f"none of the `proxies` leads to broker {node.broker}; they lead to {brokers}")
    # the field `broker` of a Kafka fault names the broker whose settings or sessions change
    if fault.family == "Kafka" and (text := fault.roles().get(("broker",), "")):
        role = roles.parse(text)
        if not attach.brokers or (isinstance(role, roles.Node) and role.broker not in attach.brokers):
            target = f"broker {text}" if isinstance(role, roles.Node) else "a broker"
            sentence = f"a {fault.kind} changes {target}, which is not listed in `attach.brokers`: add the broker there"
            yield Problem((*loc, "broker"), sentence)
