"""Hypothesis: `audit`, `kip` and `durability` with `--from` refuse damaged evidence by name, or work; they never crash.

Method: a seed damages the record of a campaign (`campaign.json`), or one document of one of its runs, whose manifest
gets the digest of the damaged document. The command then reads the folder and writes its text and JSON.
"""

import json
import random
import shutil
from pathlib import Path

from aftershock.harness.campaigns import audit, card, durability, kip, store
from aftershock.harness.campaigns.kip_trials import TRIALS
from aftershock.tests.mutated_plans import damage
from aftershock.tests.torture.e10_mutated_documents import DOCUMENTS, attempt, mutate
from aftershock.tests.torture.runner import ROOT, Experiment, Outcome

FOLDERS = ("gallery/kafka-3.9", "durability", "kip966", "kip848")


def perform(folder: str, home: Path) -> None:
    if folder.startswith("gallery"):
        read = card.read_stored_card(audit.record_in(home), home)
        card.text(read)
        card.write(read, home)
    elif folder == "durability":
        result = durability.read_result(store.read(home, durability.NAME), home)
        durability.text(result)
        json.dumps(durability.document(result))
        durability.write_page(result, home)
    else:
        trial = TRIALS[int(folder.removeprefix("kip"))]
        judged = kip.read_result(trial, home)
        kip.text(judged)
        json.dumps(kip.document([judged]))
        kip.write(trial, judged, home)


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    folder = FOLDERS[seed % len(FOLDERS)]
    home = scratch / "evidence"
    shutil.copytree(ROOT / "docs" / "evidence" / folder, home)
    runs = sorted(path for path in home.iterdir() if path.is_dir())
    run = source.choice(runs)
    name = store.NAME
    if source.random() < 0.75:
        name = source.choice([name for name in DOCUMENTS if (run / name).exists() and (run / name).stat().st_size])
        mutate(run, name, source)
    else:
        document = json.loads((home / name).read_text())
        for _ in range(source.choice((1, 1, 3))):
            damage(document, source)
        (home / name).write_text(json.dumps(document))
    answer, bad = attempt(lambda: perform(folder, home), f"{folder}, {name}")
    if not bad:
        shutil.rmtree(home)
    return Outcome(bad, counts={answer: 1})


EXPERIMENT = Experiment(
    name="e12_mutated_campaigns",
    title="Damaged evidence of audits, trials and power cuts with right digests, read with `--from`",
    figure="other exceptions than a named error of one line",
    aim="0",
    trials=5_000,
    trial=trial,
    batch=50,
    wall_s=120.0,
    cpu_s=120.0,
    memory_bytes=8 << 30,
)
