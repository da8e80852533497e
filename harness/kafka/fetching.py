"""One answer of one broker about one partition, to a consumer's Fetch without a rack or a session."""

from datetime import timedelta
from typing import Any, cast

from kio.schema.fetch.v12 import request as fetch
from kio.static.primitive import i32Timedelta

from aftershock.faults.values import BrokerId, TopicPartition
from aftershock.harness.admin import Admin, raise_for

_WAIT = i32Timedelta.parse(timedelta(milliseconds=200))
_BYTES = 4 * 1024 * 1024


def fetch_from(admin: Admin, broker: BrokerId, where: TopicPartition, at: int, *, at_once: bool = False) -> Any:
    """The partition's part of the answer: ``records``, ``log_start_offset``, … AdminError where there is an error.

    ``at_once``: don't wait for records where there are none.
    """
    topic_name, number = where
    partition = fetch.FetchPartition(
        partition=cast("Any", number), fetch_offset=cast("Any", at), partition_max_bytes=cast("Any", _BYTES)
    )
    topic = fetch.FetchTopic(topic=cast("Any", topic_name), partitions=(partition,))
    least = cast("Any", 0 if at_once else 1)
    response = admin.ask(
        fetch.FetchRequest(max_wait=_WAIT, min_bytes=least, topics=(topic,), forgotten_topics_data=()), only=broker
    )
    raise_for(response.error_code, f"fetch from k{broker}")
    answer = response.responses[0].partitions[0]
    raise_for(answer.error_code, f"fetch {topic_name}/{number} from k{broker}")
    return answer
