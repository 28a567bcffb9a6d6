"""Compiles with little optimisation, for tests that compile large models or many programs and run them briefly.

A module whose tests want this imports ``quick_compilation``; its tests marked ``compiled_as_for_users`` are compiled
with all optimisations all the same.
"""

import functools

import jax
import pytest
from jax._src import compiler

# Not a part of JAX's interface: where a version of JAX lacks it, fused operations are compiled as for users.
_options_for_users = getattr(compiler, "get_compile_options", None)


@pytest.fixture(autouse=True)
def quick_compilation():
    """Asks for quick compilation of the tests of a module that imports it; tests/conftest.py sees to it."""


@functools.cache
def _fewer_operations_fused() -> dict[str, bool]:
    """XLA's option that leaves out the emitters of fused operations; nothing where XLA has it no longer."""
    option = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=option)
    except jax.errors.JaxRuntimeError:
        return {}
    return option


def _quick_options(*arguments, env_options_overrides=None, **options):
    """JAX's options, without the emitters of fused operations: a third of compiling one of the engine's cases."""
    overrides = {**_fewer_operations_fused(), **(env_options_overrides or {})}
    return _options_for_users(*arguments, env_options_overrides=overrides, **options)


def compile_quickly(quick: bool) -> None:
    """From now on; programs that were compiled in the other way are forgotten."""
    if jax.config.read("jax_disable_most_optimizations") == quick:
        return
    _fewer_operations_fused()  # asks the compiler, as users have it
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", quick)
    if _options_for_users:
        compiler.get_compile_options = _quick_options if quick else _options_for_users
