"""Pages of the KIPs in the documentation, and their digest in docs/KIPS.md.

The page of a KIP has three generated blocks. The *answer* (the headline, its launches, and the promises of the text by
result) and the *recount* (the SQL that computes the headline's figure) come from the evidence in the repository, and so
does a fourth one, the *benchmark*, of a KIP whose own benchmark is repeated. The *results* (charts and tables) come
from the newest runs; a claim that has no run there keeps its published row, marked with the version of the
registration if that has changed since.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from aftershock.harness.campaigns.kip import Launch, TrialResult, over_launches
from aftershock.harness.campaigns.kip_trials import Trial
from aftershock.harness.campaigns.store import Record
from aftershock.results.studies import statement
from aftershock.results.studies.statement import DECIDING, Plot, Role, Statement
from aftershock.results.studies.trials.claim import tally
from aftershock.results.studies.trials.promises import Promise, read_own

_HEAD = "| | result | claim | measured | published | rule; units, power |\n| --- | --- | --- | --- | --- | --- |"
_ROW = re.compile(r'^\| <a id="([\w-]+)"></a>[\w-]+<br>([\w ,]+) \| (.*) \|$', re.MULTILINE)
_VERSION = re.compile(r"version (\d+) of the registration")
_ABOUT = re.compile(r"^\* Kafka .*, Aftershock \w+$", re.MULTILINE)
_ALL_CLAIMS = "## All claims"
_PAIRS = re.compile(r"\d+ of \d+ pairs")
_MARKED = re.compile(r" \(version \d+\)$")


class Row(NamedTuple):
    """Row of the table of claims; ``label`` is the role, with *headline* for the headline claim."""

    id: str
    label: str
    result: str
    claim: str
    measured: str
    published: str
    design: str

    @property
    def role(self) -> Role:
        return cast(Role, self.label.partition(",")[0])

    @property
    def word(self) -> str:
        return re.split("[: ]", self.result)[0]

    @property
    def line(self) -> str:
        return cells((f'<a id="{self.id}"></a>{self.id}<br>{self.label}', *self[2:]))


def published_rows(block: str) -> dict[str, Row]:
    """Return the rows of the tables in a page's block of results, by the claim's id."""
    rows = {}
    for found in _ROW.finditer(block):
        rows[found[1]] = Row(found[1], found[2], *(text.replace("\\|", "|") for text in found[3].split(" | ")))
    return rows


def rows_of(result: TrialResult, block: str, benchmark: TrialResult | None = None) -> list[Row]:
    """Return the rows of all claims; a claim that was not measured keeps its row of the published ``block``.

    The claims of a KIP's own benchmark have the rows of its evidence, which is stored apart.
    """
    apart = (
        {entry.id: _row(entry) for entry in benchmark.statements if entry.id in benchmark.measured} if benchmark else {}
    )
    published, version = published_rows(block), _VERSION.search(block)
    rows = []
    for entry in result.statements:
        old = published.get(entry.id)
        if entry.id in apart:
            rows.append(apart[entry.id])
        elif old is None or entry.id in result.measured:
            rows.append(_row(entry))
        else:
            outdated = version and int(version[1]) < result.since.get(entry.id, result.version)
            marked = f"{old.result} (version {version[1]})" if version and outdated else old.result
            marked = old.result if _MARKED.search(old.result) else marked
            rows.append(old._replace(label=entry.label, result=marked))
    return rows


def _row(claim: Statement) -> Row:
    word = statement.word(claim)
    unexplained = word == "undecided" or not claim.ours.n
    result = f"{word}: {claim.why}".removeprefix("-: ") if unexplained else word
    figure = statement.figure(claim.ours)
    return Row(claim.id, claim.label, result, _with_clients(claim, "<br>"), figure, claim.published, claim.design)


_FOLDED: Mapping[str, tuple[Role, ...]] = {
    "Mechanisms: claims about how the KIP works, with its causes made larger or taken apart": ("mechanism",),
    "Controls and assays: what makes the measurement credible": ("control", "assay"),
    "Figures without a rule": ("figure",),
}


def section(result: TrialResult, rows: Sequence[Row], charts: Sequence[Plot] | None, block: str = "") -> str:
    """Return Markdown with the claims that were not confirmed, the charts, and the tables of all claims.

    Charts are in the folder of the page; without ``charts`` those of the published ``block`` stay. The tables of
    mechanisms, controls and figures are folded. Where rows were kept of the ``block``, so are its lines about hosts.
    """
    deciding = [row for row in rows if row.role in DECIDING and row.word != "confirmed"]
    lines = [f"In the trial: {tally(rows)}.\n"]
    lines += [f"* {row.word}: {row.claim.partition('<br>')[0]}: {row.measured}" for row in deciding]
    lines += [""] if deciding else []
    if charts is None:
        _, found, after = block.partition("\n![")
        lines += [f"![{after.partition(_ALL_CLAIMS)[0]}".rstrip("\n") + "\n"] if found else []
    for number, plot in enumerate(charts or (), 1):
        lines.append(f"![{plot.title}](kip{result.kip}-{number}.svg)\n\n{plot.title}. {plot.reading}\n")
    lines += [f"{_ALL_CLAIMS}\n", *_table(rows, "claim", "production")]
    for title, roles in _FOLDED.items():
        if table := _table(rows, *roles):
            lines += [f'<details markdown="1"><summary>{title}</summary>\n', *table, "</details>\n"]
    lines.append(f"Measured with version {result.version} of the registration, where the result names no other, on:\n")
    kept = _ABOUT.findall(block) if {row.id for row in rows} - {*result.measured} else []
    return "\n".join([*lines, *dict.fromkeys([*(f"* {content}" for content in result.about), *kept])])


def benchmark(trial: Trial, stored: TrialResult | None, rows: Sequence[Row], sql: str) -> str:
    """Return Markdown with the claims of a KIP's own benchmark, as far as it has run, and the time that is missing.

    ``sql`` computes the figures of each launch from the stored evidence.
    """
    missing = [
        part
        for part in trial.parts
        if part.name in benchmark_parts(trial) and not (stored and part.name in stored.parts)
    ]
    needs = f"needs about {sum(part.takes_s for part in missing) / 60:.0f} min of `aftershock kip {trial.kip}`"
    if stored is None:
        return f"Not yet run: {needs}."
    of_benchmark = {claim.id for claim in trial.claims if claim.partial}
    own = [row for row in rows if row.id in of_benchmark]
    lines = []
    for row in own:
        if row.design:
            so_far = "".join(f": {pairs}" for pairs in _PAIRS.findall(row.result)[:1])
            claim = row.claim.partition("<br>")[0]
            lines.append(f"**{row.word.capitalize()}{so_far}**: {claim}: {row.measured}. Published: {row.published}.\n")
    lines += [_HEAD, *(row.line for row in own), ""]
    if missing:
        lines.append(f"{len(missing)} of {len(benchmark_parts(trial))} launches are missing: {needs}.\n")
    lines.append(f"DuckDB computes the figures of each launch from the evidence:\n\n```sql\n{sql.strip()}\n```\n")
    lines += [f"* {name}: {part.run.run_id}" for name, part in stored.parts.items()]
    return "\n".join([*lines, *(f"* {content}" for content in stored.about)])


def benchmark_parts(trial: Trial) -> set[str]:
    return {name for claim in trial.claims if claim.partial for name in claim.needs}


def _table(rows: Sequence[Row], *roles: Role) -> list[str]:
    headline_first = sorted(rows, key=lambda row: "headline" not in row.label)
    lines = [row.line for row in headline_first if row.role in roles]
    return [_HEAD, *lines, ""] if lines else []


def answer(trial: Trial, stored: TrialResult, launches: Sequence[Launch], promises: str) -> str:
    """Return Markdown with the headline of the ``stored`` evidence, its launches, and the sentence ``promises``."""
    headline = stored.headline
    published = f" Published: {headline.published}." if headline.published != "-" else ""
    lines = [f"**{headline.word.capitalize()}**: {headline.claim}: {statement.figure(headline.ours)}.{published}"]
    lines.append(f"Statistic: {headline.statistic}.")
    lines += [
        f"{entry.word.capitalize()}: {entry.claim}: {statement.figure(entry.ours)}." for entry in _production(stored)
    ]
    if len(launches) > 1:
        figures = "; ".join(f"{launch.day}: {statement.figure(launch.ours)}" for launch in launches)
        over = statement.figure(over_launches(trial, launches))
        days = len({launch.day for launch in launches})
        lines.append(f"{len(launches)} launches, on {days} {'day' if days == 1 else 'days'} ({figures}): {over}.")
    return "\n\n".join([*([promises] if promises else []), *lines])


def _production(result: TrialResult) -> list[Statement]:
    return [claim for claim in result.statements if claim.role == "production"]


def digest(stored: Iterable[tuple[TrialResult, Sequence[Row]]]) -> str:
    """Return a Markdown table of each trial's headline claim, under both profiles, and of its claims by word."""
    head = "| KIP | headline claim | published | measured | brokers with default settings | all claims |"
    lines = [head, "|" + " --- |" * 6]
    for result, rows in stored:
        headline = result.headline
        published = f"{headline.published}; statistic: {headline.statistic}"
        figures = [f"{claim.word}: {statement.figure(claim.ours)}" for claim in (headline, *_production(result))]
        title = f"{result.kip}, {result.title}"
        lines.append(cells((title, _with_clients(headline), published, *[*figures, "-"][:2], tally(rows))))
    return "\n".join(lines)


