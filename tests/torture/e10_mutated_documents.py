"""Hypothesis: commands that only read documents refuse a damaged one by name, or work; they never crash.

Method: a seed damages one document of a judged run that a stranger packed: values of other types and sizes, removed and
exchanged ones. The manifest gets the digest of the damaged document, as from an author who forges it. `report`,
`explain`, `compare`, `trend --add` and `runs export` then read the run, each in this process.
"""

import base64
import hashlib
import html
import json
import random
import re
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from aftershock.errors import AftershockError
from aftershock.results.compare import history
from aftershock.results.compare import runs as comparison
from aftershock.results.compare import trend as trend_text
from aftershock.results.evidence.files import with_checksums
from aftershock.results.evidence.manifest import NAME, manifest_of
from aftershock.results.evidence.pack import unpack
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.explain import output
from aftershock.results.explain.record import record_history
from aftershock.results.report.page import SCRIPTS, write_report
from aftershock.results.report.several import markdown, write_comparison, write_index
from aftershock.results.report.trace import trace_of
from aftershock.tests.mutated_plans import damage
from aftershock.tests.torture.runner import ROOT, Experiment, Outcome

PACKS = ("demo", "attached", "coordinator-killed", "power-loss")
DOCUMENTS = (
    *("run.json", "timeline.json", "phases.json", "journal.jsonl", "events.jsonl", "leaders.jsonl"),
    *("verdict.json", "analysis.json", "analysis.json"),
)


@cache
def base(name: str, folder: Path) -> Path:
    """Return the run directory of a stored pack."""
    pack = folder / f"{name}.pack.zip"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "docs" / "evidence" / "packs" / pack.name, pack)
    return unpack(pack, folder)


def mutate(home: Path, name: str, source: random.Random) -> None:
    """Damage one document of a run directory, and write its digest into the manifest."""
    path = home / name
    content = path.read_text()
    damages = source.choice((1, 1, 3))
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in content.splitlines()]
        for _ in range(damages):
            damage(source.choice(lines), source)
        text = "".join(json.dumps(line) + "\n" for line in lines)
    else:
        document = json.loads(content)
        for _ in range(damages):
            damage(document, source)
        text = json.dumps(document)
    path.write_bytes(with_checksums(text.encode()))
    (home / NAME).write_text(json.dumps(manifest_of(home)))


def commands(home: Path, pristine: Path) -> Mapping[str, Callable[[], object]]:
    """Return what each command does with a run directory."""
    everything = comparison.Options((), 1.25, None)

    def trend() -> object:
        ledger = home / "ledger.jsonl"
        history.add(ledger, [read_judged_run(home)])
        read = history.read_ledger(ledger)
        return trend_text.text(trend_text.trends(read.lines, []), read.broken)

    return {
        "report": lambda: checked_page(write_report(home)),
        "report --format md": lambda: markdown(home),
        "report of two": lambda: (
            write_comparison([home, pristine], home, "two"),
            write_index([home, pristine], home, "two", None),
        ),
        "explain": lambda: (output.story_text(output.story(home)), json.dumps(output.story(home).to_json())),
        "explain --format md": lambda: output.story_markdown(output.story(home)),
        "explain --record": lambda: output.record_text(record_history(home, 0, 60)),
        "compare": lambda: comparison.text(comparison.arms_of(home, everything)),
        "compare of two": lambda: comparison.text(comparison.between(pristine, home, everything)),
        "trend": trend,
        "export": lambda: trace_of(home),
    }


def checked_page(path: Path) -> None:
    """Check that a report has its own two scripts, those that its policy allows, and data that a browser can read.

    Raises ValueError if a damaged document got into them.
    """
    page = path.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    json.loads(data, parse_constant=lambda constant: {}[constant])
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    ]
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    allowed = "".join(f" 'sha256-{digest}'" for digest in digests)
    if page.count("<script") != len(SCRIPTS) + 1 or not html.unescape(policy).endswith(f"script-src{allowed}"):
        raise ValueError(f"{path}: other scripts than its own")


def attempt(perform: Callable[[], object], what: str) -> tuple[str, list[str]]:
    """Return whether a command ``read`` or ``refused`` a damaged document, and what is wrong with its answer."""
    try:
        perform()
    except AftershockError as error:
        return "refused", [f"{what}: not one line: {error}"[:300]] if "\n" in str(error) else []
    except Exception as error:  # noqa: BLE001 -- every other exception is a finding
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/results/" in frame.filename or "/harness/" in frame.filename]
        return "crashed", [f"{what}: {Path(ours[-1].filename).name}:{ours[-1].lineno} raised {error!r:.200}"]
    return "read", []


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    pristine = base(PACKS[seed % len(PACKS)], scratch.parent / "e10_base")
    home = scratch / f"{seed}"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(pristine, home)
    name = source.choice([name for name in DOCUMENTS if (pristine / name).exists()])
    mutate(home, name, source)
    bad, counts = list[str](), Counter(refused=0, read=0)
    performed = commands(home, pristine)
    for command, perform in performed.items():
        answer, faulty = attempt(perform, f"{command}, {name}")
        counts[answer] += 1
        bad += faulty
    if not bad:
        shutil.rmtree(home)
    return Outcome(bad, len(performed), counts=dict(counts))


EXPERIMENT = Experiment(
    name="e10_mutated_documents",
    title="Damaged documents with right digests, read by ten commands in each trial",
    figure="other exceptions than a named error of one line",
    aim="0",
    trials=5_000,
    trial=trial,
    batch=100,
    wall_s=60.0,
    cpu_s=60.0,
    memory_bytes=8 << 30,
)
