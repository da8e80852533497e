"""The protocol-aware proxy of a run as faults see it."""


class RulesWorld:
    """See `faults.world.Tampered`."""
