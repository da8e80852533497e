"""The night's work: what runs in which order and for how long, what it left, and what a red night offers.

=========== ====================================================================
`steps`      what there is to do, and what a budget pays for: pure
`record`     what of it is done tonight, on disk, so that a night can go on
`night`      the story: steps, ledger, trend, summary, regression.patch
=========== ====================================================================

``ci/nightly`` calls it, and so can anybody: ``python -m aftershock.harness.nightly --budget 30m``.
"""
