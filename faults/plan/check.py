"""What of a plan can't be done to an attached cluster: refused here, with the reason, before anything is dialled.

Workloads run; Kafka's own faults do, on the topics that the plan names; faults on links do, on the proxies that it
names; faults on clients do, since those are ours. Whatever needs a container, a network or a proxy of our own does not.
What only the cluster itself can tell (who leads, say) is refused when the fault is injected:
``harness/world/world.py``.

Changes to a plan from the command line: ``--set timing.steady=5s``, applied before the plan is checked.

A key is a path of names joined by dots; an entry of a list is named by its ``id``, its ``name`` or its index. Below
``config`` and ``settings`` the rest is one key, as Kafka's own names have dots. The value is YAML, as in the plan.

Is this plan one that can be run? Every problem at once, each as ``file:line:column: what, and what to do``.

A plan from YAML is first read part by part (``draft``), then what its parts say of each other is judged
(``crosscheck``, ``conflicts``, ``feed``), also when some part could not be read. A plan built in Python is judged by
the same code, with positions like ``plan.faults[2].topic``.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aftershock.errors import PlanError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.cluster import Attach
from aftershock.faults.plan.conflicts import conflicts, grey_failures, surprises
from aftershock.faults.plan.document import (
    Document,
    Loc,
    Location,
    Places,
    Problem,
    PythonPlaces,
    did_you_mean,
    dump,
    load,
    worded,
)
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.parsing import Draft, draft_of, read_draft
from aftershock.faults.plan.references import crosscheck
from aftershock.faults.plan.sample_size import objectives, toothless
from aftershock.faults.targets import links, roles

FAMILIES = ("link", "Kafka", "client")
_BROKER = ("broker",)  # where a fault of Kafka's says whose settings or sessions it touches
_OURS = "we did not start its processes, disks and networks"
_SECURITY = ("sasl.", "ssl.", "security.")
_NEEDS = {
    "move_controller": "it restarts, pauses or kills a node, and we did not start those",
    "kill_controller": "it kills a node, and we did not start those",
    "fence_broker": "it cuts the link between a broker and the controllers, and that is not ours",
    "recreate_topic": "it deletes a topic; it may where `attach.create` names that",
    "delete_records": "it deletes records; it may where `attach.create` names their topic",
}


def attached(draft: Draft) -> Iterator[Problem]:
    """Everything that asks for more of an attached cluster than its plan may; nothing for a cluster of our own."""
    attach = draft.attach
    if attach is None:
        return
    yield from _created(draft, attach)
    yield from _standing(draft, attach)
    yield from _settings(draft)
    for said in draft.faults.said:
        yield from _fault(said.fault, said.loc, attach)


def _created(draft: Draft, attach: Attach) -> Iterator[Problem]:
    known = {topic.name for topic in draft.topics.values()} | draft.unreadable_topics
    for index, name in enumerate(attach.create):
        if name not in known:
            sentence = f"the topic `{name}` is not among the plan's `topics`; {did_you_mean(name, known)}"
            yield Problem(("cluster", "attach", "create", index), sentence)


def _standing(draft: Draft, attach: Attach) -> Iterator[Problem]:
    for index, workload in draft.workloads.items():
        for part in ("produce", "consume", "commit"):
            rack = getattr(getattr(workload, part), "rack", None)
            if rack not in (None, attach.rack):
                sentence = f"the clients of an attached cluster stand in one place, its `rack`, here {attach.rack}"
                yield Problem(("workloads", index, part, "rack"), f"{sentence}: take this away")


def _settings(draft: Draft) -> Iterator[Problem]:
    """Those of a program, which may be any; of the other clients' nothing of the kind is allowed anyway."""
    for index, workload in draft.workloads.items():
        for name, arm in workload.arms.items():
            for setting in arm.settings:
                if arm.client == "exec" and setting.startswith(_SECURITY):
                    sentence = f"`{setting}` is given to the program by `attach.security`: take it away"
                    yield Problem(("workloads", index, "arms", name, "settings", setting), sentence, on_key=True)


def _fault(fault: Fault, loc: Location, attach: Attach) -> Iterator[Problem]:
    if why := _refusal(fault, attach):
        sentence = f"a {fault.kind} is refused on an attached cluster: {why}"
        yield Problem((*loc, "kind"), f"{sentence}; take it away, or have us launch the cluster")
        return
    for place, topic in fault.topics().items():
        yield from _topic(topic, (*loc, *place))
    for place, link in fault.links().items():
        yield from _link(links.parse(link), (*loc, *place), attach)
    if fault.family == "Kafka" and (broker := fault.roles().get(_BROKER)):
        yield from _broker(broker, (*loc, *_BROKER), attach)


def _refusal(fault: Fault, attach: Attach) -> str | None:
    if fault.family not in FAMILIES:
        return _OURS
    spared = {*fault.topics().values()} - {*attach.create}
    if fault.kind in ("recreate_topic", "delete_records") and not spared:
        return None
    return _NEEDS.get(fault.kind)


def _topic(topic: str, loc: Location) -> Iterator[Problem]:
    if topic.startswith("__"):
        yield Problem(loc, f"`{topic}` belongs to everybody on an attached cluster: name a topic of the plan's")


