"""The reference simulator is itself right: cases worked out by hand, and laws that hold for any delays."""

import math

import numpy as np
import pytest
import reference as ref
from both_simulators import both_simulators, halfway_to
from both_simulators import by_reference as run

# --------------------------------------------------------------------------------------------------
# Helpers.
# --------------------------------------------------------------------------------------------------


def scalar(value):
    """A model with a single parameter."""
    return {"w": np.array(float(value))}


def values(replay):
    """The single parameter of every version."""
    return [float(params["w"]) for params in replay.params]


def trips_of(replay):
    """(client, trip, version downloaded, step, staleness, download time, arrival time) of applied trips."""
    return [
        (t.client, t.trip, t.download_version, t.step, t.staleness, t.download_time, t.arrival_time)
        for t in replay.applied
    ]


def in_flight_of(replay):
    return [(t.client, t.trip, t.download_version, t.download_time, t.arrival_time) for t in replay.in_flight]


def table(rows):
    """A duration(client, trip) from a list per client; the last entry repeats."""
    return lambda client, trip: rows[client][min(trip, len(rows[client]) - 1)]


def made_trip(update, *, staleness=0, num_examples=None, start=0.0):
    """A trip as a rule sees it, with a single parameter."""
    trip = ref.Trip(client=0, trip=0, download_version=0, download_time=0.0, arrival_time=1.0)
    trip.start, trip.update, trip.trained = scalar(start), scalar(update), scalar(start + update)
    trip.staleness, trip.num_examples = staleness, num_examples
    return trip


def softmax_params(generator, features=4, classes=3):
    return {
        "dense": {
            "kernel": generator.normal(size=(features, classes)),
            "bias": generator.normal(size=classes),
        }
    }


def multilayer_params(generator, features=4, hidden=5, classes=3):
    first = {"kernel": generator.normal(size=(features, hidden)), "bias": generator.normal(size=hidden)}
    return {"hidden_0": first} | softmax_params(generator, hidden, classes)


def toy_data(num_clients, seed=0):
    """Clients with different numbers of examples, 4 features and 3 classes."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(5, 12, size=num_clients)
    return [(generator.normal(size=(n, 4)), generator.integers(0, 3, size=n)) for n in sizes]


def drawn_batches(data, steps=2, size=3):
    """`steps` minibatches of `size` examples, drawn anew for each (client, trip)."""

    def batches(client, trip):
        generator = np.random.default_rng([7, client, trip])
        return [generator.choice(len(data[client][1]), size=size, replace=False) for _ in range(steps)]

    return batches


def assert_close(first, second, tolerance=1e-12):
    ref.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), first, second)


def exponential_durations(seed, num_clients, trips=2000):
    """Continuous durations, with clients of different speed: no two instants coincide."""
    generator = np.random.default_rng(seed)
    means = generator.uniform(0.2, 5.0, size=(num_clients, 1))
    drawn = means * generator.exponential(size=(num_clients, trips))
    return lambda client, trip: drawn[client, trip]


def uniform_choice(seed):
    generator = np.random.default_rng(seed)
    return lambda time, idle, how_many: generator.choice(idle, size=how_many, replace=False)


# --------------------------------------------------------------------------------------------------
# Parameters, models and client work.
# --------------------------------------------------------------------------------------------------


def test_tree_functions_by_hand():
    first = {"a": np.array([1.0, 2.0]), "b": {"c": np.array(3.0)}}
    second = {"a": np.array([10.0, 20.0]), "b": {"c": np.array(30.0)}}
    assert_close(ref.subtract(second, first), {"a": np.array([9.0, 18.0]), "b": {"c": np.array(27.0)}})
    expected = {"a": np.array([32.0, 64.0]), "b": {"c": np.array(96.0)}}
    assert_close(ref.weighted_sum([2, 3], [first, second]), expected)
    assert ref.inner_product(first, second) == 10 + 40 + 90
    assert ref.norm(first) == math.sqrt(14)
    with pytest.raises(ValueError, match="structure"):
        ref.add(first, {"a": np.array([1.0, 2.0])})


def test_snapshots_cannot_be_written_to():
    original = scalar(1.0)
    copy = ref.float64_copy({"w": np.float32(1.0)})
    assert copy["w"].dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        copy["w"] += 1.0
    frozen = ref.float64_copy(original)
    original["w"] += 1.0
    assert frozen["w"] == 1.0


def test_softmax_regression_by_hand():
    """With all parameters 0 both classes have probability 1/2, whatever the example."""
    params = {"dense": {"kernel": np.zeros((1, 2)), "bias": np.zeros(2)}}
    loss, gradient = ref.objective(params, np.array([[2.0], [4.0]]), np.array([0, 0]))
    assert loss == pytest.approx(math.log(2.0), abs=1e-15)
    # d loss / d logits = (1/2 - 1, 1/2) / 2 for each example; kernel: times x, summed.
    assert_close(gradient["dense"]["bias"], np.array([-0.5, 0.5]))
    assert_close(gradient["dense"]["kernel"], np.array([[-1.5, 1.5]]))


def test_cross_entropy_of_huge_logits_is_finite():
    loss, gradient = ref.cross_entropy(np.array([[1000.0, 0.0], [0.0, 1000.0]]), np.array([0, 0]))
    assert loss == pytest.approx(500.0)
    assert_close(gradient, np.array([[0.0, 0.0], [-0.5, 0.5]]))


def test_regularisers_by_hand():
    params = {"dense": {"kernel": np.array([[1.0, 2.0]]), "bias": np.array([3.0, 4.0])}}
    downloaded = {"dense": {"kernel": np.array([[0.0, 2.0]]), "bias": np.array([3.0, 6.0])}}
    x, y = np.array([[1.0]]), np.array([1])
    plain_loss, plain = ref.objective(params, x, y)
    loss, gradient = ref.objective(params, x, y, l2=0.2)
    assert loss - plain_loss == pytest.approx(0.1 * (1 + 4 + 9 + 16))
    assert_close(ref.subtract(gradient, plain)["dense"]["bias"], np.array([0.6, 0.8]))
    loss, gradient = ref.objective(params, x, y, proximal=0.2, downloaded=downloaded)
    assert loss - plain_loss == pytest.approx(0.1 * (1 + 4))
    assert_close(ref.subtract(gradient, plain)["dense"]["kernel"], np.array([[0.2, 0.0]]))
    assert_close(ref.subtract(gradient, plain)["dense"]["bias"], np.array([0.0, -0.4]))


@pytest.mark.parametrize("make_params", [softmax_params, multilayer_params])
@pytest.mark.parametrize(("l2", "proximal"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.7), (0.3, 0.7)])
def test_gradient_equals_finite_differences(make_params, l2, proximal):
    generator = np.random.default_rng(3)
    params, downloaded = make_params(generator), make_params(generator)
    x, y = generator.normal(size=(6, 4)), generator.integers(0, 3, size=6)

    def loss():
        return ref.objective(params, x, y, l2=l2, proximal=proximal, downloaded=downloaded)[0]

    _, gradient = ref.objective(params, x, y, l2=l2, proximal=proximal, downloaded=downloaded)

    def check(array, slope):
        assert slope.shape == array.shape
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + 1e-5
            above = loss()
            array[index] = kept - 1e-5
            below = loss()
            array[index] = kept
            assert (above - below) / 2e-5 == pytest.approx(slope[index], rel=1e-6, abs=1e-8)

    ref.tree_map(check, params, gradient)


def test_local_update_is_plain_gradient_descent():
    generator = np.random.default_rng(1)
    params = softmax_params(generator)
    x, y = generator.normal(size=(8, 4)), generator.integers(0, 3, size=8)
    batches = [np.array([0, 1, 2]), np.array([5, 6])]
    update, loss, examples = ref.local_update(params, x, y, batches, 0.5)
    first_loss, first = ref.objective(params, x[:3], y[:3])
    middle = ref.subtract(params, ref.scale(0.5, first))
    _, second = ref.objective(middle, x[5:7], y[5:7])
    assert_close(update, ref.scale(-0.5, ref.add(first, second)))
    assert loss == first_loss
    assert examples == 5


def test_learning_rate_normalization_scales_each_step_by_its_share_of_a_batch():
    generator = np.random.default_rng(1)
    params = softmax_params(generator)
    x, y = generator.normal(size=(8, 4)), generator.integers(0, 3, size=8)
    batches = [np.arange(4), np.array([4])]
    normalized = {"learning_rate_normalization": True}
    update, _, _ = ref.local_update(params, x, y, batches, 0.5, batch_size=4, **normalized)
    full, _, _ = ref.local_update(params, x, y, batches[:1], 0.5)
    quarter, _, _ = ref.local_update(ref.add(params, full), x, y, batches[1:], 0.5 / 4)
    assert_close(update, ref.add(full, quarter))
    for batch_size in (None, 3):
        with pytest.raises(ValueError, match="LR-Norm"):
            ref.local_update(params, x, y, batches, 0.5, batch_size=batch_size, **normalized)


def test_client_momentum_starts_anew_at_each_trip():
    generator = np.random.default_rng(1)
    params = softmax_params(generator)
    x, y = generator.normal(size=(8, 4)), generator.integers(0, 3, size=8)
    batches = [np.arange(4), np.arange(4, 8)]
    update, _, _ = ref.local_update(params, x, y, batches, 0.5, momentum=0.9)
    _, first = ref.objective(params, x[:4], y[:4])
    _, second = ref.objective(ref.subtract(params, ref.scale(0.5, first)), x[4:], y[4:])
    # Two steps: -0.5 * first, then -0.5 * (0.9 * first + second).
    assert_close(update, ref.weighted_sum([-0.95, -0.5], [first, second]))
    again, _, _ = ref.local_update(params, x, y, batches, 0.5, momentum=0.9)
    assert_close(again, update, tolerance=0)


def test_proximal_term_pulls_to_the_downloaded_model():
    """The first step does not feel it (it is 0 there); the second takes back a part of the first."""
    generator = np.random.default_rng(1)
    params = softmax_params(generator)
    x, y = generator.normal(size=(8, 4)), generator.integers(0, 3, size=8)
    batches = [np.arange(4), np.arange(4, 8)]
    one, _, _ = ref.local_update(params, x, y, batches[:1], 0.5, proximal=0.8)
    assert_close(one, ref.local_update(params, x, y, batches[:1], 0.5)[0])
    two, _, _ = ref.local_update(params, x, y, batches, 0.5, proximal=0.8)
    without, _, _ = ref.local_update(params, x, y, batches, 0.5)
    assert_close(ref.subtract(two, without), ref.scale(-0.5 * 0.8, one))


@pytest.mark.parametrize("batches", [[], [np.arange(2), np.array([], dtype=int)]])
def test_trips_without_examples_are_refused(batches):
    params = softmax_params(np.random.default_rng(0))
    with pytest.raises(ValueError, match="batch"):
        ref.local_update(params, np.zeros((2, 4)), np.zeros(2, int), batches, 0.1)


# --------------------------------------------------------------------------------------------------
# Staleness weights, rules and server optimizers.
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (ref.constant(), {0: 1.0, 7: 1.0}),
        (ref.polynomial(), {0: 1.0, 3: 0.5, 8: 1 / 3}),
        (ref.polynomial(2.0), {0: 1.0, 3: 1 / 16}),
        (ref.hinge(10.0, 4.0), {0: 1.0, 3: 1.0, 4: 1.0, 5: 1 / 11, 6: 1 / 21}),
        (ref.exponential(math.log(2.0)), {0: 1.0, 1: 0.5, 3: 0.125}),
    ],
)
def test_staleness_weights_by_hand(weight, expected):
    for staleness, value in expected.items():
        assert weight(staleness) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # Updates 8 (fresh, 1 example) and -4 (staleness 3, so s = 1/2 where it counts, 3 examples).
        (ref.FedAvg(), (8 - 4) / 2),
        (ref.FedAvg(weight_by_examples=True), (8 * 1 - 4 * 3) / 4),
        (ref.FedBuff(), (8 - 4 * 0.5) / 2),
        (ref.FedBuff(ref.constant()), (8 - 4) / 2),
        (ref.FedBuff(aggregation="sum"), 8 - 4 * 0.5),
        (ref.FedBuff(weight_by_examples=True), (8 * 1 - 4 * 0.5 * 3) / 4),
        (ref.FedBuff(lambda staleness: 1.0 - staleness), (8 + 4 * 2) / 2),
    ],
)
def test_rules_by_hand(rule, expected):
    trips = [made_trip(8, num_examples=1), made_trip(-4, staleness=3, num_examples=3)]
    rule.begin(scalar(0), 2)
    assert float(rule.pseudo_gradient(scalar(100), trips)["w"]) == pytest.approx(-expected, rel=1e-14)


def test_fedasync_mixes_the_model_that_the_client_trained():
    rule = ref.FedAsync(0.6, ref.polynomial(0.5))
    rule.begin(scalar(0), 2)
    gradient = rule.pseudo_gradient(scalar(10.0), [made_trip(2.0, staleness=3, start=1.0)])
    # The share of y = 3 is 0.6 / 2, so the model goes from 10 to 0.7 * 10 + 0.3 * 3 = 7.9.
    assert float(gradient["w"]) == pytest.approx(2.1)
    with pytest.raises(ValueError, match="one trip"):
        rule.pseudo_gradient(scalar(10.0), [made_trip(1.0), made_trip(1.0)])


def test_rules_refuse_what_they_cannot_mean():
    with pytest.raises(ValueError, match="aggregation"):
        ref.FedBuff(aggregation="median")
    with pytest.raises(ValueError, match="no meaning"):
        ref.FedBuff(aggregation="sum", weight_by_examples=True)
    with pytest.raises(ValueError, match="client_examples"):
        ref.FedAvg(weight_by_examples=True).pseudo_gradient(scalar(0), [made_trip(1.0)])


def descend(optimizer, gradients, start=0.0):
    params = scalar(start)
    optimizer.begin(params)
    path = []
    for gradient in gradients:
        params = optimizer.apply(params, scalar(gradient))
        path.append(float(params["w"]))
    return path


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        # Gradients 2, -1, 0 from 10.
        (ref.SGD(0.5), [9.0, 9.5, 9.5]),
        (ref.SGD(0.5, momentum=0.5), [9.0, 9.0, 9.0]),  # m = 2, 0, 0
        (ref.SGD(1.0, momentum=0.9), [8.0, 7.2, 6.48]),  # m = 2, 0.8, 0.72
        (ref.SGD(1.0, momentum=0.9, nesterov=True), [6.2, 6.48, 5.832]),  # steps 3.8, -1 + 0.72, 0.648
        (ref.Adam(0.1), [9.9, 9.9 - 0.1 * (0.08 / 0.19) / math.sqrt(0.004996 / 0.001999)]),
        (ref.Adam(1.0, b1=0.0, b2=0.0, epsilon=2.0), [10 - 2 / 4, 9.5 + 1 / 3]),
    ],
)
def test_server_optimizers_by_hand(optimizer, expected):
    gradients = [2.0, -1.0, 0.0][: len(expected)]
    assert descend(optimizer, gradients, start=10.0) == pytest.approx(expected, rel=1e-8)
    assert descend(optimizer, gradients, start=10.0) == pytest.approx(expected, rel=1e-8)  # state starts anew


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam"])
def test_server_optimizers_equal_those_of_optax(name):
    optax = pytest.importorskip("optax")
    ours, theirs = {
        "sgd": (ref.SGD(0.3), optax.sgd(0.3)),
        "momentum": (ref.SGD(0.3, momentum=0.9), optax.sgd(0.3, momentum=0.9)),
        "nesterov": (ref.SGD(0.3, momentum=0.9, nesterov=True), optax.sgd(0.3, momentum=0.9, nesterov=True)),
        "adam": (ref.Adam(0.3, epsilon=1e-2), optax.adam(0.3, eps=1e-2)),
    }[name]
    gradients = np.random.default_rng(0).normal(size=6)
    params, path = np.float32(0.0), []
    state = theirs.init(params)
    for gradient in gradients:
        updates, state = theirs.update(np.float32(gradient), state, params)
        params = optax.apply_updates(params, updates)
        path.append(float(params))
    np.testing.assert_allclose(descend(ours, gradients), path, rtol=2e-5, atol=2e-5)


# --------------------------------------------------------------------------------------------------
# The asynchronous simulator, by hand.
# --------------------------------------------------------------------------------------------------


@both_simulators
def test_two_clients_with_durations_one_and_three(run):
    """At time 3 both arrive; client 0 is handled first, so client 1's update meets version 3."""
    replay = run(
        params=scalar(0.0),
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 3.0][client],
        stop_after_steps=5,
        client_update=halfway_to([8.0, -8.0]),
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (0, 1, 1, 1, 0, 1.0, 2.0),
        (0, 2, 2, 2, 0, 2.0, 3.0),
        (1, 0, 0, 3, 3, 0.0, 3.0),
        (0, 3, 4, 4, 0, 3.0, 4.0),
    ]
    assert replay.step_times == [1.0, 2.0, 3.0, 3.0, 4.0]
    assert in_flight_of(replay) == [(0, 4, 5, 4.0, 5.0), (1, 1, 4, 3.0, 6.0)]
    # 0 -> 4 -> 6 -> 7 by client 0; client 1 trained from 0, so adds -4; client 0 from 3 adds 2.5.
    assert values(replay) == [0.0, 4.0, 6.0, 7.0, 3.0, 5.5]
    assert float(replay.final_params["w"]) == 5.5
    assert replay.discarded == []


@both_simulators
def test_staleness_weight_is_used_on_the_stale_trip(run):
    """The same as above with s = (1 + 3)^-0.5 = 1/2 for client 1 and a server learning rate of 1/2."""
    replay = run(
        params=scalar(0.0),
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 3.0][client],
        stop_after_steps=4,
        client_update=halfway_to([8.0, -8.0]),
        rule=ref.FedBuff(ref.polynomial(0.5)),
        optimizer=ref.SGD(0.5),
    )
    # Client 0 from 0, 2, 3.5: updates 4, 3, 2.25, halved. Client 1: -4 * 1/2 * 1/2.
    assert values(replay) == [0.0, 2.0, 3.5, 4.625, 3.625]


