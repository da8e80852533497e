"""The client processes of a run as faults see them."""


class ClientsWorld:
    """See `faults.world.Crewed`."""
