"""Plans with random damage, as a stranger could write them, such as values of other types and torn text.

``python -m aftershock.tests.mutated_plans SEED COUNT`` checks so many plans, and prints each that ends in anything but
a verdict of the plan check, or that takes more than LIMIT_CPU_S seconds of CPU time.
"""

import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Any

from aftershock.errors import PlanError
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find, names
from aftershock.faults.sections.document import dump_yaml, load
from aftershock.faults.timeline.compile import compile_checked

LIMIT_CPU_S = 10.0
LAUNCHED = """\
name: launched
cluster: {racks: {a: 1, b: 2}, controllers: 1, config: {num.io.threads: 4}, brokers: {1: {num.network.threads: 2}}}
topics: [{name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: {min: 1, max: 2kB}, keys: 10}
    consume: {topic: orders, group: readers, rack: a}
    arms: {one: {settings: {batch.size: 10}}, two: {client: reference, fetch_session: false}}
  - {name: positions, commit: {groups: 10, rate: 5/s}}
  - {name: many, produce: {topic: orders, rate: 1/s}, consume: {pattern: "(o|ord|rd)*ers", group: others}}
timing: {warmup: {min: 1s, max: 2s}, steady: 2s, fault: 1s, recovery: 2s}
blocks: 2
faults:
  - {at: 1s, for: 2s, kind: kill, broker: leader of orders/0}
  - {at: 5s, for: 1s, kind: latency, link: "client(a) -> broker", delay: {range: [20ms, 200ms]}}
  - {repeat: 2, every: 4s, fault: {for: 1s, kind: pause, broker: 3}}
  - {at: 20s, then: [{for: 1s, kind: config, topic: orders, set: {retention.ms: 9}}, {wait: 1s}]}
  - choose:
      - {weight: 2, fault: {together: [{at: 1s, for: 1s, kind: pause, broker: coordinator of positions-baseline-3}]}}
      - {fault: {wait: 0s}}
abort: "lost > 5"
slo: ["lost == 0", "produce.latency p99 in steady < 500ms", {slo: "duplicate == 0", gate: report}]
"""
ATTACHED = """\
name: attached
cluster:
  attach:
    bootstrap: k:9092,l:9092
    toxiproxy: p:8474
    proxies: {one: 1, two: 2}
    brokers: [1]
    create: [orders]
    security: {protocol: SASL_SSL, mechanism: PLAIN, user: u, password: "${P}", ca: ca.pem}
topics: [{name: orders, partitions: 3, replication: 2}]
workloads: [{name: orders, produce: {topic: orders, rate: 60/s}, arms: {own: {client: exec, command: [x]}}}]
faults: [{kind: latency, link: "client(a) -> broker(1)", delay: 50ms, at: 0s, for: 4s}]
slo: ["lost == 0"]
"""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 255, 2**31, 2**63 - 1, -(2**63), 2**64, 10**400),
    *(0.0, 0.5, -0.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")),
    *(
        "",
        " ",
        "0",
        "-1",
        "1",
        "a",
        "*",
        "x" * 300,
        "(o+)+b",
        "(.*)*" * 20,
        "x" * 5000,
        "\n",
        "\x1f",
        "é",
        "٣s",
        "²",
        "\u2028",
        "${HOME}",
        "{{}}",
    ),
    *("0s", "1ms", "5s", "24h", "25h", "999999999h", "0.0001s", "1e3s", "-1s", "inf", "nan", "60/s", "999999999/s"),
    *("10kB", "999999999MiB", "1kB/s", "9" * 4000 + "s", "leader of orders/0", "leader of orders/" + "9" * 3000),
    *("client(a) -> broker", "client(*) <-> broker(2)", "rack(a) <-> rack(b)", "replication(b) -> broker(controller)"),
    *("controller", "any broker except any broker except 1", "coordinator of positions-baseline-9999", "orders", "one"),
    *([], [[]], [None], [1, 2], list(range(1100)), {}, {"": ""}, {"range": [1, 2]}, {"range": ["1s", "9s"]}),
    *({"range": [2, 1]}, {"range": ["24h", 1]}, {"range": {"range": [1, 2]}}, {"a": {"range": [1, 2]}}),
    *({"wait": "0s"}, {"wait": {"range": ["0s", "24h"]}}, {"kind": "kill"}, {"range": []}),
)
NAMES = (
    *("x" * length for length in (63, 64, 128, 249, 250, 255, 256, 4096)),
    *(
        "é" * 125,
        "日" * 85,
        "a/" * 40 + "b",
        "../../up",
        "..",
        ".",
        "-",
        "--help",
        "a b",
        "a\nb",
        "a\tb",
        "\u202eb",
        "👍",
    ),
    *(
        "con",
        "null",
        "~",
        "1e3",
        "0x10",
        "yes",
        "a:b",
        "a#b",
        "a,b",
        "a=b",
        "%s",
        "{0}",
        "$(id)",
        "`id`",
        "${HOME}",
        "*",
    ),
)
"""Names of plans, topics, workloads, groups and arms: of the length limits of Kafka and file systems, and odd ones."""
_PATTERN_PIECES = (
    *("orders", "ord", ".*", "(.*)*", "(o+)+", "(a|aa)+", "(?:x?){99}x{99}", "{1,99999}", "{99}", "|", "^", "$", "\\b"),
    *(
        "(?i)",
        "(?=o)",
        "(?<!o)",
        "(?P<n>o)",
        "(?P=n)",
        "\\1",
        "\\p{L}",
        "\\Q",
        "[",
        "[^o]",
        "[[:alpha:]]",
        "(",
        ")",
        "\\",
    ),
    *("é", "\n", "\x00", "x" * 300, "((((((((((((((((((((o))))))))))))))))))))"),
)
_CHARACTERS = "{}[]:,-#&*!|>'\"%@`\n\t \\0123456789abx_.~?=\x00\x85\ufeff"