@both_simulators
def test_equal_durations_step_in_client_order_and_restart_together(run):
    replay = run(
        num_clients=4,
        concurrency=4,
        buffer_size=2,
        duration=lambda client, trip: 1.0,
        stop_after_steps=4,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 0, 1, 1, 0.0, 1.0),
        (3, 0, 0, 1, 1, 0.0, 1.0),
        (0, 1, 2, 2, 0, 1.0, 2.0),
        (1, 1, 2, 2, 0, 1.0, 2.0),
        (2, 1, 2, 3, 1, 1.0, 2.0),
        (3, 1, 2, 3, 1, 1.0, 2.0),
    ]
    assert replay.step_times == [1.0, 1.0, 2.0, 2.0]
    assert in_flight_of(replay) == [(client, 2, 4, 2.0, 3.0) for client in range(4)]


@both_simulators
def test_a_buffer_that_fills_amid_ties_keeps_the_rest_for_the_next_step(run):
    """K = 3 of 4 in flight. The last step comes at time 3 with client 0; clients 1 to 3 stay in flight."""
    replay = run(
        num_clients=4,
        concurrency=4,
        buffer_size=3,
        duration=lambda client, trip: 1.0,
        stop_after_steps=3,
    )
    assert [(t.client, t.trip, t.download_version, t.step, t.staleness) for t in replay.applied] == [
        (0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0),
        (2, 0, 0, 0, 0),
        (3, 0, 0, 1, 1),  # in the buffer since time 1
        (0, 1, 1, 1, 0),
        (1, 1, 1, 1, 0),
        (2, 1, 1, 2, 1),
        (3, 1, 1, 2, 1),
        (0, 2, 2, 2, 0),
    ]
    assert replay.step_times == [1.0, 2.0, 3.0]
    assert in_flight_of(replay) == [
        (0, 3, 3, 3.0, 4.0),
        (1, 2, 2, 2.0, 3.0),
        (2, 2, 2, 2.0, 3.0),
        (3, 2, 2, 2.0, 3.0),
    ]


@both_simulators
def test_a_client_may_be_twice_in_one_buffer_and_replacements_take_the_newest_version(run):
    """K = 2; client 0 arrives at 1 and 2 and fills the buffer alone; only then does it download version 1."""
    replay = run(
        params=scalar(0.0),
        num_clients=2,
        concurrency=2,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 2.5][client],
        stop_after_steps=2,
        client_update=halfway_to([8.0, -8.0]),
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (0, 1, 0, 0, 0, 1.0, 2.0),
        (1, 0, 0, 1, 1, 0.0, 2.5),
        (0, 2, 1, 1, 0, 2.0, 3.0),
    ]
    # Twice an update of 4 from version 0; then -4 from version 0 and 2 from version 1 (which is 4).
    assert values(replay) == [0.0, 4.0, 3.0]
    assert in_flight_of(replay) == [(0, 3, 2, 3.0, 4.0), (1, 1, 1, 2.5, 5.0)]


@both_simulators
def test_trips_of_no_duration_arrive_at_the_same_instant_once_more(run):
    """Client 0: 0, 0, 1, 0 and then 1; client 1: 1. All that has arrived is handled before anybody starts."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        duration=table([[0.0, 0.0, 1.0, 0.0, 1.0], [1.0]]),
        stop_after_steps=5,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 0.0),
        (0, 1, 1, 1, 0, 0.0, 0.0),
        (0, 2, 2, 2, 0, 0.0, 1.0),
        (1, 0, 0, 3, 3, 0.0, 1.0),
        (0, 3, 4, 4, 0, 1.0, 1.0),
    ]
    assert replay.step_times == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert in_flight_of(replay) == [(0, 4, 5, 1.0, 2.0), (1, 1, 4, 1.0, 2.0)]


def test_who_starts_is_chosen_among_the_idle():
    asked, started = [], []
    durations = table([[1.0], [3.0], [1.0], [1.0, 2.0]])

    def duration(client, trip):
        started.append(client)
        return durations(client, trip)

    def last_ones(time, idle, how_many):
        asked.append((time, idle, how_many))
        return idle[-how_many:][::-1]  # in the wrong order: the simulator starts them in client order

    replay = run(
        num_clients=4,
        concurrency=2,
        buffer_size=2,
        duration=duration,
        select=last_ones,
        stop_after_steps=3,
    )
    assert asked == [
        (0.0, [0, 1, 2, 3], 2),
        (1.0, [0, 1, 2, 3], 2),  # clients 2 and 3 have just arrived and are idle again
        (2.0, [0, 1, 2], 1),
        (3.0, [0, 1, 2, 3], 2),  # client 2 for the third time, client 3 after its trip of 2
        (4.0, [0, 1, 2], 1),
    ]
    assert started == [2, 3, 2, 3, 2, 2, 3, 2]
    assert trips_of(replay) == [
        (2, 0, 0, 0, 0, 0.0, 1.0),
        (3, 0, 0, 0, 0, 0.0, 1.0),
        (2, 1, 1, 1, 0, 1.0, 2.0),
        (2, 2, 1, 1, 0, 2.0, 3.0),
        (3, 1, 1, 2, 1, 1.0, 3.0),
        (2, 3, 2, 2, 0, 3.0, 4.0),
    ]
    assert in_flight_of(replay) == [(2, 4, 3, 4.0, 5.0), (3, 2, 2, 3.0, 5.0)]


@pytest.mark.parametrize("chosen", [[0, 0], [0], [0, 1, 2], [0, 5]])
def test_a_wrong_choice_of_clients_is_refused(chosen):
    with pytest.raises(ValueError, match="different clients"):
        run(
            num_clients=4,
            concurrency=2,
            buffer_size=1,
            duration=lambda client, trip: 1.0,
            select=lambda time, idle, how_many: chosen,
            stop_after_steps=1,
        )


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_durations_are_refused(bad):
    with pytest.raises(ValueError, match="duration"):
        run(num_clients=1, concurrency=1, buffer_size=1, duration=lambda c, t: bad, stop_after_steps=1)


class EverySecond(ref.FedBuff):
    """A rule that skips the odd steps, and notes what it is shown."""

    def begin(self, params, num_clients):
        self.seen = []

    def pseudo_gradient(self, params, trips):
        self.seen.extend(trips)
        return super().pseudo_gradient(params, trips) if trips[0].step % 2 == 0 else None


def test_a_skipped_step_counts_as_a_version_but_moves_neither_model_nor_momentum():
    rule = EverySecond(ref.constant())
    replay = run(
        params=scalar(0.0),
        num_clients=1,
        concurrency=1,
        buffer_size=1,
        duration=lambda client, trip: 1.0,
        stop_after_steps=3,
        rule=rule,
        optimizer=ref.SGD(1.0, momentum=0.5),
        client_update=lambda client, trip, params: ({"w": 1.0 + 0 * params["w"]}, 0.25, 3),
        client_examples=[17],
    )
    # Momentum 1, then 1.5 (and not 0.5 * 0.5 + 1): 0 -> 1 -> 1 -> 2.5.
    assert values(replay) == [0.0, 1.0, 1.0, 2.5]
    last = rule.seen[-1]
    assert (last.start["w"], last.update["w"], last.trained["w"]) == (1.0, 1.0, 2.0)
    assert (last.loss, last.batch_examples, last.num_examples) == (0.25, 3, 17)
    assert (last.client, last.trip, last.step, last.staleness, last.download_version) == (0, 2, 2, 0, 2)


@both_simulators
def test_weights_by_examples_use_the_sizes_of_the_data_sets(run):
    """Sizes 1 and 3; the trips themselves use 1 example each."""
    replay = run(
        params=scalar(0.0),
        num_clients=2,
        concurrency=2,
        buffer_size=2,
        duration=lambda client, trip: 1.0,
        stop_after_steps=1,
        client_update=halfway_to([8.0, -8.0]),
        rule=ref.FedAvg(weight_by_examples=True),
        client_examples=[1, 3],
    )
    assert values(replay) == [0.0, (4.0 - 3 * 4.0) / 4]


# --------------------------------------------------------------------------------------------------
# Ways to restart, by hand.
# --------------------------------------------------------------------------------------------------


def noted_choice(asked, choices=None):
    """A `select` that notes its questions; it answers `choices[time]`, or the first of those eligible."""

    def select(time, eligible, how_many):
        asked.append((time, eligible, how_many))
        return eligible[:how_many] if choices is None else choices[time]

    return select


def test_whose_update_waits_in_the_buffer_does_not_start():
    """K = 2. At time 1 clients 0 to 2 arrive; client 2's update is left over, so only 3 others may start."""
    asked = []
    replay = run(
        num_clients=4,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 1.0, 1.0, 2.0][client],
        select=noted_choice(asked),
        stop_after_steps=4,
        restart="not_twice_in_a_buffer",
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 0, 1, 1, 0.0, 1.0),
        (0, 1, 1, 1, 0, 1.0, 2.0),
        (1, 1, 1, 2, 1, 1.0, 2.0),
        (0, 2, 2, 2, 0, 2.0, 3.0),
        (2, 1, 2, 3, 1, 2.0, 3.0),  # started again when step 1 had applied its first trip
        (3, 0, 1, 3, 2, 1.0, 3.0),
    ]
    assert replay.step_times == [1.0, 2.0, 3.0, 3.0]
    # Asked only when not all the eligible start: at time 1 they are 0, 1 and 3, at time 2 they are 0 and 2.
    assert asked == [(0.0, [0, 1, 2, 3], 3), (3.0, [0, 1, 2, 3], 3)]
    assert in_flight_of(replay) == [(0, 3, 4, 3.0, 4.0), (1, 2, 4, 3.0, 4.0), (2, 2, 4, 3.0, 4.0)]


def test_a_place_that_nobody_may_take_stays_free_until_the_step():
    """K = 3 of 3 clients, 2 places: from time 2 to 3 client 1 is alone under way, the others in the buffer.

    At time 1, client 2 takes the place of client 0 at once, before any step.
    """
    asked = []
    replay = run(
        num_clients=3,
        concurrency=2,
        buffer_size=3,
        duration=lambda client, trip: [1.0, 3.0, 1.0][client],
        select=noted_choice(asked, {0.0: [0, 1], 3.0: [2, 0], 7.0: [1, 2]}),
        stop_after_steps=2,
        restart="not_twice_in_a_buffer",
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 0, 0, 0, 1.0, 2.0),
        (1, 0, 0, 0, 0, 0.0, 3.0),
        (0, 1, 1, 1, 0, 3.0, 4.0),
        (2, 1, 1, 1, 0, 3.0, 4.0),
        (1, 1, 1, 1, 0, 4.0, 7.0),  # one of two free places; the other stays free
    ]
    assert asked == [(0.0, [0, 1, 2], 2), (3.0, [0, 1, 2], 2), (7.0, [0, 1, 2], 2)]
    assert in_flight_of(replay) == [(1, 2, 2, 7.0, 10.0), (2, 2, 2, 7.0, 8.0)]


def test_after_a_step_as_many_start_as_it_applied():
    """3 places, K = 2. Client 0 arrives at time 1, client 1 at time 2 with a step: 2 of 0, 1, 3 start."""
    asked = []
    replay = run(
        num_clients=4,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 2.0, 4.0, 1.0][client],
        select=noted_choice(asked, {0.0: [0, 1, 2], 2.0: [0, 3], 3.0: [3, 1], 4.0: [0, 2], 5.0: [1, 3]}),
        stop_after_steps=4,
        restart="after_step",
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 2.0),
        (0, 1, 1, 1, 0, 2.0, 3.0),
        (3, 0, 1, 1, 0, 2.0, 3.0),
        (2, 0, 0, 2, 2, 0.0, 4.0),
        (3, 1, 2, 2, 0, 3.0, 4.0),
        (0, 2, 3, 3, 0, 4.0, 5.0),
        (1, 1, 2, 3, 1, 3.0, 5.0),
    ]
    assert replay.step_times == [2.0, 3.0, 4.0, 5.0]
    assert asked == [
        (0.0, [0, 1, 2, 3], 3),
        (2.0, [0, 1, 3], 2),
        (3.0, [0, 1, 3], 2),
        (4.0, [0, 2, 3], 2),
        (5.0, [0, 1, 3], 2),
    ]
    assert in_flight_of(replay) == [(1, 2, 4, 5.0, 7.0), (2, 1, 3, 4.0, 8.0), (3, 2, 4, 5.0, 6.0)]


@both_simulators
def test_after_a_step_those_whose_trips_it_applied_start_together(run):
    """3 clients with ties, K = 2: each time one update is left over, and its client waits.

    The last step comes at time 3 with client 0, so that client 2, due at that instant, stays in flight.
    """
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: 1.0,
        stop_after_steps=3,
        restart="after_step",
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 0, 1, 1, 0.0, 1.0),
        (0, 1, 1, 1, 0, 1.0, 2.0),
        (1, 1, 1, 2, 1, 1.0, 2.0),
        (0, 2, 2, 2, 0, 2.0, 3.0),
    ]
    assert in_flight_of(replay) == [(0, 3, 3, 3.0, 4.0), (1, 2, 3, 3.0, 4.0), (2, 1, 2, 2.0, 3.0)]


@both_simulators
def test_several_steps_of_one_instant_restart_all_that_they_applied(run):
    """K = 2; at time 1 clients 0 to 4 arrive: two steps, four restarts, and client 4 waits in the buffer."""
    replay = run(
        num_clients=5,
        concurrency=5,
        buffer_size=2,
        duration=lambda client, trip: 1.0 if client < 4 or trip else 0.5,
        stop_after_steps=3,
        restart="after_step",
    )
    # Client 4 is first at time 0.5; the steps hold (4, 0), (1, 2), and at time 2 (3, 0).
    assert [(t.client, t.step, t.download_version, t.arrival_time) for t in replay.applied] == [
        (4, 0, 0, 0.5),
        (0, 0, 0, 1.0),
        (1, 1, 0, 1.0),
        (2, 1, 0, 1.0),
        (3, 2, 0, 1.0),
        (0, 2, 2, 2.0),
    ]
    assert in_flight_of(replay) == [
        (0, 2, 3, 2.0, 3.0),
        (1, 1, 2, 1.0, 2.0),
        (2, 1, 2, 1.0, 2.0),
        (3, 1, 3, 2.0, 3.0),
        (4, 1, 2, 1.0, 2.0),
    ]


def test_after_a_round_by_hand():
    """4 clients, 2 places, K = 3. Round 0 ends at time 4 with client 3, round 1 at time 8.

    From time 3 to 4 a place stays free: all others have contributed. Step 1 holds client 3's trip of round 0
    and two of round 1.
    """
    asked = []
    replay = run(
        num_clients=4,
        concurrency=2,
        buffer_size=3,
        duration=table([[1.0, 2.0], [3.0, 1.0], [1.0], [2.0]]),
        select=noted_choice(asked),
        stop_after_steps=3,
        restart="after_round",
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 0, 0, 0, 1.0, 2.0),
        (1, 0, 0, 0, 0, 0.0, 3.0),
        (3, 0, 0, 1, 1, 2.0, 4.0),
        (1, 1, 1, 1, 0, 4.0, 5.0),
        (0, 1, 1, 1, 0, 4.0, 6.0),
        (2, 1, 1, 2, 1, 5.0, 6.0),
        (3, 1, 2, 2, 0, 6.0, 8.0),
        (1, 2, 2, 2, 0, 8.0, 9.0),
    ]
    assert replay.step_times == [3.0, 6.0, 9.0]
    assert asked == [
        (0.0, [0, 1, 2, 3], 2),
        (1.0, [2, 3], 1),
        (4.0, [0, 1, 2, 3], 2),
        (5.0, [2, 3], 1),
        (8.0, [0, 1, 2, 3], 2),
        (9.0, [2, 3], 1),
    ]
    assert in_flight_of(replay) == [(0, 2, 2, 8.0, 10.0), (2, 2, 3, 9.0, 10.0)]


@both_simulators
def test_after_a_round_all_start_together_though_an_update_waits(run):
    """At time 3 client 2 ends round 0; its update waits in the buffer, and yet it starts with the others."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 1.0, 3.0][client],
        stop_after_steps=3,
        restart="after_round",
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 0, 1, 1, 0.0, 3.0),
        (0, 1, 1, 1, 0, 3.0, 4.0),
        (1, 1, 1, 2, 1, 3.0, 4.0),
        (2, 1, 1, 2, 1, 3.0, 6.0),
    ]
    assert replay.step_times == [1.0, 4.0, 6.0]
    # The last step ends a round, too, so the next one begins.
    assert in_flight_of(replay) == [(0, 2, 3, 6.0, 7.0), (1, 2, 3, 6.0, 7.0), (2, 2, 3, 6.0, 9.0)]


@both_simulators
def test_the_last_step_amid_ties_leaves_the_round_open(run):
    """Client 2 would end the round at the very instant of the last step, but is not handled any more."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: 1.0,
        stop_after_steps=1,
        restart="after_round",
    )
    assert [t.client for t in replay.applied] == [0, 1]
    assert in_flight_of(replay) == [(2, 0, 0, 0.0, 1.0)]


