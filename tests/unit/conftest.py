"""What all unit tests share: no test asserts wall time, so hypothesis doesn't either."""

from hypothesis import settings

settings.register_profile("aftershock", deadline=None)
settings.load_profile("aftershock")
