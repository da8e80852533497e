"""Which KIPs have a trial. To add one: a file beside this one with its ``TRIAL``, and its line here."""

from collections.abc import Mapping

from aftershock.errors import AftershockError
from aftershock.harness.trials.kip227 import TRIAL as KIP227
from aftershock.harness.trials.kip392 import TRIAL as KIP392
from aftershock.harness.trials.kip794 import TRIAL as KIP794
from aftershock.harness.trials.kip951 import TRIAL as KIP951
from aftershock.harness.trials.kip1224 import TRIAL as KIP1224
from aftershock.harness.trials.trial import Trial

TRIALS: Mapping[int, Trial] = {each.kip: each for each in (KIP951, KIP227, KIP794, KIP392, KIP1224)}
ALL = "all"


def chosen(which: str) -> tuple[Trial, ...]:
    """The trial of one KIP, or every one. AftershockError where there is none."""
    if which == ALL:
        return tuple(TRIALS.values())
    number = which.lower().removeprefix("kip").strip("-")
    if not number.isdecimal() or int(number) not in TRIALS:
        known = ", ".join(map(str, TRIALS))
        raise AftershockError(f"there is no trial of `{which}`: name one of {known}, or {ALL}")
    return (TRIALS[int(number)],)
