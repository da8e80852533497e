"""Plant random defects in stored runs and count those that the judge catches.

::

    python -m aftershock.tests.judge_mutants run [--plants N] [--minutes M] [--jobs J] [--kind NAME …] [--no-store]
    python -m aftershock.tests.judge_mutants replay SEED [--kind NAME] [--out DIR]
    python -m aftershock.tests.judge_mutants kinds

``run`` begins at the first seed that was not judged yet by the same judge, and writes ``result.json``. The exit code is
1 if less than 99.5 % of the defects are caught, or if a harmless edit is blamed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from aftershock.results.evidence.files import write_whole
from aftershock.results.judge import Judge
from aftershock.tests.judge_mutants.campaign import (
    CORPUS,
    campaign,
    code_digest,
    corpus,
    judge_batch,
    mutant,
    outcome,
)
from aftershock.tests.judge_mutants.kinds import kinds
from aftershock.tests.judge_mutants.result import RESULT, added, block

RECALL_MIN = 0.995


def run(args: argparse.Namespace) -> int:
    stored = json.loads(RESULT.read_text()) if RESULT.exists() and not args.anew else None
    digest = code_digest()
    first = stored["next_seed"] if stored is not None and stored["code"] == digest else 0
    first = args.first if args.first is not None else first
    started, judged = time.monotonic(), 0
    seeds = range(first, first + args.plants)
    total: Counter[str] = Counter()
    result = stored
    for unedited, outcomes in campaign(seeds, args.jobs, args.seconds or args.minutes * 60, args.kind, args.corpus):
        result = added(result, digest, unedited, outcomes)
        if not args.no_store:
            write_whole(RESULT, json.dumps(result, indent=1) + "\n")
        total.update(each.score.result for each in outcomes)
        judged += len(outcomes)
        took_s = time.monotonic() - started
        print(f"{judged} edits in {took_s:.0f} s, {judged / took_s * 60:.0f} a minute", flush=True)
    sys.stdout.write(block(result))
    for row in result["exceptions"]:
        sys.stdout.write(f"{json.dumps(row)}\n")
    decided = total["caught"] + total["missed"]
    return int(bool(total["blamed"]) or total["caught"] < RECALL_MIN * decided)


def replay(args: argparse.Namespace) -> int:
    """Plant the edit of a seed again, judge it beside the unedited run, and keep both run directories."""
    out = args.out or Path(tempfile.mkdtemp(prefix="judge-mutant-"))
    runs = corpus(out / "packs", args.corpus)
    each = mutant(args.seed, runs, args.kind)
    if each is None:
        sys.stdout.write("no run of the corpus has a place for this kind\n")
        return 3
    with Judge(out / "spark.log", None, lambda _: None) as judge:
        (judgement,), before = judge_batch(judge, [each], {each.run: runs[each.run]}, out)
    found = outcome(each, before[each.run], judgement)
    sys.stdout.write(
        f"seed {found.seed}: {found.kind} ({each.kind.family}) in {found.run}\n"
        f"place: {found.place}\nwanted: {found.wanted}\nresult: {found.score.result}\n"
    )
    for line in (*found.score.changed, *(f"another client: {other}" for other in found.score.others)):
        sys.stdout.write(f"  {line}\n")
    sys.stdout.write(f"evidence: {out / str(args.seed)} and {out / each.run}\n")
    return 0


def show(args: argparse.Namespace) -> int:
    """List the kinds, with the runs of the corpus that have a place for each."""
    with tempfile.TemporaryDirectory() as folder:
        runs = corpus(Path(folder), args.corpus)
        for name, kind in kinds().items():
            if not args.kind or name in args.kind:
                fits = [run for run in runs if mutant(1, {run: runs[run]}, [name])]
                sys.stdout.write(f"{kind.family:12} {name:45} {len(fits):2} {', '.join(fits)}\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="judge_mutants", description="Plant defects in stored runs, and judge them.")
    commands = parser.add_subparsers(required=True)
    counted = commands.add_parser("run", help="plant and judge many edits")
    counted.add_argument("--plants", type=int, default=6000, help="edits: five of six are defects")
    counted.add_argument("--minutes", type=float, default=24 * 60, help="begin no batch after this time")
    counted.add_argument("--seconds", type=float, help="the same in seconds, as the nightly gives it")
    counted.add_argument("--jobs", type=int, default=2, help="processes, each with a Spark session")
    counted.add_argument("--first", type=int, help="the first seed, instead of the first that was not judged yet")
    counted.add_argument("--anew", action="store_true", help="begin a new count")
    counted.add_argument("--no-store", action="store_true", help="leave result.json as it is")
    counted.set_defaults(act=run)
    again = commands.add_parser("replay", help="plant and judge the edit of one seed again")
    again.add_argument("seed", type=int)
    again.add_argument("--out", type=Path, help="folder of the run directories, which must not exist")
    again.set_defaults(act=replay)
    listed = commands.add_parser("kinds", help="list the kinds and the runs that have a place for each")
    listed.set_defaults(act=show)
    for command in (counted, again, listed):
        command.add_argument("--corpus", type=Path, default=CORPUS, metavar="FILE", help="another list of runs")
        command.add_argument("--kind", nargs="*", default=[], help="only these kinds")
    args = parser.parse_args()
    return int(args.act(args))


if __name__ == "__main__":
    sys.exit(main())
