"""A worker whose client has the defect that its arm is named for; otherwise the product's own worker."""

import os

from aftershock.tests.chaos.known_bad.catalogue import plant
from aftershock.workloads.load import worker
from aftershock.workloads.load.worker import make_client


def _make_bad(assignment, clock, events):
    plant(assignment.arm)
    return make_client(assignment, clock, events)


if __name__ == "__main__":
    worker.make_client = _make_bad
    os._exit(worker.main())
