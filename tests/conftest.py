"""Settings that all tests share."""

import os

# One process, one core: small programs run quicker without a thread pool, and compile less often the same twice.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from hypothesis import settings  # noqa: E402  (the environment comes first)

settings.register_profile("jafl", deadline=None)  # the first example of a property may compile
settings.load_profile("jafl")
