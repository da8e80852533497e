"""A proxy that understands Kafka's frames and stands between clients and Toxiproxy when a plan asks for it."""