def mutated_plans(seed: int, count: int, *, damaged: bool = True) -> Iterator[str]:
    """Yield damaged plans, always the same for a seed; about a tenth of them are valid.

    Those that are not ``damaged`` only have other names and patterns, so that most of them are valid.
    """
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    bases, documents = _bases()
    for _ in range(count):
        index = source.randrange(2) if source.random() < 0.7 else source.randrange(len(bases))
        if damaged and source.random() < 0.3:  # torn text
            yield tear(bases[index], source)
            continue
        data = deepcopy(documents[index])
        if source.random() < 0.3:
            data = rename(data, source)
        if source.random() < 0.15 and (workloads := data.get("workloads")):
            pattern = "".join(source.choices(_PATTERN_PIECES, k=source.choice((1, 2, 5, 40))))
            source.choice(workloads)["consume"] = {"pattern": pattern, "group": "others"}
        elif damaged:
            for _ in range(source.choice((0, 1, 1, 2, 5))):
                damage(data, source)
        try:
            yield dump_yaml(data)
        except ValueError:  # a number too large to be written: as hexadecimal, which no limit of Python covers
            yield dump_yaml({}) + f"blocks: {hex(16 ** source.randrange(100, 3000))}\n"


@cache
def _bases() -> tuple[list[str], list[dict[str, Any]]]:
    """Return the plans before the damage, as texts and as data."""
    texts = [LAUNCHED, ATTACHED, *(find(name).read_text(encoding="utf-8") for name in names())]
    return texts, [load(text).data for text in texts]


def rename(data: Any, source: random.Random) -> Any:
    """Return the data with one of its names replaced by another of ``NAMES``, wherever the data refer to it."""
    names = {entry[key] for entry, key in _places(data) if key in ("name", "topic", "group")}
    old = source.choice(sorted(name for name in names if isinstance(name, str) and name) or ["orders"])
    new = source.choice(NAMES)

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {renamed(key): renamed(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [renamed(entry) for entry in value]
        return value.replace(old, new) if isinstance(value, str) else value

    return renamed(data)


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Return every entry in the data as its container and key."""
    entries = list(data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ())
    return [(data, key) for key, _ in entries] + [place for _, value in entries for place in _places(value)]


def damage(data: dict[str, Any], source: random.Random) -> None:
    places = _places(data)
    if not places:
        return
    container, key = source.choice(places)
    value = container[key]
    match source.randrange(9):
        case 0 | 1 | 2:
            container[key] = deepcopy(source.choice(VALUES))
        case 3:
            del container[key]
        case 4:  # exchange two values
            other, place = source.choice(places)
            taken = deepcopy(other[place])
            container[key] = taken
        case 5 if isinstance(container, list):
            container += [deepcopy(value) for _ in range(source.choice((1, 2, 30, 600)))]
        case 6 if isinstance(value, dict):
            kinds = ("kind", "at", "for", "fault", "then", "together", "repeat", "every", "until", "range", "wait", "x")
            value[source.choice(kinds)] = deepcopy(source.choice((*VALUES, *KINDS)))
        case 7:  # many rounds, nested
            for _ in range(source.choice((1, 3, 22))):
                container[key] = source.choice(
                    (
                        {"repeat": source.choice((2, 500)), "fault": container[key]},
                        {"every": "1ms", "until": source.choice(("2ms", "24h")), "fault": container[key]},
                        {"then": [container[key], {"wait": "0s"}]},
                        {"choose": [{"fault": container[key]}, {"weight": 1000, "fault": {"wait": "0s"}}]},
                    )
                )
        case 8 if isinstance(value, dict):
            for number in range(source.choice((3, 5, 30))):
                value[f"p{number}"] = {"range": [1, 2]}


def tear(text: str, source: random.Random) -> str:
    for _ in range(source.choice((1, 2, 8))):
        begin = source.randrange(len(text) + 1)
        end = min(len(text), begin + source.choice((0, 1, 1, 5, 40)))
        piece = "".join(source.choices(_CHARACTERS, k=source.choice((0, 1, 2, 3))))
        piece *= source.choice((1, 1, 1, 30, 2000))
        text = text[:begin] + piece + text[end:]
    return text


def check_plan(text: str) -> bool:
    """Return True for a valid plan, False for one with problems; anything else is an exception."""
    try:
        compile_checked(load_plan(text), 1)
    except PlanError as error:
        if not error.problems or any("\n" in problem for problem in error.problems):
            raise AssertionError(f"not one problem a line: {error.problems}") from error
        return False
    return True


@contextmanager
def cpu_limit() -> Iterator[None]:
    """Raise TimeoutError in the ``with`` block after LIMIT_CPU_S seconds of CPU time."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {LIMIT_CPU_S} s of CPU time")

    earlier = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, earlier)


def survey(seed: int, count: int, check: Callable[[str], bool] = check_plan) -> tuple[int, list[str]]:
    """Return the number of valid plans, and for each plan that ``check`` fails on, the traceback and the plan."""
    valid, failures = 0, []
    for number, text in enumerate(mutated_plans(seed, count)):
        try:
            with cpu_limit():
                valid += check(text)
        except Exception:  # noqa: BLE001 -- every exception is a finding
            failures.append(f"seed {seed}, plan {number}:\n{traceback.format_exc()[-3000:]}\n{text[:3000]}")
    return valid, failures


if __name__ == "__main__":
    valid_plans, found = survey(int(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.write("\n\n".join([*found, f"{valid_plans} valid, {len(found)} failures\n"]))
    sys.exit(bool(found))
