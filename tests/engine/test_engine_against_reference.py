"""The engine against the slow reference simulator: the same parameters after 300 steps, for a table of cases."""

import os
import pathlib
import subprocess
import sys

import pytest
from against_reference import Case, compare
from engine_cases import CASES
from quick_compilation import quick_compilation  # noqa: F401

NAMED = {case.name: case for case in CASES}
SELDOM = (
    "local steps beyond an epoch",
    "one short minibatch, LR-Norm",
    "local epochs, LR-Norm",
    "local steps on minibatches",
    "client momentum",
    "fedavg, Poisson cohorts",
    "fedavg, by examples",
    "fedavg, no delay",
    "fedbuff, server adam",
    "fedbuff, FedAdagrad of Reddi et al.",
    "fedbuff, FedYogi of Reddi et al.",
    "fedbuff, delayed Nesterov, c = 0.0",
    "fedbuff, all-equal delays, whole cohort",
    "fedbuff, buffer above the concurrency",
    "fedbuff, one client fills the buffer",
    "multilayer perceptron, fedasync",
    "local epochs",
    "proximal and L2",
    "full batches, several steps",
    "fedbuff, fast and slow groups",
    "fedbuff, FedAdam of Reddi et al.",
    "buffered averaging",
    "fedbuff, half of the clients in flight",
    "fedbuff, a user's weight",
    "fedbuff, sum",
    "fedbuff, exponential",
    "fedbuff, constant weight",
    "fedbuff, hinge",
    "fedbuff, one in flight",
    "fedbuff, steep polynomial",
)


# One of each kind of events and of client work; every rule is run in tests/rules.
KINDS = (
    "fedbuff",
    "fedbuff, one trip a step",
    "fedbuff, buffer above the concurrency",
    "fedbuff, all-equal delays",
    "fedbuff, after the round, some leave",
    "fedasync",
    "fedavg, over-selection",
    "fedavgm, Poisson cohorts",
    "step scale, server momentum",
    "local steps on minibatches",
    "local epochs, LR-Norm",
    "full batches, several steps",
    "multilayer perceptron",
)


# The default tier compiles quickly, the full tier as for users: there a case that was compiled quickly tells no more.
@pytest.mark.few_in_full(5)
@pytest.mark.few_by_default(4)
@pytest.mark.parametrize("name", [name for name in NAMED if name not in SELDOM])
def test_engine_equals_reference(name: str):
    compare(NAMED[name], "float64")


@pytest.mark.full
@pytest.mark.few_in_full(5)
@pytest.mark.compiled_as_for_users
@pytest.mark.parametrize("name", KINDS)
def test_engine_equals_reference_in_float32_with_all_optimisations(name: str):
    compare(NAMED[name], "float32")


@pytest.mark.few_in_full(8)
@pytest.mark.full
@pytest.mark.compiled_as_for_users
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engine_equals_reference_with_all_optimisations(case: Case):
    compare(case, "float64")


@pytest.mark.full
@pytest.mark.parametrize("name", ["fedbuff", "fedbuff, after the round, some leave"])
def test_engine_equals_reference_in_waves(name: str):
    compare(NAMED[name], "float64", width=6, together=True)


@pytest.mark.few_in_full(5)
@pytest.mark.full
@pytest.mark.compiled_as_for_users
@pytest.mark.parametrize("name", KINDS)
def test_engine_equals_reference_in_waves_with_all_optimisations(name: str):
    compare(NAMED[name], "float64", width=6, together=True)


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", ["local epochs, LR-Norm", "full batches, several steps"])
def test_engine_equals_reference_with_few_lanes_for_unequal_clients(name: str, mixed: bool):
    compare(NAMED[name], "float64", width=7, lanes=3, mixed=mixed, together=True)


@pytest.mark.parametrize(
    "cases", [pytest.param("few", marks=pytest.mark.full), pytest.param("all", marks=pytest.mark.gate)]
)
def test_engine_equals_reference_on_eight_devices(cases):
    """In a process of its own, whose devices are made before JAX starts."""
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # a third less time, most of which goes into compiling
    }
    program = pathlib.Path(__file__).parent / "on_eight_devices.py"
    ended = subprocess.run([sys.executable, program, cases], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
