"""Reports every tenth record as delivered with acks=1, at the next offset of the log, and never sends it.

A client that acknowledges from a queue that it drops. With acks=1 a change of leader may lose a record, but it explains
only those at and above the offset at which the new leader began.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters.reference import ReferenceProducer
from aftershock.workloads.load.spool import Status

EVERY = 10


def plant() -> None:
    send, reported, last = ReferenceProducer._send, ReferenceProducer._reported, {}

    def note(self, delivery):
        if not delivery.error:
            last["delivery"] = delivery
        reported(self, delivery)

    def send_or_pretend(self):
        if self._sending.next % EVERY or not last:
            send(self)
            return
        record, former = self._sending.begin_record(), last["delivery"]
        self._sending.ended(
            record.seq,
            Status.OK,
            0,
            partition=former.partition,
            offset=former.base_offset + 1,
            leader_epoch=former.leader_epoch,
            broker_id=former.broker_id,
            attempts=1,
        )

    put(ReferenceProducer, "_reported", note)
    put(ReferenceProducer, "_send", send_or_pretend)


BAD = KnownBad("acks=1, and leaders move once", "integrity/lost", "not in the log", plant)
