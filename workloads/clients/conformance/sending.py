"""What producers and committers must do alike: report every order once, when Kafka has answered, and end when told."""

from collections import Counter
from collections.abc import Sequence

from aftershock.workloads.clients.conformance.bench import Complaint, Talk
from aftershock.workloads.clients.exec_protocol import Acked, Failed

GRACE_S = 10.0
"""How long after its deadline an order may be without a report, as in a run."""

END_S = 5.0
"""How long a client may outlive its worker."""


def reported(talk: Talk) -> list[Acked | Failed]:
    """All reports about orders so far, in the order in which they came."""
    return [report for report in talk.reports if isinstance(report, Acked | Failed)]


def settle(talk: Talk, seqs: Sequence[int], what: str, patience_s: float | None = None) -> dict[int, Acked | Failed]:
    """Listen until each of ``seqs`` is reported; a Complaint when one isn't, or is twice, or another is."""
    wanted = set(seqs)
    talk.until(lambda: wanted <= {report.seq for report in reported(talk)}, what, patience_s)
    told = Counter(report.seq for report in reported(talk))
    if twice := [seq for seq, times in told.items() if times > 1]:
        raise Complaint(f"it reported {twice[0]} twice: every order has one report")
    if others := told.keys() - wanted:
        raise Complaint(f"it reported {min(others)}, which it was not ordered: reports bear the order's own seq")
    return {report.seq: report for report in reported(talk)}


def all_acked(told: dict[int, Acked | Failed]) -> list[Acked]:
    """The same, every one acked; a Complaint with the first failure otherwise."""
    for report in told.values():
        if isinstance(report, Failed):
            raise Complaint(f"it failed {report.seq} with {report.error}, though nothing was wrong")
    return [report for report in told.values() if isinstance(report, Acked)]


def none_acked(talk: Talk, why: str, first: int = 0) -> None:
    """A Complaint if anything was acked of ``first`` and later."""
    if early := [report for report in talk.said(Acked) if report.seq >= first]:
        raise Complaint(f"it acked {early[0].seq} {why}: an ack is Kafka's, never the client's own")


def end_of_input_ends(talk: Talk) -> None:
    """A Complaint if the client outlives its worker: its standard input ends, and nobody told it to close."""
    talk.child.hang_up()
    if talk.child.end(END_S) == KILLED:
        raise Complaint(f"it lives on {END_S:g} s after its standard input has ended: end there, the worker is gone")


KILLED = -9
