"""Responses, damaged, in a process of its own: ``python -m aftershock.tests.unit.workloads.kafka.wire.fuzz SEED N``.

Whatever is done to a stream of responses, it is cut into messages that are read, or refused with ProtocolError. What is
neither, more than ROOM_BYTES of memory or CPU_S of CPU time ends the process with a failure. Prints a tally as JSON.

Half of them are what a real Kafka 4.3.1 answered our clients (``tests/contract/record_responses.py``), half are made by
hypothesis, which knows corners that no broker shows.
"""

import json
import random
import resource
import struct
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from kio.static.constants import EntityType

from aftershock.errors import ProtocolError
from aftershock.tests.unit.workloads.kafka.wire.messages import entities, message_types
from aftershock.workloads.kafka.wire.codec import Frames, decode_response
from aftershock.workloads.kafka.wire.encoder import encode
from aftershock.workloads.kafka.wire.schema import uvarint

ROOM_BYTES = 64 << 20
CPU_S = 120
FRAME_BYTES_MAX = 1 << 20
SOUND_FRAMES = 0.8
EXTREMES = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    *(struct.pack(">h", number) for number in (-1, -2, 2**15 - 1)),
    *(struct.pack(">i", number) for number in (-1, -2, 2**31 - 1)),
    *map(uvarint, (2**21, 2**31 - 1, 2**35 - 1)),
)


REAL = Path(__file__).with_name("real_responses.json")


class Sample(NamedTuple):
    """A response to request 5."""

    response_type: type[Any]
    header: bytes
    body: bytes


def real() -> list[Sample]:
    """The recorded answers, as answers to request 5."""
    return [recorded(entry["type"], b64decode(entry["message"])) for entry in json.loads(REAL.read_text())]


def recorded(name: str, message: bytes) -> Sample:
    module, _, kind_name = name.rpartition(".")
    kind = getattr(import_module(module), kind_name)
    header = struct.pack(">i", 5) + bytes(kind.__header_schema__.__flexible__)
    return Sample(kind, header, message[len(header) :])


def made() -> list[Sample]:
    """A few responses of each API and version that we speak."""
    types = [kind for kind in message_types() if kind.__type__ is EntityType.response]
    return [sample for kind in types for sample in samples_of(kind)]


def samples_of(kind: type[Any]) -> list[Sample]:
    header = struct.pack(">i", 5) + bytes(kind.__header_schema__.__flexible__)
    samples = []

    @settings(max_examples=4, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(entities(kind))
    def collect(message: Any) -> None:
        body = encode(message)
        if not body.startswith(b"\x00\x23"):  # error 35 first: ApiVersions says that in version 0 alone
            samples.append(Sample(kind, header, body))

    collect()
    return samples


def flip(data: bytearray, rng: random.Random, _other: bytes) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def truncate(data: bytearray, rng: random.Random, _other: bytes) -> None:
    del data[rng.randrange(len(data)) :]


def overwrite(data: bytearray, rng: random.Random, _other: bytes) -> None:
    extreme, at = rng.choice(EXTREMES), rng.randrange(len(data))
    data[at : at + len(extreme)] = extreme


def insert(data: bytearray, rng: random.Random, _other: bytes) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.choice(EXTREMES)


def splice(data: bytearray, rng: random.Random, other: bytes) -> None:
    data[rng.randrange(len(data)) :] = other[rng.randrange(len(other)) :]


DAMAGE: tuple[Callable[[bytearray, random.Random, bytes], None], ...] = (flip, truncate, overwrite, insert, splice)


def framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


def injured(whole: bytes, rng: random.Random, other: bytes) -> bytes:
    data = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        if data:
            rng.choice(DAMAGE)(data, rng, other)
    return bytes(data)


def stream(sample: Sample, rng: random.Random, other: Sample) -> bytes:
    """Mostly a sound frame and header around a damaged body, else damage anywhere."""
    if rng.random() < SOUND_FRAMES:
        return framed(sample.header + injured(sample.body, rng, other.body or b"\x00"))
    return injured(framed(sample.header + sample.body), rng, framed(other.header + other.body))


def fate(sample: Sample, data: bytes) -> str:
    """What became of the stream: refused, read, or still waiting for more."""
    try:
        messages = Frames(FRAME_BYTES_MAX).feed(data)
        for message in messages:
            decode_response(sample.response_type, message, 5)
    except ProtocolError:
        return "refused"
    return "read" if messages else "waiting"


def confine() -> None:
    """No more memory than there is now and ROOM_BYTES, no more CPU time than CPU_S: beyond, this process dies."""
    in_use = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + ROOM_BYTES, in_use + ROOM_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))


def main(seed: int, rounds: int) -> None:
    corpora = real(), made()
    # all of them are sound before anything is done to them, and compiled before memory is counted
    assert {"read"} == {fate(sample, framed(sample.header + sample.body)) for corpus in corpora for sample in corpus}
    confine()
    rng = random.Random(seed)  # noqa: S311  # damage, not secrets
    tally: Counter[str] = Counter()
    for _ in range(rounds):
        sample, other = (rng.choice(rng.choice(corpora)) for _ in range(2))
        data = stream(sample, rng, other)
        try:
            tally[fate(sample, data)] += 1
        except BaseException:
            print(f"seed {seed}: {sample.response_type} {data.hex()}", file=sys.stderr)
            raise
    print(json.dumps(tally))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
