"""Private runs of the engine against the slow reference, which keeps every node of its trees."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
import reference as ref
import reference_rules as papers
from against_reference import Case, compare
from quick_compilation import quick_compilation  # noqa: F401
from reference_privacy import Private
from tiers import in_tiers

import jafl
from jafl import delays, rules
from jafl.privacy.noise import key_words, node_noise

CLIP, NOISE, SEED = 0.3, 0.2, 11
STEPS = 100
ADAM = (jafl.specify(optax.adam, learning_rate=0.02), ref.Adam(0.02))


def draw(dtype, tree, level, index):
    """The noise of a node, as the reference gets its random draws: from outside. The bias comes first."""
    node = (np.int32(tree), np.int32(level), np.int32(index))
    made = np.asarray(node_noise(key_words(SEED), *node, 21, dtype), np.float64)
    return {"dense": {"bias": made[:3], "kernel": made[3:].reshape(6, 3)}}


def private_case(name, mechanism, rule=None, expected=ref.FedBuff, unit=0.25, more=None, **case):
    """A case whose reference draws the noise in the precision of the engine's parameters."""
    numbers = {"mechanism": mechanism, **(more or {})}
    made = jafl.private(
        rule or rules.fedbuff(),
        clip_norm=CLIP,
        noise_multiplier=NOISE,
        delta=1e-5,
        noise_seed=SEED,
        **numbers,
    )

    def expected_rule():
        dtype = np.float64 if jax.config.jax_enable_x64 else np.float32
        known = {}

        def noise_of(*node):
            if node not in known:
                known[node] = draw(dtype, *node)
            return known[node]

        deviation = NOISE * CLIP * unit
        return Private(expected(), CLIP, deviation, noise_of, steps=STEPS, **numbers)

    return Case(name, made, expected_rule, steps=STEPS, **case)


CASES = [
    private_case("tree, restarts", "tree", more={"restarts": 6}),
    private_case("tree, server adam", "tree", server=ADAM, buffer_size=3, unit=1 / 3),
    private_case(
        "tree, scaled steps",
        "tree",
        rules.fadas("release", 1),
        lambda: papers.FADAS("release", 1),
        server=(jafl.specify(optax.sgd, learning_rate=0.7, momentum=0.5), ref.SGD(0.7, 0.5)),
    ),
    private_case("tree, one trip a step", "tree", rules.asgd(), ref.FedAvg, 1.0, buffer_size=1),
    private_case("tree_honaker", "tree_honaker", delay=delays.constant(1.0)),
    private_case("tree_honaker, restarts", "tree_honaker", more={"restarts": 6}),
    private_case("banded_toeplitz", "banded_toeplitz", more={"bands": 7}, delay=delays.half_normal(2.0)),
    private_case(
        "independent, rounds",
        "independent",
        rules.fedavg(),
        ref.FedAvg,
        1 / 6,
        over_selection=0.3,
        concurrency=6,
    ),
]
NAMED = {case.name: case for case in CASES}


@pytest.mark.full
@pytest.mark.parametrize("case", in_tiers(NAMED, ("tree, restarts",)))
def test_a_private_run_equals_the_reference(case: Case):
    history, _ = compare(case, "float64")
    clipped = history.trip_reports["clipped"]
    assert 0.05 < clipped.mean() < 1
    assert np.all(history.step_reports["noise_norm"] > 0)


@pytest.mark.full
def test_it_does_in_float32():
    compare(NAMED["tree_honaker, restarts"], "float32")


@pytest.mark.full
def test_the_comparison_can_fail():
    """A node's noise that is another one in the reference alone."""
    case = NAMED["tree, restarts"]

    def other_draws():
        expected = case.expected_rule()
        of_node = expected.draw
        expected.draw = lambda tree, level, index: of_node(tree + (tree == 3 and level == 1), level, index)
        return expected

    with pytest.raises(AssertionError):
        compare(dataclasses.replace(case, expected_rule=other_draws), "float64")
