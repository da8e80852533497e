"""Which settings of a client a plan may set.

A plan may come from a stranger, and some settings load code (``plugin.library.paths``, ``ssl.providers``), run
commands (``sasl.kerberos.kinit.cmd``), read or write files (``*.location``, ``*.keytab``, ``offset.store.path``) or
dial elsewhere (``sasl.oauthbearer.*``). So the rule is a list of what is *allowed*, taken from librdkafka 2.16's
CONFIGURATION and, for the reference and the Java client, from Kafka 4.3's: what is not on it is refused, whatever a
later version makes of it. Settings that the plan has words of its own for are refused by naming the word, so that there
is one way to say each thing. The program of an ``exec`` client is the user's own: it is given what the plan says.
"""

from difflib import get_close_matches

_ALLOWED = """
    allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.commit.interval.ms batch.num.messages batch.size broker.address.family broker.address.ttl
    broker.version.fallback check.crcs client.dns.lookup compression.codec compression.level compression.type
    connections.max.idle.ms coordinator.query.interval.ms enable.auto.commit enable.gapless.guarantee
    enable.metrics.push enable.random.seed enable.sparse.connections fetch.error.backoff.ms fetch.max.bytes
    fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.protocol
    group.protocol.type group.remote.assignor heartbeat.interval.ms isolation.level log.connection.close
    max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
    message.copy.max.bytes message.max.bytes message.send.max.retries metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metadata.request.timeout.ms
    partition.assignment.strategy partitioner queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queued.max.messages.kbytes queued.min.messages queuing.strategy
    receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms session.timeout.ms
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms statistics.interval.ms
    sticky.partitioning.linger.ms topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
"""
ALLOWED = frozenset(_ALLOWED.split())

_OF_REFERENCE = """
    auto.commit.interval.ms batch.size buffer.memory check.crcs compression.type connections.max.idle.ms
    default.api.timeout.ms fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.remote.assignor max.block.ms
    max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    max.request.size metadata.max.age.ms partitioner.availability.timeout.ms partitioner.ignore.keys
    partitioner.rack.aware reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
    retry.backoff.max.ms retry.backoff.ms socket.connection.setup.timeout.ms transaction.timeout.ms
"""
_OF_JAVA = """
    enable.auto.commit enable.metrics.push group.protocol heartbeat.interval.ms isolation.level metadata.max.idle.ms
    metadata.recovery.strategy partitioner.adaptive.partitioning.enable receive.buffer.bytes send.buffer.bytes
    session.timeout.ms socket.connection.setup.timeout.max.ms
"""
_OURS = {"commit.metadata.bytes", "connections.per.broker", "transactional", "metadata.own.connection"}
OF_REFERENCE = frozenset(_OF_REFERENCE.split()) | _OURS
OF_JAVA = frozenset(_OF_REFERENCE.split()) | frozenset(_OF_JAVA.split()) | {"share"}  # its committer's own
_MAY = {"confluent": ALLOWED, "reference": OF_REFERENCE, "java": OF_JAVA}
_WHOSE = {"confluent": "librdkafka", "reference": "reference client", "java": "Kafka"}

OWN_WORDS = {
    "acks": "`acks` under `produce`",
    "request.required.acks": "`acks` under `produce`",
    "enable.idempotence": "`idempotence` under `produce`",
    "linger.ms": "`linger` under `produce`",
    "queue.buffering.max.ms": "`linger` under `produce`",
    "delivery.timeout.ms": "`deadline` under `produce`",
    "message.timeout.ms": "`deadline` under `produce`",
    "auto.offset.reset": "`from` under `consume`",
    "group.id": "`group` under `consume`",
    "client.rack": "`client_rack` of the arm",
}

_HARNESS = (
    "bootstrap.servers",
    "metadata.broker.list",
    "client.",
    "group.instance.id",
    "enable.partition.eof",
    "enable.auto.offset.store",
    "security.protocol",
    "transactional.id",
    "transaction.timeout.ms",
    "delivery.report.only.error",
    "enabled_events",
    "produce.offset.report",
)
_DANGEROUS = (
    ("plugin.", "loads code"),
    ("sasl.kerberos.kinit.cmd", "runs a command"),
    ("ssl.", "may read files or load code; how to connect is said once, under `cluster.attach.security`"),
    ("sasl.", "may read files, run commands or dial elsewhere; `cluster.attach.security` says how to connect"),
    ("https.", "may read files"),
    ("offset.store.", "may write files"),
    ("debug", "floods the log the evidence is read from"),
    ("log", "redirects the log the evidence is read from"),
)


def refusal(setting: str, client: str = "confluent") -> str | None:
    """Why a plan may not set this setting of that client, and what to do; None if it may."""
    if client == "exec" or setting in _MAY[client]:
        return None
    if setting in OWN_WORDS:
        return f"`{setting}` has a word of its own in a plan: say {OWN_WORDS[setting]}"
    if setting.startswith(_HARNESS):
        return f"`{setting}` belongs to the harness: take it away"
    if setting.endswith(("_cb", ".callback")):
        return f"`{setting}` takes code: take it away"
    for prefix, why in _DANGEROUS:
        if setting.startswith(prefix):
            return f"`{setting}` is refused, it {why}: take it away"
    close = get_close_matches(setting, sorted(_MAY[client]), n=1)
    return f"`{setting}` is no {_WHOSE[client]} setting that plans may use" + (
        f"; did you mean `{close[0]}`?" if close else ": take it away"
    )
