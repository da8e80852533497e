"""Client settings that a plan may use.

A plan may come from an untrusted source, and some client settings load code (``plugin.library.paths``), run commands
(``sasl.kerberos.kinit.cmd``), read or write files (``*.location``) or connect elsewhere (``sasl.oauthbearer.*``).
Therefore a plan may use only the client settings listed here, from the documentation of librdkafka 2.16 and Kafka 4.3.
The user supplies the program of an ``exec`` client, so an ``exec`` client may use every setting. A library with a
``version`` needs no permission, so its settings are listed here, too; those that a version lacks its program refuses.
"""

from difflib import get_close_matches

from aftershock.names import ON_LIBRDKAFKA

_LIBRDKAFKA = """
    allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.commit.interval.ms batch.num.messages batch.size broker.address.family broker.address.ttl
    broker.version.fallback check.crcs client.dns.lookup compression.codec compression.level compression.type
    connections.max.idle.ms coordinator.query.interval.ms enable.auto.commit enable.gapless.guarantee
    enable.metrics.push enable.random.seed enable.sparse.connections fetch.error.backoff.ms fetch.max.bytes
    fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.protocol
    group.protocol.type group.remote.assignor heartbeat.interval.ms log.connection.close
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
LIBRDKAFKA_SETTINGS = frozenset(_LIBRDKAFKA.split())

_REFERENCE = """
    auto.commit.interval.ms batch.size buffer.memory check.crcs compression.type connections.max.idle.ms
    default.api.timeout.ms fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.protocol group.remote.assignor
    heartbeat.interval.ms max.block.ms max.in.flight.requests.per.connection max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records max.request.size metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms partitioner.availability.timeout.ms partitioner.ignore.keys
    partitioner.rack.aware reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
    retry.backoff.max.ms retry.backoff.ms session.timeout.ms socket.connection.setup.timeout.ms transaction.timeout.ms
"""
_JAVA = """
    enable.auto.commit enable.metrics.push metadata.max.idle.ms metadata.recovery.strategy
    partitioner.adaptive.partitioning.enable receive.buffer.bytes send.buffer.bytes
    socket.connection.setup.timeout.max.ms
"""
_HARNESS_OWN = {"commit.metadata.bytes", "connections.per.broker", "transactional", "metadata.own.connection"}
_ASSIGNORS = "partition.assignment.strategy"  # Kafka's own client would load any class with this name
REFERENCE_SETTINGS = frozenset(_REFERENCE.split()) | _HARNESS_OWN | {_ASSIGNORS}
_ADAPTER = {"share", "num-records", "warmup-records", "poll.timeout.ms"}  # of our Java adapter
JAVA_SETTINGS = frozenset(_REFERENCE.split()) | frozenset(_JAVA.split()) | _ADAPTER
_PYTHON = """
    auto.commit.interval.ms batch.size buffer.memory check.crcs compression.type connections.max.idle.ms
    exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes heartbeat.interval.ms max.batch.size
    max.block.ms max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    max.request.size metadata.max.age.ms rebalance.timeout.ms reconnect.backoff.max.ms reconnect.backoff.ms
    request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms session.timeout.ms
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
"""
_PYTHON_SETTINGS = frozenset(_PYTHON.split())
_KAFKAJS = """
    batch.size buffer.memory compression.type consumer.restart fetch.max.bytes fetch.max.wait.ms fetch.min.bytes
    heartbeat.interval.ms max.in.flight.requests.per.connection max.partition.fetch.bytes metadata.max.age.ms
    rebalance.timeout.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms session.timeout.ms
    socket.connection.setup.timeout.ms
"""
_SESSION = ("heartbeat.interval.ms", "session.timeout.ms")
_SETTINGS_OF = {
    **dict.fromkeys(ON_LIBRDKAFKA, LIBRDKAFKA_SETTINGS),
    "reference": REFERENCE_SETTINGS,
    "java": JAVA_SETTINGS,
    # those that the shipped programs offer
    "confluent-kafka-javascript": LIBRDKAFKA_SETTINGS | {"describe.topics.ms"},
    "franz-go": frozenset({"always_retry_eof", "id_by_begin", "max_buffered_records", *_SESSION}),
    "sarama": frozenset({"metadata.max.age.ms", "producer.retry.max", *_SESSION}),
    "kafka-go": frozenset(_SESSION),
    "kafka-python": _PYTHON_SETTINGS,
    "aiokafka": _PYTHON_SETTINGS,
    "kafkajs": frozenset(_KAFKAJS.split()),
}
_OWNER_OF = {**dict.fromkeys(ON_LIBRDKAFKA, "librdkafka"), "reference": "reference client", "java": "Kafka"}

PLAN_KEY_FOR = {
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
    "transactional.id": "`transaction` under `produce`",
    "isolation.level": "`isolation` under `consume`",
}

_HARNESS = """
    bootstrap.servers client. delivery.report.only.error enable.auto.offset.store enable.partition.eof enabled_events
    group.instance.id metadata.broker.list produce.offset.report security.protocol transaction.timeout.ms
"""
_DANGEROUS = (
    ("plugin.", "loads code"),
    ("sasl.kerberos.kinit.cmd", "runs a command"),
    ("ssl.", "may read files or load code; `cluster.attach.security` configures the connection"),
    ("sasl.", "may read files, run commands or connect elsewhere; `cluster.attach.security` configures the connection"),
    ("https.", "may read files"),
    ("offset.store.", "may write files"),
    ("debug", "floods the client's log, which serves as evidence"),
    ("log", "redirects the client's log, which serves as evidence"),
)


def refusal(setting: str, client: str = "confluent") -> str | None:
    """Return why a plan may not use a client setting, with the remedy; None if the setting is permitted."""
    if client in ("exec", "service") or setting in _SETTINGS_OF[client]:
        return None
    if setting in PLAN_KEY_FOR:
        return f"the client setting `{setting}` has a key of its own in a plan: use {PLAN_KEY_FOR[setting]}"
    if setting.startswith(tuple(_HARNESS.split())):
        return f"the client setting `{setting}` is set by the harness: remove it"
    if setting.endswith(("_cb", ".callback")):
        return f"the client setting `{setting}` takes code, which a plan can't contain: remove it"
    for prefix, why in _DANGEROUS:
        if setting.startswith(prefix):
            return f"the client setting `{setting}` is refused because it {why}: remove it"
    close = get_close_matches(setting, sorted(_SETTINGS_OF[client]), n=1)
    remedy = f"; did you mean `{close[0]}`?" if close else ": remove it"
    owner = _OWNER_OF.get(client, client)
    article = "an" if owner.startswith("a") else "a"
    return f"`{setting}` is not {article} {owner} setting that plans may use{remedy}"
