"""What kinds of fault have in common: how they strike links, nodes, clients and Kafka, and how that is witnessed."""
