"""The reference rules are themselves right: cases worked out by hand, and the papers' algebra on small data."""

import math

import numpy as np
import pytest
import reference as ref
import reference_rules as rules

# Helpers.


def vector(*entries):
    return {"w": np.array(entries, dtype=np.float64)}


def entries(tree):
    return tree["w"].tolist()


def made_trip(update, *, client=0, staleness=0, loss=0.0, batch_examples=1, num_examples=1):
    """A trip as a rule sees it; `update` is a number or a tuple of numbers."""
    update = vector(*np.atleast_1d(update))
    trip = ref.Trip(client=client, trip=0, download_version=0, download_time=0.0, arrival_time=1.0)
    trip.start, trip.update, trip.trained = ref.zeros_like(update), update, update
    trip.staleness, trip.loss = staleness, loss
    trip.batch_examples, trip.num_examples = batch_examples, num_examples
    return trip


def gradient_trip(gradient, learning_rate=0.5, **fields):
    """A trip of one plain step along `gradient`."""
    return made_trip(-learning_rate * np.atleast_1d(np.array(gradient, dtype=float)), **fields)


def directions(rule, steps, num_clients=3):
    """What the rule returns for each step, as lists, None for a skipped one: in a second run the same."""
    params = vector(*np.zeros(len(steps[0][0].update["w"])))

    def run():
        rule.begin(params, num_clients)
        returned = [rule.pseudo_gradient(params, trips) for trips in steps]
        return [None if direction is None else entries(direction) for direction in returned]

    first = run()
    assert first == run() and len(rule.reports) == len(steps)
    return first


def close(first, second, tolerance=1e-12):
    """Whether two numbers or (nested) lists of numbers of the same shape agree."""
    return np.shape(first) == np.shape(second) and np.allclose(first, second, rtol=tolerance, atol=tolerance)


def assert_close(first, second, tolerance=1e-12):
    ref.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), first, second)


def assert_same_replays(first, second, tolerance=1e-12):
    for one, other in zip(first.params, second.params, strict=True):
        assert_close(one, other, tolerance)


def toy_data(num_clients, seed=0):
    """Clients with 5 to 11 examples, 4 features and 3 classes, each with its own leaning."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(5, 12, size=num_clients)
    return [
        (generator.normal(size=(n, 4)) + 0.5 * generator.normal(size=4), generator.integers(0, 3, size=n))
        for n in sizes
    ]


def softmax_params(seed=0):
    generator = np.random.default_rng(seed)
    return {"dense": {"kernel": generator.normal(size=(4, 3)), "bias": generator.normal(size=3)}}


def durations(kind, num_clients, seed=0):
    """Continuous durations of slow and quick clients, few whole numbers that often tie, or all equal."""
    generator = np.random.default_rng(seed)
    if kind == "exponential":
        drawn = generator.uniform(0.2, 5.0, (num_clients, 1)) * generator.exponential(size=(num_clients, 500))
    elif kind == "ties":
        drawn = generator.integers(1, 4, size=(num_clients, 500)).astype(float)
    else:
        drawn = np.ones((num_clients, 500))
    return lambda client, trip: drawn[client, trip]


def train(rule, optimizer, *, data, kind="exponential", **settings):
    """Softmax regression with a full local batch on every client at once, unless told otherwise."""
    settings = {
        "num_clients": len(data),
        "concurrency": len(data),
        "buffer_size": 1,
        "stop_after_steps": 40,
        "duration": durations(kind, len(data)),
        "client_examples": [len(y) for _, y in data],
        "params": softmax_params(),
    } | settings
    work = ref.client_work(data, lambda client, trip: [np.arange(len(data[client][1]))], learning_rate=0.3)
    return ref.simulate(rule=rule, optimizer=optimizer, client_update=work, **settings)


def train_ace(rule, optimizer, *, data, **settings):
    """`train` with ACE's start: N trips in step 0."""
    return train(rule, optimizer, data=data, first_buffer_size=len(data), **settings)


# Vectors.


def test_cosine_of_zero_vectors_is_zero_and_rounding_keeps_it_within_one():
    assert rules.cosine(vector(0, 0), vector(1, 2)) == 0.0
    assert rules.cosine(vector(1, 2), vector(0, 0)) == 0.0
    assert rules.cosine(vector(3, 4), vector(4, 3)) == pytest.approx(24 / 25)
    generator = np.random.default_rng(0)
    for _ in range(200):
        one = vector(*generator.normal(size=7))
        assert rules.cosine(one, ref.scale(-3.0, one)) >= -1.0
        assert rules.cosine(one, ref.scale(3.0, one)) <= 1.0


def test_clip_shortens_only_what_is_longer_by_the_norm_over_all_arrays():
    tree = {"a": np.array([3.0]), "b": np.array([4.0])}
    assert_close(rules.clip(tree, 2.5), {"a": np.array([1.5]), "b": np.array([2.0])})
    assert rules.clip(tree, 5.0) is tree and rules.clip(tree, None) is tree
    assert entries(rules.clip(vector(0, 0), 0.0)) == [0.0, 0.0]


def test_8_bit_values_are_multiples_of_the_step_with_the_right_mean_and_variance():
    generator = np.random.default_rng(1)
    tree = {"a": np.array([127.0, -127.0, 10.25, -3.5, 0.0]), "b": np.array([0.0, 0.0])}
    drawn = [rules.unbiased_8_bit(tree, generator) for _ in range(4000)]
    values = np.array([sample["a"] for sample in drawn])
    assert set(np.unique(values)) == {127.0, -127.0, 10.0, 11.0, -4.0, -3.0, 0.0}
    parts = np.array([0.0, 0.0, 0.25, 0.5, 0.0])
    variance = parts * (1 - parts)
    assert np.all(np.abs(values.mean(axis=0) - tree["a"]) <= 4.5 * np.sqrt(variance / 4000))
    np.testing.assert_allclose(values.var(axis=0), variance, rtol=0.1)
    assert all(np.array_equal(sample["b"], tree["b"]) for sample in drawn)


