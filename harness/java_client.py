"""How the program of a ``client: java`` is started: Kafka's own client in a container on the host's network.

The container's input and output are the program's; it ends when its input does, so also when whoever started it is
killed. It carries the run's labels all the same: what should survive even that is found and removed with the run.
"""

import shutil
from collections.abc import Mapping

from aftershock.errors import EngineError
from aftershock.harness.labels import WORKER

_PROGRAM = "/opt/aftershock/client"


def java_command(image: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments that start a container of ``image`` with the labels of its run (``labels.labels_of``).

    Raises:
        EngineError: the docker command is not on the PATH.
    """
    if shutil.which("docker") is None:
        raise EngineError("`client: java` is started by the docker command, which is not on the PATH: install it")
    # what it writes goes to the worker; a copy in the engine's log would be a write to the disk for each record
    plain = ("docker", "run", "--interactive", "--rm", "--network", "host", "--log-driver", "none", "--pull", "never")
    marks = (word for name, value in labels.items() for word in ("--label", f"{name}={value}"))
    return (*plain, *marks, image, _PROGRAM)


def of_worker(command: tuple[str, ...], worker: str) -> tuple[str, ...]:
    """The same command for one worker, whose name its container carries: faults on clients find it by that."""
    *words, image, program = command
    return (*words, "--label", f"{WORKER}={worker}", image, program)
