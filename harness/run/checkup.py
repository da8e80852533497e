"""What ``plan check`` adds to the check of a plan: a line about its length, load and faults, and what this host lacks.

Nothing is started and nothing is connected to, so an image that a plan names is not looked up.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from aftershock.faults.plan.check import CheckedPlan
from aftershock.faults.sections.document import Problem, format_problems
from aftershock.faults.sections.units import format_length
from aftershock.faults.timeline.compile import compile_checked
from aftershock.faults.timeline.timeline import Step, Timeline
from aftershock.harness.run.estimate import USUAL_RATE, estimate, loads, rate_problems, read_limits
from aftershock.harness.run.required_progress import share_warnings
from aftershock.harness.run.runs import size

KINDS_MAX = 3
_NODE_VERBS = {
    "kill": "kills",
    "stop": "stops",
    "pause": "pauses",
    "restart": "restarts",
    "crash_loop": "kills repeatedly",
    "lose_rack": "kills",
    "power_loss": "cuts the power of",
    "kill_controller": "kills",
    "gc_pause": "stops the JVM of",
    "cpu_quota": "limits the CPU of",
    "memory_limit": "limits the memory of",
    "fence_broker": "fences",
    "disk_full": "fills the disk of",
    "disk_errors": "breaks the disk of",
    "slow_disk": "slows the disk of",
}
_TARGETS = ("link", "rack", "broker", "client", "topic", "group", "between", "shape", "api")
_SCRIPTS = (".py", ".js", ".mjs", ".ts", ".rb", ".pl", ".sh", ".jar")
_INTERPRETERS = ("python", "node", "deno", "bun", "ruby", "perl", "sh", "bash", "java")


def machine_warnings(checked: CheckedPlan) -> list[str]:
    """Return the warnings that need the compiled timeline or this host, each with its position."""
    timeline = compile_checked(checked, seed=0)
    problems = [*missing_programs(checked), *_rates(checked, timeline), *_space(timeline)]
    return [*format_problems(problems, checked.source_map), *share_warnings(checked)]


def missing_programs(checked: CheckedPlan) -> Iterator[Problem]:
    """Yield a warning for each ``exec`` or ``service`` arm whose program or script isn't here.

    A client process looks a program up as a shell does, and starts it in the working directory of `aftershock run`.
    """
    for index, workload in enumerate(checked.plan.workloads):
        for name, arm in workload.arms.items():
            if not arm.command or arm.image or arm.command[0] == "{python}":
                continue
            program, *arguments = arm.command
            loc = ("workloads", index, "arms", name, "command")
            if shutil.which(program) is None:
                cause = "is not executable" if Path(program).is_file() else "is not there"
                where = f"in {Path.cwd()}" if "/" in program and not program.startswith("/") else "on this machine"
                remedy = f"chmod +x {program}" if cause == "is not executable" else "correct the path, or install it"
                yield Problem(loc, f"the program `{program}` of the arm `{name}` {cause} {where}: {remedy}")
            elif Path(program).name.rstrip("0123456789.") in _INTERPRETERS:
                script = next((word for word in arguments if word.endswith(_SCRIPTS)), None)
                if script and not Path(script).is_file():
                    sentence = f"the script `{script}` of the arm `{name}` is not there, seen from {Path.cwd()}"
                    yield Problem(loc, f"{sentence}: correct the path, or start the run in its folder")


def _rates(checked: CheckedPlan, timeline: Timeline) -> Iterator[Problem]:
    """Yield a warning for rates above those of the host's calibration; without one, above the usual rates."""
    limits, cores = read_limits(), os.cpu_count() or 1
    yield from (Problem(("workloads",), sentence) for sentence in rate_problems(loads(timeline), limits, cores))
    total = _records_per_s(timeline)
    if not limits and total > USUAL_RATE * cores and checked.plan.cluster.attach is None:
        rates = [
            workload.produce.rate * len(workload.arms) if workload.produce else 0.0
            for workload in checked.plan.workloads
        ]
        loc = ("workloads", rates.index(max(rates)), "produce", "rate")
        sentence = (
            f"{total:,.0f} records/s are more than {USUAL_RATE:,.0f} for each of this host's {cores} cores, which "
            "clients and brokers share: lower the rate, or measure the host with `aftershock doctor --calibrate`"
        )
        yield Problem(loc, sentence)


