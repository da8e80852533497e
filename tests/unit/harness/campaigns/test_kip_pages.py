"""Pages of the KIPs are what the evidence in the repository gives today, and DuckDB recounts their headlines."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from aftershock.harness.campaigns import kip, kip_pages, publish
from aftershock.harness.campaigns.kip_trials import KIP_890, KIP_966, TRIALS
from aftershock.harness.campaigns.publish import block_of
from aftershock.results.studies import statement
from aftershock.results.studies.trials.claim import state_claims
from aftershock.results.studies.trials.kip951_benchmark import STATISTICS, latencies_of, name_of, orders
from aftershock.results.studies.trials.promises import Promise
from aftershock.tests.unit.results.studies.trials.test_kip951_benchmark import units

ROOT = Path(__file__).parents[4]
SQL = re.compile(r"```sql\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages name the evidence as seen from the root of the repository."""
    monkeypatch.chdir(ROOT)


def stored(number: int) -> kip.TrialResult:
    return kip.read_result(TRIALS[number], ROOT / "docs" / "evidence" / f"kip{number}")


def recounted(sql: str) -> dict[str, float]:
    found = duckdb.connect().sql(sql)
    (row,) = found.fetchall()
    return dict(zip(found.columns, row, strict=True))


def test_the_pages_are_those_of_the_evidence(tmp_path: Path) -> None:
    """Without new runs, `make kips` changes nothing: neither pages, nor promises, nor the digest in docs/KIPS.md."""
    pages, digest = tmp_path / "kips", tmp_path / "KIPS.md"
    shutil.copytree("docs/kips", pages)
    shutil.copy("docs/KIPS.md", digest)
    publish.kips(str(tmp_path / "runs"), "docs/evidence", str(pages), str(digest))
    for path in (*pages.iterdir(), digest):
        published = Path("docs/KIPS.md") if path == digest else Path("docs/kips") / path.name
        assert path.read_bytes() == published.read_bytes(), f"{published}: run `make kips`"


@pytest.mark.parametrize("number", TRIALS)
def test_duckdb_recounts_the_headline(number: int) -> None:
    """The SQL on the page gives the published figure: value, interval and number of units."""
    page = Path(f"docs/kips/kip{number}.md").read_text(encoding="utf-8")
    (sql,) = SQL.findall(block_of(page, "recount", "kips")[1])
    ours, found = stored(number).headline.ours, recounted(sql)
    of_duckdb = replace(ours, value=found["value"], n=int(found["n"]), low=found.get("low", ours.low))
    of_duckdb = replace(of_duckdb, high=found.get("high", ours.high))
    assert statement.figure(ours) == statement.figure(of_duckdb)
    assert {"low", "high"} <= found.keys() or ours.interval is None or ours.constant


def test_the_recount_sees_a_loss() -> None:
    """Of the run in which acknowledged records were lost, the same SQL counts every cut."""
    record = kip.record_of(KIP_966, ROOT / "docs" / "evidence" / "kip966")
    sql = Path("docs/kips/kip966.sql").read_text(encoding="utf-8").replace("<elr>", "<no-elr>")
    (lossy,) = SQL.findall(kip_pages.recount(sql, record, "docs/evidence/kip966"))
    assert {"value": 6, "n": 6} == recounted(lossy)


def test_the_recount_sees_violated_transactions() -> None:
    """Of the client of the first protocol beside it, the same SQL counts what the trial's assay has measured."""
    record, ours = kip.record_of(KIP_890, ROOT / "docs" / "evidence" / "kip890"), stored(890)
    sql = Path("docs/kips/kip890.sql").read_text(encoding="utf-8").replace("late-reference-", "late-librdkafka-")
    (exposed,) = SQL.findall(kip_pages.recount(sql, record, "docs/evidence/kip890"))
    found = recounted(exposed)
    assay = next(entry for entry in ours.statements if entry.id == "exposed-librdkafka")
    assert (found["n"], assay.ours.value) == (assay.ours.n, pytest.approx(100 * found["value"] / found["n"]))