def _link(link: links.Selector, loc: Location, attach: Attach) -> Iterator[Problem]:
    if not isinstance(link, links.ToBroker) or link.channel != "client":
        yield Problem(loc, "an attached cluster has links from clients only: say `client(…) -> broker(…)`")
    elif not attach.proxies:
        yield Problem(loc, "no link can be touched: name your `toxiproxy` and its `proxies` under `attach`")
    elif link.source not in ("*", attach.rack):
        yield Problem(loc, f"the clients stand in rack {attach.rack}, so no link leaves {link.source}: say that")
    elif link.role and isinstance(role := roles.parse(link.role), roles.Node):
        reached = sorted(attach.proxies.values())
        if role.broker not in reached:
            there = ", ".join(map(str, reached))
            yield Problem(loc, f"none of the `proxies` leads to broker {role.broker}; they lead to {there}")


def _broker(text: str, loc: Location, attach: Attach) -> Iterator[Problem]:
    role = roles.parse(text)
    if not attach.brokers or (isinstance(role, roles.Node) and role.broker not in attach.brokers):
        who = f"broker {text}" if isinstance(role, roles.Node) else "a broker"
        yield Problem(loc, f"it touches {who}, which `attach.brokers` doesn't name: name it there")


_DOTTED = ("config", "settings")


def apply_changes(document: Document, changes: Iterable[str]) -> None:
    """Change the document's data in place. Raises PlanError with every change that can't be understood."""
    problems: list[str] = []
    for change in changes:
        try:
            _apply(document, change)
        except PlanError as error:
            problems += error.problems
    if problems:
        raise PlanError(problems)


def _apply(document: Document, change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise PlanError([f"--set {change}: write KEY=VALUE, like timing.steady=5s or workloads.0.produce.rate=80/s"])
    value = load(f"value: {text}", f"--set {key}").data["value"]
    steps = _steps(key)
    loc: Loc = ()
    here: Any = document.data
    for step in steps[:-1]:
        found = _found(here, step, change)
        if isinstance(here, dict):
            here.setdefault(found, {})
        loc, here = (*loc, found), here[found]
    last = _found(here, steps[-1], change)
    here[last] = value
    document.moved((*loc, last), f"--set {key}")


def _steps(key: str) -> list[str]:
    steps = key.split(".")
    dotted = next((place for place, step in enumerate(steps) if step in _DOTTED), len(steps)) + 1
    return [*steps[:dotted], *([".".join(steps[dotted:])] if steps[dotted:] else [])]


def _found(here: Any, step: str, change: str) -> str | int:
    """The key or index that ``step`` names here."""
    if isinstance(here, dict):
        return step
    if isinstance(here, list):
        named = (i for i, it in enumerate(here) if isinstance(it, dict) and step in (it.get("id"), it.get("name")))
        index = next(named, int(step) if step.isdecimal() and int(step) < len(here) else None)
        if index is not None:
            return index
    raise PlanError(
        [f"--set {change}: the plan has nothing called `{step}` there; say a key, an id, a name or an index"]
    )


@dataclass(frozen=True)
class Checked:
    """A plan that can be run. ``source``: the file's name; ``text``: the plan as it will run, in YAML.

    ``places``: where each part of it stands.
    """

    plan: Plan
    source: str
    text: str
    slo_positions: tuple[str, ...]
    warnings: tuple[str, ...]
    places: Places


def load_plan(source: Path | str, changes: Sequence[str] = ()) -> Checked:
    """Read, change (``key=value`` each, see ``changes``) and check a plan file (Path) or text (str).

    Raises PlanError with all of its problems, sorted by line.
    """
    document = load(source)
    apply_changes(document, changes)
    plan = _checked(document)
    text = _rewritten(document, changes) if changes else document.text
    slo_positions = tuple(document.position(("slo", index)) for index in range(len(plan.slo)))
    return Checked(plan, document.name, text, slo_positions, tuple(warnings(plan, document)), document)


def _checked(document: Document) -> Plan:
    draft, problems = read_draft(document.data)
    problems += _judged(draft)
    if problems:
        raise PlanError(worded(problems, document))
    try:
        return Plan.model_validate(document.data)
    except ValidationError as error:  # what no part of the draft stands for; a net, so that nobody meets a traceback
        details = "; ".join(f"{detail['loc']}: {detail['msg']}" for detail in error.errors())
        raise PlanError([f"{document.position(())}: the plan is not valid ({details}); mend it"]) from error


def check(plan: Plan, places: Places | None = None) -> None:
    """Check a plan that is an object already. Raises PlanError with all of its problems."""
    problems = _judged(draft_of(plan))
    if problems:
        raise PlanError(worded(problems, places or PythonPlaces()))


def warnings(plan: Plan, places: Places | None = None) -> list[str]:
    """What is allowed but may surprise, worded like a problem: faults too short to notice, SLOs that can't fail."""
    draft = draft_of(plan)
    return worded([*grey_failures(draft), *surprises(draft), *toothless(draft)], places or PythonPlaces())


def _rewritten(document: Document, changes: Sequence[str]) -> str:
    return f"# {document.name}, changed by: {' '.join(map(repr, changes))}\n{dump(document.data)}"


def _judged(draft: Draft) -> list[Problem]:
    return [*crosscheck(draft), *attached(draft), *conflicts(draft), *objectives(draft)]
