"""Command ``init``: a first plan, its test and a CI workflow, written into a user's repository."""

from pathlib import Path
from typing import Annotated

import typer

from aftershock.errors import AftershockError

_PLAN = """\
# Check it with `aftershock plan check chaos/leader-lost.yaml`; docs/PLAN.md of Aftershock has all keys.
name: leader-lost
why: our producer must survive the death of a leader, and a slow network before it
topics:
  - {name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 1kB, acks: all, idempotence: true, rack: a}
    consume: {topic: orders, group: readers, from: earliest, rack: b}
    arms: # variants of the client that run side by side and meet the same faults: put your own settings here
      default: {}
      tuned: {settings: {socket.timeout.ms: 6000, retry.backoff.ms: 50}}
timing: {warmup: {min: 5s, max: 60s}, steady: 8s, fault: 5s, recovery: 8s}
faults:
  - {id: slow, at: 0s, for: 6s, kind: latency, link: "client(a) <-> broker", delay: 50ms, jitter: 10ms}
  - {id: dead, at: 9s, for: 6s, kind: kill, broker: leader of orders/0}
slo:
  - "lost == 0"
  - "produce.success >= 99%"
  - "recovery < 15s after dead for tuned"
"""
_TEST = '''\
"""Chaos tests of our clients. Run them with: pytest chaos"""


def test_leader_lost(chaos):
    """Nothing is lost when a leader dies, and a slow network stays bearable."""
    run = chaos.run("leader-lost.yaml", seed=7)
    run.expect("produce.latency p95 < 500ms in fault/slow")
'''
_WORKFLOW = """\
# Replace OWNER/NAME by the repository of Aftershock that you use, or set the repository variable AFTERSHOCK to it.
name: chaos
on: [push, workflow_dispatch]
permissions: {contents: read}
jobs:
  chaos:
    runs-on: ubuntu-24.04
    timeout-minutes: 60
    steps:
      - uses: actions/checkout@v4
      - uses: actions/checkout@v4
        with: {repository: "${{ vars.AFTERSHOCK || 'OWNER/NAME' }}", path: .aftershock}
      - uses: ./.aftershock
        with: {command: pytest chaos --junitxml=junit.xml, requirements: ""} # requirements: those of your own tests
"""
FILES = {
    "chaos/leader-lost.yaml": _PLAN,
    "chaos/test_leader_lost.py": _TEST,
    ".github/workflows/chaos.yml": _WORKFLOW,
}


def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Root of the repository to write to.")] = Path(),
) -> int:
    """Write a first plan, a test of it, and a GitHub workflow into a repository; existing files are not changed."""
    if not folder.is_dir():
        raise AftershockError(f"{folder} is not a folder; name the root of your repository")
    if existing := [name for name in FILES if (folder / name).exists()]:
        raise AftershockError(f"{folder} has {', '.join(existing)} already, so nothing was written; move it away first")
    try:
        for name, content in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise AftershockError(f"can't write to {folder}: {error.strerror}; make the folder writable") from error
    print(*(folder / name for name in FILES), sep="\n")
    print("next: pytest chaos   (two minutes; the evidence goes to runs/, which git should ignore)")
    return 0
