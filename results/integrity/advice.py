"""What to do about each integrity rule that is broken: where to look, concretely."""

from collections.abc import Mapping

_IDS = "`aftershock explain RUN --record PRODUCER:SEQ` tells what became of each sample"

ADVICE: Mapping[str, str] = {
    "lost": f"{_IDS}; then read the logs of its partition's leaders (logs/k*.log) around its acknowledgement",
    "duplicate": f"{_IDS}; look for a retry of an acknowledged batch, or a position that was read again",
    "order": f"{_IDS}; look for retries with more than one request in flight, or a position that went back",
    "phantom": "find out who else writes to the topic, and whether its header was damaged on the way; of a producer: "
    "does it send what it has given up?",
    "misplaced": f"{_IDS}; compare the offset in its acknowledgement with the one in log/",
    "collision": "compare log/ and outcomes/ at the samples' offsets: was the log cut back and written anew?",
    "skipped": f"{_IDS}; read the consumer's log for a position that moved on without a reset",
    "backward": "compare leader_epoch and high_watermark of the samples' rows with the rows before them in outcomes/, "
    "`hint_accepted` and `committed` with those before them in events.jsonl",
    "beyond": "a broker answered with records that were not committed: read the samples' broker's log at that time",
    "co_owned": "compare `assigned` and `revoked` of the group's members in events.jsonl around the samples' times",
    "commit_ahead": "compare the samples' commits with what their group had read: does it commit before it reads?",
    "commit_behind": "compare `committed` before `assigned` in events.jsonl: was the commit lost with its coordinator?",
    "corrupt": f"{_IDS}; compare its bytes in the log of each replica (kafka-dump-log) with what was sent",
    "immediate": "read `batch_retried` of the samples in events.jsonl: a retry did not back off as KIP-951 wants",
    "replica": "compare the replicas with kafka-dump-log --deep-iteration: one was not truncated, or lost what it had",
}
