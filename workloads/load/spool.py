"""Files of outcome rows, called the spool: fixed-size rows about a client's actions, which survive ``kill -9``.

A client writes each outcome row straight into a file mapped into memory, whose pages belong to the kernel and so
outlive the client. The byte that makes an outcome row valid is written last, so a half-written row is invalid. A
restarted worker appends outcome rows to the files of its earlier processes.

::

    <home>/<worker>/assignment.json   the worker's assignment: read by ``outcomes.convert``
                    members           member ids of the group, one per line, in order of time
                    00000.rows ...    ROWS rows each
"""

import mmap
import os
from bisect import bisect_left
from enum import IntEnum
from pathlib import Path
from struct import Struct

from confluent_kafka import KafkaError

from aftershock.workloads.load.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment


class Status(IntEnum):
    """Final status of a record or commit; ``text`` is the name of the status in the run's Parquet files."""

    IN_DOUBT = 0
    OK = 1
    FAILED = 2

    @property
    def text(self) -> str:
        return self.name.lower()


CLIENT_DOWN = 32_000
"""Aftershock's own error code, outside Kafka's range, for a record that was never sent as its producer was down."""

VALUE_CORRUPT = "VALUE_CORRUPT"
"""Aftershock's own error name, for a delivered record whose value differs from the value that was sent."""

CERTAINLY_NOT_WRITTEN = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)


def status_of_code(code: int) -> Status:
    """Return the status of a record from the error code of librdkafka's delivery report; code 0 is success.

    Status ``FAILED`` promises that the record is not in the log: the error concerns the record, the topic or its
    policies, so that every attempt fails alike. Any other error may follow an attempt that was written and whose
    response was lost, so the record is in doubt.
    """
    if code == KafkaError.NO_ERROR:
        return Status.OK
    return Status.FAILED if code in CERTAINLY_NOT_WRITTEN else Status.IN_DOUBT


def error_name(code: int) -> str | None:
    """Return Kafka's name of an error code, or librdkafka's for its own errors (``_TIMED_OUT``); None for no error."""
    if code == CLIENT_DOWN:
        return "CLIENT_DOWN"
    return None if code == KafkaError.NO_ERROR else KafkaError(code).name()


TMPFS = Path("/dev/shm")  # noqa: S108  # memory, so that no write-back of dirty pages can stall a client
_SHIFT = 14
ROWS = 1 << _SHIFT
_MASK = ROWS - 1

UNKNOWN = -1
"""Number in an outcome row that stands for null, because valid numbers are never negative."""

# intended_us, deadline_us, sent_us, bytes, begun
_BEGUN = Struct("<qqqiB3x")
# done_us, offset, partition, leader epoch, error code, broker id, attempts, status, ended
_ENDED = Struct("<qqiihhHBB")
PRODUCE_ROW, _ENDED_AT = _BEGUN.size + _ENDED.size, _BEGUN.size
_ATTEMPTS_MAX = 2**16 - 1
_BEGUN_AT = 28
# seq, intended_us, done_us, offset, high_watermark, producer_id, partition, leader_epoch, bytes, broker id, member,
# corrupt, written
_CONSUMED = Struct("<qqqqqiiiihHBB2x")
CONSUME_ROW = _CONSUMED.size
_WRITTEN_AT = 61
_begun_into, _ended_into, _consumed_into = _BEGUN.pack_into, _ENDED.pack_into, _CONSUMED.pack_into


def spool_home(name: str, run_dir: Path) -> Path:
    """Return the directory for a run's outcome rows: in memory if the host allows it, else in ``run_dir``."""
    if TMPFS.is_dir() and os.access(TMPFS, os.W_OK):
        return TMPFS / f"aftershock-{name}"
    return run_dir / "spool"


