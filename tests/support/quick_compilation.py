"""Compiles with little optimisation: these tests compile large models, or many programs, and run them for a moment.

The table of cases in ``test_engine_against_reference`` and the runs of ``tests/run`` are compiled as users
compile them.
"""

import jax
import pytest


@pytest.fixture(autouse=True)
def quick_compilation(request):
    """For the modules that import it, but for their tests marked ``compiled_as_for_users``."""
    before = jax.config.read("jax_disable_most_optimizations")
    quick = request.node.get_closest_marker("compiled_as_for_users") is None
    jax.config.update("jax_disable_most_optimizations", quick or before)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