@both_simulators
@pytest.mark.parametrize("restart", ["after_step", "after_round"])
def test_a_round_of_trips_without_duration_is_an_instant_of_its_own(run, restart):
    """Both clients take 0 and then 1 and 2; K = 2, so a step and a round are the same here."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=2,
        duration=table([[0.0, 1.0], [0.0, 2.0]]),
        stop_after_steps=2,
        restart=restart,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 0.0),
        (1, 0, 0, 0, 0, 0.0, 0.0),
        (0, 1, 1, 1, 0, 0.0, 1.0),
        (1, 1, 1, 1, 0, 0.0, 2.0),
    ]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"restart": "later"}, "restart is one of"),
        ({"restart": "not_twice_in_a_buffer", "first_buffer_size": 2}, "first_buffer_size"),
        ({"restart": "after_step", "first_buffer_size": 2}, "first_buffer_size"),
        ({"restart": "after_round", "first_buffer_size": 2}, "first_buffer_size"),
        ({"vanish": ("day", (0,), 1)}, "'step', 'time' or 'trips'"),
        ({"vanish": ("time", (0, 2), 1.0)}, "different ones"),
        ({"vanish": ("time", (-1,), 1.0)}, "different ones"),
        ({"vanish": ("time", (1, 1), 1.0)}, "different ones"),
        ({"vanish": ("time", (1,), -0.5)}, "finite time"),
        ({"vanish": ("time", (1,), math.inf)}, "finite time"),
        ({"vanish": ("time", (1,), math.nan)}, "finite time"),
        ({"vanish": ("step", (1,), 0)}, "number 1"),
        ({"vanish": ("step", (1,), 1.5)}, "number 1"),
        ({"vanish": ("trips", (1,), 0)}, "number 1"),
    ],
)
def test_a_restart_or_vanishing_without_meaning_is_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        run(
            num_clients=2,
            concurrency=2,
            buffer_size=1,
            duration=lambda client, trip: 1.0,
            stop_after_steps=3,
            **settings,
        )


# --------------------------------------------------------------------------------------------------
# Clients that leave for ever, by hand.
# --------------------------------------------------------------------------------------------------


def discarded_of(replay):
    """(client, trip, version downloaded, arrival time, time and step of the cancellation)."""
    return [
        (t.client, t.trip, t.download_version, t.arrival_time, t.cancel_time, t.cancel_step)
        for t in replay.discarded
    ]


def test_clients_leave_at_a_step():
    """At step 1, time 2, client 0 has just arrived and client 1 is under way: 2 and 3 take their places."""
    asked = []
    replay = run(
        params=scalar(0.0),
        num_clients=4,
        concurrency=2,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 5.0, 1.0, 2.0][client],
        select=noted_choice(asked),
        stop_after_steps=2,
        client_update=halfway_to([8.0, -8.0, 6.0, 100.0]),
        vanish=("step", (1, 0), 1),
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (0, 1, 0, 0, 0, 1.0, 2.0),
        (2, 0, 1, 1, 0, 2.0, 3.0),
        (2, 1, 1, 1, 0, 3.0, 4.0),
    ]
    assert asked == [(0.0, [0, 1, 2, 3], 2), (1.0, [0, 2, 3], 1)]
    assert discarded_of(replay) == [(1, 0, 0, 5.0, 2.0, 1)]
    assert replay.discarded[0].update is None
    assert in_flight_of(replay) == [(2, 2, 2, 4.0, 5.0), (3, 0, 1, 2.0, 4.0)]
    # Client 0 twice from 0, client 2 twice from 4; client 1's way to -8 is never used.
    assert values(replay) == [0.0, 4.0, 5.0]


@both_simulators
def test_who_leaves_at_a_step_leaves_after_all_arrivals_of_its_instant(run):
    """K = 1. At time 1 clients 0 to 2 arrive: steps 1 to 3. Clients 2 and 3 leave at step 1 of these."""
    replay = run(
        num_clients=4,
        concurrency=4,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 1.0, 1.0, 4.0][client],
        stop_after_steps=5,
        vanish=("step", (2, 3), 1),
    )
    assert [(t.client, t.trip, t.step) for t in replay.applied] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 0, 2),
        (0, 1, 3),
        (1, 1, 4),
    ]
    assert discarded_of(replay) == [(3, 0, 0, 4.0, 1.0, 3)]  # at version 3
    assert in_flight_of(replay) == [(0, 2, 5, 2.0, 3.0), (1, 2, 5, 2.0, 3.0)]


@both_simulators
def test_clients_leave_at_a_step_that_is_not_the_first_of_its_instant(run):
    """K = 1 again: step 2 comes at time 1, with client 1, as does step 1."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 1.0, 1.5][client],
        stop_after_steps=3,
        vanish=("step", (2,), 2),
    )
    assert [t.client for t in replay.applied] == [0, 1, 0]
    assert discarded_of(replay) == [(2, 0, 0, 1.5, 1.0, 2)]


def test_clients_leave_at_a_time_at_which_nothing_arrives():
    """Client 1 leaves at 2.5, and client 2 takes its place at that time."""
    asked = []
    replay = run(
        num_clients=3,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [2.0, 10.0, 1.0][client],
        select=noted_choice(asked),
        stop_after_steps=3,
        vanish=("time", (1,), 2.5),
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 2.0),
        (2, 0, 1, 1, 0, 2.5, 3.5),
        (0, 1, 1, 2, 1, 2.0, 4.0),
    ]
    assert discarded_of(replay) == [(1, 0, 0, 10.0, 2.5, 1)]
    assert asked == [(0.0, [0, 1, 2], 2), (2.0, [0, 2], 1)]
    assert in_flight_of(replay) == [(0, 2, 3, 4.0, 6.0), (2, 1, 2, 3.5, 4.5)]


@both_simulators
def test_who_leaves_at_the_time_of_an_arrival_has_arrived(run):
    """Client 1 arrives at time 2 and leaves then: its trip counts, and it starts no other."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [3.0, 2.0][client],
        stop_after_steps=3,
        vanish=("time", (1,), 2.0),
    )
    assert [(t.client, t.arrival_time) for t in replay.applied] == [(1, 2.0), (0, 3.0), (0, 6.0)]
    assert replay.discarded == []
    assert in_flight_of(replay) == [(0, 2, 3, 6.0, 9.0)]


def test_an_idle_client_that_leaves_frees_no_place():
    """Nobody is asked at 0.5, when client 2 leaves; it is not among those eligible at time 1."""
    asked = []
    replay = run(
        num_clients=4,
        concurrency=1,
        buffer_size=1,
        duration=lambda client, trip: 1.0,
        select=noted_choice(asked, {0.0: [1], 1.0: [3]}),
        stop_after_steps=1,
        vanish=("time", (2,), 0.5),
    )
    assert asked == [(0.0, [0, 1, 2, 3], 1), (1.0, [0, 1, 3], 1)]
    assert replay.discarded == []
    assert in_flight_of(replay) == [(3, 0, 1, 1.0, 2.0)]


def test_clients_leave_at_time_0_after_the_start():
    """The first trips of 0 and 1 take no time, so they arrive; client 2's is thrown away at once.

    Client 0's second trip starts at time 0, too; client 1, who would be as quick, starts no other.
    """
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=1,
        duration=table([[0.0, 1.0], [0.0], [2.0]]),
        stop_after_steps=3,
        vanish=("time", (1, 2), 0),
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 0.0),
        (1, 0, 0, 1, 1, 0.0, 0.0),
        (0, 1, 2, 2, 0, 0.0, 1.0),
    ]
    assert discarded_of(replay) == [(2, 0, 0, 2.0, 0.0, 2)]


def test_clients_leave_after_a_number_of_trips():
    """Clients 0 and 1 leave with their second trips, at times 2 and 3; what they brought is applied."""
    asked = []
    replay = run(
        num_clients=3,
        concurrency=2,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 1.5, 1.0][client],
        select=noted_choice(asked),
        stop_after_steps=3,
        vanish=("trips", (0, 1), 2),
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 1.5),
        (0, 1, 0, 1, 1, 1.0, 2.0),  # lies in the buffer from 2 to 3, while its client is gone
        (1, 1, 1, 1, 0, 1.5, 3.0),
        (2, 0, 1, 2, 1, 2.0, 3.0),
        (2, 1, 2, 2, 0, 3.0, 4.0),  # alone: one of the two places stays free
    ]
    assert asked == [(0.0, [0, 1, 2], 2), (1.0, [0, 2], 1), (1.5, [1, 2], 1)]
    assert replay.discarded == []
    assert in_flight_of(replay) == [(2, 2, 3, 4.0, 5.0)]


def test_places_of_those_who_left_are_taken_after_the_next_step():
    """3 places, K = 2. At time 2 client 0 lies in the buffer and client 2 is under way; both leave.

    Nobody starts then. The step at time 3 applies 2 trips, and 3 clients start: 2's place is free as well.
    """
    replay = run(
        num_clients=5,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 3.0, 8.0, 1.0, 1.0][client],
        select=noted_choice([], {0.0: [0, 1, 2]}),
        stop_after_steps=2,
        restart="after_step",
        replace_lost="after_step",
        vanish=("time", (0, 2), 2.0),
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 3.0),
        (3, 0, 1, 1, 0, 3.0, 4.0),
        (4, 0, 1, 1, 0, 3.0, 4.0),
    ]
    assert discarded_of(replay) == [(2, 0, 0, 8.0, 2.0, 0)]
    assert in_flight_of(replay) == [(1, 1, 1, 3.0, 6.0), (3, 1, 2, 4.0, 5.0), (4, 1, 2, 4.0, 5.0)]


def test_an_update_in_the_buffer_keeps_its_place_though_its_client_left():
    """At time 1 clients 0 to 2 arrive, K = 2: 2 leaves while its update waits, so 2 of 3 places are free."""
    asked = []
    replay = run(
        num_clients=5,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: 1.0,
        select=noted_choice(asked, {0.0: [0, 1, 2], 1.0: [3, 4], 2.0: [1, 3]}),
        stop_after_steps=2,
        restart="after_step",
        vanish=("step", (2,), 1),
    )
    assert asked == [(0.0, [0, 1, 2, 3, 4], 3), (1.0, [0, 1, 3, 4], 2), (2.0, [0, 1, 3], 2)]
    assert [(t.client, t.step) for t in replay.applied] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert replay.discarded == []
    assert in_flight_of(replay) == [(1, 1, 2, 2.0, 3.0), (3, 1, 2, 2.0, 3.0), (4, 0, 1, 1.0, 2.0)]


def test_a_free_place_is_taken_by_one_whose_update_is_not_in_the_buffer():
    """At time 1.5 client 1 leaves. Client 0's update waits, client 2 is under way, so 3 takes the place."""
    replay = run(
        num_clients=4,
        concurrency=2,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 9.0, 2.0, 1.0][client],
        select=noted_choice([], {0.0: [0, 1], 1.0: [2], 2.5: [0]}),
        stop_after_steps=1,
        restart="not_twice_in_a_buffer",
        vanish=("time", (1,), 1.5),
    )
    assert [(t.client, t.arrival_time) for t in replay.applied] == [(0, 1.0), (3, 2.5)]
    assert discarded_of(replay) == [(1, 0, 0, 9.0, 1.5, 0)]
    assert in_flight_of(replay) == [(0, 1, 1, 2.5, 3.5), (2, 0, 0, 1.0, 3.0)]


@both_simulators
def test_a_round_ends_when_the_last_one_it_waits_for_leaves(run):
    """Clients 0 and 1 have contributed by time 2; at time 4 client 2 leaves, and they start again then."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 2.0, 9.0][client],
        stop_after_steps=2,
        restart="after_round",
        vanish=("time", (2,), 4.0),
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 2.0),
        (0, 1, 1, 1, 0, 4.0, 5.0),
        (1, 1, 1, 1, 0, 4.0, 6.0),
    ]
    assert discarded_of(replay) == [(2, 0, 0, 9.0, 4.0, 1)]
    assert in_flight_of(replay) == [(0, 2, 2, 6.0, 7.0), (1, 2, 2, 6.0, 8.0)]


def test_within_a_round_one_that_has_not_started_takes_the_place_of_one_that_left():
    """Client 1 leaves under way and client 3 before its start: the rounds are those of 0 and 2 alone."""
    replay = run(
        num_clients=4,
        concurrency=2,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 3.0, 2.0, 1.0][client],
        select=noted_choice([], {0.0: [0, 1]}),
        stop_after_steps=2,
        restart="after_round",
        vanish=("time", (1, 3), 0.5),
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 0, 0, 0, 0.5, 2.5),
        (0, 1, 1, 1, 0, 2.5, 3.5),
        (2, 1, 1, 1, 0, 2.5, 4.5),
    ]
    assert discarded_of(replay) == [(1, 0, 0, 3.0, 0.5, 0)]
    assert in_flight_of(replay) == [(0, 2, 2, 4.5, 5.5), (2, 2, 2, 4.5, 6.5)]


@both_simulators
def test_who_left_is_not_waited_for_in_later_rounds(run):
    """Client 0 leaves with its first trip: round 0 needs it no more, and the later rounds are client 1's."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 2.0][client],
        stop_after_steps=4,
        restart="after_round",
        vanish=("trips", (0,), 1),
    )
    assert [(t.client, t.arrival_time) for t in replay.applied] == [(0, 1.0), (1, 2.0), (1, 4.0), (1, 6.0)]


def test_nobody_takes_the_place_of_one_that_left_before_the_first_larger_step():
    """Step 0 takes 2 trips and waits for them; client 1's place, free from 0.5, is taken after it."""
    replay = run(
        num_clients=4,
        concurrency=3,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 5.0, 2.0, 1.0][client],
        select=noted_choice([], {0.0: [0, 1, 2]}),
        stop_after_steps=2,
        first_buffer_size=2,
        vanish=("time", (1,), 0.5),
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 0, 0, 0, 0.0, 2.0),
        (0, 1, 1, 1, 0, 2.0, 3.0),
    ]
    assert discarded_of(replay) == [(1, 0, 0, 5.0, 0.5, 0)]
    assert in_flight_of(replay) == [(0, 2, 2, 3.0, 4.0), (2, 1, 1, 2.0, 4.0), (3, 0, 1, 2.0, 3.0)]


@both_simulators
@pytest.mark.parametrize("vanish", [("step", (1,), 1), ("time", (1,), 1.5), ("trips", (1,), 1)])
def test_who_leaves_at_the_instant_of_the_last_step_does_not_start_again(run, vanish):
    """Client 1 arrives at 1.5 with the first step, and leaves, be that the last step or not."""

    def in_flight_after(steps, vanish):
        replay = run(
            num_clients=2,
            concurrency=2,
            buffer_size=2,
            duration=lambda client, trip: [1.0, 1.5][client],
            stop_after_steps=steps,
            vanish=vanish,
        )
        assert replay.discarded == []
        return in_flight_of(replay)

    assert in_flight_after(1, vanish) == [(0, 1, 0, 1.0, 2.0)]
    assert in_flight_after(1, None) == [(0, 1, 0, 1.0, 2.0), (1, 1, 1, 1.5, 3.0)]
    assert in_flight_after(2, vanish) == [(0, 3, 2, 3.0, 4.0)]
    assert len(in_flight_after(2, None)) == 2


@both_simulators
@pytest.mark.parametrize("vanish", [("step", (1,), 1), ("time", (1,), 1.0)])
def test_no_trip_is_thrown_away_after_the_last_step(run, vanish):
    """Client 1 leaves with the first step. If that is the last, its trip is under way at the end."""

    def after(steps):
        return run(
            num_clients=2,
            concurrency=2,
            buffer_size=1,
            duration=lambda client, trip: [1.0, 1.5][client],
            stop_after_steps=steps,
            vanish=vanish,
        )

    assert in_flight_of(after(1)) == [(0, 1, 1, 1.0, 2.0), (1, 0, 0, 0.0, 1.5)]
    assert after(1).discarded == []
    assert discarded_of(after(2)) == [(1, 0, 0, 1.5, 1.0, 1)]


@both_simulators
def test_who_should_leave_after_the_end_does_not_leave(run):
    for vanish in [("step", (0, 1), 4), ("time", (0, 1), 3.25), ("trips", (0, 1), 4)]:
        replay = run(
            num_clients=2,
            concurrency=2,
            buffer_size=2,
            duration=lambda client, trip: 1.0,
            stop_after_steps=3,
            vanish=vanish,
        )
        assert replay.discarded == []
        assert in_flight_of(replay) == [(0, 3, 3, 3.0, 4.0), (1, 3, 3, 3.0, 4.0)]


STARVED = [
    # (settings, where); durations 1 and 2.
    ({"buffer_size": 3, "vanish": ("trips", (0, 1), 1)}, "time 2.0 and version 0"),
    ({"buffer_size": 1, "vanish": ("time", (0, 1), 0.5)}, "time 0.5 and version 0"),
    ({"buffer_size": 1, "vanish": ("step", (0, 1), 1)}, "time 1.0 and version 1"),
    # Two clients never fill a buffer of 3 if each may be in it only once.
    ({"buffer_size": 3, "restart": "not_twice_in_a_buffer"}, "time 2.0 and version 0"),
    ({"buffer_size": 3, "restart": "after_step"}, "time 2.0 and version 0"),
    # Client 1 leaves with step 1, at time 2; client 0 starts again and then waits for ever.
    (
        {"buffer_size": 2, "restart": "not_twice_in_a_buffer", "vanish": ("step", (1,), 1)},
        "time 3.0 and version 1",
    ),
    ({"buffer_size": 2, "restart": "after_step", "vanish": ("step", (1,), 1)}, "time 3.0 and version 1"),
    # Client 0 has arrived when the other one, under way, leaves.
    ({"buffer_size": 2, "restart": "after_step", "vanish": ("time", (1,), 1.25)}, "time 1.25 and version 0"),
    ({"buffer_size": 4, "restart": "after_round", "vanish": ("trips", (0, 1), 1)}, "time 2.0 and version 0"),
    # Nobody starts before step 0, which would take both clients.
    ({"buffer_size": 1, "first_buffer_size": 2, "vanish": ("time", (1,), 0.5)}, "time 1.0 and version 0"),
]


@pytest.mark.parametrize(("settings", "where"), STARVED)
def test_a_starved_run_is_refused(settings, where):
    common = {
        "num_clients": 2,
        "concurrency": 2,
        "duration": lambda client, trip: [1.0, 2.0][client],
        "stop_after_steps": 3,
    }
    with pytest.raises(ValueError, match=f"^starved at {where}:"):
        run(**common, **settings)


@both_simulators
@pytest.mark.parametrize(
    ("buffer_size", "restart", "vanish", "clients"),
    [
        (3, "at_once", ("trips", (1,), 1), [0, 0, 1, 0, 0, 0]),
        (3, "after_round", None, [0, 1, 0, 1, 0, 1]),
        (3, "after_round", ("trips", (1,), 1), [0, 1, 0, 0, 0, 0]),
        (2, "after_step", None, [0, 1, 0, 1]),
        (1, "not_twice_in_a_buffer", ("step", (1,), 1), [0, 0]),
    ],
)
def test_settings_close_to_these_do_not_starve(run, buffer_size, restart, vanish, clients):
    replay = run(
        num_clients=2,
        concurrency=2,
        duration=lambda client, trip: [1.0, 2.0][client],
        stop_after_steps=2,
        buffer_size=buffer_size,
        restart=restart,
        vanish=vanish,
    )
    assert [trip.client for trip in replay.applied] == clients


# --------------------------------------------------------------------------------------------------
# Trips that fail, by hand.
# --------------------------------------------------------------------------------------------------


def these(*trips):
    """A `fails` for these (client, trip)."""
    return lambda client, trip: (client, trip) in trips


