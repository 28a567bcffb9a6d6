"""Cases of the tables against the slow reference, their trips spread over eight devices: a program of its own.

Trips of a step that each device folds for itself (additive rules), trips that train in waves (all others, and where
steps are small), one after the other and side by side.
"""

import pathlib
import sys
from typing import Any

here = pathlib.Path(__file__).parent
sys.path[:0] = [
    str(here),
    *(str(here.parent / room) for room in ("support", "reference", "rules")),
    str(here.parents[1]),
]

import engine_cases  # noqa: E402  (the path comes first)
import jax  # noqa: E402
import numpy as np  # noqa: E402
import rule_cases  # noqa: E402
from against_reference import compare  # noqa: E402
from preparing import placed  # noqa: E402

import jafl  # noqa: E402
from jafl.engine.devices import Placement, place_on  # noqa: E402
from jafl.engine.plan import make_program as program_of_a_plan  # noqa: E402
from jafl.engine.plan.plan_choice import default_form, default_placement  # noqa: E402
from jafl.engine.plan.preparation import prepare  # noqa: E402

CASES = (
    "fedbuff, buffer above the concurrency",
    "fedavg, over-selection",
    "fedavg, Poisson cohorts",
    "local epochs, LR-Norm",
    "fedasync",
    "asgd; slow clients",
    "fednova; very unequal clients",
    "fednova, scheduled steps; slow clients",
    "ca2fl, scheduled steps; very unequal clients",
    "ace; very unequal clients",
    "aced, some leave; slow clients",
    "aced in buffers; very unequal clients",
    "ace of all due; slow clients",
    "ca2fl; simultaneous arrivals",
    "wkafl; very unequal clients",
    "scaffold; slow clients",
    "scaffold; very unequal clients",
    "feddyn; simultaneous arrivals",
    "fedbuff, clients keep their momentum; slow clients",
    "fedbuff, QSGD; very unequal clients",
    "fedbuff, top-k with error feedback; slow clients",
    "fedbuff, ditto; slow clients",
    "ef21; very unequal clients",
    "qafel; slow clients",
    "ringleader; very unequal clients",
    "malenia; slow clients",
    "fedfix; very unequal clients",
    "fedat; slow clients",
    "favas; very unequal clients",
    "quafl; slow clients",
    "fedcompass; very unequal clients",
    "mifa; slow clients",
    "dude-asgd; very unequal clients",
    "area; slow clients",
    "fedfa; slow clients",
    "fedfa, updates; very unequal clients",
    "asyncfeded; slow clients",
    "port; very unequal clients",
    "cgad; slow clients",
    "fadas; very unequal clients",
    "rescaled asgd; very unequal clients",
    "generalized async sgd; slow clients",
    "adamasfl; very unequal clients",
)

# One of each kind: an additive rule, clients that differ, client memory, gradients kept whole, clients' state.
FEW = (
    CASES[0],
    "local epochs, LR-Norm",
    "ace; very unequal clients",
    "wkafl; very unequal clients",
    "scaffold; slow clients",
)

IN_MATRIX_FORM = (
    "fedbuff, buffer above the concurrency",
    "fedasync",
    "ace; very unequal clients",
    "aced, some leave; slow clients",
    "aced in buffers; very unequal clients",
    "ca2fl; simultaneous arrivals",
    "fednova, scheduled steps; slow clients",
    "fedbuff, QSGD; very unequal clients",
    "fedbuff, clients keep their momentum; very unequal clients",
    "fedbuff, top-k with error feedback; slow clients",
    "fedbuff, ditto; very unequal clients",
    "masfl; very unequal clients",
    "feddyn; simultaneous arrivals",
)

IN_PARTS = (
    "ace; very unequal clients",
    "aced, some leave; slow clients",
    "ca2fl; simultaneous arrivals",
    "masfl; very unequal clients",
    "fedbuff, clients keep their momentum; very unequal clients",
    "fedbuff, top-k with error feedback; very unequal clients",
    "fedbuff, ditto; very unequal clients",
    "ef21; very unequal clients",
    "ca2fl, scheduled steps; very unequal clients",
)


def check_what_is_chosen() -> None:
    """CPUs share the steps of an additive rule if these are large enough; other rules keep to one.

    Where several are asked for all the same, the form that exchanges little is taken.
    """

    def placement(rule: jafl.Specification, buffer_size: int, **asked) -> tuple[int, str]:
        schedule = jafl.asynchronous(
            num_clients=40,
            concurrency=40,
            buffer_size=buffer_size,
            delay=jafl.delays.exponential(),
            server_steps=3,
        )
        chosen = default_placement(schedule, rule, **asked)
        return chosen.number, default_form(schedule, rule, chosen)

    assert placement(jafl.rules.fedbuff(), 16) == (8, "loop")
    assert placement(jafl.rules.fedbuff(), 15) == (1, "loop")
    assert placement(jafl.rules.ca2fl(), 16) == (1, "loop")
    assert placement(jafl.rules.ca2fl(), 16, devices=3) == (3, "matrix")
    assert placement(jafl.rules.asgd(), 1, together=True) == (8, "loop")


