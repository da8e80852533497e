"""Swarm testing: plans drawn from the catalogue, each from a random part of it (Groce et al., ISSTA 2012). Pure.

=========== ===============================================================================
`words`      what may be said of each kind (``words.yaml``), a frame's own names put in
`frame`      what a search keeps: cluster, topics, clients, promises; what can be reached in it
`placing`    when a fault strikes, so that it does so in the phase that is wanted
`draw`       a plan from a seed, a number and what was exercised before
=========== ===============================================================================

The same seed, number, ledger and day give the same plan, byte for byte.
"""