def test_failed_trips_are_thrown_away_and_their_clients_start_again_at_once():
    trained = []

    def client_update(client, trip, params):
        trained.append((client, trip))
        return halfway_to([8.0, -8.0])(client, trip, params)

    replay = run(
        params=scalar(0.0),
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 2.0][client],
        stop_after_steps=4,
        client_update=client_update,
        fails=these((0, 0), (0, 2)),
    )
    assert trips_of(replay) == [
        (0, 1, 0, 0, 0, 1.0, 2.0),
        (1, 0, 0, 1, 1, 0.0, 2.0),
        (0, 3, 2, 2, 0, 3.0, 4.0),
        (1, 1, 2, 3, 1, 2.0, 4.0),
    ]
    assert discarded_of(replay) == [(0, 0, 0, 1.0, 1.0, 0), (0, 2, 2, 3.0, 3.0, 2)]
    assert trained == [(0, 1), (1, 0), (0, 3), (1, 1)]
    assert all(trip.update is None and trip.step is None for trip in replay.discarded)
    assert in_flight_of(replay) == [(0, 4, 4, 4.0, 5.0), (1, 2, 4, 4.0, 6.0)]
    # Both train from 0, so 4 and then -4; then both from 0 again.
    assert values(replay) == [0.0, 4.0, 0.0, 4.0, 0.0]


@both_simulators
def test_a_failed_trip_is_handled_in_its_place_among_those_that_arrive_with_it(run):
    """At time 1 clients 0 to 2 arrive, K = 1: client 1 fails at version 1, client 2 meets version 1, too."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=1,
        duration=lambda client, trip: 1.0,
        stop_after_steps=2,
        fails=these((1, 0)),
    )
    assert [(t.client, t.step, t.staleness) for t in replay.applied] == [(0, 0, 0), (2, 1, 1)]
    assert discarded_of(replay) == [(1, 0, 0, 1.0, 1.0, 1)]
    assert in_flight_of(replay) == [(client, 1, 2, 1.0, 2.0) for client in range(3)]


def test_who_failed_has_nothing_in_the_buffer():
    """At time 1 client 0 fails, so it is eligible; at time 2 it arrives, so only client 2 is."""
    asked = []
    replay = run(
        num_clients=3,
        concurrency=2,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 9.0, 3.0][client],
        select=noted_choice(asked),
        stop_after_steps=1,
        restart="not_twice_in_a_buffer",
        fails=these((0, 0)),
    )
    assert asked == [(0.0, [0, 1, 2], 2), (1.0, [0, 2], 1), (5.0, [0, 2], 1)]
    assert [(t.client, t.trip, t.arrival_time) for t in replay.applied] == [(0, 1, 2.0), (2, 0, 5.0)]


@both_simulators
def test_the_place_of_a_failed_trip_opens_with_the_next_step(run):
    """Client 0 fails at time 1 and waits; the step at time 3 opens its place with those of 1 and 2."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 2.0, 3.0][client],
        stop_after_steps=2,
        restart="after_step",
        replace_lost="after_step",
        fails=these((0, 0)),
    )
    assert trips_of(replay) == [
        (1, 0, 0, 0, 0, 0.0, 2.0),
        (2, 0, 0, 0, 0, 0.0, 3.0),
        (0, 1, 1, 1, 0, 3.0, 4.0),
        (1, 1, 1, 1, 0, 3.0, 5.0),
    ]
    assert discarded_of(replay) == [(0, 0, 0, 1.0, 1.0, 0)]
    assert in_flight_of(replay) == [(0, 2, 2, 5.0, 6.0), (1, 2, 2, 5.0, 7.0), (2, 1, 1, 3.0, 6.0)]


@both_simulators
@pytest.mark.parametrize("failing", [0, 2])
def test_a_failure_at_the_instant_of_a_step_starts_again_with_the_others(run, failing):
    """Three arrive at time 1, K = 2. Whether handled ahead of the step or after it, the place opens."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: 1.0,
        stop_after_steps=2,
        restart="after_step",
        fails=these((failing, 0)),
    )
    assert [t.client for t in replay.applied[:2]] == [client for client in range(3) if client != failing]
    assert discarded_of(replay) == [(failing, 0, 0, 1.0, 1.0, 0 if failing == 0 else 1)]
    assert {(t.trip, t.download_time) for t in replay.applied[2:]} == {(1, 1.0)}


# Who waits for whom where client 0's first trip fails; durations 1, 4 and 6. (replace_lost, time_out), K, the rest.
LOST_PLACES = [
    # Client 0 tries again at 1, and its trip is in the buffer when client 1 comes.
    (("at_once", None), 2, {}, [(0, 1, 0, 1.0), (1, 0, 0, 0.0)], 4.0),
    # It does at 1 + 2.5, after which client 1 comes first.
    (("after_time_out", 2.5), 2, {}, [(1, 0, 0, 0.0), (0, 1, 0, 3.5)], 4.5),
    # It does not before the step of the other two.
    (("after_step", None), 2, {}, [(1, 0, 0, 0.0), (2, 0, 0, 0.0)], 6.0),
]


@both_simulators
@pytest.mark.parametrize(("how", "buffer_size", "settings", "applied", "step_time"), LOST_PLACES)
def test_when_the_place_of_a_lost_trip_is_taken(run, how, buffer_size, settings, applied, step_time):
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=buffer_size,
        duration=lambda client, trip: [1.0, 4.0, 6.0][client],
        stop_after_steps=1,
        restart="after_step",
        fails=these((0, 0)),
        **replacing(*how),
    )
    assert [(t.client, t.trip, t.step, t.download_time) for t in replay.applied] == applied
    assert replay.step_times == [step_time]
    assert discarded_of(replay) == [(0, 0, 0, 1.0, 1.0, 0)]


@both_simulators
@pytest.mark.parametrize("cancel_at_step", [False, True])
def test_a_server_that_has_not_noticed_a_loss_does_not_replace_it_at_a_step(run, cancel_at_step):
    """Client 0 fails at 1, noticed at 6. The step at 4 replaces client 1 alone, unless it cancels all trips."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 4.0, 6.0][client] if trip == 0 else 9.0,
        stop_after_steps=2,
        restart="after_step",
        fails=these((0, 0)),
        cancel_at_step=cancel_at_step,
        **replacing("after_time_out", 5.0),
    )
    starts = sorted((t.client, t.download_time) for t in replay.applied + replay.in_flight + replay.discarded)
    if cancel_at_step:
        assert starts == [(c, t) for c in range(3) for t in (0.0, 4.0, 13.0)]
    else:
        assert starts == [(0, 0.0), (0, 6.0), (1, 0.0), (1, 4.0), (2, 0.0), (2, 6.0)]
        assert [(t.client, t.download_version) for t in replay.in_flight] == [(0, 2), (1, 1), (2, 2)]


@both_simulators
@pytest.mark.parametrize(
    ("how", "start"), [(("at_once", None), 1.5), (("after_time_out", 9.0), 1.5), (("after_step", None), 2.0)]
)
def test_the_server_knows_of_a_trip_that_is_too_stale(run, how, start):
    """Client 0 makes a step at 1 and at 2; client 1's trip comes at 1.5, one step too late."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 1.5][client],
        stop_after_steps=2,
        restart="after_step",
        staleness_limit=0,
        **replacing(*how),
    )
    assert discarded_of(replay) == [(1, 0, 0, 1.5, 1.5, 1)]
    assert [t.download_time for t in replay.in_flight] == [2.0, start]


def replacing(how, time_out):
    """The arguments for lost places."""
    return {"replace_lost": how} if time_out is None else {"replace_lost": how, "time_out": time_out}


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"replace_lost": "later"}, "replace_lost is"),
        ({"replace_lost": "after_step", "restart": "at_once"}, "restart='after_step' only"),
        ({"replace_lost": "after_time_out"}, "time_out is given where"),
        ({"time_out": 1.0}, "time_out is given where"),
        ({"replace_lost": "after_time_out", "time_out": 0.0}, "above 0"),
        ({"replace_lost": "after_time_out", "time_out": math.inf}, "finite"),
    ],
)
def test_ways_to_replace_without_meaning_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        run(
            num_clients=2,
            concurrency=2,
            buffer_size=1,
            duration=lambda client, trip: 1.0,
            stop_after_steps=3,
            **{"restart": "after_step", **settings},
        )


def test_who_failed_has_not_contributed_to_the_round():
    """Client 0 fails at time 1: it is eligible again, and round 0 waits for its trip 1 until time 3."""
    asked = []
    replay = run(
        num_clients=3,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 3.0, 1.0][client],
        select=noted_choice(asked, {0.0: [0, 1], 1.0: [2], 3.0: [1, 2]}),
        stop_after_steps=3,
        restart="after_round",
        fails=these((0, 0)),
    )
    assert asked == [(0.0, [0, 1, 2], 2), (1.0, [0, 2], 1), (3.0, [0, 1, 2], 2)]
    assert trips_of(replay) == [
        (2, 0, 0, 0, 0, 1.0, 2.0),
        (0, 1, 1, 1, 0, 2.0, 3.0),
        (1, 0, 0, 2, 2, 0.0, 3.0),
    ]


def test_nobody_starts_again_before_the_first_larger_step_though_it_failed():
    """Step 0 takes 2 trips: those of 1 and 2. Client 0, who failed at time 1, starts again with them."""
    settings = {
        "num_clients": 3,
        "concurrency": 3,
        "buffer_size": 1,
        "duration": lambda client, trip: [1.0, 2.0, 3.0][client],
        "stop_after_steps": 2,
        "fails": these((0, 0)),
    }
    replay = run(first_buffer_size=2, **settings)
    assert [(t.client, t.trip, t.step, t.arrival_time) for t in replay.applied] == [
        (1, 0, 0, 2.0),
        (2, 0, 0, 3.0),
        (0, 1, 1, 4.0),
    ]
    assert [t.download_time for t in replay.in_flight] == [4.0, 3.0, 3.0]
    with pytest.raises(ValueError, match="^starved at time 3.0 and version 0"):
        run(first_buffer_size=3, **settings)


@both_simulators
def test_failed_trips_count_for_those_who_leave_after_a_number_of_trips(run):
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 1.5][client],
        stop_after_steps=4,
        vanish=("trips", (0,), 2),
        fails=these((0, 0)),
    )
    assert [(t.client, t.trip) for t in replay.applied] == [(1, 0), (0, 1), (1, 1), (1, 2)]
    assert [t.client for t in replay.in_flight] == [1]


# --------------------------------------------------------------------------------------------------
# Clients that come and go, by hand.
# --------------------------------------------------------------------------------------------------


def always(begin=0.0):
    return [(begin, math.inf)]


def windows(*rows):
    """`next_available` and `present_until` from a list of windows [begin, end) per client."""

    def next_available(client, time):
        return next((max(begin, time) for begin, end in rows[client] if time < end), math.inf)

    def present_until(client, time):
        return next(end for begin, end in rows[client] if begin <= time < end)

    return next_available, present_until


@both_simulators
def test_an_open_place_is_taken_when_somebody_becomes_available(run):
    """Client 1 is there from 2.5 to 4, and client 2 never. Trips under way are not touched."""
    next_available, _ = windows(always(), [(2.5, 4.0)], [])
    replay = run(
        num_clients=3,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [2.0, 1.0, 1.0][client],
        stop_after_steps=4,
        next_available=next_available,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 2.0),
        (1, 0, 1, 1, 0, 2.5, 3.5),
        (0, 1, 1, 2, 1, 2.0, 4.0),
        (1, 1, 2, 3, 1, 3.5, 4.5),
    ]
    assert replay.discarded == []
    assert in_flight_of(replay) == [(0, 2, 3, 4.0, 6.0)]


@both_simulators
def test_a_trip_is_lost_when_its_client_goes_away(run):
    """The same, but client 1 goes away at 4: its trip is handled then, after client 0's and its step."""
    next_available, present_until = windows(always(), [(2.5, 4.0)], [])
    replay = run(
        num_clients=3,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [2.0, 1.0, 1.0][client],
        stop_after_steps=4,
        next_available=next_available,
        present_until=present_until,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 2.0),
        (1, 0, 1, 1, 0, 2.5, 3.5),
        (0, 1, 1, 2, 1, 2.0, 4.0),
        (0, 2, 3, 3, 0, 4.0, 6.0),
    ]
    assert discarded_of(replay) == [(1, 1, 2, 4.5, 4.0, 3)]
    assert replay.discarded[0].update is None


@both_simulators
def test_a_trip_that_arrives_at_the_very_end_of_presence_has_arrived(run):
    """Client 0 is there for 1 and then for 0.75: its second trip is lost at 2.75, and it comes back at 3."""
    next_available, present_until = windows([(0.0, 1.0), (2.0, 2.75), (3.0, 4.0)])
    replay = run(
        num_clients=1,
        concurrency=1,
        buffer_size=1,
        duration=lambda client, trip: 1.0,
        stop_after_steps=2,
        next_available=next_available,
        present_until=present_until,
    )
    assert trips_of(replay) == [(0, 0, 0, 0, 0, 0.0, 1.0), (0, 2, 1, 1, 0, 3.0, 4.0)]
    assert discarded_of(replay) == [(0, 1, 1, 3.0, 2.75, 1)]
    assert replay.in_flight == []


@both_simulators
def test_a_client_that_is_lost_may_be_back_at_once(run):
    """Two windows that touch at time 1: the trip is lost there, and the next starts there."""
    next_available, present_until = windows([(0.0, 1.0), (1.0, 9.0)])
    replay = run(
        num_clients=1,
        concurrency=1,
        buffer_size=1,
        duration=lambda client, trip: 2.0,
        stop_after_steps=1,
        next_available=next_available,
        present_until=present_until,
    )
    assert trips_of(replay) == [(0, 1, 0, 0, 0, 1.0, 3.0)]
    assert discarded_of(replay) == [(0, 0, 0, 2.0, 1.0, 0)]


def test_who_starts_is_chosen_among_those_available():
    """Client 3 comes at 0.5, but the one place is taken then: no instant of its own, nobody is asked."""
    asked = []
    next_available, _ = windows(always(), [(0.0, 1.0)], always(), always(0.5))
    replay = run(
        num_clients=4,
        concurrency=1,
        buffer_size=1,
        duration=lambda client, trip: 1.0,
        select=noted_choice(asked),
        stop_after_steps=1,
        next_available=next_available,
    )
    assert asked == [(0.0, [0, 1, 2], 1), (1.0, [0, 2, 3], 1)]
    assert in_flight_of(replay) == [(0, 1, 1, 1.0, 2.0)]


def test_two_that_come_at_once_may_have_to_share_one_place():
    asked = []
    next_available, _ = windows(always(), always(2.0), always(2.0), always(3.0))
    replay = run(
        num_clients=4,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [9.0, 1.0, 1.5, 1.0][client],
        select=noted_choice(asked, {2.0: [2], 3.5: [3]}),
        stop_after_steps=1,
        next_available=next_available,
    )
    assert asked == [(2.0, [1, 2], 1), (3.5, [1, 2, 3], 1)]
    assert trips_of(replay) == [(2, 0, 0, 0, 0, 2.0, 3.5)]


def test_places_that_a_step_opened_stay_open_and_others_do_not():
    """3 places, K = 2. At time 0 client 2 is away, so a place stays open until it comes, at 1.5.

    Client 0's place, free since time 1, is none of those: client 3, there from 1.75 on, must wait for the
    step at time 2. It opens two places, which 0 and 2 take.
    """
    asked = []
    next_available, _ = windows(always(), always(), always(1.5), always(1.75))
    replay = run(
        num_clients=4,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: [1.0, 3.0, 0.5, 1.0][client],
        select=noted_choice(asked, {2.0: [0, 2], 3.0: [2, 3]}),
        stop_after_steps=2,
        restart="after_step",
        next_available=next_available,
    )
    assert asked == [(2.0, [0, 2, 3], 2), (3.0, [0, 2, 3], 2)]
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 0, 0, 0, 1.5, 2.0),
        (2, 1, 1, 1, 0, 2.0, 2.5),
        (0, 1, 1, 1, 0, 2.0, 3.0),
    ]
    assert in_flight_of(replay) == [(1, 0, 0, 0.0, 3.0), (2, 2, 2, 3.0, 3.5), (3, 0, 2, 3.0, 4.0)]


def test_an_open_place_may_be_taken_by_one_that_failed():
    """Client 2 is away, so a place is open: 0 fails at time 1 and takes it. No place is left at its next."""

    def replay(*failing):
        next_available, _ = windows(always(), always(), always(10.0))
        return run(
            num_clients=3,
            concurrency=3,
            buffer_size=2,
            duration=lambda client, trip: [1.0, 3.0, 1.0][client],
            stop_after_steps=2,
            restart="after_step",
            replace_lost="after_step",
            next_available=next_available,
            fails=these(*failing),
        )

    assert trips_of(replay((0, 0))) == [
        (0, 1, 0, 0, 0, 1.0, 2.0),
        (1, 0, 0, 0, 0, 0.0, 3.0),
        (0, 2, 1, 1, 0, 3.0, 4.0),
        (1, 1, 1, 1, 0, 3.0, 6.0),
    ]
    # Client 1 alone does not make a step, and no place opens without one.
    with pytest.raises(ValueError, match="^starved at time 3.0 and version 0"):
        replay((0, 0), (0, 1))


def test_a_round_waits_for_one_that_is_away():
    """Clients 0 and 1 have contributed by time 2; client 2 comes at 5, and round 1 begins at 6."""
    next_available, _ = windows(always(), always(), always(5.0))
    settings = {
        "num_clients": 3,
        "concurrency": 3,
        "buffer_size": 1,
        "duration": lambda client, trip: [1.0, 2.0, 1.0][client],
        "stop_after_steps": 4,
        "restart": "after_round",
        "next_available": next_available,
    }
    replay = run(**settings)
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 1, 1, 0.0, 2.0),
        (2, 0, 2, 2, 0, 5.0, 6.0),
        (0, 1, 3, 3, 0, 6.0, 7.0),
    ]
    # If it leaves at time 4 instead, nobody waits for it any longer.
    replay = run(vanish=("time", (2,), 4.0), **settings)
    assert [(t.client, t.download_time) for t in replay.applied] == [(0, 0.0), (1, 0.0), (0, 4.0), (1, 4.0)]
    # If it never comes, and does not leave either, the run is starved.
    settings["next_available"], _ = windows(always(), always(), [])
    with pytest.raises(ValueError, match="^starved at time 2.0 and version 2"):
        run(**settings)
    assert len(run(vanish=("time", (2,), 4.0), **settings).applied) == 4


