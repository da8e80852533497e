"""A proxy as a process of its own: ``python -m aftershock.faults.wire_proxy``.

It is told its ways in its one argument, as JSON, and says in one line on stdout where it listens. It ends with what it
stands before: when nobody takes connections at ``guard`` (Toxiproxy's API) any more, the cluster is gone, whoever
removed it.
"""

import asyncio
import json
import sys
from contextlib import suppress

from aftershock.faults.wire_proxy.proxy import Control, Proxy, Way
from aftershock.workloads.kafka.wire.connection import Address

_LOOK_S = 0.5
_MISSED_MAX = 3  # on a starved host a connection may take longer than we wait


async def main() -> None:
    """Serve until the cluster is gone."""
    told = json.loads(sys.argv[1])
    proxy = Proxy([Way(name, rack, broker, Address(*upstream)) for name, rack, broker, upstream in told["ways"]])
    await proxy.open()
    control = Control(proxy)
    said = {"control": await control.open(), "ports": {name: at.port for name, at in proxy.addresses.items()}}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    await _end_of(Address(*told["guard"]))
    control.close()
    proxy.close()


async def _end_of(guard: Address) -> None:
    """Return when connections to it were refused, or not taken, several times in a row."""
    missed = 0
    while missed < _MISSED_MAX:
        missed = 0 if await _answers(guard) else missed + 1
        await asyncio.sleep(_LOOK_S)


async def _answers(guard: Address) -> bool:
    with suppress(OSError):
        async with asyncio.timeout(_LOOK_S):
            _, writer = await asyncio.open_connection(*guard)
            writer.close()
        return True
    return False


if __name__ == "__main__":
    asyncio.run(main())
