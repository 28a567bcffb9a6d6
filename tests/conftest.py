"""Settings that all tests share."""

import os

# One process, one core: small programs run quicker without a thread pool, and compile less often the same twice.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pytest  # noqa: E402  (the environment comes first)
from hypothesis import settings  # noqa: E402

settings.register_profile("jafl", deadline=None)  # the first example of a property may compile
settings.load_profile("jafl")


@pytest.fixture(autouse=True, scope="module")
def _compiled_programs_go():
    """Lets each module's compiled programs go.

    Each holds several memory maps, of which Linux gives a process 65,530: a compiler that gets no more aborts.
    """
    yield
    import jax

    jax.clear_caches()