@both_simulators
def test_places_open_since_the_start_are_taken_before_the_first_larger_step(run):
    """Client 0's update waits for step 0 from 0.25 on; client 2, who comes at 0.5, starts then."""
    next_available, _ = windows(always(), always(), always(0.5))
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=1,
        first_buffer_size=3,
        duration=lambda client, trip: [0.25, 1.0, 1.0][client],
        stop_after_steps=2,
        next_available=next_available,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 0.25),
        (1, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 0, 0, 0, 0.5, 1.5),
        (0, 1, 1, 1, 0, 1.5, 1.75),
    ]


@both_simulators
def test_who_waits_in_the_buffer_does_not_take_an_open_place(run):
    """Client 1 is away until 3. Client 0's update lies in the buffer from time 1, so the places stay open."""
    next_available, _ = windows(always(), always(3.0))
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=2,
        duration=lambda client, trip: 1.0,
        stop_after_steps=1,
        restart="not_twice_in_a_buffer",
        next_available=next_available,
    )
    assert [(t.client, t.download_time) for t in replay.applied] == [(0, 0.0), (1, 3.0)]
    assert in_flight_of(replay) == [(0, 1, 1, 4.0, 5.0), (1, 1, 1, 4.0, 5.0)]


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        (([], []), "time 0.0 and version 0"),
        (([(0.0, 2.0)], [(0.0, 3.0)]), "time 4.0 and version 4"),  # arrivals at 1, 2, 2 and 4
        (([(1.0, 2.0)], []), "time 2.0 and version 1"),
    ],
)
def test_a_run_that_everybody_has_left_for_good_is_starved(rows, where):
    next_available, _ = windows(*rows)
    with pytest.raises(ValueError, match=f"^starved at {where}:"):
        run(
            num_clients=2,
            concurrency=2,
            buffer_size=1,
            duration=lambda client, trip: [1.0, 2.0][client],
            stop_after_steps=9,
            next_available=next_available,
        )


def test_who_comes_back_but_waits_in_the_buffer_does_not_save_from_starving():
    next_available, _ = windows([(0.0, 2.0), (3.0, 9.0)])
    with pytest.raises(ValueError, match="^starved at time 2.0 and version 0:"):
        run(
            num_clients=1,
            concurrency=1,
            buffer_size=2,
            duration=lambda client, trip: 2.0,
            stop_after_steps=1,
            restart="not_twice_in_a_buffer",
            next_available=next_available,
        )


@pytest.mark.parametrize("answer", [0.5, math.nan, -math.inf])
def test_an_availability_in_the_past_is_refused(answer):
    with pytest.raises(ValueError, match="available next"):
        run(
            num_clients=1,
            concurrency=1,
            buffer_size=1,
            duration=lambda client, trip: 1.0,
            stop_after_steps=2,
            next_available=lambda client, time: answer if time else 0.0,
        )


@pytest.mark.parametrize("end", [0.0, 1.0, math.nan])
def test_a_presence_that_is_over_at_the_start_is_refused(end):
    with pytest.raises(ValueError, match="is present until"):
        run(
            num_clients=1,
            concurrency=1,
            buffer_size=1,
            duration=lambda client, trip: 1.0,
            stop_after_steps=2,
            present_until=lambda client, time: end if time else 9.0,
        )


# --------------------------------------------------------------------------------------------------
# A limit on staleness, by hand.
# --------------------------------------------------------------------------------------------------

SLOW_SECOND = {
    "params": scalar(0.0),
    "num_clients": 2,
    "concurrency": 2,
    "buffer_size": 1,
    "duration": lambda client, trip: [1.0, 3.5][client],
    "client_update": halfway_to([8.0, -8.0]),
}


@both_simulators
def test_what_is_too_stale_is_dropped(run):
    """Client 1 arrives at 3.5 with staleness 3: too much for a limit of 2, but not for one of 3."""
    replay = run(stop_after_steps=4, staleness_limit=2, **SLOW_SECOND)
    assert trips_of(replay) == [(0, trip, trip, trip, 0, trip, trip + 1.0) for trip in range(4)]
    assert discarded_of(replay) == [(1, 0, 0, 3.5, 3.5, 3)]
    assert replay.discarded[0].update is None
    assert in_flight_of(replay) == [(0, 4, 4, 4.0, 5.0), (1, 1, 3, 3.5, 7.0)]
    assert values(replay) == [0.0, 4.0, 6.0, 7.0, 7.5]

    replay = run(stop_after_steps=4, staleness_limit=3, **SLOW_SECOND)
    assert trips_of(replay)[3] == (1, 0, 0, 3, 3, 0.0, 3.5)
    assert replay.discarded == []


@both_simulators
def test_steps_of_the_same_instant_make_a_trip_too_stale(run):
    """All three arrive at time 1, K = 1, limit 1: the third would be applied with staleness 2."""
    settings = {
        "num_clients": 3,
        "concurrency": 3,
        "duration": lambda client, trip: 1.0,
        "stop_after_steps": 3,
        "staleness_limit": 1,
    }
    replay = run(buffer_size=1, **settings)
    assert [(t.client, t.trip, t.staleness) for t in replay.applied] == [(0, 0, 0), (1, 0, 1), (0, 1, 0)]
    assert discarded_of(replay) == [(2, 0, 0, 1.0, 1.0, 2)]
    assert in_flight_of(replay) == [(0, 2, 3, 2.0, 3.0), (1, 1, 2, 1.0, 2.0), (2, 1, 2, 1.0, 2.0)]


@both_simulators
def test_whose_trip_was_too_stale_has_not_contributed_to_the_round(run):
    """K = 1, limit 0: of the first round, client 0 is in time at 1, and 1 at its second trial from 2 to 4."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 2.0][client],
        stop_after_steps=3,
        restart="after_round",
        staleness_limit=0,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 1, 1, 1, 0, 2.0, 4.0),
        (0, 1, 2, 2, 0, 4.0, 5.0),
    ]
    assert discarded_of(replay) == [(1, 0, 0, 2.0, 2.0, 1)]


@both_simulators
def test_the_server_waits_for_what_would_become_too_stale(run):
    """Limit 1. Step 0 at time 1 makes client 1's trip as old as it may be: step 1 waits for it, to 3.5.

    By then client 0 has arrived twice more, and its next trip started at time 3 from version 1.
    """
    replay = run(stop_after_steps=2, staleness_limit=1, too_stale="wait", **SLOW_SECOND)
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (0, 1, 1, 1, 0, 1.0, 2.0),
        (0, 2, 1, 1, 0, 2.0, 3.0),
        (1, 0, 0, 1, 1, 0.0, 3.5),
    ]
    assert replay.step_times == [1.0, 3.5]
    assert in_flight_of(replay) == [(0, 3, 1, 3.0, 4.0), (1, 1, 2, 3.5, 7.0)]
    # From 4, client 0 twice brings 2, client 1 from 0 brings -4: their mean is 0.
    assert values(replay) == [0.0, 4.0, 4.0]


@both_simulators
def test_a_limit_that_nobody_exceeds_changes_nothing(run):
    plain = run(stop_after_steps=9, **SLOW_SECOND)
    for too_stale in ("drop", "wait"):
        limited = run(stop_after_steps=9, staleness_limit=4, too_stale=too_stale, **SLOW_SECOND)
        assert trips_of(limited) == trips_of(plain)


@both_simulators
@pytest.mark.parametrize("limit", [0, 1])
def test_the_server_waits_for_those_that_arrive_at_the_same_instant(run, limit):
    """K = 1, all three arrive at time 1. Limit 0: one step of three. Limit 1: one of one, one of two."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=1,
        duration=lambda client, trip: 1.0,
        stop_after_steps=4,
        staleness_limit=limit,
        too_stale="wait",
    )
    if limit == 0:
        assert [(t.client, t.step) for t in replay.applied[:4]] == [(0, 0), (1, 0), (2, 0), (0, 1)]
        assert replay.step_times == [1.0, 2.0, 3.0, 4.0]
    else:
        assert [(t.client, t.step) for t in replay.applied[:4]] == [(0, 0), (1, 1), (2, 1), (0, 2)]
        assert replay.step_times == [1.0, 1.0, 2.0, 2.0]


@both_simulators
@pytest.mark.parametrize(
    ("change", "time", "clients", "discarded"),
    [
        ({"fails": these((1, 0))}, 3.5, [0, 0], (1, 0, 0, 3.5, 3.5, 1)),
        (
            {"present_until": lambda client, time: 99.0 if client == 0 or time else 2.5},
            2.5,
            [0],
            (1, 0, 0, 3.5, 2.5, 1),
        ),
        ({"vanish": ("time", (1,), 2.5)}, 2.5, [0], (1, 0, 0, 3.5, 2.5, 1)),
        ({"vanish": ("time", (1,), 3.0)}, 3.0, [0, 0], (1, 0, 0, 3.5, 3.0, 1)),
    ],
)
def test_the_server_steps_when_nothing_is_left_to_wait_for(run, change, time, clients, discarded):
    """As above, but client 1's trip, for which the buffer waits since time 2, comes to nothing."""
    replay = run(stop_after_steps=2, staleness_limit=1, too_stale="wait", **change, **SLOW_SECOND)
    assert replay.step_times == [1.0, time]
    assert [t.client for t in replay.applied] == [0, *clients]
    assert discarded_of(replay) == [discarded]
    # Whoever starts at that instant does so after the step.
    assert {t.download_version for t in replay.in_flight if t.download_time == time} <= {2}


def test_a_full_buffer_of_a_waiting_server_steps_before_somebody_starts():
    """At 2.0 nobody arrives: client 1 leaves, the server steps, then client 2 starts from version 2."""
    replay = run(
        num_clients=3,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [0.75, 9.0, 1.0][client],
        select=noted_choice([]),
        stop_after_steps=3,
        staleness_limit=1,
        too_stale="wait",
        vanish=("time", (1,), 2.0),
    )
    assert replay.step_times == [0.75, 2.0, 2.25]
    assert [(t.trip, t.download_version, t.step) for t in replay.applied] == [(0, 0, 0), (1, 1, 1), (2, 1, 2)]
    assert discarded_of(replay) == [(1, 0, 0, 9.0, 2.0, 1)]
    assert in_flight_of(replay) == [(0, 3, 3, 2.25, 3.0), (2, 0, 2, 2.0, 3.0)]


# --------------------------------------------------------------------------------------------------
# Steps that do not wait for a full buffer, by hand.
# --------------------------------------------------------------------------------------------------


@both_simulators
def test_a_buffer_that_waits_too_long_is_applied_as_it_is(run):
    """K = 3, and 2 is long enough. The first trip arrives at 1.5: a short step at 3.5, with two trips.

    The next first trip arrives at 4; at 6 the third of that buffer arrives, so that it is full, not late.
    """
    replay = run(
        params=scalar(0.0),
        num_clients=2,
        concurrency=2,
        buffer_size=3,
        duration=lambda client, trip: [1.5, 4.0][client],
        stop_after_steps=2,
        client_update=halfway_to([8.0, -8.0]),
        flush_after=2.0,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.5),
        (0, 1, 0, 0, 0, 1.5, 3.0),
        (1, 0, 0, 1, 1, 0.0, 4.0),
        (0, 2, 0, 1, 1, 3.0, 4.5),
        (0, 3, 1, 1, 0, 4.5, 6.0),
    ]
    assert replay.step_times == [3.5, 6.0]
    # The mean of 4 and 4; then that of -4, 4 and 2.
    assert values(replay) == [0.0, 4.0, pytest.approx(4.0 + 2.0 / 3)]
    assert in_flight_of(replay) == [(0, 4, 2, 6.0, 7.5), (1, 1, 1, 4.0, 8.0)]


@both_simulators
def test_arrivals_of_the_instant_are_in_the_short_step_and_who_starts_finds_it_done(run):
    """K = 5: client 0 arrives at 1.5, 3.0, ...; each second arrival is 1.5 after the first of its buffer."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=5,
        duration=lambda client, trip: [1.5, 3.0][client],
        stop_after_steps=2,
        flush_after=1.5,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.5),
        (0, 1, 0, 0, 0, 1.5, 3.0),
        (1, 0, 0, 0, 0, 0.0, 3.0),
        (0, 2, 1, 1, 0, 3.0, 4.5),
        (0, 3, 1, 1, 0, 4.5, 6.0),
        (1, 1, 1, 1, 0, 3.0, 6.0),
    ]
    assert replay.step_times == [3.0, 6.0]
    assert [t.download_version for t in replay.in_flight] == [2, 2]


@both_simulators
def test_who_is_left_over_by_a_step_begins_a_new_wait(run):
    """Three arrive at time 1, K = 2: the third waits from then on, for 1.75."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=2,
        duration=lambda client, trip: 9.0 if trip else 1.0,
        stop_after_steps=2,
        flush_after=1.75,
    )
    assert [(t.client, t.step) for t in replay.applied] == [(0, 0), (1, 0), (2, 1)]
    assert replay.step_times == [1.0, 2.75]


@both_simulators
def test_the_wait_begins_with_a_trip_that_is_used(run):
    """Client 0 fails at time 1, so the first trip of the buffer is client 1's, at time 2."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=9,
        duration=lambda client, trip: [1.0, 2.0][client] if trip == 0 else 9.0,
        stop_after_steps=1,
        fails=these((0, 0)),
        flush_after=1.5,
    )
    assert replay.step_times == [3.5]
    assert [t.client for t in replay.applied] == [1]


def test_without_any_wait_each_instant_with_an_arrival_ends_with_a_step():
    """The trip of no duration that starts after the step at time 1 makes another one."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=9,
        duration=table([[1.0, 0.0, 1.0], [1.0, 2.0]]),
        stop_after_steps=3,
        flush_after=0.0,
    )
    assert [(t.client, t.trip, t.step, t.staleness) for t in replay.applied] == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (0, 1, 1, 0),
        (0, 2, 2, 0),
    ]
    assert replay.step_times == [1.0, 1.0, 2.0]


@both_simulators
@pytest.mark.parametrize("restart", ["not_twice_in_a_buffer", "after_step"])
def test_a_buffer_that_will_be_applied_saves_from_starving(run, restart):
    """Two clients never fill a buffer of 3, but from 1 to 6 the first one has waited for 5."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=3,
        duration=lambda client, trip: [1.0, 2.0][client],
        stop_after_steps=2,
        restart=restart,
        flush_after=5.0,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 2.0),
        (0, 1, 1, 1, 0, 6.0, 7.0),
        (1, 1, 1, 1, 0, 6.0, 8.0),
    ]
    assert replay.step_times == [6.0, 12.0]
    assert in_flight_of(replay) == [(0, 2, 2, 12.0, 13.0), (1, 2, 2, 12.0, 14.0)]


@both_simulators
def test_the_first_larger_step_waits_however_long_it_takes(run):
    """Client 1 takes 9: nothing is flushed at 3.5. From step 1 on, nothing is there to be flushed either: K = 1."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        first_buffer_size=2,
        duration=lambda client, trip: [1.0, 9.0][client],
        stop_after_steps=2,
        flush_after=2.5,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 9.0),
        (0, 1, 1, 1, 0, 9.0, 10.0),
    ]


@both_simulators
def test_steps_after_the_first_larger_one_may_be_short(run):
    """Step 0 waits for client 1 until 9. Then client 0's trip waits from 10 to 12.5, and is applied alone."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=3,
        first_buffer_size=2,
        duration=lambda client, trip: [1.0, 9.0][client] if trip == 0 else [1.0, 2.0][client],
        stop_after_steps=2,
        flush_after=0.5,
    )
    assert replay.step_times == [9.0, 10.5]
    assert [(t.client, t.step) for t in replay.applied] == [(0, 0), (1, 0), (0, 1)]


@pytest.mark.parametrize(("vanish", "cancel_step"), [(("time", (1,), 3.0), 0), (("step", (1,), 1), 1)])
def test_clients_leave_ahead_of_a_short_step_or_with_it(vanish, cancel_step):
    """At time 3 the buffer of client 0's trip is applied. Who leaves with that step does not start again."""
    replay = run(
        num_clients=3,
        concurrency=2,
        buffer_size=9,
        duration=lambda client, trip: [1.0, 8.0, 1.0][client] if trip == 0 else 4.0,
        select=noted_choice([]),
        stop_after_steps=2,
        flush_after=2.0,
        vanish=vanish,
    )
    assert discarded_of(replay) == [(1, 0, 0, 8.0, 3.0, cancel_step)]
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (2, 0, 1, 1, 0, 3.0, 4.0),  # in client 1's place, after the step
        (0, 1, 0, 1, 1, 1.0, 5.0),
    ]
    assert replay.step_times == [3.0, 6.0]


@both_simulators
def test_one_that_is_idle_leaves_with_a_short_step_and_takes_no_place_after_it(run):
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=9,
        duration=lambda client, trip: [1.0, 1.5][client],
        stop_after_steps=2,
        restart="after_step",
        flush_after=2.0,
        vanish=("step", (0,), 1),
    )
    assert [(t.client, t.trip, t.step) for t in replay.applied] == [(0, 0, 0), (1, 0, 0), (1, 1, 1)]
    assert replay.step_times == [3.0, 6.5]
    assert [t.client for t in replay.in_flight] == [1]


# --------------------------------------------------------------------------------------------------
# Steps that cancel what is under way, by hand.
# --------------------------------------------------------------------------------------------------