def check_which_accelerators_are_chosen() -> None:
    """Several where a trip computes much for what they exchange, or where one has too little memory."""
    mesh = place_on(8, together=True).devices
    several = Placement(mesh, side_by_side=True, platform="tpu")
    alone = Placement(side_by_side=True, platform="tpu")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(320, 24)).astype(np.float32), random.integers(0, 3, 320)
    federation = jafl.Federation.from_arrays(
        x, y, jafl.data.iid(y, 40, seed=0), test_x=x[:8], test_y=y[:8], num_classes=3
    )
    model = jafl.models.mlp(3, [32])
    schedule = jafl.asynchronous(
        num_clients=40, concurrency=40, buffer_size=4, delay=jafl.delays.exponential(), server_steps=30
    )

    def number(rule: jafl.Specification, local_steps: int, work: Any = None, **asked: Any) -> int:
        work = work or jafl.client_work(model, learning_rate=0.1, batch_size=8, local_steps=local_steps)
        run = jafl.Run(schedule, federation, work, rule, model.init(jax.random.key(0), x), jax.random.key(1))
        asked = {"available": 2**30, "must_fit": False, **asked}
        chosen = prepare(run, placement=several, alone=alone, **asked)
        assert asked.get("plan") in (None, chosen.plan)
        return chosen.program.placement.number

    # 6 operations for each example and parameter: 48 a step; the matrix form is worth it from 400 on, the loop 4,000.
    assert number(jafl.rules.fedbuff(), 8) == 1
    assert number(jafl.rules.fedbuff(), 9) == 8
    assert number(jafl.rules.wkafl(4), 80) == 1
    assert number(jafl.rules.wkafl(4), 90) == 8
    assert number(jafl.rules.fedbuff(), 9, plan=jafl.trip_by_trip(schedule)) == 1
    assert number(jafl.rules.fedbuff(), 8, available=2**10) == 8
    # Nobody knows what client work of one's own computes.
    own = jafl.specify(lambda: jafl.client_work(model, learning_rate=0.1, batch_size=8).build())
    assert number(jafl.rules.fedbuff(), 1, work=own) == 8


def check_what_is_large_lies_in_parts() -> None:
    """Client memory and examples of which every device holds its part give the numbers of one device."""
    random = np.random.default_rng(0)
    sizes = random.integers(1, 9, 90)
    y = random.integers(0, 3, sizes.sum())
    x = random.normal(size=(len(y), 6)) + np.eye(3, 6)[y]
    partition = jafl.Partition.from_lists(np.split(random.permutation(len(y)), np.cumsum(sizes)[:-1]))
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=x[:9], test_y=y[:9], num_classes=3)
    model = jafl.models.mlp(3, (8,))
    params = model.init(jax.random.key(0), x)
    work = jafl.client_work(model, learning_rate=0.1, batch_size=4, local_epochs=2)
    for rule, size, together in (
        (jafl.rules.aced(active_steps=40, memory_precision="int8"), 1, False),
        (jafl.rules.fedbuff(), 3, True),
    ):
        schedule = jafl.asynchronous(
            num_clients=90,
            concurrency=90,
            buffer_size=size,
            delay=jafl.delays.exponential(),
            server_steps=80,
            initial_round=rule.build().initial_round,
        )
        arguments = (schedule, federation, work, rule, params, jax.random.key(1))
        how = {"plan": jafl.in_waves(schedule, 8), "devices": 8, "together": together}
        program, carry = placed(*arguments, **how)
        assert (
            program.placement.memory_is_sharded == (carry.memory is not None)
            and program.placement.sharded_client_examples == 8
        )
        on_each = [leaf.addressable_shards[0].data.size / leaf.size for leaf in jax.tree.leaves(carry.memory)]
        assert not on_each or min(on_each) == 1 / 8
        assert program.data.x.addressable_shards[0].data.shape[0] == -(-len(x) // 8)
        apart = jafl.simulate(*arguments, **how, evaluate_at=[40])
        alone = jafl.simulate(
            *arguments, plan=jafl.trip_by_trip(schedule), devices=1, together=False, evaluate_at=[40]
        )
        for mine, other in zip(*map(jax.tree.leaves, (apart.params, alone.params)), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-11)


def main() -> None:
    assert len(jax.devices()) == 8
    check_what_is_chosen()
    check_which_accelerators_are_chosen()
    known = {case.name: case for case in (*engine_cases.CASES, *rule_cases.CASES)}
    cases, in_matrix_form, in_parts = CASES, IN_MATRIX_FORM, IN_PARTS
    if sys.argv[1] == "few":
        cases, in_matrix_form, in_parts = (
            FEW,
            ("ace; very unequal clients",),
            ("ca2fl; simultaneous arrivals", "masfl; very unequal clients"),
        )
    for number, name in enumerate(cases):
        compare(known[name], "float64", devices=8, together=number % 2 == 1)
    for number, name in enumerate(in_matrix_form):
        compare(known[name], "float64", devices=8, together=number % 2 == 1, width=2, form="matrix")
    compare(known[CASES[0]], "float64", devices=2)  # each folds its share of a step, one by one
    unequal = known["local epochs, LR-Norm"]
    compare(unequal, "float64", devices=2, together=True, width=8, lanes=4)  # two at a time on each
    compare(unequal, "float64", devices=3, together=True)
    program_of_a_plan.LARGE_SHARE_OF_MEMORY = 0
    with jax.enable_x64(True):
        check_what_is_large_lies_in_parts()
    for name in in_parts:
        compare(known[name], "float64", devices=4, width=8)


main()
