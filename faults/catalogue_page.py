"""``docs/FAULTS.md``: the catalogue as a page, with what holds for every fault told first.

``make docs`` writes it; a test holds it to what this prints. Only our own kinds are on it.
"""

from collections.abc import Iterator

from aftershock.faults.catalogue import WORDS, Entry, entries
from aftershock.faults.compose import STEPS_MAX
from aftershock.faults.fault import FAMILIES
from aftershock.faults.kinds import OURS
from aftershock.faults.measured import tables
from aftershock.faults.ranges import RANGES_MAX

_TOP = """\
# Faults

<!-- written by `make docs` from the code: change faults/kinds/ or faults/catalogue_page.py, not this file -->

Every kind says how it is *witnessed*: seen to be in force through another channel than the one that injected it, while
it lasts. A witness that is missing or vanishes makes the run INCONCLUSIVE. Every kind says what its *heal* brings back;
each heal is verified, harmless when repeated, and can be done by another process. `aftershock plan faults` prints this
list, with the kinds of other packages; [EXTEND.md](EXTEND.md) tells how to write one.

## In a plan

```yaml
faults:
  - {id: slow-a, at: 0s, for: 7s, kind: latency, link: "client(a) <-> broker", delay: 50ms}
  - {at: 9s, for: 6s, kind: kill, broker: leader of orders/0}
```

`at` counts from the end of `steady`; `for` is how long the fault lasts; `id` is what SLOs call it, `<kind>-<n>` by
default. Faults may overlap, but for two that need the same thing for themselves (a kill and a pause of one node).

Targets are resolved when the fault strikes, and recorded. A fault that finds nothing to hit says so in the journal; the
rest of the plan goes on. Nodes of one rack talk directly: they have no link to break, and a plan that asks is refused.
A SIGKILL keeps the page cache: a killed broker loses nothing that it had written. `kill` tests no durability of disks.

"""
_COMPOSITION = """\
## Composition

```yaml
faults:
  - {at: 5s, together: [{for: 4s, kind: kill, broker: 1}, {at: 1s, for: 2s, kind: pause, broker: 2}]}
  - {at: 20s, then: [{for: 4s, kind: kill, broker: 1}, {wait: 2s}, {for: 4s, kind: pause, broker: 2}]}
  - {at: 40s, repeat: 3, every: 10s, fault: {id: nap, for: 2s, kind: pause, broker: 3}}
  - {at: 80s, every: 10s, until: 120s, fault: {for: 2s, kind: pause, broker: 3}}
  - at: 130s
    choose:
      - {weight: 3, fault: {for: 4s, kind: kill, broker: any broker except controller}}
      - {weight: 1, fault: {wait: 0s}}
```

* Elements nest. `at` counts from where the container puts its element: the start of `together` or of a round, its turn
  in `then`; left out, it is 0s.
* `then` goes on when the `for` of the one before is over, not when it is healed: `wait` leaves room. What has no `for`
  is over after its allowance.
* `repeat` needs no `every`: then a round begins when the last one is over. `until` counts from the same moment as the
  container's `at`, and no round begins then or later.
* `choose` draws one alternative by weight; `{wait: 0s}` is one in which nothing happens. Each round draws anew.
* A round adds its number to the fault's id: `nap-2`. Ids depend on no draw: every alternative counts.
* Any value but `kind` and `id` may be a range, `{range: [20ms, 200ms]}`, both ends included; RANGES_MAX at most in
  one fault. `at` and `wait` of what is composed may be one, too.
* The compiler draws everything from the seed. An entry added to the list moves no draw of another; within one entry, an
  `id` keeps a fault's draws. What only the draws make wrong (a fight, an SLO about a fault that was not drawn) is
  refused by `run` and `plan show` for that seed, with its place; all else by `plan check`.
* A plan has at most STEPS_MAX steps.

"""
_MEASURED = """\
## Measured

`make bench` takes these figures again. *In force* is the time from the journal's `intended` until the fault was said to
be in force; *witnessed* until another channel had seen it; *healed* how long the undo took, and its check.

"""


def page() -> str:
    """The whole page."""
    found = entries(OURS.values())
    families = [family for family in FAMILIES if any(entry.family == family for entry in found)]
    composition = _COMPOSITION.replace("RANGES_MAX", str(RANGES_MAX)).replace("STEPS_MAX", str(STEPS_MAX))
    parts = [_TOP, *_words(), "\n", composition]
    for family in families:
        own = [entry for entry in found if entry.family == family]
        parts += [f"## {family[0].upper()}{family[1:]}\n\n", *("".join(_section(entry)) for entry in own)]
    parts += [_MEASURED, *tables()]
    return "".join(parts).rstrip() + "\n"


def _words() -> Iterator[str]:
    yield "In the lists below:\n\n"
    yield from (f"* {word}: {meaning}\n" for word, meaning in WORDS.items())


def _section(entry: Entry) -> Iterator[str]:
    yield f"### `{entry.kind}`\n\n{entry.summary}\n\n"
    yield from (f"* `{name}`: {text}\n" for name, text in entry.parameters)
    yield from (f"* *{name}*: {text}\n" for name, text in entry.rows)
    yield "\n"