@both_simulators
def test_the_first_two_of_three_make_the_step_and_all_start_again(run):
    """K-sync. Client 2 is cancelled at time 2, client 0 at time 4."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=2,
        duration=table([[1.0, 3.0], [2.0, 1.0], [5.0, 2.0]]),
        stop_after_steps=2,
        restart="after_step",
        cancel_at_step=True,
    )
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),
        (1, 0, 0, 0, 0, 0.0, 2.0),
        (1, 1, 1, 1, 0, 2.0, 3.0),
        (2, 1, 1, 1, 0, 2.0, 4.0),
    ]
    assert discarded_of(replay) == [(2, 0, 0, 5.0, 2.0, 0), (0, 1, 1, 5.0, 4.0, 1)]
    assert all(trip.update is None for trip in replay.discarded)
    assert in_flight_of(replay) == [(0, 2, 2, 4.0, 7.0), (1, 2, 2, 4.0, 5.0), (2, 2, 2, 4.0, 6.0)]


@both_simulators
def test_who_finishes_early_trains_again_from_the_same_version(run):
    """K-batch-sync: client 0 brings three updates, all from version 0, until client 1 is cancelled at 3."""
    replay = run(
        params=scalar(0.0),
        num_clients=2,
        concurrency=2,
        buffer_size=3,
        duration=lambda client, trip: [1.0, 5.0][client] if trip < 3 else 0.5,
        stop_after_steps=1,
        client_update=halfway_to([8.0, -8.0]),
        cancel_at_step=True,
    )
    assert trips_of(replay) == [(0, trip, 0, 0, 0, trip, trip + 1.0) for trip in range(3)]
    assert discarded_of(replay) == [(1, 0, 0, 5.0, 3.0, 0)]
    assert values(replay) == [0.0, 4.0]
    assert in_flight_of(replay) == [(0, 3, 1, 3.0, 3.5), (1, 1, 1, 3.0, 8.0)]


@both_simulators
def test_those_that_arrive_with_the_step_and_are_not_handled_yet_are_cancelled(run):
    """All arrive at time 1, K = 1: 0's step cancels 1 and 2. At time 1.5, 1's does so with 2, not with 0."""
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=1,
        duration=table([[1.0, 2.0], [1.0, 0.5], [1.0, 0.5]]),
        stop_after_steps=2,
        cancel_at_step=True,
    )
    assert [(t.client, t.trip, t.staleness) for t in replay.applied] == [(0, 0, 0), (1, 1, 0)]
    assert discarded_of(replay) == [
        (1, 0, 0, 1.0, 1.0, 0),
        (2, 0, 0, 1.0, 1.0, 0),
        (0, 1, 1, 3.0, 1.5, 1),
        (2, 1, 1, 1.5, 1.5, 1),
    ]
    assert [t.download_time for t in replay.in_flight] == [1.5, 1.5, 1.5]


@both_simulators
def test_whose_trip_was_cancelled_has_not_contributed_to_the_round(run):
    replay = run(
        num_clients=3,
        concurrency=3,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 2.0, 4.0][client],
        stop_after_steps=4,
        restart="after_round",
        cancel_at_step=True,
    )
    assert [(t.client, t.download_time, t.arrival_time) for t in replay.applied] == [
        (0, 0.0, 1.0),
        (1, 1.0, 3.0),
        (2, 3.0, 7.0),
        (0, 7.0, 8.0),
    ]
    assert [(t.client, t.cancel_time, t.cancel_step) for t in replay.discarded] == [
        (1, 1.0, 0),
        (2, 1.0, 0),
        (2, 3.0, 1),
        (1, 8.0, 3),
        (2, 8.0, 3),
    ]
    assert [(t.client, t.download_time) for t in replay.in_flight] == [(1, 8.0), (2, 8.0)]


def test_after_a_cancellation_the_restart_chooses_among_all():
    """Client 1 is cancelled at time 1 and, like client 0, one of three eligible for two places."""
    asked = []
    run(
        num_clients=3,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 2.0, 1.0][client],
        select=noted_choice(asked),
        stop_after_steps=1,
        restart="after_step",
        cancel_at_step=True,
    )
    assert asked == [(0.0, [0, 1, 2], 2), (1.0, [0, 1, 2], 2)]


@both_simulators
def test_a_short_step_cancels_too(run):
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=9,
        duration=lambda client, trip: [1.0, 4.0][client],
        stop_after_steps=1,
        restart="after_step",
        flush_after=0.5,
        cancel_at_step=True,
    )
    assert replay.step_times == [1.5]
    assert discarded_of(replay) == [(1, 0, 0, 4.0, 1.5, 0)]
    assert in_flight_of(replay) == [(0, 1, 1, 1.5, 2.5), (1, 1, 1, 1.5, 5.5)]


@both_simulators
def test_cancelled_trips_count_for_those_who_leave_after_a_number_of_trips(run):
    """Client 1 is cancelled at times 1 and 2, and leaves at the second."""
    replay = run(
        num_clients=2,
        concurrency=2,
        buffer_size=1,
        duration=lambda client, trip: [1.0, 9.0][client],
        stop_after_steps=3,
        cancel_at_step=True,
        vanish=("trips", (1,), 2),
    )
    assert [t.client for t in replay.applied] == [0, 0, 0]
    assert [(t.client, t.trip, t.cancel_time) for t in replay.discarded] == [(1, 0, 1.0), (1, 1, 2.0)]
    assert [t.client for t in replay.in_flight] == [0]


# --------------------------------------------------------------------------------------------------
# Clients that start at given times, by hand.
# --------------------------------------------------------------------------------------------------


def test_one_client_starts_at_each_start_time():
    """At time 3 three can start, the fourth start is skipped: all are under way."""
    asked = []
    replay = run(
        num_clients=3,
        concurrency=None,
        buffer_size=1,
        duration=lambda client, trip: [2.5, 1.0, 1.0][client],
        select=noted_choice(asked),
        stop_after_steps=4,
        start_times=[0.0, 0.0, 1.0, 3.0, 3.0, 3.0, 3.0],
    )
    assert asked == [
        (0.0, [0, 1, 2], 1),
        (0.0, [1, 2], 1),
        (1.0, [1, 2], 1),  # client 1 has just arrived
        (3.0, [0, 1, 2], 1),
        (3.0, [1, 2], 1),
    ]
    assert trips_of(replay) == [
        (1, 0, 0, 0, 0, 0.0, 1.0),
        (1, 1, 1, 1, 0, 1.0, 2.0),
        (0, 0, 0, 2, 2, 0.0, 2.5),
        (1, 2, 3, 3, 0, 3.0, 4.0),
    ]
    assert in_flight_of(replay) == [(0, 1, 3, 3.0, 5.5), (2, 0, 3, 3.0, 4.0)]


def test_a_start_at_the_instant_of_the_last_step_is_from_the_final_version():
    replay = run(
        num_clients=2,
        concurrency=None,
        buffer_size=1,
        duration=lambda client, trip: 1.0,
        select=noted_choice([]),
        stop_after_steps=1,
        start_times=[0.5, 1.5, 1.75],
    )
    assert trips_of(replay) == [(0, 0, 0, 0, 0, 0.5, 1.5)]
    assert in_flight_of(replay) == [(0, 1, 1, 1.5, 2.5)]


def test_whose_update_waits_is_not_started_at_a_start_time():
    """K = 2: at time 2 client 0 is idle, but waits; at time 3 both are eligible after the step."""
    asked = []
    replay = run(
        num_clients=2,
        concurrency=None,
        buffer_size=2,
        duration=lambda client, trip: 1.0,
        select=noted_choice(asked),
        stop_after_steps=2,
        start_times=[0.0, 2.0, 2.0, 3.0, 3.0],
        restart="not_twice_in_a_buffer",
    )
    assert asked == [(0.0, [0, 1], 1), (3.0, [0, 1], 1)]
    assert [(t.client, t.download_time, t.step) for t in replay.applied] == [
        (0, 0.0, 0),
        (1, 2.0, 0),
        (0, 3.0, 1),
        (1, 3.0, 1),
    ]


def test_a_client_may_be_in_several_trips_at_once():
    """Trip 0 takes 2, trips 1 and 2 take 1: trip 1 arrives first, then 0 and 2 at time 2, in this order."""
    replay = run(
        num_clients=1,
        concurrency=None,
        buffer_size=1,
        duration=table([[2.0, 1.0]]),
        stop_after_steps=3,
        start_times=[0.0, 0.0, 1.0, 1.5],
        exclude_busy=False,
    )
    assert trips_of(replay) == [
        (0, 1, 0, 0, 0, 0.0, 1.0),
        (0, 0, 0, 1, 1, 0.0, 2.0),
        (0, 2, 1, 2, 1, 1.0, 2.0),
    ]
    assert in_flight_of(replay) == [(0, 3, 1, 1.5, 2.5)]


def test_busy_clients_are_eligible_but_not_those_whose_update_waits():
    """K = 2. At 0.5 client 0 is busy and may start; at 1.25 its update waits, and it may not."""
    asked = []
    replay = run(
        num_clients=2,
        concurrency=None,
        buffer_size=2,
        duration=lambda client, trip: 1.0,
        select=noted_choice(asked),
        stop_after_steps=1,
        start_times=[0.0, 0.5, 1.25],
        restart="not_twice_in_a_buffer",
        exclude_busy=False,
    )
    assert asked == [(0.0, [0, 1], 1), (0.5, [0, 1], 1)]
    assert [(t.client, t.trip, t.arrival_time) for t in replay.applied] == [(0, 0, 1.0), (0, 1, 1.5)]
    assert in_flight_of(replay) == [(1, 0, 0, 1.25, 2.25)]


def test_all_trips_of_a_client_that_leaves_are_thrown_away():
    """Client 0, three times under way, leaves at 1.5; the start of that instant comes after it."""
    replay = run(
        num_clients=2,
        concurrency=None,
        buffer_size=1,
        duration=lambda client, trip: 3.0 - trip,
        select=noted_choice([]),
        stop_after_steps=1,
        start_times=[0.0, 0.25, 0.75, 1.5],
        exclude_busy=False,
        vanish=("time", (0,), 1.5),
    )
    assert discarded_of(replay) == [
        (0, 0, 0, 3.0, 1.5, 0),
        (0, 1, 0, 2.25, 1.5, 0),
        (0, 2, 0, 1.75, 1.5, 0),
    ]
    assert trips_of(replay) == [(1, 0, 0, 0, 0, 1.5, 4.5)]


def test_who_leaves_at_time_0_is_not_started_at_time_0():
    replay = run(
        num_clients=2,
        concurrency=None,
        buffer_size=1,
        duration=lambda client, trip: 1.0,
        stop_after_steps=1,
        start_times=[0.0],
        vanish=("time", (0,), 0.0),
    )
    assert [t.client for t in replay.applied] == [1]
    assert replay.discarded == []


def test_a_start_is_skipped_if_nobody_is_available():
    """Client 0 is away from 1 to 2, so the start at 1.5 is skipped, and nobody makes up for it at time 2."""
    next_available, _ = windows([(0.0, 1.0), (2.0, 9.0)])
    replay = run(
        num_clients=1,
        concurrency=None,
        buffer_size=1,
        duration=lambda client, trip: 0.5,
        stop_after_steps=2,
        start_times=[0.25, 1.5, 2.75],
        next_available=next_available,
    )
    assert [t.download_time for t in replay.applied] == [0.25, 2.75]


def test_a_trip_of_no_duration_is_under_way_for_the_next_start_of_its_instant():
    replay = run(
        num_clients=1,
        concurrency=None,
        buffer_size=1,
        duration=lambda client, trip: 0.0,
        stop_after_steps=2,
        start_times=[0.5, 0.5, 1.0],
    )
    assert replay.step_times == [0.5, 1.0]


def test_a_step_cancels_but_does_not_start_anybody_at_given_times():
    replay = run(
        num_clients=3,
        concurrency=None,
        buffer_size=1,
        duration=lambda client, trip: [3.0, 1.0, 1.0][client],
        select=noted_choice([]),
        stop_after_steps=2,
        start_times=[0.0, 0.0, 2.0, 2.0],
        cancel_at_step=True,
    )
    assert [(t.client, t.arrival_time) for t in replay.applied] == [(1, 1.0), (1, 3.0)]
    assert discarded_of(replay) == [(0, 0, 0, 3.0, 1.0, 0), (0, 1, 1, 5.0, 3.0, 1)]
    assert replay.in_flight == []


@pytest.mark.parametrize(
    ("start_times", "flush_after", "where"),
    [
        ([], None, "time 0.0 and version 0"),
        ([0.0, 0.5], None, "time 1.0 and version 0"),  # the second start is skipped
        ([0.0, 1.0], None, "time 2.0 and version 1"),
        ([0.0, 1.0, 2.0], None, "time 3.0 and version 1"),
        ([0.0, 1.0, 2.0], 5.0, "time 8.0 and version 2"),
    ],
)
def test_a_run_whose_start_times_are_over_is_starved(start_times, flush_after, where):
    with pytest.raises(ValueError, match=f"^starved at {where}:"):
        run(
            num_clients=1,
            concurrency=None,
            buffer_size=2,
            duration=lambda client, trip: 1.0,
            stop_after_steps=3,
            start_times=start_times,
            flush_after=flush_after,
        )


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"concurrency": None}, "concurrency"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 3}, "concurrency"),
        ({"exclude_busy": False}, "several trips at once"),
        ({"start_times": [0.0]}, "no places"),
        ({"start_times": [0.0], "concurrency": None, "first_buffer_size": 1}, "no places"),
        ({"start_times": [1.0, 0.0], "concurrency": None}, "sorted"),
        ({"start_times": [-1.0, 0.0], "concurrency": None}, "sorted"),
        ({"start_times": [0.0, math.inf], "concurrency": None}, "sorted"),
        ({"start_times": [0.0], "concurrency": None, "restart": "after_step"}, "nobody waits"),
        ({"start_times": [0.0], "concurrency": None, "restart": "after_round"}, "nobody waits"),
        ({"too_stale": "keep", "staleness_limit": 1}, "'drop' or 'wait'"),
        ({"too_stale": "wait"}, "only if there is"),
        ({"staleness_limit": -1}, "whole number"),
        ({"staleness_limit": 1.5}, "whole number"),
        ({"flush_after": -1.0}, "finite time"),
        ({"flush_after": math.inf}, "finite time"),
        ({"flush_after": math.nan}, "finite time"),
        ({"too_stale": "wait", "staleness_limit": 1, "flush_after": 1.0}, "neither"),
        ({"too_stale": "wait", "staleness_limit": 1, "cancel_at_step": True}, "neither"),
    ],
)
def test_settings_without_meaning_are_refused(settings, match):
    common = {
        "num_clients": 2,
        "concurrency": 2,
        "buffer_size": 1,
        "duration": lambda client, trip: 1.0,
        "stop_after_steps": 3,
    }
    with pytest.raises(ValueError, match=match):
        run(**(common | settings))


# --------------------------------------------------------------------------------------------------
# Staleness that is drawn, by hand.
# --------------------------------------------------------------------------------------------------


def run_drawn(**changes):
    settings = {
        "params": {},
        "rule": ref.FedBuff(ref.constant()),
        "optimizer": ref.SGD(1.0),
        "client_update": ref.no_work,
    }
    return ref.simulate_drawn_staleness(**(settings | changes))


def test_drawn_staleness_by_hand():
    """What is drawn is rounded down, and cut to the first version after the client's last step."""
    asked = []
    replay = run_drawn(
        params=scalar(0.0),
        num_clients=3,
        buffer_size=2,
        staleness_of=table([[3.0, 5.0, 0.0, 1.0], [0.9, 3.0, 0.0], [0.0, 1.7, 0.5]]),
        select=noted_choice(asked, [[2, 0], [0, 1], [0, 2], [2, 1], [0, 1]]),
        stop_after_steps=5,
        client_update=halfway_to([8.0, -8.0, 16.0]),
        client_examples=[5, 6, 7],
    )
    assert asked == [(step, [0, 1, 2], 2) for step in range(5)]
    assert trips_of(replay) == [
        (0, 0, 0, 0, 0, 0.0, 1.0),  # 3 drawn, but there is only version 0
        (2, 0, 0, 0, 0, 0.0, 1.0),
        (0, 1, 1, 1, 0, 1.0, 2.0),  # 5 drawn, but step 0 applied its last trip
        (1, 0, 1, 1, 0, 1.0, 2.0),  # 0.9 drawn
        (0, 2, 2, 2, 0, 2.0, 3.0),
        (2, 1, 1, 2, 1, 1.0, 3.0),  # 1.7 drawn
        (1, 1, 2, 3, 1, 2.0, 4.0),  # 3 drawn, but step 1 applied its last trip
        (2, 2, 3, 3, 0, 3.0, 4.0),
        (0, 3, 3, 4, 1, 3.0, 5.0),  # 1 drawn, as its last trip allows
        (1, 2, 4, 4, 0, 4.0, 5.0),
    ]
    assert replay.step_times == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert replay.in_flight == replay.discarded == []
    assert [trip.num_examples for trip in replay.applied[:2]] == [5, 7]
    # (4 + 8) / 2 = 6; (1 - 7) / 2 = -3; 3 -> (2.5 + 5) / 2 = 3.75, client 2 having trained from 6;
    # (-5.5 + 4.625) / 2, client 1 from 3; (0.625 - 7.15625) / 2, client 0 from 6.75, 1 from 6.3125.
    assert values(replay) == [0.0, 6.0, 3.0, 6.75, 6.3125, 3.046875]


def test_without_drawn_staleness_each_step_is_a_synchronous_round():
    def select(step, clients, how_many):
        return np.random.default_rng([4, step]).choice(clients, how_many, replace=False)

    common = {
        "params": scalar(1.0),
        "num_clients": 5,
        "stop_after_steps": 8,
        "rule": ref.FedAvg(),
        "optimizer": ref.SGD(0.5, momentum=0.5),
        "client_update": halfway_to([8.0, -8.0, 16.0, 3.0, 1.0]),
    }
    drawn = ref.simulate_drawn_staleness(
        buffer_size=3, staleness_of=lambda client, trip: 0, select=select, **common
    )
    rounds = ref.simulate_synchronous(
        cohort=3,
        duration=lambda client, trip: 1.0,
        select_round=lambda round_number, started: select(round_number, range(5), started),
        **common,
    )
    assert trips_of(drawn) == trips_of(rounds)
    assert values(drawn) == values(rounds)


@pytest.mark.parametrize("seed", range(5))
def test_drawn_staleness_is_cut_by_nothing_but_the_last_step_of_its_client(seed):
    drawn = np.random.default_rng(seed).exponential(4.0, size=(6, 200))
    replay = run_drawn(
        num_clients=6,
        buffer_size=2,
        staleness_of=lambda client, trip: drawn[client, trip],
        select=uniform_choice(seed),
        stop_after_steps=100,
    )
    cut = 0
    for client in range(6):
        own = [trip for trip in replay.applied if trip.client == client]
        assert [trip.trip for trip in own] == list(range(len(own)))
        last = -1
        for trip in own:
            most = trip.step - last - 1
            cut += int(drawn[client, trip.trip]) > most
            assert trip.staleness == min(int(drawn[client, trip.trip]), most)
            last = trip.step
    assert 0 < cut < len(replay.applied) == 200


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"staleness_of": lambda client, trip: -0.5}, "bad staleness"),
        ({"staleness_of": lambda client, trip: math.inf}, "bad staleness"),
        ({"staleness_of": lambda client, trip: math.nan}, "bad staleness"),
        ({"buffer_size": 3}, "buffer_size"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"select": lambda step, clients, how_many: [0]}, "different clients"),
        ({"select": lambda step, clients, how_many: [1, 1]}, "different clients"),
    ],
)
def test_drawn_staleness_without_meaning_is_refused(settings, match):
    common = {
        "num_clients": 2,
        "buffer_size": 2,
        "staleness_of": lambda client, trip: 0,
        "select": uniform_choice(0),
        "stop_after_steps": 2,
    }
    with pytest.raises(ValueError, match=match):
        run_drawn(**(common | settings))