# FedStaleWeight and exponential weighting.


def weights_after(rule, *steps):
    """The weights of the last step. A step is a list of (client, staleness)."""
    directions(rule, [[made_trip(1.0, client=c, staleness=tau) for c, tau in step] for step in steps])
    return rule.reports[-1]["weights"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # E of client 0 is (4 + 0) / 2 = 2, that of client 1 is (0 + 2 + 1) / 3 = 1.
        (rules.FedStaleWeight(), [5 / 8, 3 / 8]),
        (rules.FedStaleWeight("algorithm_1"), [3 / 5, 2 / 5]),
        # A window of 1: 0 and 1. A window of 2: 2 and 1.5.
        (rules.FedStaleWeight(window=1), [1 / 4, 3 / 4]),
        (rules.FedStaleWeight(window=2), [5 / 9, 4 / 9]),
        # 0.75 * 4 + 0.25 * 0 = 3; 0.75 * (0.75 * 0 + 0.25 * 2) + 0.25 * 1 = 0.625.
        (rules.FedStaleWeight(decay=0.75), [7 / 9.25, 2.25 / 9.25]),
    ],
)
def test_fedstaleweight_by_hand(rule, expected):
    assert close(weights_after(rule, [(0, 4), (1, 0)], [(1, 2)], [(0, 0), (1, 1)]), expected)


def test_fedstaleweight_counts_both_trips_of_a_client_in_one_buffer_for_both():
    # E of client 0 is (1 + 3) / 2 = 2 for both of its trips, b = 3: 7, 7 and 4.
    assert close(weights_after(rules.FedStaleWeight(), [(0, 1), (0, 3), (1, 1)]), [7 / 18, 7 / 18, 4 / 18])
    # The last of the window is the later trip; the average starts with the earlier one: (1 + 3) / 2.
    assert close(
        weights_after(rules.FedStaleWeight(window=1), [(0, 1), (0, 3), (1, 1)]), [10 / 24, 10 / 24, 4 / 24]
    )
    assert close(
        weights_after(rules.FedStaleWeight(decay=0.5), [(0, 1), (0, 3), (1, 1)]), [7 / 18, 7 / 18, 4 / 18]
    )


def test_fedstaleweight_descends_the_weighted_sum():
    step = [made_trip((1.0, 0.0), staleness=1), made_trip((0.0, 2.0), client=1)]  # weights 3/4 and 1/4
    assert close(directions(rules.FedStaleWeight(), [step])[0], [-0.75, -0.5])


@pytest.mark.parametrize(
    ("base", "expected"),
    [(0.5, [8 / 11, 1 / 11, 2 / 11]), (1.5, [8 / 53, 27 / 53, 18 / 53]), (1.0, [1 / 3] * 3)],
)
def test_exponential_weighting_by_hand(base, expected):
    assert close(weights_after(rules.ExponentialWeighting(base), [(0, 2), (1, 5), (2, 4)]), expected)
    step = [made_trip((1.0, 0.0), staleness=1), made_trip((0.0, 1.0))]
    assert close(directions(rules.ExponentialWeighting(0.5), [step])[0], [-1 / 3, -2 / 3])


def test_fedstaleweight_reaches_the_bounds_of_appendix_a():
    """One client of the largest staleness among fresh ones, and a fresh one among those."""
    largest = weights_after(rules.FedStaleWeight(), [(0, 7), (1, 0), (2, 0)])[0]
    smallest = weights_after(rules.FedStaleWeight(), [(0, 0), (1, 7), (2, 7)])[0]
    assert close([largest, smallest], [(3 * 7 + 1) / (3 * (7 + 1)), 1 / (2 * (3 * 7 + 1) + 1)])


# One gradient per step.


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (rules.DelayAdaptiveASGD(0.5, threshold=4), [6.0, 6.0, 4.8, 3.0]),
        (rules.DelayAdaptiveASGD(0.5, threshold=4, form="drop"), [6.0, 6.0, None, None]),
        # 1 / (4 L tau) = 1 / (0.8 tau): 0.25 for tau = 5 is above eta = 0.2; 0.15625 for 8 is not.
        (
            rules.DelayAdaptiveASGD(0.5, threshold=4, form="bound", smoothness=0.2, server_learning_rate=0.2),
            [6.0, 6.0, 6.0, 6.0 * 0.15625 / 0.2],
        ),
    ],
)
def test_delay_adaptive_asgd_by_hand(rule, expected):
    steps = [[gradient_trip(6.0, staleness=tau)] for tau in (0, 4, 5, 8)]
    returned = [None if direction is None else direction[0] for direction in directions(rule, steps)]
    assert returned == [None if value is None else pytest.approx(value) for value in expected]


def test_delay_adaptive_asgd_drops_without_moving_model_or_momentum():
    data = toy_data(5)
    rule = rules.DelayAdaptiveASGD(0.3, threshold=4, form="drop")
    replay = train(rule, ref.SGD(0.2, momentum=0.9), data=data)
    late = ref.column(replay.applied, "staleness") > 4
    assert 0 < late.sum() < 40
    still = [
        ref.norm(ref.subtract(after, before)) == 0.0
        for before, after in zip(replay.params, replay.params[1:], strict=False)
    ]
    assert still == late.tolist()


