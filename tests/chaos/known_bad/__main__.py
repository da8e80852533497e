"""``python -m aftershock.tests.chaos.known_bad …``: the command line, whose workers may have defects."""

from aftershock.harness.cli.__main__ import main
from aftershock.workloads.load import process

if __name__ == "__main__":
    *command, name = process.WORKER
    process.WORKER = (*command, "aftershock.tests.chaos.known_bad.worker", name)
    main()