def test_a_claim_without_a_run_keeps_its_published_row() -> None:
    """It is marked once, with the version that it was measured with, if the claim has changed since."""
    result = stored(966)
    rows = {row.id: row for row in kip_pages.rows_of(result, "")}
    assert "confirmed" == rows["kept"].word
    other = rows["kept"]._replace(measured="1 of 6 | cuts", result="contradicted")
    block = f"{other.line}\n\nMeasured with version 1 of the registration"
    for version, results in ((1, "contradicted"), (2, "contradicted (version 1)"), (3, "contradicted (version 1)")):
        later = replace(result, version=version, measured=(), since={"kept": version})
        kept = kip_pages.rows_of(later, block)
        row = next(row for row in kept if row.id == "kept")
        assert (results, "contradicted", "1 of 6 | cuts") == (row.result, row.word, row.measured)
        block = f"{row.line}\n\nMeasured with version {version} of the registration"
    assert "claim, headline" == row.label
    block = f"{other.line}\n\nMeasured with version 1 of the registration"
    unchanged = {row.id: row for row in kip_pages.rows_of(replace(later, since={"kept": 1}), block)}
    assert "contradicted" == unchanged["kept"].result


def test_the_least_favourable_claim_is_the_outcome_of_a_promise() -> None:
    rows = {row.id: row for row in kip_pages.rows_of(stored(966), "")}
    rows["lost"] = rows["lost"]._replace(result="contradicted")
    both = Promise("text", "p", claims=("kept", "lost"), open="more")
    assert "contradicted" == kip_pages.outcome(both, rows)
    others = [
        Promise("text", "p", claims=("kept",)),
        Promise("text", "p", claims=("silent",)),
        Promise("text", "p", open="a count"),
        Promise("text", "p", untestable="not shipped: another id"),
        Promise("text", "p", untestable="never built"),
        Promise("text", "p", test="t::t", finding="contradicted: another error"),
    ]
    assert [
        "confirmed",
        "measured without a rule",
        "no trial yet",
        "not shipped",
        "not testable here",
        "contradicted",
    ] == [kip_pages.outcome(promise, rows) for promise in others]
    words = kip_pages.promises_in_words(966, [both, *others], rows)
    assert "[7 promises of the text](promises.md#kip-966)**: 1 confirmed, 2 contradicted, 1 measured without a" in words
    assert words.endswith("1 not testable here; 1 are tested in part.")
    assert "" == kip_pages.promises_in_words(966, [], rows)


def test_duckdb_recounts_the_benchmark() -> None:
    """The SQL on the page gives p99.9, maximum, mean and number of records of each stored launch."""
    sql = Path("docs/kips/kip951-benchmark.sql").read_text(encoding="utf-8")
    found = {run: figures for run, *figures in duckdb.connect().sql(sql).fetchall()}
    launches = kip.read_result(TRIALS[951], ROOT / "docs" / "evidence" / "kip951-benchmark").parts.values()
    assert {part.run.run_id for part in launches} == found.keys()
    for part in launches:
        counted = latencies_of(part)
        ours = [*(STATISTICS[name](counted) for name in ("p99.9", "max", "mean")), counted.n]
        assert ours == pytest.approx([float(figure) for figure in found[part.run.run_id]])


def test_a_benchmark_that_has_not_run_says_how_long_it_takes() -> None:
    """The claims of its launches are undecided, and do not keep the trial's other claims from being published."""
    trial = TRIALS[951]
    assert "Not yet run: needs about 180 min of `aftershock kip 951`." == kip_pages.benchmark(trial, None, [], "")
    rows = [row for row in kip_pages.rows_of(stored(951), "") if row.id.startswith("benchmark-")]
    assert not {"confirmed", "contradicted", "excluded"} & {row.word for row in rows}


def test_a_benchmark_that_has_run_in_part() -> None:
    """One of six pairs has a figure, is undecided, and the page says what is missing; six pairs have a word."""
    trial = TRIALS[951]
    launches = units(6, 200, 1_600, 1_200)
    for count, word, missing in (
        (1, "Undecided: 1 of 6 pairs", "15 of 18 launches are missing: needs about 150 min"),
        (6, "Confirmed", ""),
    ):
        names = {name_of(unit, arm) for unit, order in orders()[:count] for arm in order}
        parts = {name: part for name, part in launches.items() if name in names}
        result = stored(951)
        found = replace(
            result,
            statements=state_claims(trial.claims, parts, {}),
            parts=parts,
            measured={claim.id for claim in trial.claims if claim.partial},
        )
        text = kip_pages.benchmark(trial, found, kip_pages.rows_of(result, "", found), "SELECT 1;")
        assert f"**{word}**: The KIP's benchmark" in text
        assert f"0.125 times, n = {count}" in text or word == "Confirmed"
        assert missing in text
        assert ("launches are missing" in text) is bool(missing)
