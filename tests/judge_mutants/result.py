"""The stored result of a campaign (``result.json``), and the block of ``docs/CHECKS.md`` that is written from it."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aftershock.tests.judge_mutants.campaign import Outcome
from aftershock.tests.judge_mutants.kinds import FAMILIES, kinds
from aftershock.tests.judge_mutants.score import Statuses

RESULT = Path(__file__).with_name("result.json")
_INTRODUCTION = """\
## Mutation score

`make judge-mutants` plants one random defect at a random place and time into a copy of a stored real run. That no cause
explains the defect is known by construction; the planters were written from VERDICT.md, without the rules. A defect is
caught if a check of the right family, client and operation gets a worse status: FAIL, or INCONCLUSIVE where the
evidence leaves the cause open. A harmless edit is blamed if any check fails for it. A defect is not counted if the
checks that must notice it do not pass in the unedited run either. `tests/judge_mutants/kinds.py` has the definitions;
`python -m aftershock.tests.judge_mutants replay SEED` plants and judges one edit again.
"""
_FIELDS = ("caught", "missed", "undecidable", "clean", "blamed", "others")


def added(
    stored: Mapping[str, Any] | None, digest: str, unedited: Mapping[str, Statuses], outcomes: Iterable[Outcome]
) -> dict[str, Any]:
    """Return a result with more outcomes; counts of another judge, planter or corpus are dropped."""
    result: dict[str, Any] = {"code": digest, "next_seed": 0, "kinds": {}, "exceptions": []}
    if stored is not None and stored["code"] == digest:
        result = json.loads(json.dumps(stored))
    result["unedited"] = {
        name: sorted(f"{key.id} {key.arm} {key.side}".strip() for key, status in checks.items() if status == "FAIL")
        for name, checks in unedited.items()
    }
    for outcome in outcomes:
        row = result["kinds"].setdefault(outcome.kind, dict.fromkeys(_FIELDS, 0))
        row[outcome.score.result] += 1
        row["others"] += bool(outcome.score.others)
        result["next_seed"] = max(result["next_seed"], outcome.seed + 1)
        if outcome.score.result in ("missed", "blamed") or outcome.score.others:
            result["exceptions"].append(
                {
                    "seed": outcome.seed, "kind": outcome.kind, "run": outcome.run, "place": outcome.place,
                    "wanted": outcome.wanted, "result": outcome.score.result, "others": outcome.score.others,
                    "changed": outcome.score.changed[:6],
                }
            )  # fmt: skip
    return result


def block(result: Mapping[str, Any]) -> str:
    """Return the section of docs/CHECKS.md about the mutation score, in Markdown."""
    known, rows = kinds(), result["kinds"]
    total: Counter[str] = Counter()
    for row in rows.values():
        total.update(row)
    planted, decided = sum(total[each] for each in _FIELDS[:3]), total["caught"] + total["missed"]
    harmless = total["clean"] + total["blamed"]
    lines = [
        _INTRODUCTION,
        f"Of {decided:,} defects {total['caught']:,} were caught ({_share(total['caught'], decided)}).",
        f"{planted - decided:,} more were not counted. Of {harmless:,} harmless edits {total['blamed']:,} were blamed.",
        f"{total['others']:,} defects were blamed on a client that they do not concern.",
        "",
        "| family | planted | caught | missed | other client blamed | not counted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for family in FAMILIES[:-1]:
        for name, kind in known.items():
            if kind.family == family and name in rows:
                row = rows[name]
                cells = [f"{row['caught']} of {row['caught'] + row['missed']}"]
                cells += [str(row[field] or "") for field in ("missed", "others", "undecidable")]
                lines.append(" | ".join([f"| {family}", kind.what, *cells]) + " |")
    lines += ["", "| harmless edit | blamed |", "| --- | --- |"]
    for name, kind in known.items():
        if kind.harmless and name in rows:
            row = rows[name]
            lines.append(f"| {kind.what} | {row['blamed']} of {row['clean'] + row['blamed']} |")
    return "\n".join(lines) + "\n"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"
