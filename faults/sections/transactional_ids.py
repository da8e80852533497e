"""Transactional ids (``transactional.id``) of a plan's producers, as far as the plan tells them.

* A producer with ``transaction``, and a process of a transactional pipe of ours, has its process's name as its id:
  ``<workload>-<arm>-produce`` or ``-pipe``, with a number if the arm has several. So have the processes that a fault
  of the kind ``join`` starts later; an id has a coordinator before a process uses it.
* A committer with the setting ``transactional`` has an id for each of its groups: ``<workload>-<arm>-commit-<workload>-
  <arm>-<group>-<partition>``.
* The plan tells the id of an ``exec`` program or a service if a setting, a variable of its environment, its command or
  its file names one, such as ``TRANSACTIONAL_ID: "{member}"`` or ``transactional.id=billing``. Otherwise nobody knows
  it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from aftershock.faults.sections.workloads import Arm, Workload
from aftershock.names import worker_names

_SETTING = "transactional.id"
_NAMED = re.compile(r"transactional[._-]?id", re.IGNORECASE)
_GIVEN = re.compile(r"""transactional[._-]?id["']?\s*[=:]\s*["']?(?P<id>[^\s"',;=]+)""", re.IGNORECASE)


Reserve: TypeAlias = Callable[[str, str, str], int]
"""Function that returns how many further processes of a workload, arm and operation faults start."""


class TransactionalId(NamedTuple):
    """Id of one process (``worker``) of an arm, in the workload with this index of the plan."""

    text: str
    workload: int
    arm: str
    worker: str


def nobody_joins(_workload: str, _arm: str, _op: str) -> int:
    return 0


def transactional_ids(workloads: Mapping[int, Workload], reserve: Reserve = nobody_joins) -> Iterator[TransactionalId]:
    """Yield the transactional ids of a plan's producers and services, except those of committers."""
    for index, workload in workloads.items():
        for arm, client in workload.arms.items():
            for worker in _workers(workload, arm, reserve):
                ids = _given(client, worker) if client.client in ("exec", "service") else ()
                for text in ids or (() if client.client == "service" else (worker,)):
                    yield TransactionalId(text, index, arm, worker)


def has_transactional_id(workloads: Mapping[int, Workload], text: str, reserve: Reserve = nobody_joins) -> bool:
    """Return True if a process of the plan has the transactional id, or may have it because nobody knows its id."""
    return (
        any(known.text == text for known in transactional_ids(workloads, reserve))
        or any(_of_committers(workload, text) for workload in workloads.values())
        or any(
            client.client == "service" and workload.pipe and workload.pipe.transactional and not _given(client, "")
            for workload in workloads.values()
            for client in workload.arms.values()
        )
    )


def has_transactions(workload: Workload) -> bool:
    """Return True if a process of a workload produces in transactions."""
    return any(True for arm in workload.arms for _ in _workers(workload, arm, nobody_joins))


def _workers(workload: Workload, arm: str, reserve: Reserve) -> Iterator[str]:
    """Yield the name of each process of an arm that uses transactions, those in reserve last."""
    counts = {
        "produce": workload.produce.producers if workload.produce and workload.produce.transaction else 0,
        "pipe": workload.pipe.members if workload.pipe and workload.pipe.transactional else 0,
    }
    for op, count in counts.items():
        if count:
            yield from worker_names(workload.name, arm, op, count + reserve(workload.name, arm, op))


def _given(client: Arm, worker: str) -> tuple[str, ...]:
    """Return the ids that an arm of the user's program names, with ``{member}`` replaced by the process's name."""
    texts = [str(value) for name, value in client.settings.items() if name == _SETTING]
    texts += [value for name, value in client.env.items() if _NAMED.search(name)]
    # `--transactional-id=billing` may be two words of a command
    for text in ("=".join(client.command), client.file or ""):
        texts += [match["id"] for match in _GIVEN.finditer(text)]
    return tuple(dict.fromkeys(text.replace("{member}", worker) for text in texts if text))


def _of_committers(workload: Workload, text: str) -> bool:
    if workload.commit is None:
        return False
    groups = range(workload.commit.groups)
    for arm, client in workload.arms.items():
        (worker,) = worker_names(workload.name, arm, "commit")
        match = re.fullmatch(rf"{re.escape(f'{worker}-{workload.name}-{arm}-')}(\d{{1,5}})-\d{{1,4}}", text)
        if client.settings.get("transactional") and match and int(match[1]) in groups:
            return True
    return False