# ACE, ACED.

FIRST_STEP = [gradient_trip((float(client), 3.0), client=client) for client in range(3)]  # mean (1, 3)


@pytest.mark.parametrize("rule", [rules.ACE(0.5), rules.IncrementalACE(0.5), rules.ACED(0.5, threshold=3)])
def test_ace_refuses_a_start_without_all_clients(rule):
    with pytest.raises(ValueError, match="one trip of each of the 3 clients"):
        directions(rule, [FIRST_STEP[:2]])
    with pytest.raises(ValueError, match="one trip of each of the 3 clients"):
        directions(rule, [[FIRST_STEP[0], FIRST_STEP[1], FIRST_STEP[1]]])
    with pytest.raises(ValueError, match="initial model"):
        directions(rule, [[*FIRST_STEP[:2], gradient_trip((2.0, 3.0), client=2, staleness=1)]])


@pytest.mark.parametrize("rule", [rules.ACE(0.5), rules.IncrementalACE(0.5), rules.ACED(0.5, threshold=3)])
def test_ace_takes_several_trips_in_a_step_and_of_one_client_the_last(rule):
    steps = [
        FIRST_STEP,  # the cache is (0, 3), (1, 3), (2, 3)
        [gradient_trip((6.0, 0.0), client=0), gradient_trip((4.0, 3.0), client=2)],
        [
            gradient_trip((100.0, 100.0), client=1),  # replaced before the step
            gradient_trip((0.0, 6.0), client=0),
            gradient_trip((5.0, 0.0), client=1),
        ],
    ]
    assert close(directions(rule, steps), [[1.0, 3.0], [11 / 3, 2.0], [3.0, 3.0]])


def test_aced_by_hand():
    steps = [
        FIRST_STEP,
        [gradient_trip((9.0, 0.0), client=0, staleness=0)],  # step 1: all started at 1, age 0
        [gradient_trip((9.0, 3.0), client=0, staleness=0)],  # step 2: client 0 at 2; the others at age 1
        [
            gradient_trip((9.0, 6.0), client=0, staleness=0)
        ],  # step 3: the others at age 2: only client 0 is left
        [gradient_trip((6.0, 0.0), client=1, staleness=3)],  # step 4: client 1's trip took 3: not yet in
        [gradient_trip((0.0, 0.0), client=2, staleness=4)],  # step 5: client 0 at age 1, client 1 at 0
        [
            gradient_trip((5.0, 5.0), client=2, staleness=0)
        ],  # step 6: client 0 at age 2, client 1 at 1, 2 at 0
    ]
    rule = rules.ACED(0.5, threshold=1)
    returned = directions(rule, steps)
    active = [report["active"] for report in rule.reports]
    assert active == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0], [0], [0, 1], [1, 2]]
    expected = [[1.0, 3.0], [4.0, 2.0], [4.0, 3.0], [9.0, 6.0], [9.0, 6.0], [7.5, 3.0], [5.5, 2.5]]
    assert close(returned, expected)


