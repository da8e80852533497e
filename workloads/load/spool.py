"""Files of outcome rows, called the spool, with fixed-size rows about a client's actions that survive ``kill -9``.

A client writes each outcome row straight into a file mapped into memory, whose pages belong to the kernel and so
outlive the client. The byte that makes an outcome row valid is written last, so a half-written row is invalid. A
restarted worker appends outcome rows to the files of its earlier processes.

::

    <home>/<worker>/assignment.json   the worker's assignment, read by ``outcomes.convert``
                    members           member ids of the group, one per line, in order of time
                    positions.json    of a consumer without a group: the offsets reached in moved files, by
                                      topic number and partition
                    00000.rows ...    segments of ROWS rows each
                    00000.late ...    overdue rows of earlier segments, ROWS rows each

During a run, the runner moves segments to the run directory when all their rows are final (``outcomes.move``), so the
spool does not grow with the length of the run. A record that has no final status long after its deadline would keep its
segment in memory for ever: the worker copies such a row to a ``.late`` file, where the row can still get its status,
and marks the row in the segment as CARRIED.
"""

import errno
import json
import mmap
import os
from bisect import bisect_left
from enum import IntEnum
from pathlib import Path
from struct import Struct

from confluent_kafka import KafkaError

from aftershock.errors import WorkloadError
from aftershock.workloads.load.assignment import (
    Assignment,
    CommitAssignment,
    ConsumeAssignment,
    Place,
    ProduceAssignment,
)


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

    Status ``FAILED`` promises that the record is not in the log, because the error concerns the record, the topic or
    its policies, so that every attempt fails alike. Any other error may follow an attempt that was written and whose
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
# topic number, corrupt, written
_CONSUMED = Struct("<qqqqqiiiihHHBB")
CONSUME_ROW = _CONSUMED.size
_WRITTEN_AT = CONSUME_ROW - 1
_begun_into, _ended_into, _consumed_into = _BEGUN.pack_into, _ENDED.pack_into, _CONSUMED.pack_into

CARRIED = 2
"""Value of the byte ``ended`` of a row that was copied to a ``.late`` file."""

_ENDED_FLAG_AT = PRODUCE_ROW - 1
# A row in a .late file follows the number of its record plus 1; 0 marks a free row.
_LATE_NUMBER = Struct("<q")
LATE_ROW = _LATE_NUMBER.size + PRODUCE_ROW
OVERDUE_US = 20_000_000
"""Time after a record's deadline from which its row may be carried; clients report before (``sending.GRACE_US``)."""

MAPPED_MAX = 8
"""Number of mapped files from which a worker that is never idle unmaps those whose rows are final."""

POSITIONS = "positions.json"

_UNMAPPED = mmap.mmap(-1, 1)
_UNMAPPED.close()


def spool_home(name: str, run_dir: Path) -> Path:
    """Return the directory for a run's outcome rows, in memory if the host allows it, else in ``run_dir``."""
    if TMPFS.is_dir() and os.access(TMPFS, os.W_OK):
        return TMPFS / f"aftershock-{name}"
    return run_dir / "spool"


def write_assignment(directory: Path, assignment: Assignment) -> None:
    """Write a worker's assignment into its directory, by which other processes know the worker."""
    draft = directory / ".assignment.json"
    draft.write_text(assignment.model_dump_json())
    draft.replace(directory / "assignment.json")


