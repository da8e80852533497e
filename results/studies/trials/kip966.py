"""Claims of KIP-966 (eligible leader replicas): acknowledged records survive if the last in-sync replica is damaged.

Two of three replicas shut down cleanly, so one is left in sync. It loses power, and with it what it had not flushed.
Without the KIP only a replica that was in sync may lead, so the damaged one leads again, and the others truncate their
logs to its log. With the KIP the controller remembers that the others have all acknowledged records (they left the ISR
while it was smaller than ``min.insync.replicas``), notices the unclean shutdown, and elects one of them.

**Control.** The last replica is killed instead, without eligible leader replicas: its disk keeps everything, so nothing
is lost, and the trial does not count as lost what is only late.

**Assay.** Without eligible leader replicas the same cuts must lose records, else they are no test.
"""

import numpy as np

from aftershock.results.report.svg import LINES, drawing, plain, rendered
from aftershock.results.studies.durability import Loss, losses
from aftershock.results.studies.part import Part, mean
from aftershock.results.studies.statement import Estimate, Measured, Plot
from aftershock.results.studies.trials.claim import Parts, on_part, on_parts, register

ELR, NO_ELR, KILLED, PRODUCTION = "elr", "no-elr", "killed", "production"
_LABELS = {ELR: "power lost, with ELR", NO_ELR: "power lost, without ELR", KILLED: "killed, without ELR"}


def of_cuts(part: Part) -> list[Loss]:
    """Return the losses of all cuts, except those before which no record was acknowledged that could be lost."""
    return [loss for loss in losses(part, "writes/producer", "orders", "last") if loss.acknowledged]


def _summary(found: list[Loss]) -> str:
    lost, acknowledged = sum(loss.lost for loss in found), sum(loss.acknowledged for loss in found)
    by_cut = ", ".join(str(loss.lost) for loss in found)
    return f"{lost:,} of {acknowledged:,} acknowledged records are gone; by cut: {by_cut or 'none'}"


def kept(part: Part) -> Measured:
    """Count the cuts after which an acknowledged record is gone."""
    found = of_cuts(part)
    hits = sum(loss.lost > 0 for loss in found)
    figure = Estimate(float(hits), None, None, len(found), "cuts with a loss")
    return Measured(figure, _summary(found), hits)


def lost(part: Part) -> Measured:
    """Measure the share of acknowledged records that is gone after each cut."""
    found = of_cuts(part)
    shares = [100 * loss.lost / loss.acknowledged for loss in found]
    return Measured(mean(shares, "%"), _summary(found))


def silent(parts: list[Part]) -> Measured:
    """Compare the times until a record is acknowledged again."""
    ours, theirs = ([loss.silent_s for loss in of_cuts(part) if loss.silent_s is not None] for part in parts)
    pairs = list(zip(ours, theirs, strict=False))
    why = f"means over the cuts: {np.mean(ours):.1f} s and {np.mean(theirs):.1f} s" if pairs else "no values"
    return Measured(mean([with_s - without_s for with_s, without_s in pairs], "s"), why)


REGISTRATION = register(
    "kip966",
    {
        "kept": on_part(ELR, kept),
        "kept-production": on_part(PRODUCTION, kept),
        "lost": on_part(NO_ELR, lost),
        "killed": on_part(KILLED, kept),
        "silent": on_parts((ELR, NO_ELR), silent),
    },
)


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return a chart of the share of acknowledged records that each cut destroyed."""
    shares = {
        name: [100 * loss.lost / loss.acknowledged for loss in of_cuts(parts[name])]
        for name in _LABELS
        if name in parts
    }
    if not shares:
        return ()
    title = "Acknowledged records that are gone after each cut"
    with drawing(7.5, 0.7 + 0.55 * len(shares)) as figure:
        axis = figure.subplots()
        for row, values in enumerate(shares.values()):
            axis.scatter(values, [row] * len(values), s=42, alpha=0.7, color=LINES[row][0])
        axis.set_yticks(range(len(shares)), [_LABELS[name] for name in shares])
        axis.set_xlim(-3, 103)
        axis.set_ylim(len(shares) - 0.5, -0.5)
        axis.set_xlabel("share of the records acknowledged since the last cut, %")
        plain(axis, "")
        words = [
            f"{_LABELS[name]}: {', '.join(f'{value:.0f}' for value in values)} %" for name, values in shares.items()
        ]
        svg = rendered(figure, "kip966-lost", title, "; ".join(words))
    return (Plot(title, svg, "Each point is one cut."),)