def recount(sql: str, record: Record, evidence: str) -> str:
    """Return Markdown with the SQL that computes the headline's figure; ``<part>`` in it is the directory of a run."""
    for name, run in record.runs.items():
        sql = sql.replace(f"<{name}>", f"{evidence}/{run.run}")
    before = "DuckDB computes the headline's figure from the evidence in the repository (`duckdb < FILE`, in its root):"
    return f"{before}\n\n```sql\n{sql.strip()}\n```"


_UNSHIPPED = "Promised, not shipped"
WORDS = ("contradicted", "undecided", "excluded", "confirmed")


FIGURE, OPEN, UNSHIPPED, UNTESTABLE = "measured without a rule", "no trial yet", "not shipped", "not testable here"


def outcome(promise: Promise, rows: Mapping[str, Row]) -> str:
    """Return the result of a promise: the word of its least favourable claim, or why it has none.

    A figure may stand for what is not shipped, and says so.
    """
    words = {rows[claim].word for claim in promise.claims if claim in rows and rows[claim].role != "figure"}
    if promise.test:
        words.add("confirmed" if promise.finding == "holds" else promise.finding.partition(":")[0])
    for word in WORDS:
        if word in words:
            return word
    if any(rows[claim].claim.startswith(_UNSHIPPED) for claim in promise.claims if claim in rows):
        return UNSHIPPED
    if promise.claims:
        return FIGURE
    if promise.open:
        return OPEN
    return UNSHIPPED if promise.untestable.startswith(UNSHIPPED) else UNTESTABLE