class _Spool:
    """Files of a worker with ROWS outcome rows each, mapped into memory; ``next`` is the next row to write.

    Files are unmapped when all their rows are final. Space is reserved when a file is added, so that a full disk is an
    error at that moment, never a SIGBUS when a row is written. Raises ``FileExistsError`` if the worker was not
    restarted and has files, ``WorkloadError`` if there is no space.
    """

    def __init__(self, home: Path, assignment: Assignment, row_bytes: int, flag_at: int) -> None:
        self._directory, self._bytes = home / assignment.worker, ROWS * row_bytes
        self._directory.mkdir(parents=True, exist_ok=assignment.life > 0)
        write_assignment(self._directory, assignment)
        # The runner moves segments in ascending order, and never the latest, so the numbers that are left have no gap.
        numbers = sorted(int(path.stem) for path in self._directory.glob("*.rows"))
        self._maps = [_UNMAPPED] * (numbers[0] if numbers else 0)
        self._first_mapped = len(self._maps)
        for number in numbers:
            try:
                self._maps.append(self._map(f"{number:05}.rows", self._bytes, 0))
            except FileNotFoundError:  # moved in this moment
                self._maps.append(_UNMAPPED)
        if not self._maps:
            self._grow()

        def is_free(row: int) -> bool:
            rows = self._maps[row >> _SHIFT]
            return not rows.closed and rows[(row & _MASK) * row_bytes + flag_at] == 0

        # rows are in order, so a binary search finds the first invalid row
        self.next = bisect_left(range(len(self._maps) * ROWS), True, key=is_free) if assignment.life else 0

    def _grow(self) -> None:
        """Add a file for outcome rows; unmapping takes time, and so waits for a quiet moment unless space is short."""
        if len(self._maps) - self._first_mapped >= MAPPED_MAX:
            self._release()
        name = f"{len(self._maps):05}.rows"
        try:
            rows = self._map(name, self._bytes, os.O_CREAT | os.O_EXCL)
        except WorkloadError:
            self._release()
            rows = self._map(name, self._bytes, os.O_CREAT | os.O_EXCL)
        self._maps.append(rows)

    def _release(self) -> None:
        """Unmap full files whose rows are final, which frees the space of moved files."""
        for number in range(self._first_mapped, len(self._maps) - 1):
            if not self._maps[number].closed and self._is_final(number):
                self._maps[number].close()
        while self._first_mapped < len(self._maps) and self._maps[self._first_mapped].closed:
            self._first_mapped += 1

    def _is_final(self, number: int) -> bool:  # noqa: ARG002
        """Return True if the worker will not write to the full file ``number`` again."""
        return True

    def _map(self, name: str, size_bytes: int, flags: int) -> mmap.mmap:
        path = self._directory / name
        descriptor = os.open(path, flags | os.O_RDWR, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
            return mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError as error:
            if flags:
                path.unlink()
            if error.errno == errno.ENOSPC:
                raise full_error(self._directory) from error
            raise
        finally:
            os.close(descriptor)

    def idle(self) -> None:
        """Add a file for outcome rows in time; called when the client has nothing to do."""
        if len(self._maps) * ROWS - self.next < ROWS // 2:
            try:
                self._release()
                self._grow()
            except WorkloadError:
                # There is room for half a segment, and the runner frees space each minute. The error of `begin` or
                # `append` counts if there is still none then.
                return


def full_error(directory: Path) -> WorkloadError:
    """Return the error for outcome rows that have no space, with what is full and what to do."""
    mount = TMPFS if directory.is_relative_to(TMPFS) else directory
    statistics = os.statvfs(directory)
    size_mib = statistics.f_blocks * statistics.f_frsize >> 20
    return WorkloadError(
        f"{mount} ({size_mib} MiB) is full, so the client can't record what became of its records; the rows so far are "
        f"kept. Delete files in {mount}, enlarge it (in a container: docker run --shm-size=1g), or lower the rate"
    )


class ProduceSpool(_Spool):
    """Outcome rows of a producer or committer, one for each record or commit."""

    def __init__(self, home: Path, assignment: ProduceAssignment | CommitAssignment) -> None:
        self._late_maps: list[mmap.mmap] = []
        self._late: dict[int, int] = {}  # record → row in the .late files
        super().__init__(home, assignment, PRODUCE_ROW, _BEGUN_AT)
        for path in sorted(self._directory.glob("*.late")):
            self._late_maps.append(self._map(path.name, ROWS * LATE_ROW, 0))
        for row in range(len(self._late_maps) * ROWS):
            (number,) = _LATE_NUMBER.unpack_from(self._late_maps[row >> _SHIFT], (row & _MASK) * LATE_ROW)
            if number == 0:
                break
            self._late[number - 1] = row
        self._late_next = len(self._late)

    def begin(self, seq: int, *, intended_us: int, deadline_us: int, sent_us: int, size_bytes: int) -> None:
        """Begin the outcome row of record or commit ``seq``, which must be ``next``.

        Begin an outcome row before the client library receives the record, because a record in Kafka's log without an
        outcome row would count as an error.
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
        try:
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
        except (TypeError, ValueError):
            if not self._maps[seq >> _SHIFT].closed:
                raise
            row = self._late.get(seq)
            if row is None:
                raise WorkloadError(f"the client reported record {seq}, which already had its final status") from None
            _ended_into(
                self._late_maps[row >> _SHIFT],
                (row & _MASK) * LATE_ROW + _LATE_NUMBER.size + _ENDED_AT,
                *(done_us, offset, partition, leader_epoch, code, broker_id, min(attempts, _ATTEMPTS_MAX), status, 1),
            )

    def _is_final(self, number: int) -> bool:
        """Return True if no row of a segment is open; carry open rows if all of them are overdue."""
        rows = self._maps[number]
        flags = rows[_ENDED_FLAG_AT::PRODUCE_ROW]
        open_rows = [row for row in range(ROWS) if not flags[row]] if 0 in flags else []
        latest_at = (self.next - 1 & _MASK) * PRODUCE_ROW
        intended_us, _, sent_us, *_ = _BEGUN.unpack_from(self._maps[self.next - 1 >> _SHIFT], latest_at)
        now_us = max(intended_us, sent_us)
        for row in open_rows:
            deadline_us = _BEGUN.unpack_from(rows, row * PRODUCE_ROW)[1]
            if deadline_us + OVERDUE_US > now_us:
                return False
        while self._late_next + len(open_rows) > len(self._late_maps) * ROWS:
            name = f"{len(self._late_maps):05}.late"
            self._late_maps.append(self._map(name, ROWS * LATE_ROW, os.O_CREAT | os.O_EXCL))
        for row in open_rows:
            seq, at = (number << _SHIFT) + row, row * PRODUCE_ROW
            if seq not in self._late:  # else an earlier process was killed between the copy and the mark
                late_row = self._late_next
                late, late_at = self._late_maps[late_row >> _SHIFT], (late_row & _MASK) * LATE_ROW
                late[late_at + _LATE_NUMBER.size : late_at + LATE_ROW] = rows[at : at + PRODUCE_ROW]
                _LATE_NUMBER.pack_into(late, late_at, seq + 1)  # last, because it makes the row valid
                self._late[seq], self._late_next = late_row, late_row + 1
            rows[at + _ENDED_FLAG_AT] = CARRIED
        return True


class ConsumeSpool(_Spool):
    """Outcome rows of a consumer, one for each delivered record, in the order of delivery."""

    def __init__(self, home: Path, assignment: ConsumeAssignment) -> None:
        super().__init__(home, assignment, CONSUME_ROW, _WRITTEN_AT)
        self._members = self._directory / "members"
        self._topics = [topic.name for topic in assignment.topics]
        self._member = len(self._members.read_text().splitlines()) if self._members.exists() else 0

    def positions(self) -> dict[Place, int]:
        """Return, by place, the offset after the last record that this worker's processes have received."""
        # The runner writes the positions before it removes a segment, so nothing is missed if it does so meanwhile.
        path = self._directory / POSITIONS
        stored = json.loads(path.read_bytes()) if path.exists() else {}
        reached = {
            (self._topics[int(number)], int(partition)): position
            for number, of_topic in stored.items()
            for partition, position in of_topic.items()
        }
        for row in range(self._first_mapped * ROWS, self.next):
            rows = self._maps[row >> _SHIFT]
            if not rows.closed:
                fields = _CONSUMED.unpack_from(rows, (row & _MASK) * CONSUME_ROW)
                offset, place = fields[3], (self._topics[fields[11]], fields[6])
                reached[place] = max(offset + 1, reached.get(place, 0))
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
        topic_number: int = 0,
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
            topic_number,
            corrupt,
            1,
        )
        self.next = row + 1

    def member(self, member_id: str) -> None:
        """Record that the consumer receives the following records as the group member ``member_id``."""
        with self._members.open("a") as members:
            members.write(member_id + "\n")
        self._member += 1