def _space(timeline: Timeline) -> Iterator[Problem]:
    need, free = estimate(timeline), shutil.disk_usage(Path.cwd()).free
    if need.disk_bytes + need.broker_bytes > free:
        sentence = f"the run writes about {size(need.disk_bytes + need.broker_bytes)}, and {size(free)} are free here"
        yield Problem(("timing",), f"{sentence}: lower the rates, shorten the plan, or free space")


def summary(checked: CheckedPlan) -> str:
    """Return length, load, faults and disk space of a plan in one line: ``1 min 50 s, 120 records/s, kills …``."""
    timeline = compile_checked(checked, seed=0)
    need = estimate(timeline)
    return ", ".join(
        [
            f"{format_length(round(need.duration_s * 1000))} at most",
            *_load(timeline),
            *_breaks(checked, timeline.steps),
            f"{size(need.disk_bytes + need.broker_bytes)} on the disk",
        ]
    )


def _records_per_s(timeline: Timeline) -> float:
    produces = [(workload.get("produce"), len(workload["arms"])) for workload in timeline.workloads]
    return float(sum(produce["rate_per_s"] * arms for produce, arms in produces if produce))


def _load(timeline: Timeline) -> Iterator[str]:
    records, commits = _records_per_s(timeline), [w["commit"] for w in timeline.workloads if w.get("commit")]
    if records or not commits:
        yield f"{records:,g} records/s"
    if any("in_flight" in commit for commit in commits):
        yield "commits without a pause"
    elif commits:
        rates = [w["commit"]["rate_per_s"] * len(w["arms"]) for w in timeline.workloads if w.get("commit")]
        yield f"{sum(rates):,g} commits/s"


def _breaks(checked: CheckedPlan, steps: Sequence[Step]) -> Iterator[str]:
    """Yield what the faults do, by kind and target, the most frequent first; many only in part."""
    if not steps:
        yield "no fault"
        return
    phrases: dict[str, int] = {}
    for kind, same_kind in groupby(sorted(steps, key=lambda step: step.kind), key=lambda step: step.kind):
        if kind in _NODE_VERBS and checked.plan.cluster.attach is None:
            group = [*same_kind]
            nodes, together = _nodes(checked, group)
            phrases[f"{_NODE_VERBS[kind]} {nodes}"] = 1 if together > 1 else len(group)
        else:
            for step in same_kind:
                target = next((step.parameters[key] for key in _TARGETS if step.parameters.get(key)), None)
                shown = f"rack {target}" if target and target == step.parameters.get("rack") else target
                phrase = f"{kind}{f' on {shown}' if isinstance(shown, str) else ''}"
                phrases[phrase] = phrases.get(phrase, 0) + 1
    first_ms = {phrase: number for number, phrase in enumerate(phrases)}
    ordered = sorted(phrases, key=lambda phrase: (-phrases[phrase], first_ms[phrase]))
    shown_phrases = ordered if len(ordered) <= KINDS_MAX + 1 else ordered[:KINDS_MAX]
    yield from (f"{phrase}{f' {phrases[phrase]} times' if phrases[phrase] > 1 else ''}" for phrase in shown_phrases)
    if rest := sum(phrases[phrase] for phrase in ordered[len(shown_phrases) :]):
        yield f"{rest} other faults"


def _nodes(checked: CheckedPlan, steps: Sequence[Step]) -> tuple[str, int]:
    """Return how many nodes the faults of one kind hit at once, ``1 of 3 brokers``, and how many faults that are."""
    cluster = checked.plan.cluster
    brokers = len(cluster.broker_racks)
    at_once = together = 0
    for step in steps:
        in_force = [
            other for other in steps if other.at_ms <= step.at_ms < other.at_ms + (other.for_ms or 1) or other is step
        ]
        together = max(together, len(in_force))
        named = [other.fault().nodes(checked.draft) for other in in_force]
        at_once = max(at_once, len(frozenset().union(*named)) + sum(not nodes for nodes in named))
    if cluster.controllers:
        return f"{at_once} of {brokers + cluster.controllers} nodes", together
    return f"{min(at_once, brokers)} of {brokers} broker{'s' if brokers > 1 else ''}", together
