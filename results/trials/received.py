"""What one consumer was given, when, and by which broker."""

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from aftershock.results.trials.part import Part
from aftershock.results.trials.slices import Floats, Slice

_COLUMNS = ("partition", "broker_id", "intended_us", "done_us")
_NOBODY = -1


@dataclass(frozen=True)
class Received:
    """Records in the order of their delivery."""

    partition: NDArray[np.int64]
    broker_id: NDArray[np.int64]
    intended_us: NDArray[np.int64]
    done_us: NDArray[np.int64]

    @property
    def latency_us(self) -> Floats:
        """From the intended send time to the delivery."""
        return (self.done_us - self.intended_us).astype(float)

    def meant_in(self, span: Slice) -> "Received":
        """Those that were to be sent in this time."""
        return self.where((self.intended_us >= span.start_us) & (self.intended_us < span.end_us))

    def where(self, which: NDArray[np.bool_]) -> "Received":
        """Some of them."""
        return Received(self.partition[which], self.broker_id[which], self.intended_us[which], self.done_us[which])


def received(part: Part, client: str) -> Received:
    """What a consumer, ``workload/arm``, was given."""
    workload, arm = client.split("/")
    whose = (pc.field("op") == "consume") & (pc.field("workload") == workload) & (pc.field("arm") == arm)
    rows = part.outcomes(_COLUMNS, whose).sort_by("done_us")
    return Received(*(pc.fill_null(rows[name], _NOBODY).to_numpy().astype(np.int64) for name in _COLUMNS))
