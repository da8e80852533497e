"""Kafka's client rules, sans-IO: one concept a file, to be read beside its KIP.

A rule is told what happened and says what to do. It owns no socket and no clock: time (milliseconds, monotonic) and
randomness are arguments. Rules count what they decide (``counts``); a switch turns one rule off and leaves the others.
"""
