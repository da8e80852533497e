"""Settings of plans with consumer groups: sessions and heartbeats shorter than Kafka's, for which a test would wait."""

SHORT_SESSIONS = """
cluster:
  config:
    group.consumer.session.timeout.ms: 6000
    group.consumer.min.session.timeout.ms: 6000
    group.consumer.heartbeat.interval.ms: 1000
    group.consumer.min.heartbeat.interval.ms: 1000
"""
