"""The Kafka protocol's bytes: framing, codec, errors. No Kafka policy lives here."""
