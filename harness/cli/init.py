"""Command ``init``: a first plan, its test and a CI workflow, or a plan for a service, for a user's repository."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from aftershock.errors import AftershockError, PlanError

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


SERVICE_FILE = "chaos/service.yaml"
_START, _TOPICS = (
    "how your service is started: a command line, or `image NAME`",
    "its input topic, output topic and group",
)
_VARIABLE = "the variable from which it takes Kafka's address (none if {bootstrap} is in the command line)"
_MARK = "what an output copies from its input: header, key, or $.id"
_ADDRESS = "{bootstrap}"
QUESTIONS = {
    "start": (_START, "python3 service.py"),
    "topics": (_TOPICS, "orders billed biller"),
    "variable": (_VARIABLE, "KAFKA"),
    "mark": (_MARK, "header"),
}
"""Questions of ``init --service`` by option, each with an example."""


def service_plan(start: str, topics: str, mark: str, variable: str = "") -> str:
    """Return a plan that kills a broker and a process of a service; raise AftershockError for an unusable answer.

    The service finds Kafka's address in its environment as ``variable``, or in its command line.
    """
    try:
        words, names = shlex.split(start), topics.split()
    except ValueError as error:
        raise AftershockError(f"`{start}` is no command line ({error}); close the quotation") from error
    if not words or (words[0] == "image" and len(words) == 1):
        raise AftershockError(f"`{start}` starts nothing; give {_START}, such as {QUESTIONS['start'][1]}")
    if len(names) != len(("from", "to", "group")):
        raise AftershockError(f"`{topics}` is not {_TOPICS}; give three names, such as {QUESTIONS['topics'][1]}")
    image, command = (words[1], words[2:]) if words[0] == "image" else ("", words)
    parts = {
        "image": json.dumps(image) if image else "",
        "command": json.dumps(command) if command else "",
        "env": f'{{{variable}: "{_ADDRESS}"}}' if variable else "",
    }
    program = ", ".join(f"{key}: {part}" for key, part in parts.items() if part)
    source, to, group = names
    keys = "" if mark == "key" else ", keys: 200"
    value = f", value: {json.dumps(_nested(mark.split('.')[1:]))}" if mark.startswith("$.") else ""
    place = f'{{value: "{mark}"}}' if mark.startswith("$.") else mark
    return f"""\
# Check it with `aftershock plan check`; docs/SERVICE.md of Aftershock explains it.
# If the service promises exactly once, add `transactional: true` to `pipe`. Give `value` the fields that it needs.
name: service
why: our service must write an output for each input when a broker or one of its own processes dies
topics:
  - {{name: {source}, partitions: 6, replication: 3, config: {{min.insync.replicas: 2}}}}
  - {{name: {to}, partitions: 6, replication: 3, config: {{min.insync.replicas: 2}}}}
workloads:
  - name: service
    produce: {{topic: {source}, rate: 60/s{keys}{value}}}
    pipe: {{from: {source}, to: {to}, group: {group}, members: 2, mark: {place}}}
    arms:
      ours: {{client: service, {program}}}
timing: {{warmup: {{min: 5s, max: 60s}}, steady: 10s, recovery: 60s}}
faults:
  - {{id: broker-killed, kind: kill, broker: leader of {to}/0, at: 0s, for: 8s}}
  - {{id: process-killed, kind: kill_client, client: ours member 1, at: 30s, for: 2s}}
slo:
  - "pipe.latency p95 < 2s in steady"
"""


def _nested(path: Sequence[str]) -> dict[str, object]:
    return {path[0]: _nested(path[1:]) if len(path) > 1 else "{mark}"}


def _answers(given: dict[str, str | None]) -> dict[str, str]:
    """Return the answers to QUESTIONS, those that are missing from the terminal.

    The variable is only asked for if the command line has no address.
    """
    answers = {name: answer for name, answer in given.items() if answer is not None}
    missing = [name for name in given if name not in answers]
    if _ADDRESS in answers.get("start", ""):
        missing = [name for name in missing if name != "variable"]
    if missing and not sys.stdin.isatty():
        options = " ".join(f"--{name} {shlex.quote(QUESTIONS[name][1])}" for name in missing)
        raise AftershockError(f"--service needs answers, and there is no terminal to ask; give them: {options}")
    for name in missing:
        question, example = QUESTIONS[name]
        if name != "variable" or _ADDRESS not in answers["start"]:
            answers[name] = typer.prompt(question, default=example, err=True)
    return answers


def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Root of the repository to write to.")] = Path(),
    *,
    service: Annotated[bool, typer.Option("--service", help="Write a plan for a service between two topics.")] = False,
    start: Annotated[str | None, typer.Option(help=f"With --service: {_START}.")] = None,
    topics: Annotated[str | None, typer.Option(help=f"With --service: {_TOPICS}.")] = None,
    variable: Annotated[str | None, typer.Option(help=f"With --service: {_VARIABLE}.")] = None,
    mark: Annotated[str | None, typer.Option(help=f"With --service: {_MARK}.")] = None,
) -> int:
    """Write a first plan, a test and a GitHub workflow, or a plan for a service; existing files are not changed.

    With --service, the questions about it that no option answers are asked.
    """
    if not folder.is_dir():
        raise AftershockError(f"{folder} is not a folder; name the root of your repository")
    if service:
        text = service_plan(**_answers({"start": start, "topics": topics, "variable": variable, "mark": mark}))
        from aftershock.faults.plan.check import load_plan

        try:
            load_plan(text)
        except PlanError as error:
            causes = [problem.partition(": ")[2] for problem in error.problems]  # the positions are of no file
            raise AftershockError(
                f"the answers make no valid plan, so nothing was written: {'; '.join(causes)}"
            ) from None
        _write(folder, {SERVICE_FILE: text})
        print(f"next: aftershock run {folder / SERVICE_FILE} --allow-exec   (start it where your service is started)")
        return 0
    _write(folder, FILES)
    print("next: pytest chaos   (two minutes; the evidence goes to runs/, which git should ignore)")
    return 0


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder; raise AftershockError, and write none, if one of them exists."""
    if existing := [name for name in files if (folder / name).exists()]:
        raise AftershockError(f"{folder} has {', '.join(existing)} already, so nothing was written; move it away first")
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise AftershockError(f"can't write to {folder}: {error.strerror}; make the folder writable") from error
    print(*(folder / name for name in files), sep="\n")
