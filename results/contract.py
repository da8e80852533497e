"""The columns that every evidence file has: the public contract of design 5.3, by table.

Rules: none is ever taken away; a column that came later (`schema.py` has all) may be missing in an older file, and is
null there.
"""

REQUIRED = {
    "outcomes": (
        *("workload", "arm", "client", "op", "producer_id", "seq"),
        *("topic", "topic_id", "partition", "offset", "group", "member"),
        *("leader_epoch", "broker_id", "broker_rack", "client_rack", "high_watermark"),
        *("intended_us", "deadline_us", "sent_us", "done_us", "attempts", "bytes", "status", "error"),
    ),
    "log": ("topic", "topic_id", "partition", "offset", "producer_id", "seq"),
    "metrics": ("t_us", "broker_id", "name", "value"),
    "replicas": (
        *("topic", "topic_id", "partition", "broker_id", "start_offset", "end_offset"),
        *("records", "fingerprint", "error"),
    ),
    "offsets": (
        *("broker_id", "partition", "offset", "batch", "leader_epoch", "transactional"),
        *("group", "topic", "topic_partition", "committed"),
    ),
}