def test_aced_with_several_trips_in_a_step_by_hand():
    steps = [
        FIRST_STEP,  # by start all of 1; cached from version 0
        [gradient_trip((9.0, 0.0), client=0), gradient_trip((3.0, 0.0), client=1)],
        [gradient_trip((9.0, 3.0), client=0), gradient_trip((9.0, 6.0), client=0)],
        [gradient_trip((0.0, 0.0), client=1, staleness=1), gradient_trip((6.0, 0.0), client=2, staleness=2)],
        [gradient_trip((0.0, 9.0), client=2)],
    ]
    # Step 2: client 0 has start 2, client 1, too; client 2 has 1. Step 3: 3, 2 and still 1: client 2 is left out.
    # Step 4: 3, 4 and 4.
    by_start = rules.ACED(0.5, threshold=1)
    expected = [[1.0, 3.0], [14 / 3, 1.0], [14 / 3, 3.0], [4.5, 3.0], [3.0, 5.0]]
    assert close(directions(by_start, steps), expected)
    assert [report["active"] for report in by_start.reports] == [[0, 1, 2]] * 3 + [[0, 1], [0, 1, 2]]
    # Step 1: from 1, 1, 0. Step 2: from 2, 1, 0. Step 3: from 2, 2, 1. Step 4: from 2, 2, 4.
    by_cache = rules.ACED(0.5, threshold=1, age="cached")
    expected = [[1.0, 3.0], [14 / 3, 1.0], [6.0, 3.0], [4.5, 3.0], [0.0, 9.0]]
    assert close(directions(by_cache, steps), expected)
    active = [[0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [2]]
    assert [report["active"] for report in by_cache.reports] == active


def test_aced_by_the_age_of_the_cached_gradient_by_hand():
    steps = [
        FIRST_STEP,  # all cached from version 0
        [gradient_trip((9.0, 0.0), client=0, staleness=0)],  # step 1: cached from 1, 0, 0: ages 0, 1, 1
        [gradient_trip((9.0, 3.0), client=0, staleness=0)],  # step 2: from 2, 0, 0: the others have age 2
        [gradient_trip((6.0, 0.0), client=1, staleness=2)],  # step 3: from 2, 1, 0: ages 1, 2, 3
    ]
    rule = rules.ACED(0.5, threshold=1, age="cached")
    assert close(directions(rule, steps), [[1.0, 3.0], [4.0, 2.0], [9.0, 3.0], [9.0, 3.0]])
    assert [report["active"] for report in rule.reports] == [[0, 1, 2], [0, 1, 2], [0], [0]]


def test_aced_skips_a_step_without_active_clients_and_lets_the_client_back_in():
    """By the age of the cached gradients: at step 3 all three come from version 1, and are too old."""
    steps = [
        FIRST_STEP,
        [gradient_trip((9.0, 0.0), client=0)],
        [gradient_trip((9.0, 0.0), client=1, staleness=1)],
        [gradient_trip((9.0, 0.0), client=2, staleness=2)],
        [gradient_trip((7.0, 1.0), client=0, staleness=0)],
    ]
    rule = rules.ACED(0.5, threshold=1, age="cached")
    returned = directions(rule, steps)
    assert returned[3] is None and rule.reports[3]["active"] == []
    assert close(returned[4], [7.0, 1.0])


def test_a_step_that_aced_skips_counts_as_a_version_but_moves_neither_model_nor_momentum():
    """Five clients of equal time: each group of five steps is fed from the version at its beginning."""
    data = toy_data(5)
    rule = rules.ACED(0.3, threshold=2, age="cached")
    replay = train_ace(rule, ref.SGD(0.2, momentum=0.9), data=data, kind="equal", stop_after_steps=12)
    # In steps 1 to 5 everybody trained from version 1, in 6 to 10 from 6: ages above 2 from steps 4 and 9 on.
    active = [len(report["active"]) for report in rule.reports]
    assert active == [5, 5, 5, 3, 0, 0, 1, 2, 3, 0, 0, 1]
    still = [
        ref.norm(ref.subtract(after, before)) == 0.0
        for before, after in zip(replay.params, replay.params[1:], strict=False)
    ]
    assert still == [number == 0 for number in active]
    # The momentum rests too: of velocity v before the skipped steps, step 6 makes 0.9 v + u.
    velocity = ref.scale(-1 / 0.2, ref.subtract(replay.params[4], replay.params[3]))
    direction = client_gradient(data, 0, replay.params[6])
    moved = ref.add(ref.scale(0.9, velocity), direction)
    assert_close(replay.params[7], ref.subtract(replay.params[6], ref.scale(0.2, moved)), 1e-11)


def test_aced_by_the_age_of_the_trip_never_runs_empty():
    """The client of the step before has just started: by algorithm a.1's t^start it is always active."""
    for kind in ("exponential", "ties", "equal"):
        rule = rules.ACED(0.3, threshold=1)
        replay = train_ace(rule, ref.SGD(0.2), data=toy_data(6), kind=kind)
        clients = [trip.client for trip in replay.applied][5:]  # clients[t] is that of step t, for t >= 1
        assert all(clients[t - 1] in rule.reports[t]["active"] for t in range(2, 40))


def test_the_active_set_of_aced_is_small_after_the_beginning_and_the_silent_leave_together():
    data = toy_data(9)
    threshold = 4
    silent = (6, 7, 8)
    quick = durations("exponential", 9)
    rule = rules.ACED(0.3, threshold)
    replay = train_ace(
        rule,
        ref.SGD(0.2),
        data=data,
        stop_after_steps=60,
        duration=lambda client, trip: 1e6 if client in silent and trip > 0 else quick(client, trip),
    )
    active = [set(report["active"]) for report in rule.reports]
    assert all(set(silent) <= members for members in active[: threshold + 2])
    assert not any(set(silent) & members for members in active[threshold + 2 :])
    assert max(len(members) for members in active[threshold + 2 :]) <= threshold + 1
    assert len(replay.in_flight) == 9


# Gradients on all data, and the directions that a rule gives.


def client_gradient(data, client, params):
    x, y = data[client]
    return ref.softmax_regression(params, x, y)[1]


def mean_gradient(data, params):
    return rules.mean_of([client_gradient(data, client, params) for client in range(len(data))])


class Recording(ref.SGD):
    """SGD that keeps the directions it was given."""

    def begin(self, params):
        super().begin(params)
        self.given = []

    def apply(self, params, gradient):
        self.given.append(gradient)
        return super().apply(params, gradient)


# CA²FL.


def test_ca2fl_with_a_client_twice_in_one_buffer():
    steps = [
        [made_trip(1.0, client=0), made_trip(2.0, client=0), made_trip(6.0, client=1)],
        [made_trip(0.0, client=2)],
    ]
    # Arrival: (2 + 6) / 2. Step: (1 + 2 + 6) / 2. Then h = (2 + 6 + 0) / 3 in both, and the change is 0.
    for changes, first in [("arrival", -4.0), ("step", -4.5)]:
        rule = rules.CA2FL(changes)
        assert close(directions(rule, steps), [[first], [-8 / 3]])
        assert [report["clients"] for report in rule.reports] == [2, 1]


def test_the_two_moments_of_ca2fl_differ_only_where_a_client_is_twice_in_one_buffer():
    data = toy_data(6)
    one, other = (
        train(rules.CA2FL(changes), ref.SGD(0.5), data=data, buffer_size=3, kind="ties")
        for changes in ("arrival", "step")
    )
    clients = ref.column(one.applied, "client").reshape(40, 3)
    twice = [len(set(row.tolist())) < 3 for row in clients]
    first = twice.index(True)
    assert 0 < first < 39
    for version in range(first + 1):
        assert_close(one.params[version], other.params[version])
    assert ref.norm(ref.subtract(one.params[first + 1], other.params[first + 1])) > 1e-6


# TWAFL, SASGD, GSGM.


GSGM_STEPS = [
    [gradient_trip(2.0, client=0), gradient_trip(4.0, client=1)],  # round 0: u = 3
    [gradient_trip(8.0, client=3), gradient_trip(6.0, client=2)],  # u = 7; M_1 = 5
    [gradient_trip(1.0, client=2), gradient_trip(1.0, client=0)],  # round 1: u = 1 + 0.5 * 5 = 3.5
    [gradient_trip(-1.0, client=3), gradient_trip(2.0, client=1)],  # u = 0.5 + 2.5 = 3; M_2 = 3.25
    [gradient_trip(0.0, client=3), gradient_trip(0.0, client=0)],  # round 2: u = 1.625
]


def test_gsgm_by_hand():
    rule = rules.GSGM(0.5, momentum=0.5)
    assert close(directions(rule, GSGM_STEPS, num_clients=4), [[3.0], [7.0], [3.5], [3.0], [1.625]])
    assert [report["round"] for report in rule.reports] == [0, 0, 1, 1, 2]


def test_gsgm_with_given_rounds():
    steps = [list(step) for step in GSGM_STEPS]
    for number, step in zip((0, 1, 1, 1, 2), steps, strict=True):
        for trip in step:
            trip.trip = number
    rule = rules.GSGM(0.5, momentum=0.5, round_of=lambda trip: trip.trip)
    # Round 0 is the first step alone: M_1 = 3, and u = 8.5, 2.5, 2; M_2 = 13 / 3.
    assert close(directions(rule, steps, num_clients=4), [[3.0], [8.5], [2.5], [2.0], [13 / 6]])


def test_gsgm_on_rounds_is_the_mean_plus_the_mean_direction_of_the_round_before():
    """Six clients in equal time, two in each step: a round is three steps, detected or counted by trips."""
    data = toy_data(6)
    settings = {"data": data, "kind": "equal", "buffer_size": 2, "stop_after_steps": 12}
    optimizer = Recording(0.2)
    detected = train(rules.GSGM(0.3, 0.6), optimizer, **settings)
    counted = train(rules.GSGM(0.3, 0.6, round_of=lambda trip: trip.trip), ref.SGD(0.2), **settings)
    assert_same_replays(detected, counted)
    for step in range(12):
        trips = [trip for trip in detected.applied if trip.step == step]
        rest = ref.subtract(
            optimizer.given[step], rules.mean_of([client_gradient(data, t.client, t.start) for t in trips])
        )
        first_of_round = step - step % 3
        before = optimizer.given[first_of_round - 3 : first_of_round]
        expected = ref.scale(0.6, rules.mean_of(before)) if step >= 3 else ref.zeros_like(rest)
        assert_close(rest, expected, 1e-11)
    assert ref.norm(rest) > 1e-3
    mean = train(ref.FedBuff(ref.constant()), ref.SGD(0.2 / 0.3), **settings)
    assert_same_replays(train(rules.GSGM(0.3, 0.0), ref.SGD(0.2), **settings), mean)


# WKAFL.


def wkafl(**changes):
    """WKAFL without anything but a mean, but for what is given."""
    settings = {
        "momentum": 0.0,
        "minimum_similarity": -1.0,
        "cosine_weight": 0.0,
        "learning_rate_decay": 0.0,
    }
    return rules.WKAFL(0.5, **(settings | changes))


HALF_E = math.e / 2


def test_wkafl_estimate_weighs_by_staleness():
    step = [gradient_trip((3.0, 0.0), staleness=5), gradient_trip((0.0, 3.0), staleness=6)]
    rule = wkafl(without="gradient_selection")
    a = 1 / HALF_E
    assert close(directions(rule, [step])[0], [3 / (1 + a), 3 * a / (1 + a)])
    assert close(rule.reports[0]["weights"], [1 / (1 + a), a / (1 + a)])


def test_wkafl_selects_by_cosine_and_weighs_by_its_exponential():
    # The estimate is the mean, (0, 2): cosines 1, 4/5 and -1.
    step = [gradient_trip((0.0, 5.0)), gradient_trip((3.0, 4.0)), gradient_trip((-3.0, -3.0))]
    rule = wkafl(cosine_weight=2.0, minimum_similarity=0.5)
    q = math.exp(2 * 0.8) / (math.exp(2.0) + math.exp(2 * 0.8))
    assert close(directions(rule, [step])[0], [3 * q, 5 * (1 - q) + 4 * q])
    (report,) = rule.reports
    assert close(report["cosines"], [1.0, 0.8, -1 / math.sqrt(2)]) and report["kept"] == 2
    assert close(report["weights"], [1 - q, q, 0.0])


def test_wkafl_keeps_a_cosine_equal_to_the_minimum():
    step = [gradient_trip((0.0, 5.0)), gradient_trip((3.0, 4.0)), gradient_trip((-3.0, -3.0))]
    kept = []
    for minimum in (0.8 + 1e-9, 0.8 - 1e-9, 1.0):
        rule = wkafl(minimum_similarity=minimum)
        directions(rule, [step])
        kept.append(rule.reports[0]["kept"])
    assert kept == [1, 2, 1]


def test_wkafl_momentum_is_added_to_each_gradient_and_holds_the_estimate():
    # Step 1: the estimate is (2, 0), and only the first trip is kept: the aggregate (4, 0) is not the estimate.
    # Step 2: g~ = (1, 0) + 0.5 (2, 0) = (2, 0), and so the estimate and the aggregate. Step 3: 0.5 (2, 0).
    steps = [
        [gradient_trip((4.0, 1.0)), gradient_trip((0.0, -1.0))],
        [gradient_trip((1.0, 0.0))],
        [gradient_trip((0.0, 0.0))],
    ]
    rule = wkafl(momentum=0.5, minimum_similarity=0.5)
    assert close(directions(rule, steps), [[4.0, 1.0], [2.0, 0.0], [1.0, 0.0]])
    assert close(directions(wkafl(momentum=0.5, without="non_iid"), steps)[1:], [[1.0, 0.0], [0.0, 0.0]])


def test_wkafl_stage_two_begins_with_the_mean_loss_below_the_bound_and_is_never_left():
    def step(*losses):
        # The estimate is the mean (0, 1), of length 1; the first gradient is clipped to 2 in stage two.
        gradients = [(0.0, 4.0), (0.0, -2.0)]
        return [gradient_trip(g, loss=loss) for g, loss in zip(gradients, losses, strict=True)]

    rule = wkafl(stage_two_loss=1.0, stage_two_bound=2.0)
    returned = directions(rule, [step(1.5, 0.5), step(0.1, 1.8), step(9.0, 9.0)])
    assert [report["stage"] for report in rule.reports] == [1, 2, 2]
    assert close(returned, [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])  # a mean loss of 1 is not below 1
    assert close([report["losses_mean"] for report in rule.reports], [1.0, 0.95, 9.0])
    # Without gradient selection there is no clipping in stage two either.
    rule = wkafl(stage_two_loss=1.0, stage_two_bound=0.5, without="gradient_selection")
    assert close(directions(rule, [step(0.0, 0.0)]), [[0.0, 1.0]]) and rule.reports[0]["stage"] == 2


def test_wkafl_learning_rate_falls_with_the_least_staleness():
    step = [gradient_trip(6.0, staleness=4), gradient_trip(6.0, staleness=9)]
    for without, expected in [(None, 2.0), ("staleness", 6.0), ("non_iid", 2.0), ("gradient_selection", 2.0)]:
        rule = wkafl(learning_rate_decay=0.5, without=without)
        assert close(directions(rule, [step])[0], [expected])
    assert close(directions(wkafl(learning_rate_decay=0.5), [[gradient_trip(6.0)]])[0], [6.0])


def test_wkafl_takes_the_estimate_if_nobody_passes():
    step = [gradient_trip((3.0, 0.0)), gradient_trip((0.0, 3.0), staleness=1)]
    rule = wkafl(minimum_similarity=0.99, cosine_weight=7.0, stage_two_loss=1.0, stage_two_bound=0.1)
    a = 1 / HALF_E
    assert close(directions(rule, [step])[0], [3 / (1 + a), 3 * a / (1 + a)])
    assert rule.reports[0]["kept"] == 0 and close(rule.reports[0]["weights"], [1 / (1 + a), a / (1 + a)])


def test_wkafl_on_data_goes_through_both_stages_and_the_parts_matter():
    """A path on which stage two begins after a while, some gradients are dropped, and each part matters."""
    data = toy_data(8)
    settings = {
        "momentum": 0.3,
        "minimum_similarity": 0.2,
        "cosine_weight": 2.0,
        "learning_rate_decay": 0.5,
        "clip_bound": 1.5,
        "stage_two_loss": 1.1,
        "stage_two_bound": 1.2,
    }
    finals = {}
    for without in (None, "gradient_selection", "staleness", "non_iid"):
        rule = rules.WKAFL(0.3, **settings, without=without)
        replay = train(rule, ref.SGD(0.5), data=data, buffer_size=3)
        finals[without] = replay.final_params
        stages = [report["stage"] for report in rule.reports]
        assert stages == sorted(stages) and set(stages) == {1, 2}
        if without is None:
            kept = [report["kept"] for report in rule.reports]
            assert min(kept) < 3 <= max(kept)
            freshest = [min(t.staleness for t in replay.applied if t.step == step) for step in range(40)]
            assert [report["factor"] for report in rule.reports] == [1 / (1 + 0.5 * tau) for tau in freshest]
            assert len(set(freshest)) > 1
    whole = finals.pop(None)
    for final in finals.values():
        assert ref.norm(ref.subtract(final, whole)) > 1e-3


# Zeno++.


def test_zeno_by_hand():
    """v = (0, 2). A candidate made as long has <v, g> = 4 cos, ||g||² = 4: the score is 0.4 cos - 0.08."""
    rule = rules.ZenoPlusPlus(0.5, lambda params: vector(0.0, 2.0), epsilon=0.1)  # accepted from -0.01 on
    steps = [
        [gradient_trip((0.0, 7.0))],  # cos 1
        [gradient_trip((3.0, 4.0))],  # cos 0.8
        [gradient_trip((5.0, 0.0))],  # cos 0: score -0.08
        [gradient_trip((0.0, -1.0))],  # cos -1
        [gradient_trip((0.0, 0.0))],  # score 0
    ]
    assert directions(rule, steps) == [
        pytest.approx([0.0, 2.0]),
        pytest.approx([1.2, 1.6]),
        None,
        None,
        [0.0, 0.0],
    ]
    assert close([report["score"] for report in rule.reports], [0.32, 0.24, -0.08, -0.48, 0.0])
    assert [report["accepted"] for report in rule.reports] == [True, True, False, False, True]


def test_zeno_accepts_from_the_threshold_on():
    for epsilon, accepted in [(0.79, False), (0.81, True)]:  # the score of cos 0 is -0.08 = -gamma * 0.8
        rule = rules.ZenoPlusPlus(0.5, lambda params: vector(0.0, 2.0), epsilon=epsilon)
        assert (directions(rule, [[gradient_trip((5.0, 0.0))]])[0] is not None) == accepted


def test_zeno_refreshes_its_gradient_every_k_steps_skipped_ones_included():
    data = toy_data(5)
    asked = []

    def server_gradient(params):
        asked.append(params)
        return client_gradient(data, 0, params)

    rule = rules.ZenoPlusPlus(0.3, server_gradient, refresh_every=3)
    replay = train(rule, ref.SGD(0.2, momentum=0.5), data=data, stop_after_steps=20)
    assert len(asked) == 7
    for params, version in zip(asked, range(0, 20, 3), strict=True):
        assert_close(params, replay.params[version], 0.0)
    accepted = [report["accepted"] for report in rule.reports]
    moved = [
        ref.norm(ref.subtract(after, before)) > 0.0
        for before, after in zip(replay.params, replay.params[1:], strict=False)
    ]
    assert moved == accepted and 0 < sum(accepted) < 20


def test_zeno_that_accepts_everything_takes_steps_as_long_as_its_own_gradient():
    data = toy_data(5)
    optimizer = Recording(0.2)
    rule = rules.ZenoPlusPlus(0.3, lambda params: mean_gradient(data, params), epsilon=1e9)
    replay = train(rule, optimizer, data=data, stop_after_steps=20)
    for params, direction, trip in zip(replay.params, optimizer.given, replay.applied, strict=False):
        assert close(ref.norm(direction), ref.norm(mean_gradient(data, params)))
        assert rules.cosine(direction, client_gradient(data, trip.client, trip.start)) > 1 - 1e-9


# FedNova.


def test_fednova_undoes_the_number_of_local_steps():
    """Clients that repeat a step of the same gradient do not pull harder: D_i = -0.1 q_i g_i."""
    gradients, steps = [(1.0, 0.0), (0.0, 1.0), (-3.0, 1.0)], [1, 4, 10]
    trips = [
        made_trip(-0.1 * q * np.array(g), batch_examples=q) for g, q in zip(gradients, steps, strict=True)
    ]
    rule = rules.FedNova(lambda trip: trip.batch_examples)
    assert close(directions(rule, [trips])[0], (0.1 * 5 * np.mean(gradients, axis=0)).tolist())
    assert rule.reports == [{"mean_steps": 5.0}]


# Directions by hand.

OF_ACE = [
    FIRST_STEP,
    [gradient_trip((9.0, 0.0), client=0)],  # the cache holds (9, 0), (1, 3), (2, 3)
    [gradient_trip((0.0, 6.0), client=2, staleness=1)],  # (9, 0), (1, 3), (0, 6)
    [gradient_trip((-10.0, 0.0), client=0, staleness=1)],  # (-10, 0), (1, 3), (0, 6)
]
BY_ACE = [[1.0, 3.0], [4.0, 2.0], [10 / 3, 3.0], [-3.0, 3.0]]
# With a cache that keeps whole numbers only, a rule is that on whole gradients.
WHOLE = {"quantise": lambda gradient: ref.tree_map(np.floor, gradient)}
OF_WHOLE = [
    [gradient_trip((client + 0.5, 3.25), client=client) for client in range(3)],
    [gradient_trip((9.75, 0.5), client=0)],
    [gradient_trip((-9.75, 0.5), client=0)],
]
BY_WHOLE = [[1.0, 3.0], [4.0, 2.0], [-10 / 3 + 1, 2.0]]
OF_CA2FL = [
    [made_trip((2.0, 0.0), client=0), made_trip((0.0, 4.0), client=1)],
    [made_trip((3.0, 3.0), client=2), made_trip((4.0, 0.0), client=0)],
    [made_trip((0.0, 0.0), client=1)],
]
# h = 0, and the mean of (2, 0) and (0, 4). h = (2, 4) / 3; changes (3, 3) and (4, 0) - (2, 0): their mean is
# (2.5, 1.5). h = ((4, 0) + (0, 4) + (3, 3)) / 3; the change is (0, -4).
BY_CA2FL = [[-1.0, -2.0], [-(2 / 3 + 2.5), -(4 / 3 + 1.5)], [-7 / 3, -(7 / 3 - 4.0)]]
# N = 3, K = 2: the second step has the last trip of round 0, and the first of round 1.
OF_GSGM = [
    [gradient_trip(2.0, client=0), gradient_trip(4.0, client=1)],  # u = 3
    [gradient_trip(8.0, client=2), gradient_trip(6.0, client=0)],  # u = 7, still without momentum
    [gradient_trip(1.0, client=2), gradient_trip(1.0, client=1)],  # round 1: u = 1 + 0.5 * 5
    [gradient_trip(0.0, client=1), gradient_trip(0.0, client=0)],  # round 2: M_2 = 3.5
]
OF_FEDNOVA = [
    [
        made_trip((4.0, 0.0), batch_examples=2, num_examples=1),
        made_trip((0.0, 9.0), batch_examples=6, num_examples=3),
    ]
]
# Step 1: (3, 4) and (0, 2): the mean (1.5, 3). Step 2: (3, 3) + 2 (1.5, 3) = (6, 9), clipped to length 5.
TO_CLIP = [[gradient_trip((6.0, 8.0)), gradient_trip((0.0, 2.0))], [gradient_trip((3.0, 3.0))]]
LENGTH = math.hypot(6.0, 9.0)
# Estimate (2, 1), of length √5. Cosines 2/√5 and 1/√5. Bound 0.5 √5: both are cut to it.
BOUND, FIRST, SECOND = 0.5 * math.sqrt(5), math.exp(2 / math.sqrt(5)), math.exp(1 / math.sqrt(5))
STAGE_TWO = {"cosine_weight": 1.0, "stage_two_loss": 1.0, "stage_two_bound": 0.5}
BY_HAND = {
    "vanilla": (
        rules.VanillaASGD(0.5), [[gradient_trip((3.0, -4.0))], [gradient_trip((1.0, 2.0), staleness=9)]],
        [[3.0, -4.0], [1.0, 2.0]]),
    "ace": (rules.ACE(0.5), OF_ACE, BY_ACE),
    "ace, incremental": (rules.IncrementalACE(0.5), OF_ACE, BY_ACE),
    "ace, whole numbers": (rules.ACE(0.5, **WHOLE), OF_WHOLE, BY_WHOLE),
    "ace, incremental, whole numbers": (rules.IncrementalACE(0.5, **WHOLE), OF_WHOLE, BY_WHOLE),
    "aced, whole numbers": (rules.ACED(0.5, 3, **WHOLE), OF_WHOLE, BY_WHOLE),
    "ca2fl, with the arrival": (rules.CA2FL("arrival"), OF_CA2FL, BY_CA2FL),
    "ca2fl, with the step": (rules.CA2FL("step"), OF_CA2FL, BY_CA2FL),
    "twafl": (
        rules.TWAFL(0.5),
        [[gradient_trip((4.0, 0.0)), gradient_trip((0.0, 4.0), batch_examples=3, staleness=2)]],
        [[1.0, 3.0 / (math.e / 2) ** 2]]),
    "sasgd": (
        rules.SASGD(0.5), [[gradient_trip((4.0, 0.0)), gradient_trip((0.0, 4.0), staleness=3)]], [[2.0, 0.5]]),
    "gsgm, a step across two rounds": (rules.GSGM(0.5, momentum=0.5), OF_GSGM, [[3.0], [7.0], [3.5], [1.75]]),
    # (2 + 6) / 2 = 4 times the mean of (2, 0) and (0, 1.5).
    "fednova": (rules.FedNova(lambda trip: trip.batch_examples), OF_FEDNOVA, [[-4.0, -3.0]]),
    # 2 / 4 + 6 * 3 / 4 = 5 times (2 / 4, 1.5 * 3 / 4).
    "fednova, by examples": (
        rules.FedNova(lambda trip: trip.batch_examples, weight_by_examples=True), OF_FEDNOVA, [[-2.5, -5.625]]),
    # Both cosines are 1/√2: the estimate is used.
    "wkafl, no staleness part": (
        wkafl(minimum_similarity=0.99, without="staleness"),
        [[gradient_trip((3.0, 0.0), staleness=5), gradient_trip((0.0, 3.0), staleness=6)]], [[1.5, 1.5]]),
    "wkafl, clipped after the momentum": (
        wkafl(momentum=2.0, clip_bound=5.0), TO_CLIP, [[1.5, 3.0], [5 * 6 / LENGTH, 5 * 9 / LENGTH]]),
    "wkafl, clipped in stage two": (
        wkafl(**STAGE_TWO), [[gradient_trip((4.0, 0.0)), gradient_trip((0.0, 2.0))]],
        [[BOUND * FIRST / (FIRST + SECOND), BOUND * SECOND / (FIRST + SECOND)]]),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "steps", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_directions_by_hand(rule, steps, expected):
    assert close(directions(rule, steps), expected)


# FedAdagrad, FedAdam, FedYogi.


def descend(optimizer, gradients):
    params = vector(0.0)
    optimizer.begin(params)
    path = []
    for gradient in gradients:
        params = optimizer.apply(params, vector(gradient))
        path.append(float(params["w"][0]))
    return path


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # epsilon = 1, so v starts at 1. Gradients 3, then 0, then 1.
        # v = 10, 10, 11; m = 3, 0, 1.
        (
            lambda: rules.FedAdagrad(2.0, epsilon=1.0),
            [-6 / (1 + 10**0.5), 0.0, -2 / (1 + 11**0.5)],
        ),
        # With momentum m = 1.5, 0.75, 0.875.
        (
            lambda: rules.FedAdagrad(1.0, b1=0.5, epsilon=1.0),
            [-1.5 / (1 + 10**0.5), -0.75 / (1 + 10**0.5), -0.875 / (1 + 11**0.5)],
        ),
        # m = 1.5, 0.75, 0.875; v = 0.75 + 9/4 = 3, 2.25, 1.9375.
        (
            lambda: rules.FedAdam(2.0, b1=0.5, b2=0.75, epsilon=1.0),
            [-3 / (1 + 3**0.5), -1.5 / 2.5, -1.75 / (1 + 1.9375**0.5)],
        ),
        # m as before; v = 1 + 9/4 = 3.25, 3.25, 3.25 - 1/4 = 3.
        (
            lambda: rules.FedYogi(2.0, b1=0.5, b2=0.75, epsilon=1.0),
            [-3 / (1 + 3.25**0.5), -1.5 / (1 + 3.25**0.5), -1.75 / (1 + 3**0.5)],
        ),
    ],
)
def test_server_optimizers_by_hand(make, expected):
    assert close(descend(make(), [3.0, 0.0, 1.0]), np.cumsum(expected).tolist())


@pytest.mark.parametrize("optimizer", [rules.FedAdagrad(0.5), rules.FedAdam(0.5), rules.FedYogi(0.5)])
def test_server_optimizers_have_no_bias_correction_and_a_large_epsilon(optimizer):
    """Of gradients of 1e-6 the first step is all but learning_rate (1 - b1) 1e-6 / (sqrt(v0) + 1e-3)."""
    root = 0.99**0.5 if isinstance(optimizer, rules.FedAdam) else 1.0
    expected = -0.5 * (1 - optimizer.b1) * 1e-6 / (1e-3 * root + 1e-3)
    assert descend(optimizer, [1e-6])[0] == pytest.approx(expected, rel=1e-5)
