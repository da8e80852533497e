"""KIP-794 on trial: the strictly uniform sticky partitioner, its adaptive draws, and KIP-1123's draws in the rack.

Published (KIP-794, its performance numbers): one broker of three is slow and 1 MB/s is offered: 0.84 MB/s and a p99 of
10 992 ms with the old sticky partitioner, against 214, 154 and 150 ms with uniform, adaptive and availability. Of 65 MB
46.8 went to the slow broker, against 22.2, 19.2 and 17.4 of 66. With 2 MB/s uniform saturates (1.85 MB/s, p99 2408 ms)
and adaptive does not (167 ms; 14.9 MB of 65.7 to the slow broker).
"""

from functools import partial

from aftershock.results.trials import kip794_control as control
from aftershock.results.trials import kip794_series as series
from aftershock.results.trials.claim import Claim
from aftershock.results.trials.kip794_series import SERIES1, SERIES2
from aftershock.results.trials.proven import Judge, proven
from aftershock.results.trials.statement import Role

ARMS = control.ARMS
_P99_MS = {
    SERIES1: {"sticky": "10 992 ms", "uniform": "214 ms", "adaptive": "154 ms", "availability": "150 ms"},
    SERIES2: {"uniform": "2408 ms", "adaptive": "167 ms"},
}


def _slow(name: str, claim: str, published: str, bound: str, judge: Judge, fault: str, role: Role = "claim") -> Claim:
    return Claim(name, claim, published, bound, role, (series.PART,), proven(judge, series.PART, fault))


def _control(name: str, claim: str, bound: str, judge: Judge, role: Role = "control") -> Claim:
    return _slow(name, claim, "-", bound, judge, control.EQUAL, role)


def _rack(name: str, claim: str, bound: str, judge: Judge, *faults: str, role: Role = "claim") -> Claim:
    return Claim(name, claim, "-", bound, role, (control.RACK,), proven(judge, control.RACK, *faults))


CLAIMS = (
    _slow(
        "sticky-runs-away", "sticky: most bytes go to the slow broker", "72 %", "above 50 %", series.runaway, SERIES1
    ),
    _slow("sticky-rises", "sticky: its queue there only grows", "-", "slope above 0", series.rising, SERIES1),
    _slow("sticky-after-heal", "sticky: still skewed after the heal", "-", "above 50 %", series.after_heal, SERIES1),
    _slow("uniform-bytes", "uniform: a third of the bytes to each", "33.6 %", "± 1.5 points", series.even, SERIES1),
    _slow("uniform-draws", "uniform: each broker is drawn alike", "-", "p ≥ 0.01", series.even_draws, SERIES1),
    _slow(
        "adaptive-less",
        "adaptive: the slow broker gets less than with uniform",
        "-4.5 points",
        "below 0",
        partial(series.less_than, ours="adaptive", theirs="uniform", fault=SERIES1),
        SERIES1,
    ),
    *(
        _slow(
            f"adaptive-order-{fault}",
            f"{fault}, adaptive: the slow broker gets less than the others",
            published,
            "below 0",
            partial(series.ordered, fault=fault),
            fault,
        )
        for fault, published in ((SERIES1, "-6.4 points"), (SERIES2, "-16.0 points"))
    ),
    *(
        _slow(
            f"availability-{fault}",
            f"{fault}, availability: the slow broker is left out, and gets less than with adaptive",
            published,
            "below 0",
            partial(series.less_than, ours="availability", theirs="adaptive", fault=fault),
            fault,
        )
        for fault, published in ((SERIES1, "-2.8 points"), (SERIES2, "-"))
    ),
    _slow("p99", "p99, adaptive by sticky", "0.014", "below 0.2", partial(series.p99_ratio, ours="adaptive"), SERIES1),
    _slow(
        "uniform-saturates",
        "series 2: uniform runs out of buffer",
        "1.85 of 2 MB/s",
        "some refused",
        partial(series.exhausted, arm="uniform", expected=True),
        SERIES2,
    ),
    _slow(
        "adaptive-bears",
        "series 2: adaptive does not",
        "2 of 2 MB/s",
        "none refused",
        partial(series.exhausted, arm="adaptive", expected=False),
        SERIES2,
    ),
    _control("batches", "uniform batches better than sticky at linger 0", "below 1", control.batches, "claim"),
    _rack("rack-near", "KIP-1123: while its rack leads, no record leaves it", "none outside", control.near, "home"),
    _rack("rack-away", "KIP-1123: when it doesn't, records go elsewhere", "all delivered", control.away, "gone"),
    *(
        _control(f"equal-draws-{arm}", f"equal brokers: {arm} draws each alike", "p ≥ 0.01", judge)
        for arm, judge in ((arm, partial(control.equal_draws, arm=arm)) for arm in ("uniform", "sticky"))
    ),
    *(
        _control(f"equal-bytes-{arm}", f"equal brokers: {arm} spreads bytes evenly", "± 10 points", judge)
        for arm, judge in ((arm, partial(control.equal_bytes, arm=arm)) for arm in ARMS[1:])
    ),
    _rack("keyed", "a key's partition is the same in all arms, and librdkafka's", "all", control.keyed, role="control"),
    _control(
        "equal-bytes-sticky", "equal brokers: how far from a third sticky comes", "", control.unstable_bytes, "report"
    ),
    *(
        _slow(f"p99-{arm}-{fault}", f"{fault}: p99 of {arm}", published, "", judge, fault, "report")
        for fault, found in _P99_MS.items()
        for arm, published, judge in (
            (arm, published, partial(series.p99, fault=fault, arm=arm)) for arm, published in found.items()
        )
    ),
)