def promises_in_words(kip: int, promises: Sequence[Promise], rows: Mapping[str, Row]) -> str:
    """Return the promises of a KIP by result, as a sentence; nothing for a KIP whose text was not read."""
    outcomes = [outcome(promise, rows) for promise in promises]
    names = (*reversed(WORDS), FIGURE, OPEN, UNSHIPPED, UNTESTABLE)
    texts = [f"{outcomes.count(name)} {name}" for name in names if name in outcomes]
    in_part = sum(bool(promise.open and (promise.claims or promise.test)) for promise in promises)
    partly = f"; {in_part} are tested in part" if in_part else ""
    return (
        f"**[{len(promises)} promises of the text](promises.md#kip-{kip})**: {', '.join(texts)}{partly}."
        if promises
        else ""
    )


def promises_page(
    kips: Mapping[int, str], promises: Mapping[int, Sequence[Promise]], rows: Mapping[int, Mapping[str, Row]]
) -> str:
    """Return Markdown with a table of the promises of each KIP (by number, with its title)."""
    lines = []
    for kip, title in kips.items():
        lines += [f"## KIP-{kip}\n", f"{title.capitalize()}. {promises_in_words(kip, promises[kip], rows[kip])}\n"]
        lines += ["| result | promise | tested by |", "| --- | --- | --- |"]
        lines += [_promise_line(kip, promise, rows[kip]) for promise in promises[kip]]
        own = "; ".join(f"{_link(kip, claim)} ({why})" for claim, why in read_own()[kip].items())
        lines += ["", f"Claims of the trial that no sentence promises: {own}.\n"]
    return "\n".join(lines).rstrip()


def _promise_line(kip: int, promise: Promise, rows: Mapping[str, Row]) -> str:
    """Return the row of a promise; each claim stands with its word, a figure with its value."""
    tests = [f"{_link(kip, claim)} {_result(claim, rows)}" for claim in promise.claims]
    if promise.test:
        tests.append(f"`{promise.test.partition('::')[2]}`: {promise.finding}")
    if promise.open:
        tests.append(f"no trial yet: {promise.open}")
    tested = "<br>".join(tests) or f"not testable here, because: {promise.untestable}"
    in_part = ", in part" if promise.open and (promise.claims or promise.test) else ""
    return cells((f"{outcome(promise, rows)}{in_part}", f"{promise.promise}<br>*{promise.section}*", tested))


def _link(kip: int, claim: str) -> str:
    return f"[{claim}](kip{kip}.md#{claim})"


def _result(claim: str, rows: Mapping[str, Row]) -> str:
    if claim not in rows:
        return "not run yet"
    row = rows[claim]
    if row.role == "figure":
        return row.result if row.measured.startswith("no figure") else row.measured
    return row.word


def _with_clients(claim: Statement, separator: str = " ") -> str:
    return f"{claim.claim}{separator}({claim.clients})" if claim.clients else claim.claim


def cells(texts: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
