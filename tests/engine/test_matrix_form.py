"""The matrix form against the slow reference simulator: same parameters, for every rule that is linear."""

import itertools

import jax
import numpy as np
import pytest
from accelerator_forms import accelerator_forms
from against_reference import Case, compare, make_federation, make_schedule, work_of
from engine_cases import CASES as ENGINE_CASES
from quick_compilation import quick_compilation  # noqa: F401
from rule_cases import CASES as RULE_CASES
from rule_cases import RULES, SCHEDULES
from tiers import in_tiers

import jafl
from jafl.engine.forms import server_kernel
from jafl.engine.plan.tried_plans import NoMatrixForm

NAMED = {case.name: case for case in (*ENGINE_CASES, *RULE_CASES)}
# Each rule on one schedule, the next rule on the next one; and every kind of events and of client work.
ONE_EACH = [
    f"{rule}; {schedule}" for rule, schedule in zip(RULES, itertools.cycle(SCHEDULES), strict=False)
] + [case.name for case in ENGINE_CASES]
DEFAULT_TIER = ("fedasync", "step scale, server momentum", "masfl; simultaneous arrivals")
# Words in the names of cases whose rule or server optimizer is not linear, or whose rule stores means of updates.
NOT_LINEAR = (
    "qafel",
    "wkafl",
    "zeno",
    "adam",
    "yogi",
    "adagrad",
    "amsgrad",
    "area",
    "asyncfeded",
    "port",
    "heloco",
    "ringleader",
    "clip",
)


def is_linear(case: Case) -> bool:
    # AdaMasFL is no Adam: it normalizes at its clients.
    words = f"{case.name} {case.rule} {case.server[0]}".lower().replace("adamasfl", "")
    return not any(word in words for word in NOT_LINEAR)


@pytest.mark.few_in_full(16)
@pytest.mark.few_by_default(1)
@pytest.mark.parametrize("name", in_tiers(ONE_EACH, DEFAULT_TIER))
def test_the_matrix_form_equals_the_reference(name: str):
    case = NAMED[name]
    if is_linear(case):
        compare(case, "float64", width=6, together=True, form="matrix")
    else:
        with pytest.raises(NoMatrixForm, match="must be loop for this run. The"):
            compare(case, "float64", width=6, together=True, form="matrix")


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.parametrize("width, together", [(1, True), (3, False), (40, True)])
@pytest.mark.parametrize("name", ["fedbuff", "ace; slow clients", "ca2fl; very unequal clients"])
def test_any_width_gives_the_same(name: str, width: int, together: bool):
    compare(NAMED[name], "float64", width=width, together=together, form="matrix")


@pytest.mark.full
@pytest.mark.few_in_full(3)
@pytest.mark.parametrize("platform", ["tpu", "gpu"])
@pytest.mark.parametrize(
    "name",
    [
        "fedbuff",
        "ace; slow clients",
        "fedasync",
        "aced, some leave; slow clients",
        "aced in buffers; very unequal clients",
        "ca2fl; very unequal clients",
    ],
)
def test_the_form_of_each_accelerator_gives_the_same(name: str, platform: str):
    """On a TPU rows lie in whole tiles; on a GPU segments go in fours, and one product makes their versions."""
    with accelerator_forms(platform):
        compare(NAMED[name], "float64", width=6 if platform == "tpu" else 12, together=True, form="matrix")


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.filterwarnings("error:The matrix form runs without its kernel")
@pytest.mark.parametrize(
    "name, precision",
    [
        (name, precision)
        for name in ONE_EACH
        if is_linear(NAMED[name])
        # A compressor selects or rounds entries: in float32 a near tie falls otherwise than in the reference.
        for precision in ("float64", "float32")[: 1 if "compression" in NAMED[name].work else 2]
    ],
)
def test_the_kernel_of_a_tpu_gives_the_same(name: str, precision: str):
    """Interpreted: of every rule, with the other half of the forms for a TPU."""
    with accelerator_forms("tpu", kernel="interpreted"):
        compare(NAMED[name], precision, width=6, together=True, form="matrix")


@pytest.mark.full
@pytest.mark.parametrize("refused", ["the small example", "the program"])
def test_a_compiler_that_refuses_the_kernel_does_without_it(refused, monkeypatch):
    if refused == "the program":
        monkeypatch.setattr(server_kernel, "is_right", lambda interpret: True)
    with (
        accelerator_forms("tpu", kernel="compiled"),
        pytest.warns(UserWarning, match="runs without its kernel"),
    ):
        compare(NAMED["fedasync"], "float64", width=6, together=True, form="matrix")


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.parametrize("name", ["ace; slow clients", "ace in buffers; very unequal clients"])
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_memory_in_few_bits_is_that_of_the_loop(precision: str, name: str):
    """The memory rounds by itself, so the judge is the engine's own loop, trip by trip."""
    case = NAMED[name]
    with jax.enable_x64(True):
        federation, schedule = make_federation(case.clients, np.float64), make_schedule(case)
        model = jafl.models.mlp(3, (5,))
        params = model.init(jax.random.key(1), federation.x)
        rule = jafl.rules.ace(memory_precision=precision)
        arguments = (schedule, federation, work_of(case, model), rule, params, jax.random.key(0))
        loop = jafl.simulate(*arguments, plan=jafl.trip_by_trip(schedule))
        matrix = jafl.simulate(*arguments, plan=jafl.in_waves(schedule, 5, form="matrix"))
    for mine, its in zip(jax.tree.leaves(matrix.params), jax.tree.leaves(loop.params), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-9, atol=1e-12)
