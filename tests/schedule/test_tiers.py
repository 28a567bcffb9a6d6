"""FedAT's tiers: the same trips as in the reference's loop, who is in which tier, and the weights of their models."""

import guarantees
import numpy as np
import reference as ref
from against_reference import cohorts_of_tiers
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import NOTHING, assert_equal
from schedule_cases import POSITIVE, SOMETIMES_ZERO, by_client, laws

import jafl
from jafl import delays, rules


def duration_of(law, seed):
    return lambda client, trip: float(law.durations(seed, np.array([client]), np.array([trip]))[0])


@settings(max_examples=120)
@given(st.data())
def test_the_same_trips_as_in_the_references_loop(data):
    clients = data.draw(st.integers(1, 9))
    law = data.draw(laws(clients, POSITIVE | SOMETIMES_ZERO))
    tiers, seed = data.draw(st.integers(1, clients)), data.draw(st.integers(0, 99))
    arguments = {
        "num_clients": clients,
        "cohort_size": data.draw(st.integers(1, clients // tiers)),
        "delay": law,
        "server_steps": data.draw(st.integers(1, 20)),
        "seed": seed,
    }
    schedule = jafl.tiered(tiers=tiers, **arguments)
    duration = duration_of(law, seed)
    expected = ref.tiers_by_duration([duration(client, 0) for client in range(clients)], tiers)
    assert schedule.tier.tolist() == expected
    guarantees.check_shapes(schedule)
    guarantees.check_buffer(schedule, arguments["cohort_size"])
    guarantees.check_concurrency(schedule)
    guarantees.check_one_trip_at_a_time(schedule)
    if np.any(law.durations(seed, schedule.client, schedule.trip) == 0):
        return  # rounds without duration begin at one instant: who is in which cannot be read off
    replay = ref.simulate_tiered(
        **NOTHING,
        num_clients=clients,
        tiers=expected,
        cohort=arguments["cohort_size"],
        duration=duration,
        select_round=cohorts_of_tiers(schedule),
        stop_after_steps=arguments["server_steps"],
    )
    assert_equal(schedule, replay)
    given_tiers = jafl.tiered(tiers=expected, **arguments)
    assert_equal(given_tiers, replay)


def test_one_tier_makes_synchronous_rounds():
    law = delays.exponential(1.0)
    common = {"num_clients": 7, "cohort_size": 7, "delay": law, "server_steps": 30, "seed": 2}
    tier, rounds = jafl.tiered(tiers=1, **common), jafl.synchronous(**common)
    for name in ("client", "trip", "download_version", "step", "arrival_time", "step_time"):
        np.testing.assert_array_equal(getattr(tier, name), getattr(rounds, name), err_msg=name)


def test_clients_of_a_tier_are_drawn_alike():
    """800 rounds of 2 of 5: each client in 2/5 of them, 320 +- 5 standard deviations of 13.9."""
    law = delays.constant(1.0)
    schedule = jafl.tiered(num_clients=10, cohort_size=2, tiers=2, delay=law, server_steps=1600, seed=3)
    assert np.all(np.abs(np.bincount(schedule.client) - 320) < 70)
    pairs = schedule.step.astype(np.int64) * 10 + schedule.client
    assert len(np.unique(pairs)) == schedule.num_trips


def test_a_fast_tier_makes_as_many_more_rounds_as_it_is_faster():
    schedule = jafl.tiered(
        num_clients=6, cohort_size=2, tiers=3, delay=by_client(8.0, 1.0, 2.0, 1.0, 8.0, 2.0), server_steps=130
    )
    assert schedule.tier.tolist() == [2, 0, 1, 0, 2, 1]
    by_tier = np.bincount(schedule.tier[schedule.client[::2]])
    assert by_tier.tolist() == [80, 40, 10]


def test_each_tier_has_the_count_of_the_opposite_one_as_its_weight():
    """After 6, 3, 1 and 0 rounds the counts are 7, 4, 2 and 1, and the weights 1, 2, 4 and 7 of 14."""
    schedule = jafl.tiered(
        num_clients=4, cohort_size=1, tiers=4, delay=by_client(1.0, 2.0, 5.0, 20.0), server_steps=10
    )
    assert np.bincount(schedule.tier[schedule.client], minlength=4).tolist() == [6, 3, 1, 0]
    weights = rules.fedat(4).build().columns(schedule)["tier_weights"]
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(weights[-1], np.array([1, 2, 4, 7]) / 14, rtol=1e-15)
    np.testing.assert_allclose(weights[-1], [0.07, 0.14, 0.29, 0.5], atol=0.005)
