"""Whether a program keeps the protocol of ``docs/EXEC.md``: ``python -m aftershock.workloads.clients.conformance``."""
