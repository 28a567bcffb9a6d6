"""Compiles with little optimisation, for tests that compile large models or many programs and run them briefly.

A module whose tests want this imports ``quick_compilation``; its tests marked ``compiled_as_for_users`` are compiled
with all optimisations all the same.
"""

import functools

import jax
import pytest
from jax._src import compiler

_options_for_users = compiler.get_compile_options


@pytest.fixture(autouse=True)
def quick_compilation():
    """Asks for quick compilation of the tests of a module that imports it; tests/conftest.py sees to it."""


@functools.wraps(_options_for_users)
def _quick_options(*arguments, env_options_overrides=None, **options):
    """Without the emitters of fused operations, which take as long as the rest of compiling a small program."""
    overrides = {"xla_cpu_use_fusion_emitters": False, **(env_options_overrides or {})}
    return _options_for_users(*arguments, env_options_overrides=overrides, **options)


def compile_quickly(quick: bool) -> None:
    """From now on; programs that were compiled in the other way are forgotten."""
    options = _quick_options if quick else _options_for_users
    if compiler.get_compile_options is not options:
        jax.clear_caches()
        compiler.get_compile_options = options
        jax.config.update("jax_disable_most_optimizations", quick)
