"""``aftershock explore``: swarm testing on a warm cluster, for as long as a budget lasts.

============ ==========================================================================
`budget`      what a run may take, and whether it fits into what is left: pure
`exercised`   the lines that a judged run adds to the coverage ledger: pure
`ledger`      those lines on disk
`search`      the story: corpus first, then plans that are drawn, until time is up
`stage`       what plans are run on and judged by: one warm cluster, one Spark session
`told`        what is said in the end
============ ==========================================================================

What is drawn is `faults/swarm`'s to say, what was exercised `faults/coverage`'s.
"""