class _Spool:
    """Files of a worker with ROWS outcome rows each, mapped into memory; ``next`` is the next row to write.

    Disk space is reserved when a file of outcome rows is added, so that a full disk is an error at that moment, never a
    SIGBUS when an outcome row is written. Raises ``FileExistsError`` if the worker was not restarted and has files.
    """

    def __init__(self, home: Path, assignment: Assignment, row_bytes: int, flag_at: int) -> None:
        self._directory, self._bytes = home / assignment.worker, ROWS * row_bytes
        self._directory.mkdir(parents=True, exist_ok=assignment.life > 0)
        draft = self._directory / ".assignment.json"
        draft.write_text(assignment.model_dump_json())
        draft.replace(self._directory / "assignment.json")
        self._maps: list[mmap.mmap] = []
        for path in sorted(self._directory.glob("*.rows")):
            self._map(path, 0)
        if not self._maps:
            self._grow()

        def is_free(row: int) -> bool:
            return self._maps[row >> _SHIFT][(row & _MASK) * row_bytes + flag_at] == 0

        # rows are in order, so a binary search finds the first invalid row
        self.next = bisect_left(range(len(self._maps) * ROWS), True, key=is_free) if assignment.life else 0

    def _grow(self) -> None:
        self._map(self._directory / f"{len(self._maps):05}.rows", os.O_CREAT | os.O_EXCL)

    def _map(self, path: Path, flags: int) -> None:
        descriptor = os.open(path, flags | os.O_RDWR, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, self._bytes)
            self._maps.append(mmap.mmap(descriptor, self._bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))
        finally:
            os.close(descriptor)

    def idle(self) -> None:
        """Add a file for outcome rows in time; called when the client has nothing to do."""
        if len(self._maps) * ROWS - self.next < ROWS // 2:
            self._grow()


class ProduceSpool(_Spool):
    """Outcome rows of a producer or committer, one for each record or commit."""

    def __init__(self, home: Path, assignment: ProduceAssignment | CommitAssignment) -> None:
        super().__init__(home, assignment, PRODUCE_ROW, _BEGUN_AT)

    def begin(self, seq: int, *, intended_us: int, deadline_us: int, sent_us: int, size_bytes: int) -> None:
        """Begin the outcome row of record or commit ``seq``, which must be ``next``.

        Begin an outcome row before the client library receives the record: a record in Kafka's log without an outcome
        row would count as an error.
        """
        if seq >> _SHIFT == len(self._maps):
            self._grow()
        self.next = seq + 1
        _begun_into(
            self._maps[seq >> _SHIFT], (seq & _MASK) * PRODUCE_ROW, intended_us, deadline_us, sent_us, size_bytes, 1
        )

    def end(
        self,
        seq: int,
        *,
        done_us: int,
        status: Status,
        code: int,
        partition: int = UNKNOWN,
        offset: int = UNKNOWN,
        leader_epoch: int = UNKNOWN,
        broker_id: int = UNKNOWN,
        attempts: int = 0,
    ) -> None:
        """Write a final status into the outcome row of record or commit ``seq``; ``attempts`` is 0 if unknown."""
        _ended_into(
            self._maps[seq >> _SHIFT],
            (seq & _MASK) * PRODUCE_ROW + _ENDED_AT,
            done_us,
            offset,
            partition,
            leader_epoch,
            code,
            broker_id,
            attempts if attempts < _ATTEMPTS_MAX else _ATTEMPTS_MAX,  # noqa: FURB136 - min() is a call: a tenth of all
            status,
            1,
        )


class ConsumeSpool(_Spool):
    """Outcome rows of a consumer, one for each delivered record, in the order of delivery."""

    def __init__(self, home: Path, assignment: ConsumeAssignment) -> None:
        super().__init__(home, assignment, CONSUME_ROW, _WRITTEN_AT)
        self._members = self._directory / "members"
        self._member = len(self._members.read_text().splitlines()) if self._members.exists() else 0

    def positions(self) -> dict[int, int]:
        """Return, by partition, the offset after the last record that this worker's processes have received."""
        reached: dict[int, int] = {}
        for row in range(self.next):
            fields = _CONSUMED.unpack_from(self._maps[row >> _SHIFT], (row & _MASK) * CONSUME_ROW)
            offset, partition = fields[3], fields[6]
            reached[partition] = max(offset + 1, reached.get(partition, 0))
        return reached

    def append(
        self,
        *,
        producer_id: int,
        seq: int,
        intended_us: int,
        done_us: int,
        partition: int,
        offset: int,
        high_watermark: int,
        leader_epoch: int,
        size_bytes: int,
        broker_id: int = UNKNOWN,
        corrupt: bool = False,
    ) -> None:
        row = self.next
        if row >> _SHIFT == len(self._maps):
            self._grow()
        _consumed_into(
            self._maps[row >> _SHIFT],
            (row & _MASK) * CONSUME_ROW,
            seq,
            intended_us,
            done_us,
            offset,
            high_watermark,
            producer_id,
            partition,
            leader_epoch,
            size_bytes,
            broker_id,
            self._member,
            corrupt,
            1,
        )
        self.next = row + 1

    def member(self, member_id: str) -> None:
        """Record that the consumer receives the following records as the group member ``member_id``."""
        with self._members.open("a") as members:
            members.write(member_id + "\n")
        self._member += 1
