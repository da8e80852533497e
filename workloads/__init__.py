"""The clients and the load: what is sent, when, by whom, and the record of what became of it.

The runner's side is ``fleet`` (starts and commands one process per client), ``warmup``, ``outcomes`` and ``logread``;
the other side of the pipe is ``worker``. Nothing here knows the harness, the faults or the judging.
"""
