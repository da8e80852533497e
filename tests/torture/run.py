"""Run the torture experiments: ``tests/torture/run.py --minutes 60 [--experiments 1,4] [--seed N]``.

Each experiment runs in a process of its own with an equal share of the time, and its figures are written to
``figures.json`` and docs/RELIABILITY.md. With ``--rotate``, the experiments that have waited longest come first, until
the time is over. The exit code is 1 if a trial failed, 3 for an error.

An experiment is named by its number or its name. Experiment 5 kills the Docker engine, so it runs only when named, or
with ``--rotate``.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from aftershock.results.evidence.files import write_whole
from aftershock.tests.torture.runner import FIGURES, PAGE, Experiment, figure_of, run_experiment, write_page

MODULES = {
    "1": "e1_mutated_plans",
    "2": "e2_mutated_evidence",
    "3": "e3_killed_runner",
    "4a": "e4a_torn_journal",
    "4b": "e4b_full_disk",
    "5": "e5_killed_engine",
    "6": "e6_stopped_workers",
    "7": "e7_replaced_records",
    "8": "e8_soak",
    "9": "e9_clean_runs",
    "10": "e10_mutated_documents",
    "11": "e11_mutated_packs",
    "12": "e12_mutated_campaigns",
    "13": "e13_interrupted_runner",
    "14": "e14_planted_secrets",
    "15": "e15_hostile_hosts",
    "16": "e16_transactions",
    "17": "e17_clean_transactions",
}
ONLY_WHEN_NAMED = ("5",)


def load(number: str) -> Experiment:
    experiment: Experiment = import_module(f"aftershock.tests.torture.{MODULES[number]}").EXPERIMENT
    return experiment


def update_page(figures_path: Path, page: Path, changes: Mapping[str, object]) -> None:
    figures = json.loads(figures_path.read_text(encoding="utf-8")) if figures_path.exists() else {}
    figures |= changes
    experiments = {number: load(number) for number in MODULES}  # an error here must leave figures and page as they are
    write_whole(figures_path, json.dumps(figures, indent=1, sort_keys=True) + "\n")
    write_page(experiments, figures, page)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/torture/run.py", description="Run the torture experiments.")
    parser.add_argument("--minutes", type=float, default=60.0, help="time for all experiments together")
    parser.add_argument("--seconds", type=float, help="the same in seconds, as the nightly gives it")
    parser.add_argument("--experiments", metavar="N,N", help="numbers or names of the experiments (default: all but 5)")
    parser.add_argument("--seed", type=int, help="run one trial, with this seed")
    parser.add_argument("--trials", type=int, help="new trials of each experiment (default: a whole measurement)")
    parser.add_argument("--rotate", action="store_true", help="begin with the experiment that has waited longest")
    parser.add_argument("--out", type=Path, default=Path("runs/torture"), metavar="DIR", help="folder of the outcomes")
    parser.add_argument("--no-page", action="store_true", help="leave figures.json and docs/RELIABILITY.md as they are")
    arguments = parser.parse_args()
    minutes = arguments.minutes if arguments.seconds is None else arguments.seconds / 60
    numbers = [number for number in MODULES if arguments.rotate or number not in ONLY_WHEN_NAMED]
    if arguments.experiments:
        numbers = []
        for word in arguments.experiments.split(","):
            named = [number for number, name in MODULES.items() if word in (number, number.rstrip("ab"), name)]
            if not named:
                parser.error(f"there is no experiment {word}; give some of {', '.join(MODULES)}")
            numbers += named

    if len(numbers) == 1:
        experiment = load(numbers[0])
        seeds = None if arguments.seed is None else [arguments.seed]
        options = {"seconds": minutes * 60, "trials": arguments.trials, "seeds": seeds}
        rows = run_experiment(experiment, arguments.out, _log, **options)
        failed = [seed for seed, row in rows.items() if row["bad"]]
        _log(f"{experiment.name}: {len(rows)} trials, {len(failed)} of them failed")
        if rows and not arguments.no_page:
            update_page(FIGURES, PAGE, {experiment.name: figure_of(rows.values())})
        return 1 if failed else 0

    if arguments.seed is not None:
        parser.error("--seed is the seed of one experiment; name one with --experiments")
    end_s, codes = time.monotonic() + minutes * 60, [0]
    if arguments.rotate:
        paths = {number: arguments.out / f"{MODULES[number]}.jsonl" for number in numbers}
        numbers.sort(key=lambda number: paths[number].stat().st_mtime if paths[number].exists() else 0.0)
    for position, number in enumerate(numbers):
        left_min = (end_s - time.monotonic()) / 60
        if left_min <= 0:
            _log(f"no time left for the experiments {', '.join(numbers[position:])}")
            break
        # in rotation, the first experiments get all the time they can use
        share_min = left_min if arguments.rotate else left_min / (len(numbers) - position)
        command = [sys.executable, "-m", "aftershock.tests.torture.run", "--experiments", number]
        command += ["--minutes", f"{share_min:.3f}", "--out", str(arguments.out)]
        command += ["--trials", str(arguments.trials)] if arguments.trials else []
        command += ["--no-page"] if arguments.no_page else []
        codes.append(subprocess.run(command, check=False).returncode)
    return max(code if code in (0, 1) else 3 for code in codes)


def _log(line: str) -> None:
    sys.stderr.write(f"torture: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
