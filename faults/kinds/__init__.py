"""The catalogue: every kind of fault there is, one file each."""

from aftershock.faults.kinds.elect import Elect
from aftershock.faults.kinds.kill import Kill
from aftershock.faults.kinds.latency import Latency
from aftershock.faults.kinds.pause import Pause
from aftershock.faults.kinds.reassign import Reassign

AnyFault = Latency | Kill | Pause | Reassign | Elect
__all__ = ["KINDS", "AnyFault", "Elect", "Kill", "Latency", "Pause", "Reassign"]

KINDS: dict[str, type[AnyFault]] = {
    "latency": Latency,
    "kill": Kill,
    "pause": Pause,
    "reassign": Reassign,
    "elect": Elect,
}
