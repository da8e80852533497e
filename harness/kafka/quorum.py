"""The metadata quorum, asked of its voters themselves.

A broker forwards what it is asked of the quorum to the active controller as it knows it. While that one is frozen, all
brokers wait for it, 36 s after a pause by measurement, though another was elected after 3. A voter answers for itself:
as the leader, or that it isn't (KIP-919). One that was frozen in office still thinks it is, so the highest epoch wins.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from aftershock.errors import AdminError
from aftershock.faults.values import BrokerId
from aftershock.harness.admin import Quorum, quorum_of, quorum_request
from aftershock.workloads.wire.connection import Address, Connection

_TIMEOUT_S = 1.0


def ask_voters(voters: Mapping[BrokerId, Address]) -> Quorum:
    """The quorum as its leader of the highest epoch has it. AdminError if no voter says that it leads."""
    with ThreadPoolExecutor(max_workers=len(voters)) as pool:
        answers = list(pool.map(_ask, voters.values()))
    leaders = [answer for answer in answers if answer is not None]
    if not leaders:
        raise AdminError(f"none of the voters {sorted(voters)} leads the quorum", "LEADER_NOT_AVAILABLE")
    return max(leaders, key=lambda told: told.epoch)


def _ask(voter: Address) -> Quorum | None:
    """What it says as the leader; None if it isn't, or does not answer."""
    try:
        with Connection(voter, _TIMEOUT_S) as connection:
            return quorum_of(connection.ask(quorum_request()))
    except (OSError, AdminError):
        return None
