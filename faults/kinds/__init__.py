"""The catalogue: every kind of fault there is, one file each."""

from aftershock.faults.kinds.cut import Cut
from aftershock.faults.kinds.elect import Elect
from aftershock.faults.kinds.kill import Kill
from aftershock.faults.kinds.latency import Latency
from aftershock.faults.kinds.pause import Pause
from aftershock.faults.kinds.reassign import Reassign
from aftershock.faults.kinds.refuse import Refuse
from aftershock.faults.kinds.restart import Restart
from aftershock.faults.kinds.stop import Stop

AnyFault = Latency | Cut | Refuse | Kill | Stop | Restart | Pause | Reassign | Elect
__all__ = ["KINDS", "AnyFault", "Cut", "Elect", "Kill", "Latency", "Pause", "Reassign", "Refuse", "Restart", "Stop"]

KINDS: dict[str, type[AnyFault]] = {
    "latency": Latency,
    "cut": Cut,
    "refuse": Refuse,
    "kill": Kill,
    "stop": Stop,
    "restart": Restart,
    "pause": Pause,
    "reassign": Reassign,
    "elect": Elect,
}
