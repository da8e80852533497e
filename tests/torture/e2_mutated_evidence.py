"""Hypothesis: damaged or forged evidence is refused by name, or judged as before; it never crashes the judge.

Method: a seed damages one file of each kind (documents, JSON lines, the manifest, Parquet tables) in copies of two
stored runs: torn and flipped bytes, values of other types, removed, repeated and exchanged rows and columns. Each copy
is judged twice. As it is, the judge must refuse it with a one-line error, or reach the same checks. With `--trust`,
which judges changed evidence, it must refuse it or reach a verdict, write the report and explain the run.
"""

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.errors import AftershockError, EvidenceError
from aftershock.faults.sections.document import dump_yaml, load
from aftershock.results.evidence.evidence import read
from aftershock.results.evidence.manifest import NAME, manifest_of
from aftershock.results.explain import output
from aftershock.results.judge import Judge, Judgement
from aftershock.results.model.check import Verdict
from aftershock.results.report.page import write_report
from aftershock.results.spark.tables import columns
from aftershock.tests.mutated_plans import damage, tear
from aftershock.tests.torture.runner import ROOT, Experiment, Outcome

BASES = ("demo", "commits")
KINDS = (
    *("plan.yaml", "timeline.json", "run.json", "journal.jsonl", "events.jsonl", "phases.json", "expectations.jsonl"),
    *("leaders.jsonl", "manifest.json", "outcomes", "log", "replicas", "offsets", "metrics", "transactions", "batches"),
)


def base_copy(base: str, home: Path) -> Path:
    """Copy a stored run with a run id of its own, and write its manifest with digests."""
    source = ROOT / "tests" / "data" / "evidence" / base
    shutil.copytree(source, home, ignore=shutil.ignore_patterns("expected"))
    run = json.loads((home / "run.json").read_text())
    (home / "run.json").write_text(json.dumps(run | {"run_id": home.name}))
    (home / "expectations.jsonl").write_text('{"text": "lost == 0", "at": "tests/test_x.py:1"}\n')
    leader = {"topic": "orders", "topic_id": "t1", "partition": 0, "epoch": 0, "leader": 1, "isr": [1, 2, 3]}
    times = {"unclean": False, "start_offset": 0, "after_us": None, "by_us": 5, "sources": ["controller", "polled"]}
    (home / "leaders.jsonl").write_text(f"{json.dumps(leader | times)}\n")
    (home / NAME).write_text(json.dumps(manifest_of(home)))
    return home


def mutate(home: Path, kind: str, source: random.Random) -> str:
    """Damage one file of the kind in a run directory; return what was done."""
    paths = sorted((home / kind).glob("*.parquet")) if "." not in kind else [home / kind]
    if not paths:  # a run without this table: a stranger may add one
        path = home / kind / "part-0.parquet"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(source.choice((b"", b"PAR1", b"\0" * 100)))
        return f"added {path.name}"
    path = source.choice(paths)
    content = path.read_bytes()
    choice = source.randrange(10)
    if choice == 0:
        path.unlink()
        return f"removed {path.name}"
    if choice == 1:
        path.write_bytes(content[: source.randrange(len(content))])
        return f"truncated {path.name}"
    if choice == 2:
        damaged = bytearray(content)
        for _ in range(source.choice((1, 1, 4, 64))):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        path.write_bytes(damaged)
        return f"bytes of {path.name}"
    if path.suffix == ".parquet":
        return _mutate_table(path, source)
    text = content.decode()
    if choice == 3:
        path.write_text(tear(text, source), encoding="utf-8", errors="surrogatepass")
        return f"tore {path.name}"
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in text.splitlines()]
        for _ in range(source.choice((1, 1, 3))):
            damage(source.choice(lines), source)
        lines = source.choice((lines, lines, lines[::-1], lines * 2))
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        document = load(text).data if path.suffix == ".yaml" else json.loads(text)
        for _ in range(source.choice((1, 1, 3))):
            damage(document, source)
        try:
            path.write_text(dump_yaml(document) if path.suffix == ".yaml" else json.dumps(document))
        except ValueError:  # a number with more digits than Python converts
            path.write_text("1" * 5000)
    return f"values of {path.name}"


