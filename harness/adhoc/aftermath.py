"""What became of a fault that was injected by hand, told from the lines of its journal. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from aftershock.errors import FaultError
from aftershock.harness.adhoc.live_faults import where
from aftershock.harness.journal import Line

WITNESSED, NOT_WITNESSED, INTERRUPTED = 0, 2, 130  # exit codes of design 5.1


@dataclass(frozen=True)
class Outcome:
    """One line of text, and the exit code that goes with it."""

    text: str
    exit_code: int


def outcome(fault: str, lines: Sequence[Line], *, stopped: bool, meanwhile: str = "") -> Outcome:
    """The result of one fault that is over.

    Args:
        fault: its id.
        lines: its lines of the journal.
        stopped: somebody ended it before its time.
        meanwhile: what else is in force, as a clause: it may be why nothing could be hit.

    Raises:
        FaultError: it could not be injected, or not be held; the text says why.
    """
    failed = next((line for line in lines if line["state"] == "failed"), None)
    if failed:
        raise FaultError("; ".join(filter(None, (f"{fault} failed: {failed['why']}", meanwhile))))
    if not lines:
        return Outcome(f"{fault}: stopped before anything was touched", INTERRUPTED)
    said, code = _seen(lines)
    head = f"{fault}: on {where(lines[0]['targets'])} for {_lasted_s(lines):.1f} s"
    if stopped:
        return Outcome(f"{head}: stopped, {said}, healed", INTERRUPTED)
    return Outcome(f"{head}: {said}, {_ending(lines)}", code)


def stage(lines: Sequence[Line]) -> str:
    """Where the fault is on its way: ``aiming``, then the last state in the journal."""
    return f"{lines[-1]['fault']} {lines[-1]['state']}" if lines else "aiming"


def left_s(lines: Sequence[Line], lasting_ms: int | None, now_us: int) -> float | None:
    """How long it will still be in force, in s; None where it isn't, or has no end of its own."""
    times: dict[str, int] = {line["state"]: line["t_us"] for line in lines}
    if lasting_ms is None or "injected" not in times or "healing" in times:
        return None
    return max(0.0, lasting_ms / 1000 - (now_us - times["intended"]) / 1e6)


def _seen(lines: Sequence[Line]) -> tuple[str, int]:
    witnesses = [line["witness"] for line in lines if "witness" in line]
    silent = next((witness for witness in witnesses if not witness["ok"]), None)
    if silent:
        figures = f"{silent['observed']:g} of {silent['asked']:g} {silent['unit']}"
        return f"NOT witnessed ({silent['what']}: {figures})", NOT_WITNESSED
    return ("witnessed", WITNESSED) if witnesses else ("not witnessed yet", NOT_WITNESSED)


def _lasted_s(lines: Sequence[Line]) -> float:
    """From the first line to the heal, or to the end of an action that has none."""
    end_us = next((line["t_us"] for line in lines if line["state"] == "healing"), lines[-1]["t_us"])
    return float(end_us - lines[0]["t_us"]) / 1e6


def _ending(lines: Sequence[Line]) -> str:
    return "healed" if any(line["state"] == "healing" for line in lines) else "done"
