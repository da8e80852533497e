"""Entry point of the wire proxy's process, ``python -m aftershock.faults.wire_proxy``.

The only argument of the wire proxy is a JSON object with the routes; the wire proxy writes one line of JSON with its
ports to stdout.
"""

import asyncio
import json
import sys

from aftershock.faults.wire_proxy.proxy import Control, Proxy, Route
from aftershock.workloads.kafka.wire.connection import Address

_POLL_S = 0.5
_MISSED_MAX = 3  # on a starved host a connection may take longer than the timeout


async def main() -> None:
    """Run the wire proxy as long as the cluster exists, which is until ``guard`` (Toxiproxy's API) is unreachable."""
    config = json.loads(sys.argv[1])
    proxy = Proxy([Route(name, rack, broker, Address(*at), *more) for name, rack, broker, at, *more in config["ways"]])
    await proxy.open()
    control = Control(proxy)
    ports = {"control": await control.open(), "ports": {name: at.port for name, at in proxy.addresses.items()}}
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    missed = 0
    while missed < _MISSED_MAX:
        try:
            async with asyncio.timeout(_POLL_S):
                _, writer = await asyncio.open_connection(*config["guard"])
                writer.close()
            missed = 0
        except OSError:
            missed += 1
        await asyncio.sleep(_POLL_S)
    control.close()
    proxy.close()


if __name__ == "__main__":
    asyncio.run(main())
