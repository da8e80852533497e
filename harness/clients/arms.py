"""Programs for the arms of a plan that name a version: built, and found to do what their workloads need."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aftershock.errors import Log, ProgramError
from aftershock.faults.plan.check import CheckedPlan
from aftershock.faults.sections.document import Location
from aftershock.faults.sections.workloads import Workload
from aftershock.harness.clients.build import Program, built, describe

Programs = Mapping[tuple[str, str], Program]
"""Built programs by client and version."""


@dataclass(frozen=True)
class Need:
    """Something that a workload needs of its clients: the word of a program's ``lacks``, and where the plan says it."""

    word: str
    place: Location
    remedy: str


def needs(workload: Workload) -> Iterator[Need]:
    """Yield what a workload needs of the programs of its arms."""
    for op in ("produce", "consume", "commit"):
        if getattr(workload, op):
            yield Need(op, (op,), f"remove `{op}`")
    if workload.produce and workload.produce.idempotence:
        yield Need("idempotence", ("produce",), "write `idempotence: false` under `produce`")
    if workload.produce and workload.produce.transaction:
        yield Need("transactions", ("produce", "transaction"), "remove `transaction`")
    consume = workload.consume
    if consume is None:
        return
    if consume.protocol == "consumer":
        yield Need("protocol", ("consume", "protocol"), "write `protocol: classic`, or remove it")
    if consume.commit and (consume.commit.every_ms or consume.commit.every_records):
        yield Need("commits", ("consume", "commit"), "write `commit: {every: auto}`, or remove it")
    for word in ("pattern", "assignor", "static", "isolation"):
        if getattr(consume, word):
            yield Need(word, ("consume", word), f"remove `{word}`")


def programs_of(checked: CheckedPlan, log: Log) -> Programs:
    """Return the program of each client with a version; programs that are missing are built.

    Raises ProgramError, with all positions, if a program can't be built, does not know a setting, or lacks what its
    workload needs.
    """
    found: dict[tuple[str, str], Program] = {}
    unavailable: dict[tuple[str, str], str] = {}
    problems: list[str] = []
    for index, workload in enumerate(checked.plan.workloads):
        for name, arm in workload.arms.items():
            if arm.version is None:
                continue
            key, place = (arm.client, arm.version), ("workloads", index, "arms", name)
            if key not in found and key not in unavailable:
                try:
                    found[key] = built(*key, log)
                except ProgramError as error:
                    unavailable[key] = str(error)
                    problems.append(f"{checked.source_map.position((*place, 'version'))}: {error}")
            if key in found:
                problems += _problems(checked, ("workloads", index), name, arm.settings, found[key], workload)
    if problems:
        raise ProgramError("\n".join(problems))
    return found


def _problems(
    checked: CheckedPlan, loc: Location, arm: str, settings: Mapping[str, Any], program: Program, workload: Workload
) -> Iterator[str]:
    position = checked.source_map.position
    if settings:
        refused = describe(program.command, program.name, settings)["refused"]
        if refused:
            yield f"{position((*loc, 'arms', arm, 'settings'))}: {program.name}, the client of arm `{arm}`: {refused}"
    for need in needs(workload):
        if need.word in program.lacks:
            yield (
                f"{position((*loc, *need.place))}: {program.name}, the client of arm `{arm}`, can't do this: "
                f"{program.lacks[need.word]}; {need.remedy}, or choose another client or version"
            )
