"""Returns after a crash with the static id of another member, and starts again whenever it is fenced.

Two pods with one `group.instance.id` do the same, since their supervisor restarts whoever meets FENCED_INSTANCE_ID:
each takes the partitions of the other, which goes on until its next commit or heartbeat.
"""

from dataclasses import replace

from aftershock.tests.chaos.known_bad.catalogue import OF_TWO_OWNERS, KnownBad, put
from aftershock.workloads.adapters.confluent import ConfluentConsumer
from aftershock.workloads.load.schedule import US_PER_S

STARTED_US = 5 * US_PER_S  # all members of a run start within this time


def plant() -> None:
    start, on_error, step = ConfluentConsumer.__init__, ConfluentConsumer._on_error, ConfluentConsumer.step

    def start_with_the_first_id(self, assignment, clock, events):
        if clock() > STARTED_US:
            assignment = replace(assignment, instance_id=f"{assignment.instance_id.rpartition('-')[0]}-1")
        self._is_fenced = False
        start(self, assignment, clock, events)

    def note(self, error):
        on_error(self, error)
        self._is_fenced |= error.fatal()

    def step_or_restart(self, wait_us):
        step(self, wait_us)
        if self._is_fenced:
            self.close()
            start_with_the_first_id(self, self._assignment, self._clock, self._events)
            self.prepare()

    put(ConfluentConsumer, "__init__", start_with_the_first_id)
    put(ConfluentConsumer, "_on_error", note)
    put(ConfluentConsumer, "step", step_or_restart)


BAD = KnownBad("a member dies and returns", "integrity/co_owned", "deliveries", plant, OF_TWO_OWNERS)
