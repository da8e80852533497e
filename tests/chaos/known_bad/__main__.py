"""``python -m aftershock.tests.chaos.known_bad …``: the command line, whose workers may have defects."""

from aftershock.harness.cli import main
from aftershock.workloads import process

if __name__ == "__main__":
    *command, name = process.WORKER
    process.WORKER = (*command, "aftershock.tests.chaos.known_bad.worker", name)
    main()
