"""What was ever exercised: cells of {fault x role x phase x workload}, their ledger, and what it says.

======== ==================================================================================
`cell`    the four coordinates, and when a fault counts as striking in which phase
`role`    whom a fault hits, as the ledger calls it
`worker`  the clients of a plan, and which of them a fault meets
`ledger`  one JSON line a cell and run: read, appended
`tally`   how often each cell was exercised, how long ago, which never
`matrix`  that as text
======== ==================================================================================
"""
