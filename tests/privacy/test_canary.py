"""Whether a client can be told to have taken part is bounded by its epsilon: toy runs with it and without.

The canary sends a large update, all others send nothing, and the attacker has all models of a run, knows the schedule
and the weights, and asks the likeliest question: the sum of the steps' changes, weighted as the canary's part in them
against their noise. A claim of (epsilon, delta) says of every event that its probability with the canary is at most
e^epsilon times that without it, plus delta.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import rules
from jafl.privacy.mechanisms import noising
from jafl.privacy.noise import key_words
from jafl.privacy.private import AccountedRule, report_of
from jafl.records import Arrival
from jafl.specifications import for_schedule

RUNS, CLIP, DELTA = 10_000, 0.5, 0.05
PARAMS = {"w": jnp.zeros(2)}


@functools.cache
def schedule() -> jafl.EventSchedule:
    return jafl.asynchronous(
        num_clients=9,
        concurrency=6,
        buffer_size=3,
        delay=jafl.delays.half_normal(1.0),
        server_steps=24,
        seed=4,
    )


def canary() -> int:
    """The client with the most trips."""
    return int(np.argmax(np.bincount(schedule().client)))


def directions(rule: AccountedRule, words: np.ndarray, takes_part: bool) -> np.ndarray:
    """[runs, T]: the first parameter's direction in every step, by the rule's own functions.

    words: [runs, 2], keys of the noises.
    """
    events = schedule()
    shape = (events.num_steps, 3)
    client, staleness = (jnp.asarray(column).reshape(shape) for column in (events.client, events.staleness))
    large = jnp.array([100 * CLIP, 0.0])

    def one_run(words):
        built = AccountedRule(rule.factory, {**rule.arguments, "words": words}).build()

        def step(state, trips):
            buffer = built.begin(state, PARAMS)
            for place in range(3):
                is_canary = takes_part & (trips[0][place] == canary())
                update = {"w": jnp.where(is_canary, large, 0.0)}
                one = jnp.int32(1)
                arrival = Arrival(update, None, trips[0][place], trips[1][place], one, one, one, one, {})
                buffer, _ = built.fold(buffer, arrival)
            direction, state, _, _ = built.finish(buffer, PARAMS)
            return state, direction["w"][0]

        return jax.lax.scan(step, built.init(PARAMS, events.num_clients), (client, staleness))[1]

    return np.asarray(jax.jit(jax.vmap(one_run))(words), np.float64)


def excess(mechanism: str, share_of_noise: float) -> tuple[float, float, float]:
    """(P(event with the canary) - e^epsilon P(event without), its standard error, how far the signal is).

    share_of_noise: of what is claimed, 1 for all. The event is the one that is the likeliest to break the claim.
    """
    requested = jafl.private(
        rules.fedbuff(),
        clip_norm=CLIP,
        epsilon=1.5,
        delta=DELTA,
        mechanism=mechanism,
        epsilon_reading="realised",
    )
    accounted = for_schedule(requested, schedule(), np.ones(9, int))
    report = report_of(accounted)
    epsilon = report.per_client_epsilon[canary()]
    less = {**accounted.arguments, "deviation": share_of_noise * accounted.arguments["deviation"]}
    rule = AccountedRule(accounted.factory, less)
    words = np.stack([key_words(seed) for seed in range(2 * RUNS)])
    with_it, without = directions(rule, words[:RUNS], True), directions(rule, words[RUNS:], False)
    signal = np.zeros(24)
    weights = 1 / np.sqrt(1 + schedule().staleness) / 3
    own = schedule().client == canary()
    np.add.at(signal, schedule().step[own], -CLIP * weights[own])
    rows = noising(report.mechanism, 24) * less["deviation"]
    matched = np.linalg.solve(rows @ rows.T, signal)
    distance = np.sqrt(signal @ matched)
    threshold = epsilon + distance**2 / 2  # where the likelihoods differ by e^epsilon
    hit, miss = np.mean(with_it @ matched > threshold), np.mean(without @ matched > threshold)
    error = np.sqrt((hit * (1 - hit) + np.exp(2 * epsilon) * miss * (1 - miss)) / RUNS)
    return hit - np.exp(epsilon) * miss, error, distance


@pytest.mark.full
@pytest.mark.parametrize("mechanism", ["tree", "tree_honaker", "independent", "banded_toeplitz"])
def test_a_canary_is_told_no_better_than_its_epsilon_allows(mechanism):
    found, error, distance = excess(mechanism, 1.0)
    assert found <= DELTA + 4 * error
    assert found > 0.1 * DELTA, "an attack that sees nothing shows nothing"
    halved, error, twice = excess(mechanism, 0.5)
    assert twice == pytest.approx(2 * distance)
    assert halved > DELTA + 4 * error  # the same check fails with half of the noise