def _mutate_table(path: Path, source: random.Random) -> str:
    """Damage rows, columns or types of a Parquet file."""
    table = pq.read_table(path)
    column = source.choice(table.column_names)
    index = table.column_names.index(column)
    kind = table.schema.field(column).type
    match source.randrange(6):
        case 0:
            table, what = table.drop_columns([column]), "dropped"
        case 1:
            table, what = (
                table.rename_columns([f"{name}_" if name == column else name for name in table.column_names]),
                "renamed",
            )
        case 2:
            other = pa.string() if not pa.types.is_string(kind) else pa.int64()
            table = table.set_column(index, column, pa.nulls(len(table), other))
            what = "retyped"
        case 3:
            count = source.choice((0, 1, len(table) // 2))
            rows = source.sample(range(len(table)), min(count, len(table)))
            table, what = table.take(pa.array(sorted(rows), pa.int64())), f"kept {len(rows)} rows of the table with"
        case 4:
            rows = [source.randrange(len(table)) for _ in range(len(table))] if len(table) else []
            table, what = table.take(pa.array(rows, pa.int64())), "repeated and left out rows of the table with"
        case _:
            values = table.column(column).to_pylist()
            extremes: Sequence[Any] = ("", "x" * 3000, "\x1b[2J<b>&", None)
            if pa.types.is_integer(kind):
                extremes = (0, -1, None, 2 ** (kind.bit_width - 1) - 1, -(2 ** (kind.bit_width - 1)))
            elif pa.types.is_floating(kind):
                extremes = (0.0, float("nan"), float("inf"), -1e300, None)
            elif pa.types.is_boolean(kind):
                extremes = (True, False, None)
            for _ in range(source.choice((1, 5, len(values)))):
                if values:
                    values[source.randrange(len(values))] = source.choice(extremes)
            table = table.set_column(index, column, pa.array(values, kind))
            what = "changed"
    pq.write_table(table, path)
    return f"{what} {column} of {path.name}"


class Judges(NamedTuple):
    """The judge of untouched evidence, the judge with --trust, and the checks of each base."""

    strict: Judge
    trusting: Judge
    checks: Mapping[str, str]


def checks_text(verdict: Verdict) -> str:
    """Return the verdict as text without the run's id and the list of trusted files."""
    return json.dumps({name: value for name, value in verdict.to_json().items() if name not in ("run_id", "trusted")})


@cache
def judges(folder: Path) -> Judges:
    """Return judges whose Spark sessions end with this process."""
    folder.mkdir(parents=True, exist_ok=True)
    trusting = Judge(folder / "spark.log", None, lambda _: None, trust=True)
    strict = Judge(folder / "spark.log", None, lambda _: None)
    strict._session = trusting._session  # type: ignore[method-assign]  # one JVM for both
    homes = {base: folder / f"base-{base}" for base in BASES}
    for base, home in homes.items():
        shutil.rmtree(home, ignore_errors=True)
        base_copy(base, home)
    verdicts = strict.many(homes.values())
    return Judges(strict, trusting, {base: checks_text(_verdict(verdicts[home])) for base, home in homes.items()})


def _verdict(judgement: Judgement) -> Verdict:
    if isinstance(judgement, EvidenceError):
        raise judgement
    return judgement


def examine(homes: Mapping[Path, str], base: str, judging: Judges) -> Outcome:
    """Judge mutated copies of a base; ``homes`` maps each run directory to what was done to it."""
    bad, counts = list[str](), {"refused": 0, "same verdict": 0, "refused with --trust": 0, "judged with --trust": 0}

    def failure(home: Path, why: str) -> None:
        bad.append(f"{home.name}: {homes[home]}: {why}")

    def judged(judge: Judge, run_dirs: Sequence[Path]) -> dict[Path, Judgement]:
        try:
            return judge.many(run_dirs)
        except Exception as error:  # noqa: BLE001 -- every other exception is a finding
            if len(run_dirs) > 1:
                return {home: judgement for one in run_dirs for home, judgement in judged(judge, [one]).items()}
            failure(run_dirs[0], f"the judge raised {error!r:.300}")
            return {}

    readable = []
    for home in homes:
        try:
            read(home, columns())
            readable.append(home)
        except EvidenceError as error:
            counts["refused"] += 1
            if "\n" in str(error) or not str(error).startswith(str(home)):
                failure(home, f"not one line that begins with the file: {error}")
        except Exception as error:  # noqa: BLE001 -- every other exception is a finding
            failure(home, f"reading the evidence raised {error!r:.300}")
    for home, judgement in judged(judging.strict, readable).items():
        if isinstance(judgement, EvidenceError):
            counts["refused"] += 1
        elif checks_text(judgement) == judging.checks[base]:
            counts["same verdict"] += 1
        else:
            failure(home, f"the verdict changed without an error; it is {judgement.status.value}")
    for home, judgement in judged(judging.trusting, [*homes]).items():
        if isinstance(judgement, EvidenceError):
            counts["refused with --trust"] += 1
            continue
        counts["judged with --trust"] += 1
        try:
            with suppress(AftershockError):
                write_report(home)
            with suppress(AftershockError):
                output.story_text(output.story(home))
        except Exception as error:  # noqa: BLE001 -- every other exception is a finding
            failure(home, f"report or explain raised {error!r:.300}")
    return Outcome(bad, len(homes), counts=counts)


def trial(seed: int, scratch: Path) -> Outcome:
    source, base = random.Random(seed), BASES[seed % len(BASES)]  # noqa: S311 -- repeatable on purpose
    homes = {}
    for kind in KINDS:
        home = scratch / f"{seed}-{kind.partition('.')[0]}"
        shutil.rmtree(home, ignore_errors=True)
        base_copy(base, home)
        homes[home] = mutate(home, kind, source)
    return examine(homes, base, judges(scratch.parent / "e2_base"))


EXPERIMENT = Experiment(
    name="e2_mutated_evidence",
    title="Mutated evidence files, 13 kinds in each trial",
    figure="other exceptions than a named error, and verdicts that changed without `--trust`",
    aim="0",
    trials=1_000,
    trial=trial,
    batch=25,
    wall_s=600.0,
    takes_s=30.0,
)
