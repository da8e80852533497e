"""Who of a run's workers is down on purpose: a word, on the disk, from whoever kills one to the fleet that owns it.

The killer may be another process than the fleet's (a fault by hand), and so may be the one that ends it (``heal``). So
the word is a file beside the worker's rows. It names the process that was killed: any other death of that worker is
nobody's intention. It stays when the worker may come back, for a fleet that sees the death later than that.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FILE = "held.json"


class Held(NamedTuple):
    """The process (``pid``) of a worker that a fault killed; ``down``: it is to stay dead for now."""

    pid: int
    down: bool


def hold(spool: Path, worker: str, pid: int) -> None:
    """To be said before the kill."""
    _write(spool / worker, Held(pid, down=True))


def release(spool: Path, worker: str) -> None:
    """It may be started again; nothing to do if it isn't held, or the run is over."""
    held = held_of(spool, worker)
    if held is not None and held.down:
        _write(spool / worker, held._replace(down=False))


def held_of(spool: Path, worker: str) -> Held | None:
    """What was last said of a worker; None for one that nobody ever killed."""
    with suppress(OSError):
        return Held(**json.loads((spool / worker / FILE).read_bytes()))
    return None


def _write(folder: Path, held: Held) -> None:
    draft = folder / f".{FILE}"
    draft.write_text(json.dumps(held._asdict()))
    draft.replace(folder / FILE)