# --------------------------------------------------------------------------------------------------
# The synchronous simulator, by hand.
# --------------------------------------------------------------------------------------------------


def test_over_selection_by_hand():
    """2 of 3 per round. Round 0: clients 2 and 0 are first; round 1: a tie of all, so 0 and 1 are used."""
    replay = ref.simulate_synchronous(
        params=scalar(0.0),
        num_clients=4,
        cohort=2,
        started=3,
        duration=table([[2.0, 1.0], [5.0, 1.0], [1.0], [1.0]]),
        select_round=lambda round_number, started: [[2, 1, 0], [3, 0, 1]][round_number],
        stop_after_steps=2,
        rule=ref.FedAvg(),
        optimizer=ref.SGD(1.0),
        client_update=halfway_to([8.0, 4.0, -4.0, 100.0]),
    )
    assert trips_of(replay) == [
        (2, 0, 0, 0, 0, 0.0, 1.0),
        (0, 0, 0, 0, 0, 0.0, 2.0),
        (0, 1, 1, 1, 0, 2.0, 3.0),
        (1, 1, 1, 1, 0, 2.0, 3.0),  # its first trip was cancelled, and counts
    ]
    assert replay.step_times == [2.0, 3.0]
    cancelled = [(t.client, t.trip, t.download_version, t.arrival_time) for t in replay.discarded]
    assert cancelled == [(1, 0, 0, 5.0), (3, 0, 1, 3.0)]
    assert [(t.cancel_time, t.cancel_step) for t in replay.discarded] == [(2.0, 0), (3.0, 1)]
    assert replay.in_flight == []
    # (-2 + 4) / 2 = 1; then (3.5 + 1.5) / 2 = 2.5 more.
    assert values(replay) == [0.0, 1.0, 3.5]


def test_synchronous_rounds_refuse_a_wrong_choice():
    with pytest.raises(ValueError, match="different clients"):
        ref.simulate_synchronous(
            params={},
            num_clients=3,
            cohort=2,
            duration=lambda client, trip: 1.0,
            select_round=lambda round_number, started: [1, 1],
            stop_after_steps=1,
            rule=ref.FedAvg(),
            optimizer=ref.SGD(1.0),
            client_update=ref.no_work,
        )


# --------------------------------------------------------------------------------------------------
# Reductions: settings in which one algorithm is another.
# --------------------------------------------------------------------------------------------------


def sequential_sgd(params, data, batches, trips, learning_rate):
    """Client 0 alone, trip after trip, without any simulator."""
    x, y = data[0]
    for trip in range(trips):
        for batch in batches(0, trip):
            _, gradient = ref.objective(params, x[batch], y[batch])
            params = ref.subtract(params, ref.scale(learning_rate, gradient))
    return params


@pytest.mark.parametrize("make_params", [softmax_params, multilayer_params])
@pytest.mark.parametrize("rule", [ref.FedBuff(), ref.FedAvg(), ref.FedAsync(1.0, ref.polynomial())])
def test_one_client_is_sequential_sgd(make_params, rule):
    """Never stale, so s = 1; with mixing weight 1 FedAsync takes the trained model as it is."""
    data = toy_data(1)
    batches = drawn_batches(data)
    params = make_params(np.random.default_rng(5))
    replay = run(
        params=params,
        num_clients=1,
        concurrency=1,
        buffer_size=1,
        duration=exponential_durations(0, 1),
        stop_after_steps=6,
        rule=rule,
        client_update=ref.client_work(data, batches, learning_rate=0.3),
    )
    assert_close(replay.final_params, sequential_sgd(params, data, batches, 6, 0.3))
    assert ref.norm(ref.subtract(replay.final_params, params)) > 0.1


@pytest.mark.parametrize("optimizer", [ref.SGD(0.7), ref.SGD(0.7, momentum=0.9), ref.Adam(0.05)])
def test_fedbuff_with_equal_durations_and_buffer_size_of_the_cohort_is_fedavg(optimizer):
    """Both equal FedAvg written as a loop over rounds, too."""
    data = toy_data(5)
    work = ref.client_work(data, drawn_batches(data), learning_rate=0.3)
    params = softmax_params(np.random.default_rng(5))
    common = {
        "params": params,
        "num_clients": 5,
        "duration": lambda client, trip: 2.0,
        "stop_after_steps": 4,
        "optimizer": optimizer,
        "client_update": work,
    }
    buffered = ref.simulate(concurrency=5, buffer_size=5, rule=ref.FedBuff(), **common)
    averaged = ref.simulate_synchronous(
        cohort=5, select_round=lambda round_number, started: range(5), rule=ref.FedAvg(), **common
    )
    assert buffered.step_times == averaged.step_times == [2.0, 4.0, 6.0, 8.0]
    assert set(ref.column(buffered.applied, "staleness")) == {0}

    by_hand = params
    optimizer.begin(params)
    for round_number in range(4):
        updates = [work(client, round_number, by_hand)[0] for client in range(5)]
        mean = ref.tree_map(lambda *leaves: np.mean(leaves, axis=0), *updates)
        by_hand = optimizer.apply(by_hand, ref.scale(-1.0, mean))
        assert_close(buffered.params[round_number + 1], by_hand)
        assert_close(averaged.params[round_number + 1], by_hand)
    assert ref.norm(ref.subtract(by_hand, params)) > 0.05


def test_sum_is_the_mean_with_the_server_learning_rate_times_the_buffer_size():
    data = toy_data(6)
    common = {
        "params": softmax_params(np.random.default_rng(5)),
        "num_clients": 6,
        "concurrency": 6,
        "buffer_size": 3,
        "duration": exponential_durations(2, 6),
        "stop_after_steps": 8,
        "client_update": ref.client_work(data, drawn_batches(data), learning_rate=0.3),
    }
    mean = run(rule=ref.FedBuff(), optimizer=ref.SGD(0.9), **common)
    total = run(rule=ref.FedBuff(aggregation="sum"), optimizer=ref.SGD(0.3), **common)
    assert ref.column(mean.applied, "staleness").max() > 0
    assert_close(mean.final_params, total.final_params)


# --------------------------------------------------------------------------------------------------
# Laws that hold for any delays.
# --------------------------------------------------------------------------------------------------

SIZES = [(1, 1, 1), (5, 5, 1), (8, 3, 1), (12, 12, 5), (20, 7, 10), (30, 30, 4), (3, 2, 9)]


@pytest.mark.parametrize(("num_clients", "concurrency", "buffer_size"), SIZES)
def test_staleness_is_conserved(num_clients, concurrency, buffer_size):
    """Sum of staleness over applied trips + sum of (T - version) over trips in flight = T (M - 1), exactly.

    Each server step makes every trip that is under way one version older, but for the one whose arrival
    triggered
    it: M - 1 of them. (With ties the replacements of an instant wait for all its steps, and the law is
    another.)
    """
    steps = 60
    replay = run(
        num_clients=num_clients,
        concurrency=concurrency,
        buffer_size=buffer_size,
        duration=exponential_durations(num_clients, num_clients),
        select=uniform_choice(1),
        stop_after_steps=steps,
    )
    applied = ref.column(replay.applied, "staleness").sum()
    ahead = (steps - ref.column(replay.in_flight, "download_version")).sum()
    assert len(replay.in_flight) == concurrency
    assert len(replay.applied) == steps * buffer_size
    assert applied + ahead == steps * (concurrency - 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("num_clients", "concurrency", "buffer_size"), SIZES)
def test_events_follow_the_rules_stated_without_an_event_loop(num_clients, concurrency, buffer_size, seed):
    """With durations 1, 2 or 3 many events tie. Each record is checked by counting."""
    drawn = np.random.default_rng(seed).integers(1, 4, size=(num_clients, 2000)).astype(float)
    replay = run(
        num_clients=num_clients,
        concurrency=concurrency,
        buffer_size=buffer_size,
        duration=lambda client, trip: drawn[client, trip],
        select=uniform_choice(seed),
        stop_after_steps=25,
    )
    applied, everything = replay.applied, replay.applied + replay.in_flight
    step_times = np.array(replay.step_times)

    # Arrivals are handled in order of time, then of client; K of them are one step, at the last one.
    order = [(trip.arrival_time, trip.client) for trip in applied]
    assert order == sorted(order)
    assert [trip.step for trip in applied] == [index // buffer_size for index in range(25 * buffer_size)]
    assert replay.step_times == [trip.arrival_time for trip in applied[buffer_size - 1 :: buffer_size]]

    # Whoever starts at an instant finds all the steps of that instant done.
    for trip in everything:
        assert trip.download_version == np.sum(step_times <= trip.download_time)
        assert trip.arrival_time == trip.download_time + drawn[trip.client, trip.trip]
    assert all(trip.staleness == trip.step - trip.download_version for trip in applied)

    # Nobody is in two trips at once, and the trips of a client are numbered without a gap.
    for client in range(num_clients):
        own = sorted((trip for trip in everything if trip.client == client), key=lambda trip: trip.trip)
        assert [trip.trip for trip in own] == list(range(len(own)))
        assert all(a.arrival_time <= b.download_time for a, b in zip(own, own[1:], strict=False))

    # Between any two events exactly `concurrency` trips are under way.
    for time in np.arange(0.5, step_times[-1], 1.0):
        assert sum(trip.download_time < time < trip.arrival_time for trip in everything) == concurrency

    # At the end, nothing that should have been handled before the last applied trip is left.
    assert len(replay.in_flight) == concurrency
    assert all((trip.arrival_time, trip.client) > order[-1] for trip in replay.in_flight)


@pytest.mark.parametrize("buffer_size", [2, 3, 10])
def test_a_larger_buffer_divides_staleness(buffer_size):
    """FedBuff appendix A, same arrivals: tau_K <= ceil(tau_1 / K), and mean tau_K <= mean tau_1 / K."""

    def with_buffer_of(size):
        return run(
            num_clients=20,
            concurrency=12,
            buffer_size=size,
            duration=exponential_durations(4, 20),
            select=uniform_choice(2),
            stop_after_steps=300 // size,
        )

    single, buffered = with_buffer_of(1), with_buffer_of(buffer_size)
    for name in ("client", "trip", "arrival_time"):
        np.testing.assert_array_equal(ref.column(single.applied, name), ref.column(buffered.applied, name))
    one, many = ref.column(single.applied, "staleness"), ref.column(buffered.applied, "staleness")
    assert np.all(many <= np.ceil(one / buffer_size))
    assert 0 < many.mean() <= one.mean() / buffer_size


def test_equal_constant_delays_give_the_staleness_of_round_robin():
    """N = M clients of equal speed that arrive in turn, K = 1: in the end each is M - 1 versions late."""
    replay = run(
        num_clients=6,
        concurrency=6,
        buffer_size=1,
        duration=lambda client, trip: 6.0 if trip else 1.0 + client,
        stop_after_steps=30,
    )
    assert list(ref.column(replay.applied, "staleness")) == [0, 1, 2, 3, 4, 5] + [5] * 24
    assert list(ref.column(replay.applied, "client")) == list(range(6)) * 5


# --------------------------------------------------------------------------------------------------
# Laws for the ways to restart and for clients that leave.
# --------------------------------------------------------------------------------------------------


def whole_durations(seed, num_clients, trips=2000):
    """Durations 1, 2 or 3: many events tie, and nothing happens between two whole numbers."""
    drawn = np.random.default_rng(seed).integers(1, 4, size=(num_clients, trips)).astype(float)
    return lambda client, trip: drawn[client, trip]


@pytest.mark.parametrize(("num_clients", "buffer_size"), [(1, 1), (4, 4), (5, 1), (9, 4), (20, 7), (20, 13)])
def test_staleness_is_conserved_when_clients_start_after_a_step(num_clients, buffer_size):
    """Sum of staleness over applied trips + sum of (J - version) over trips in flight = J (P - K), exactly.

    Each step makes every trip one version older that is under way and not in the step: P - K of them.
    """
    steps = 60
    replay = run(
        num_clients=num_clients,
        concurrency=num_clients,
        buffer_size=buffer_size,
        duration=exponential_durations(num_clients, num_clients),
        stop_after_steps=steps,
        restart="after_step",
    )
    applied = ref.column(replay.applied, "staleness").sum()
    ahead = (steps - ref.column(replay.in_flight, "download_version")).sum()
    assert len(replay.in_flight) == num_clients
    assert applied + ahead == steps * (num_clients - buffer_size)


ROUNDS = [(1, 1, 1), (5, 5, 1), (8, 3, 3), (12, 12, 5), (7, 7, 7), (9, 1, 4), (6, 4, 20)]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("num_clients", "concurrency", "buffer_size"), ROUNDS)
def test_each_round_holds_each_client_once(num_clients, concurrency, buffer_size, ties):
    durations = whole_durations if ties else exponential_durations
    replay = run(
        num_clients=num_clients,
        concurrency=concurrency,
        buffer_size=buffer_size,
        duration=durations(num_clients, num_clients),
        select=uniform_choice(3),
        stop_after_steps=41,
        restart="after_round",
    )
    assert len(replay.applied) == 41 * buffer_size
    for begin in range(0, len(replay.applied), num_clients):
        round_of_trips = replay.applied[begin : begin + num_clients]
        assert {trip.trip for trip in round_of_trips} == {begin // num_clients}
        clients = [trip.client for trip in round_of_trips]
        whole = begin + num_clients <= len(replay.applied)
        assert sorted(clients) == list(range(num_clients)) if whole else len(set(clients)) == len(clients)
    # Who is under way at the end is in the open round, or in the one that the last step opened.
    assert {trip.trip for trip in replay.in_flight} == {len(replay.applied) // num_clients}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("num_clients", "buffer_size"), [(3, 2), (5, 5), (8, 3), (12, 7)])
def test_if_all_have_a_place_two_ways_to_restart_are_one(num_clients, buffer_size, seed):
    """With concurrency = N only those whose trips were applied are eligible, at once or after the step."""

    def simulated(restart):
        return run(
            num_clients=num_clients,
            concurrency=num_clients,
            buffer_size=buffer_size,
            duration=whole_durations(seed, num_clients),
            stop_after_steps=30,
            restart=restart,
        )

    first, second = simulated("not_twice_in_a_buffer"), simulated("after_step")
    assert trips_of(first) == trips_of(second)
    assert in_flight_of(first) == in_flight_of(second)
    if buffer_size > 1:
        assert trips_of(first) != trips_of(simulated("at_once"))


@pytest.mark.parametrize("restart", ref.RESTARTS)
@pytest.mark.parametrize(
    ("num_clients", "concurrency", "buffer_size"), [(5, 5, 1), (8, 3, 3), (12, 12, 5), (9, 6, 6), (10, 8, 3)]
)
def test_how_many_are_under_way_between_two_events(num_clients, concurrency, buffer_size, restart):
    """Counted at x.5, where nothing happens. W updates wait in the buffer, A trips have arrived so far."""
    replay = run(
        num_clients=num_clients,
        concurrency=concurrency,
        buffer_size=buffer_size,
        duration=whole_durations(num_clients, num_clients),
        select=uniform_choice(4),
        stop_after_steps=30,
        restart=restart,
    )
    everything = replay.applied + replay.in_flight
    step_times = np.array(replay.step_times)
    for trip in everything:
        assert trip.download_version == np.sum(step_times <= trip.download_time)
    for time in np.arange(0.5, step_times[-1], 1.0):
        arrived = [trip for trip in replay.applied if trip.arrival_time < time]
        waiting = {trip.client for trip in arrived if step_times[trip.step] > time}
        under_way = {trip.client for trip in everything if trip.download_time < time < trip.arrival_time}
        left_in_round = num_clients - len(arrived) % num_clients
        expected = {
            "at_once": concurrency,
            "not_twice_in_a_buffer": min(concurrency, num_clients - len(waiting)),
            "after_step": concurrency - len(waiting),
            "after_round": min(concurrency, left_in_round),
        }
        assert len(under_way) == expected[restart]
        if restart in ("not_twice_in_a_buffer", "after_step"):
            assert not waiting & under_way
    if restart in ("not_twice_in_a_buffer", "after_step"):
        for step in range(30):
            assert len({trip.client for trip in replay.applied if trip.step == step}) == buffer_size


@pytest.mark.parametrize("vanish", [("step", (0, 3, 7), 5), ("time", (0, 3, 7), 5), ("trips", (0, 3, 7), 2)])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("concurrency", [8, 5])
@pytest.mark.parametrize("restart", ref.RESTARTS)
def test_every_trip_of_those_who_leave_is_accounted_for(restart, concurrency, ties, vanish):
    kind, leaving, moment = vanish
    thrown_away = 0
    for seed in range(5):
        replay = run(
            num_clients=8,
            concurrency=concurrency,
            buffer_size=2,
            duration=(whole_durations if ties else exponential_durations)(seed, 8),
            select=uniform_choice(seed),
            stop_after_steps=80,
            restart=restart,
            vanish=vanish,
        )
        thrown_away += len(replay.discarded)
        everything = replay.applied + replay.in_flight + replay.discarded
        for client in range(8):
            own = sorted((trip for trip in everything if trip.client == client), key=lambda trip: trip.trip)
            assert [trip.trip for trip in own] == list(range(len(own)))
        if kind == "trips":
            for client in leaving:
                own = [trip.trip for trip in everything if trip.client == client]
                # With continuous durations a slow client may not have come so far.
                assert own == [0, 1] or (not ties and own == [0])
            continue
        when = float(moment) if kind == "time" else replay.step_times[moment - 1]
        version = np.sum(np.array(replay.step_times) <= when)
        assert {trip.client for trip in replay.discarded} <= set(leaving)
        assert all((trip.cancel_time, trip.cancel_step) == (when, version) for trip in replay.discarded)
        for trip in everything:
            if trip.client in leaving:
                assert trip.download_time < when
                assert (trip in replay.discarded) == (trip.arrival_time > when)
        assert {trip.client for trip in replay.in_flight} <= {1, 2, 4, 5, 6}
    assert (thrown_away > 0) == (kind != "trips")


# --------------------------------------------------------------------------------------------------
# Laws for trips that come to nothing, for other steps and for given start times.
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_clients", "concurrency", "buffer_size", "flush_after"),
    [(5, 5, 1, None), (8, 3, 2, None), (12, 12, 5, 0.3), (20, 7, 10, 1.0), (3, 2, 9, 2.5)],
)
def test_staleness_is_conserved_whatever_trips_come_to(num_clients, concurrency, buffer_size, flush_after):
    """What a trip ages with the steps: M - 1 trips by each full step, and all M by a short one, exactly.

    The age of a trip that was thrown away counts up to that moment.
    """
    failing = np.random.default_rng(num_clients).random(size=(num_clients, 2000)) < 0.2
    replay = run(
        num_clients=num_clients,
        concurrency=concurrency,
        buffer_size=buffer_size,
        duration=exponential_durations(num_clients, num_clients),
        select=uniform_choice(1),
        stop_after_steps=60,
        fails=lambda client, trip: failing[client, trip],
        staleness_limit=2,
        flush_after=flush_after,
    )
    short = sum(np.bincount(ref.column(replay.applied, "step")) < buffer_size)
    assert (short > 0) == (flush_after is not None)
    limited = [trip for trip in replay.discarded if not failing[trip.client, trip.trip]]
    assert len(limited) > 0 and len(limited) < len(replay.discarded)
    age = ref.column(replay.applied, "staleness").sum()
    age += (
        ref.column(replay.discarded, "cancel_step") - ref.column(replay.discarded, "download_version")
    ).sum()
    age += (60 - ref.column(replay.in_flight, "download_version")).sum()
    assert age == 60 * (concurrency - 1) + short


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("num_clients", "concurrency", "buffer_size"), [(1, 1, 1), (5, 5, 2), (8, 6, 3), (9, 5, 5), (7, 6, 1)]
)
def test_steps_that_cancel_are_synchronous_rounds_with_over_selection(
    num_clients, concurrency, buffer_size, ties
):
    rounds = []

    def select_round(round_number, started):
        return np.random.default_rng([6, round_number]).choice(num_clients, started, replace=False)

    def select(time, eligible, how_many):
        assert eligible == list(range(num_clients)) and how_many == concurrency
        rounds.append(time)
        return select_round(len(rounds) - 1, how_many)

    common = {
        "params": {},
        "num_clients": num_clients,
        "duration": (whole_durations if ties else exponential_durations)(4, num_clients),
        "stop_after_steps": 15,
        "rule": ref.FedAvg(),
        "optimizer": ref.SGD(),
        "client_update": ref.no_work,
    }
    stepwise = ref.simulate(
        concurrency=concurrency,
        buffer_size=buffer_size,
        select=select,
        restart="after_step",
        cancel_at_step=True,
        **common,
    )
    synchronous = ref.simulate_synchronous(
        cohort=buffer_size, started=concurrency, select_round=select_round, **common
    )
    assert trips_of(stepwise) == trips_of(synchronous)
    assert stepwise.step_times == synchronous.step_times
    # Here they are in client order, there in order of arrival.
    assert sorted(discarded_of(stepwise)) == sorted(discarded_of(synchronous))
    assert len(stepwise.in_flight) == concurrency


