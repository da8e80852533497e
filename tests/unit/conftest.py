"""Settings of all unit tests: no test asserts wall time, so hypothesis has no deadline."""

from hypothesis import settings

settings.register_profile("quick", deadline=None, max_examples=20)  # make test-quick
settings.register_profile("aftershock", deadline=None)
settings.load_profile("aftershock")