@pytest.mark.parametrize("restart", ref.RESTARTS)
def test_answers_that_say_nothing_change_nothing(restart):
    settings = {
        "num_clients": 9,
        "concurrency": 6,
        "buffer_size": 4,
        "duration": whole_durations(2, 9),
        "stop_after_steps": 30,
        "restart": restart,
        "vanish": ("step", (1, 2), 6),
    }
    plain = run(select=uniform_choice(5), **settings)
    told = run(
        select=uniform_choice(5),
        fails=lambda client, trip: False,
        next_available=lambda client, time: time,
        present_until=lambda client, time: math.inf,
        staleness_limit=30,
        flush_after=1e6,
        **settings,
    )
    assert trips_of(told) == trips_of(plain)
    assert in_flight_of(told) == in_flight_of(plain)
    assert discarded_of(told) == discarded_of(plain)


@pytest.mark.parametrize("restart", ["at_once", "not_twice_in_a_buffer"])
def test_starts_at_the_times_of_a_run_with_places_make_the_same_run(restart):
    """With M = N whoever can start does, so the times say it all."""
    settings = {
        "num_clients": 6,
        "buffer_size": 3,
        "duration": exponential_durations(8, 6),
        "stop_after_steps": 40,
        "restart": restart,
    }
    placed = run(concurrency=6, **settings)
    times = sorted(trip.download_time for trip in placed.applied + placed.in_flight)
    timed = run(concurrency=None, select=noted_choice([]), start_times=times, **settings)
    assert trips_of(timed) == trips_of(placed)
    assert in_flight_of(timed) == in_flight_of(placed)


# --------------------------------------------------------------------------------------------------
# Laws for all settings together.
# --------------------------------------------------------------------------------------------------


def coming_and_going(generator, num_clients, ties):
    """Random windows of presence up to time 300: `next_available`, `present_until` and all their begins."""

    def length():
        return float(generator.integers(1, 6)) if ties else generator.uniform(0.5, 6.0)

    rows = []
    for _ in range(num_clients):
        rows.append([])
        time = 0.0 if generator.random() < 0.5 else length()
        while time < 300.0:
            end = time + length()
            rows[-1].append((time, end))
            time = end if generator.random() < 0.2 else end + length()
    return *windows(*rows), sorted({begin for row in rows for begin, _ in row})


def random_settings(seed):
    """Settings for `run`, each argument given or not by chance, and times at which clients come back."""
    generator = np.random.default_rng(seed)

    def coin(probability=0.35):
        return generator.random() < probability

    num_clients = int(generator.integers(1, 8))
    ties, given_times = coin(0.5), coin(0.25)
    settings = {
        "num_clients": num_clients,
        "buffer_size": int(generator.integers(1, 5)),
        "duration": (whole_durations if ties else exponential_durations)(seed, num_clients),
        "stop_after_steps": 12,
        "select": uniform_choice(seed),
    }
    if given_times:
        times = np.sort(generator.uniform(0.0, 60.0, size=120))
        settings["start_times"] = [float(time) for time in (np.floor(times) if ties else times)]
        settings["concurrency"] = None
        settings["exclude_busy"] = coin(0.5)
        settings["restart"] = ("at_once", "not_twice_in_a_buffer")[int(coin(0.5))]
    else:
        settings["concurrency"] = int(generator.integers(1, num_clients + 1))
        settings["restart"] = ref.RESTARTS[generator.integers(len(ref.RESTARTS))]
        if settings["restart"] == "after_step":
            settings |= replacing(
                *(("at_once", None), ("after_time_out", 2.0), ("after_step", None))[seed % 3]
            )
        if settings["restart"] == "at_once" and coin():
            settings["first_buffer_size"] = int(generator.integers(1, settings["concurrency"] + 1))
    if coin():
        kind = ("step", "time", "trips")[generator.integers(3)]
        clients = generator.choice(num_clients, size=(num_clients + 1) // 3, replace=False)
        settings["vanish"] = (kind, [int(client) for client in clients], int(generator.integers(1, 8)))
    if coin():
        failing = generator.random(size=(num_clients, 2000)) < 0.3
        settings["fails"] = lambda client, trip: failing[client, trip]
    begins = []
    if coin():
        next_available, present_until, begins = coming_and_going(generator, num_clients, ties)
        settings["next_available"] = next_available
        if coin(0.5):
            settings["present_until"] = present_until
    if coin(0.5):
        settings["staleness_limit"] = int(generator.integers(1, 4))
        settings["too_stale"] = ("drop", "wait")[int(coin(0.5))]
    if settings.get("too_stale") != "wait":
        if coin():
            settings["flush_after"] = float(generator.integers(0, 4)) + (0.0 if ties else 0.5)
        settings["cancel_at_step"] = coin()
    return settings, begins


def end_of(trip):
    """When the trip was over: when it arrived or was thrown away, or never."""
    if trip.cancel_time is not None:
        return trip.cancel_time
    return math.inf if trip.step is None else trip.arrival_time


def full_size(step, settings):
    """How many trips a step waits for."""
    return (settings.get("first_buffer_size") if step == 0 else None) or settings["buffer_size"]


def steps_ahead(trip, settings, replay):
    """How many steps were made before the turn of a trip that ended then: none waits for late trips here.

    A step at the same instant is ahead if a trip ahead of it filled the buffer; a short one comes after all.
    """
    ahead = 0
    for step, time in enumerate(replay.step_times):
        trips = [other for other in replay.applied if other.step == step]
        last, full = trips[-1], len(trips) == full_size(step, settings)
        earlier = (last.arrival_time, last.client, last.trip) < (time, trip.client, trip.trip)
        ahead += time < trip.cancel_time or (time == trip.cancel_time and full and earlier)
    return ahead


def why_discarded(trip, settings, replay):
    """Why a trip was thrown away at that instant; one that its turn came for was not cancelled or left."""
    limit, step = settings.get("staleness_limit"), trip.cancel_step
    ahead = None if settings.get("too_stale") == "wait" else steps_ahead(trip, settings, replay)
    with_step = trip.cancel_time in replay.step_times[step : step + 1]
    if settings.get("cancel_at_step") and with_step and (trip.end_time > trip.cancel_time or step < ahead):
        return "cancelled"
    if trip.end_time > trip.cancel_time:
        assert trip.cancel_time == when_gone(trip.client, settings, replay)
        return "left"
    assert ahead is None or step == ahead
    if trip.end_time < trip.arrival_time:
        assert trip.end_time == settings["present_until"](trip.client, trip.download_time)
        return "lost"
    if settings.get("fails") and settings["fails"](trip.client, trip.trip):
        return "failed"
    assert settings["too_stale"] == "drop" and step - trip.download_version > limit
    return "too stale"


def when_gone(client, settings, replay):
    """The instant at which the client left for ever, or should have."""
    kind, clients, moment = settings.get("vanish") or ("time", (), 0)
    if client not in clients:
        return math.inf
    if kind == "time":
        return float(moment)
    if kind == "step":
        return replay.step_times[moment - 1]
    ends = sorted(end_of(trip) for trip in all_trips(replay) if trip.client == client)
    return ends[moment - 1] if len(ends) >= moment else math.inf


def all_trips(replay):
    return replay.applied + replay.in_flight + replay.discarded


def assert_records_are_whole(settings, replay, started):
    """Each trip once, each client's trips numbered without a gap, and nobody in two places."""
    everything = all_trips(replay)
    assert sorted((trip.client, trip.trip) for trip in everything) == sorted(started)
    for client in range(settings["num_clients"]):
        own = sorted((trip for trip in everything if trip.client == client), key=lambda trip: trip.trip)
        assert [trip.trip for trip in own] == list(range(len(own)))
        assert all(a.download_time <= b.download_time for a, b in zip(own, own[1:], strict=False))
        if settings.get("exclude_busy", True):
            assert all(end_of(a) <= b.download_time for a, b in zip(own, own[1:], strict=False))
    step_times = np.array(replay.step_times)
    assert list(step_times) == sorted(step_times) and len(step_times) == settings["stop_after_steps"]
    for trip in everything:
        # No duration is 0, so whoever starts at an instant finds all the steps of that instant done.
        assert trip.download_version == np.sum(step_times <= trip.download_time)
        assert trip.arrival_time == trip.download_time + settings["duration"](trip.client, trip.trip)
        assert end_of(trip) == math.inf or trip.download_time < end_of(trip) <= trip.arrival_time
        assert (trip.cancel_time is None) == (trip.cancel_step is None) == (trip not in replay.discarded)
        assert (trip.update is not None) == (trip.step is not None)
    assert all(trip.end_time >= step_times[-1] for trip in replay.in_flight)


def assert_each_end_has_its_reason(settings, replay):
    """What is thrown away has a reason for it, and what is applied has none."""
    limit, fails, present_until = (settings.get(n) for n in ("staleness_limit", "fails", "present_until"))
    reasons = [why_discarded(trip, settings, replay) for trip in replay.discarded]
    for trip in replay.discarded:
        before = sum(time < trip.cancel_time for time in replay.step_times)
        assert before <= trip.cancel_step <= sum(time <= trip.cancel_time for time in replay.step_times)
        assert trip.cancel_time <= replay.step_times[-1]
    for trip in replay.applied:
        assert trip.staleness == trip.step - trip.download_version
        assert limit is None or trip.staleness <= limit
        assert fails is None or not fails(trip.client, trip.trip)
        assert present_until is None or trip.arrival_time <= present_until(trip.client, trip.download_time)
        if settings.get("cancel_at_step"):
            assert trip.staleness == 0
    for trip in all_trips(replay):
        if settings.get("next_available"):
            assert settings["next_available"](trip.client, trip.download_time) == trip.download_time
        gone_from = when_gone(trip.client, settings, replay)
        if gone_from < replay.step_times[-1]:
            assert trip.download_time < gone_from or trip.download_time == gone_from == 0.0
            assert min(end_of(trip), trip.end_time) <= gone_from
    return reasons


def assert_steps_come_when_they_must(settings, replay):
    """Steps hold all that arrived since the last one; they are full, or late, or waited for a reason."""
    order = [(trip.arrival_time, trip.client, trip.trip) for trip in replay.applied]
    assert order == sorted(order)
    assert [trip.step for trip in replay.applied] == sorted(trip.step for trip in replay.applied)
    waits, flush_after = settings.get("too_stale") == "wait", settings.get("flush_after")
    for step, time in enumerate(replay.step_times):
        trips = [trip for trip in replay.applied if trip.step == step]
        full = full_size(step, settings)
        if waits:
            assert len(trips) >= full and trips[-1].arrival_time <= time
        elif len(trips) < full:
            assert time == trips[0].arrival_time + flush_after
        else:
            assert len(trips) == full and time == trips[-1].arrival_time
        if flush_after is not None and (step or "first_buffer_size" not in settings):
            assert time <= trips[0].arrival_time + flush_after
        for trip in all_trips(replay):
            under_way = trip.download_time < time < end_of(trip)
            if waits and under_way:
                assert step + 1 - trip.download_version <= settings["staleness_limit"]
            if settings.get("cancel_at_step"):
                assert not under_way
        if waits:
            # Between two instants a full buffer waits for somebody only.
            times = sorted({time, *(end_of(trip) for trip in all_trips(replay) if end_of(trip) < time)})
            for middle in [(a + b) / 2 for a, b in zip(times, times[1:], strict=False)]:
                if sum(trip.arrival_time < middle for trip in trips) >= full:
                    assert any(
                        trip.download_time < middle < end_of(trip)
                        and step + 1 - trip.download_version > settings["staleness_limit"]
                        for trip in all_trips(replay)
                    )


def lost_and_not_noticed(settings, replay, now):
    """The clients of the trips that the server waits for in vain."""
    if "time_out" not in settings:
        return []
    canceled = [time for time in replay.step_times if settings.get("cancel_at_step") and time <= now]
    return [
        trip.client
        for trip in replay.discarded
        if why_discarded(trip, settings, replay) in ("lost", "failed", "left")
        and max([0.0, *canceled]) <= trip.cancel_time <= now < trip.cancel_time + settings["time_out"]
        and not (trip.cancel_time in canceled and trip.cancel_step < np.sum(np.array(canceled) <= now))
    ]


def assert_places_are_filled(settings, replay, moments):
    """After each of these moments no place is open that somebody eligible and available could take."""
    everything, restart, step_times = all_trips(replay), settings["restart"], replay.step_times
    starts, end = settings.get("start_times"), step_times[-1]
    open_places = settings["concurrency"]
    begins_and_ends = {trip.download_time for trip in everything} | {end_of(trip) for trip in everything}
    moments = sorted({0.0, *moments, *step_times, *begins_and_ends})
    contributed = set()
    for now in [moment for moment in moments if moment < end]:
        under_way = [trip for trip in everything if trip.download_time <= now < end_of(trip)]
        waiting = {t.client for t in replay.applied if t.arrival_time <= now < step_times[t.step]}
        number_waiting = sum(t.arrival_time <= now < step_times[t.step] for t in replay.applied)
        started = [trip.client for trip in everything if trip.download_time == now]
        gone = {c for c in range(settings["num_clients"]) if when_gone(c, settings, replay) <= now}
        unnoticed = lost_and_not_noticed(settings, replay, now)
        contributed |= {trip.client for trip in replay.applied if trip.arrival_time == now}
        if len(contributed | gone) == settings["num_clients"]:
            contributed = set()

        able = set(range(settings["num_clients"])) - gone - set(unnoticed)
        if settings.get("next_available"):
            able = {client for client in able if settings["next_available"](client, now) == now}
        waits_for_step_0 = settings.get("first_buffer_size") is not None and now < step_times[0]
        if restart in ("not_twice_in_a_buffer", "after_step") or waits_for_step_0:
            able -= waiting
        if restart == "after_round":
            able -= contributed
        if now > 0.0:
            assert set(started) <= able
        if settings.get("exclude_busy", True):
            able -= {trip.client for trip in under_way}

        if starts is not None:
            assert len(started) <= starts.count(now)
            assert len(started) == starts.count(now) or not able
            continue
        steps_only = restart == "after_step" and settings.get("replace_lost") == "after_step"
        if waits_for_step_0 or (steps_only and now not in step_times):
            open_places -= len(started)
        elif restart == "after_step":
            open_places = settings["concurrency"] - len(under_way) - number_waiting - len(unnoticed)
        else:
            open_places = settings["concurrency"] - len(under_way)
        assert open_places >= 0
        assert open_places == 0 or not able


@pytest.mark.parametrize("part", range(4))
def test_all_settings_together_obey_the_laws(part):
    """Random settings, some of which starve; the others are many, and hold everything that may happen."""
    reasons, completed = [], []
    for seed in range(250 * part, 250 * part + 250):
        settings, moments = random_settings(seed)
        started = []

        def noted(client, trip, duration=settings["duration"], started=started):
            started.append((client, trip))
            return duration(client, trip)

        try:
            replay = run(**(settings | {"duration": noted}))
        except ValueError as error:
            if not str(error).startswith("starved"):
                raise
            continue
        completed.append(settings)
        assert_records_are_whole(settings, replay, started)
        reasons += assert_each_end_has_its_reason(settings, replay)
        assert_steps_come_when_they_must(settings, replay)
        assert_places_are_filled(settings, replay, moments)
    assert len(completed) > 150
    assert set(reasons) == {"lost", "failed", "too stale", "cancelled", "left"}
    for restart in ref.RESTARTS:
        assert sum(settings["restart"] == restart for settings in completed) > 15
