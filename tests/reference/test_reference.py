"""The reference simulator is itself right: cases worked out by hand, and laws that hold for any delays."""

import math

import numpy as np
import pytest
import reference as ref
from both_simulators import PLAIN, by_reference, halfway_to
from both_simulators import by_reference as run
from hand_cases import Choices, each_run, replay_text, table, windows, world
from rows_clients import CLIENTS
from rows_events import EVENTS
from rows_refused import REFUSED, STARVED
from rows_steps import STEPS

# Helpers.


def scalar(value):
    """A model with a single parameter."""
    return {"w": np.array(float(value))}


def values(replay):
    """The single parameter of every version."""
    return [float(params["w"]) for params in replay.params]


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


def regression():
    """Parameters of a softmax regression, and 8 examples."""
    generator = np.random.default_rng(1)
    return softmax_params(generator), generator.normal(size=(8, 4)), generator.integers(0, 3, size=8)


def assert_close(first, second, tolerance=1e-12):
    ref.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), first, second)


def exponential_durations(seed, num_clients, trips=2000):
    """Continuous durations, with clients of different speed: no two instants coincide."""
    generator = np.random.default_rng(seed)
    means = generator.uniform(0.2, 5.0, size=(num_clients, 1))
    drawn = means * generator.exponential(size=(num_clients, trips))
    return lambda client, trip: drawn[client, trip]


def whole_durations(seed, num_clients, trips=2000):
    """Durations 1, 2 or 3: many events tie, and nothing happens between two whole numbers."""
    drawn = np.random.default_rng(seed).integers(1, 4, size=(num_clients, trips)).astype(float)
    return lambda client, trip: drawn[client, trip]


def uniform_choice(seed):
    generator = np.random.default_rng(seed)
    return lambda time, idle, how_many: generator.choice(idle, size=how_many, replace=False)


def drawn_world(sizes, seed, *, ties=False, steps=30, **settings):
    """Settings of (N, M, K) with random durations, where those who start are chosen at random."""
    num_clients, concurrency, buffer_size = sizes
    return settings | {
        "num_clients": num_clients,
        "concurrency": concurrency,
        "buffer_size": buffer_size,
        "duration": (whole_durations if ties else exponential_durations)(seed, num_clients),
        "stop_after_steps": steps,
        "select": uniform_choice(seed),
    }


# Parameters, models and client work.


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


def test_local_update_is_plain_gradient_descent():
    params, x, y = regression()
    update, loss, examples = ref.local_update(params, x, y, [np.array([0, 1, 2]), np.array([5, 6])], 0.5)
    first_loss, first = ref.objective(params, x[:3], y[:3])
    middle = ref.subtract(params, ref.scale(0.5, first))
    _, second = ref.objective(middle, x[5:7], y[5:7])
    assert_close(update, ref.scale(-0.5, ref.add(first, second)))
    assert loss == first_loss
    assert examples == 5


def test_learning_rate_normalization_scales_each_step_by_its_share_of_a_batch():
    params, x, y = regression()
    batches = [np.arange(4), np.array([4])]
    normalized = {"learning_rate_normalization": True}
    update, _, _ = ref.local_update(params, x, y, batches, 0.5, batch_size=4, **normalized)
    full, _, _ = ref.local_update(params, x, y, batches[:1], 0.5)
    quarter, _, _ = ref.local_update(ref.add(params, full), x, y, batches[1:], 0.5 / 4)
    assert_close(update, ref.add(full, quarter))


def test_client_momentum_is_zero_when_a_trip_starts():
    params, x, y = regression()
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
    params, x, y = regression()
    batches = [np.arange(4), np.arange(4, 8)]
    one, _, _ = ref.local_update(params, x, y, batches[:1], 0.5, proximal=0.8)
    assert_close(one, ref.local_update(params, x, y, batches[:1], 0.5)[0])
    two, _, _ = ref.local_update(params, x, y, batches, 0.5, proximal=0.8)
    without, _, _ = ref.local_update(params, x, y, batches, 0.5)
    assert_close(ref.subtract(two, without), ref.scale(-0.5 * 0.8, one))


# Staleness weights, rules and server optimizers.


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
    assert descend(optimizer, gradients, start=10.0) == pytest.approx(
        expected, rel=1e-8
    )  # it has no memory of that


# Cases worked out by hand.


@pytest.mark.parametrize(("simulate", "case", "changes"), each_run(EVENTS + CLIENTS + STEPS))
def test_by_hand(simulate, case, changes):
    settings = world(case.durations, **case.world, **changes)
    settings["stop_after_steps"] = len(case.expected["steps"].split("; "))
    choices = Choices(case.expected["choices"])
    if case.expected["choices"]:
        settings["select"] = choices
    trained, started = [], []
    if simulate is by_reference:
        settings = with_notes(settings, trained, started)

    replay = simulate(**settings)

    happened = replay_text(replay) | {"choices": "; ".join(choices.notes)}
    moves = case.expected["values"] is not None
    assert happened | {"values": values(replay) if moves else None} == case.expected
    assert all(trip.staleness == trip.step - trip.download_version for trip in replay.applied)
    assert all(trip.update is None and trip.step is None for trip in replay.discarded)
    if simulate is by_reference:
        # Who starts at an instant starts in client order; who is thrown away never trains.
        trips = sorted(
            all_trips(replay), key=lambda t: (t.download_time, t.download_version, t.client, t.trip)
        )
        assert started == [(trip.client, trip.trip) for trip in trips]
        assert trained[: len(replay.applied)] == [(trip.client, trip.trip) for trip in replay.applied]
        assert not set(trained) & {(trip.client, trip.trip) for trip in replay.discarded}
        assert replay.final_params is replay.params[-1]


def with_notes(settings, trained, started):
    """The settings with functions that note which (client, trip) start and train."""
    work, duration = settings.get("client_update", ref.no_work), settings["duration"]

    def client_update(client, trip, params):
        trained.append((client, trip))
        return work(client, trip, params)

    def trip_duration(client, trip):
        started.append((client, trip))
        return duration(client, trip)

    return settings | {"client_update": client_update, "duration": trip_duration}


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
        **world([1], client_examples=[17]),
        params=scalar(0.0),
        stop_after_steps=3,
        rule=rule,
        optimizer=ref.SGD(1.0, momentum=0.5),
        client_update=lambda client, trip, params: ({"w": 1.0 + 0 * params["w"]}, 0.25, 3),
    )
    # Momentum 1, then 1.5 (and not 0.5 * 0.5 + 1): 0 -> 1 -> 1 -> 2.5.
    assert values(replay) == [0.0, 1.0, 1.0, 2.5]
    last = rule.seen[-1]
    assert (last.start["w"], last.update["w"], last.trained["w"]) == (1.0, 1.0, 2.0)
    assert (last.loss, last.batch_examples, last.num_examples) == (0.25, 3, 17)
    assert (last.client, last.trip, last.step, last.staleness, last.download_version) == (0, 2, 2, 0, 2)


@pytest.mark.parametrize(("where", "settings"), STARVED)
def test_a_starved_run_is_refused(where, settings):
    with pytest.raises(ValueError, match=f"^starved at {where}:"):
        run(stop_after_steps=9, **settings)


@pytest.mark.parametrize(("match", "settings"), [(words, row) for words in REFUSED for row in REFUSED[words]])
def test_what_no_schedule_may_answer_is_refused(match, settings):
    with pytest.raises(ValueError, match=match):
        run(**(world([1, 1], stop_after_steps=3) | settings))


# The other two simulators, by hand.


def run_drawn(**changes):
    return ref.simulate_drawn_staleness(**PLAIN | changes)


def test_drawn_staleness_by_hand():
    """What is drawn is rounded down, and cut to the first version after the client's last step."""
    choices = Choices("@0 2 0 of 0 1 2; @1 0 1 of 0 1 2; @2 0 2 of 0 1 2; @3 2 1 of 0 1 2; @4 0 1 of 0 1 2")
    replay = run_drawn(
        params=scalar(0.0),
        num_clients=3,
        buffer_size=2,
        staleness_of=table([[3.0, 5.0, 0.0, 1.0], [0.9, 3.0, 0.0], [0.0, 1.7, 0.5]]),
        select=choices,
        stop_after_steps=5,
        client_update=halfway_to([8.0, -8.0, 16.0]),
        client_examples=[5, 6, 7],
    )
    assert choices.notes == choices.row.split("; ")
    assert replay_text(replay) == {
        "steps": "@1 0#0 v0 0-1, 2#0 v0 0-1; "  # 3 drawn for client 0, but there is only version 0
        "@2 0#1 v1 1-2, 1#0 v1 1-2; "  # 5 drawn, but step 0 applied its last trip; and 0.9
        "@3 0#2 v2 2-3, 2#1 v1 1-3; "  # 0 and 1.7
        "@4 1#1 v2 2-4, 2#2 v3 3-4; "  # 3 drawn, but step 1 applied its last trip; and 0.5
        "@5 0#3 v3 3-5, 1#2 v4 4-5",  # 1 drawn, as its last trip allows; and 0
        "under_way": "",
        "thrown_away": "",
    }
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
    assert replay_text(drawn) == replay_text(rounds)
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
        ({"select": lambda step, clients, how_many: [0]}, "different clients"),
        ({"select": lambda step, clients, how_many: [1, 1]}, "different clients"),
    ],
)
def test_no_staleness_and_no_choice_without_meaning_is_taken(settings, match):
    common = {
        "num_clients": 2,
        "buffer_size": 2,
        "staleness_of": lambda client, trip: 0,
        "select": uniform_choice(0),
        "stop_after_steps": 2,
    }
    with pytest.raises(ValueError, match=match):
        run_drawn(**(common | settings))


@pytest.mark.parametrize("initial_round", [False, True])
def test_delays_that_count_iterations_by_hand(initial_round):
    """0 and 0.4 are one iteration, 2.5 are three; an iteration without a report makes no step."""
    replay = ref.simulate_iterations(
        **PLAIN
        | {
            "params": scalar(0.0),
            "num_clients": 3,
            "delay_of": table([[1.0, 2.5, 3.0, 9.0], [4.0, 2.0, 2.0, 9.0], [0.0, 0.4, 4.0, 9.0]]),
            "stop_after_steps": 5,
            "client_update": halfway_to([8.0, -8.0, 16.0]),
            "initial_round": initial_round,
        }
    )
    if initial_round:  # all report to iteration 1; then 2.5 from 1 on is 4, 2 is 3, 0.4 is 2
        assert replay_text(replay) == {
            "steps": "@1 0#0 v0 0-1, 1#0 v0 0-1, 2#0 v0 0-1; "
            "@2 2#1 v1 1-2; "
            "@3 1#1 v1 1-3; "
            "@4 0#1 v1 1-4; "
            "@5 1#2 v3 3-5",
            "under_way": "0#2 v4 4-7, 1#3 v5 5-14, 2#2 v2 2-6",
            "thrown_away": "",
        }
        return
    assert replay_text(replay) == {
        "steps": "@1 0#0 v0 0-1, 2#0 v0 0-1; "
        "@2 2#1 v1 1-2; "
        "@4 0#1 v1 1-4, 1#0 v0 0-4; "  # nobody has reported to iteration 3
        "@6 1#1 v3 4-6, 2#2 v2 2-6; "
        "@7 0#2 v3 4-7",
        "under_way": "0#3 v5 7-16, 1#2 v4 6-8, 2#3 v4 6-15",
        "thrown_away": "",
    }
    # (4 + 8) / 2; 5; (1 - 4) / 2, client 0 having trained from 6; (-8.75 + 2.5) / 2 from 9.5 and 11; -0.75 from 9.5.
    assert values(replay) == [0.0, 6.0, 11.0, 9.5, 6.375, 5.625]


def run_rounds(**changes):
    return ref.simulate_synchronous(**PLAIN | {"rule": ref.FedAvg()} | changes)


def test_over_selection_by_hand():
    """2 of 3 per round. Round 0: clients 2 and 0 are first; round 1: a tie of all, so 0 and 1 are used."""
    replay = run_rounds(
        params=scalar(0.0),
        num_clients=4,
        cohort=2,
        started=3,
        duration=table([[2, 1], [5, 1], 1, 1]),
        select_round=lambda round_number, started: [[2, 1, 0], [3, 0, 1]][round_number],
        stop_after_steps=2,
        client_update=halfway_to([8.0, 4.0, -4.0, 100.0]),
    )
    assert replay_text(replay) == {
        # Client 1's first trip was cancelled, and counts.
        "steps": "@2 2#0 v0 0-1, 0#0 v0 0-2; @3 0#1 v1 2-3, 1#1 v1 2-3",
        "under_way": "",
        "thrown_away": "1#0 v0 0-5 x2 s0, 3#0 v1 2-3 x3 s1",
    }
    # (-2 + 4) / 2 = 1; then (3.5 + 1.5) / 2 = 2.5 more.
    assert values(replay) == [0.0, 1.0, 3.5]


def test_synchronous_rounds_refuse_a_wrong_choice():
    with pytest.raises(ValueError, match="different clients"):
        run_rounds(
            num_clients=3,
            cohort=2,
            duration=lambda client, trip: 1.0,
            select_round=lambda round_number, started: [1, 1],
            stop_after_steps=1,
        )


# Reductions: settings in which one algorithm is another.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("num_clients", "buffer_size"), [(3, 2), (5, 5), (8, 3), (12, 7)])
def test_if_all_have_a_place_two_ways_to_restart_are_one(num_clients, buffer_size, seed):
    """With concurrency = N only those whose trips were applied are eligible, at once or after the step."""

    def simulated(restart):
        sizes = num_clients, num_clients, buffer_size
        return replay_text(run(**drawn_world(sizes, seed, ties=True, restart=restart)))

    first = simulated("not_twice_in_a_buffer")
    assert first == simulated("after_step")
    if buffer_size > 1:
        assert first["steps"] != simulated("at_once")["steps"]


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

    settings = drawn_world((num_clients, concurrency, buffer_size), 4, ties=ties, steps=15)
    stepwise = run(**settings | {"select": select, "restart": "after_step", "cancel_at_step": True})
    synchronous = run_rounds(
        cohort=buffer_size,
        started=concurrency,
        select_round=select_round,
        **{name: settings[name] for name in ("num_clients", "duration", "stop_after_steps")},
    )
    first, second = replay_text(stepwise), replay_text(synchronous)
    assert first["steps"] == second["steps"]
    # Here they are in client order, there in order of arrival.
    assert sorted(first["thrown_away"].split(", ")) == sorted(second["thrown_away"].split(", "))
    assert len(stepwise.in_flight) == concurrency


@pytest.mark.parametrize("restart", ref.RESTARTS)
def test_answers_that_say_nothing_change_nothing(restart):
    def settings():
        return drawn_world((9, 6, 4), 2, ties=True, restart=restart, vanish=("step", (1, 2), 6))

    with_answers = run(
        fails=lambda client, trip: False,
        next_available=lambda client, time: time,
        present_until=lambda client, time: math.inf,
        staleness_limit=30,
        flush_after=1e6,
        **settings(),
    )
    assert replay_text(with_answers) == replay_text(run(**settings()))


@pytest.mark.parametrize("restart", ["at_once", "not_twice_in_a_buffer"])
def test_starts_at_the_times_of_a_run_with_places_make_the_same_run(restart):
    """With M = N whoever can start does, so the times say it all."""
    settings = drawn_world((6, 6, 3), 8, steps=40, restart=restart)
    placed = run(**settings)
    times = sorted(trip.download_time for trip in placed.applied + placed.in_flight)
    timed = run(**settings | {"concurrency": None, "select": Choices(), "start_times": times})
    assert replay_text(timed) == replay_text(placed)


# Laws that hold for any delays.

SIZES = [(1, 1, 1), (5, 5, 1), (8, 3, 1), (12, 12, 5), (20, 7, 10), (30, 30, 4), (3, 2, 9)]
AFTER_STEP = [(1, 1, 1), (4, 4, 4), (5, 5, 1), (9, 9, 4), (20, 20, 7), (20, 20, 13)]
WITH_LOSSES = [(5, 5, 1, None), (8, 3, 2, None), (12, 12, 5, 0.3), (20, 7, 10, 1.0), (3, 2, 9, 2.5)]


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [(sizes, {}) for sizes in SIZES]
    + [(sizes, {"restart": "after_step"}) for sizes in AFTER_STEP]
    + [(sizes, {"staleness_limit": 2, "flush_after": flush}) for *sizes, flush in WITH_LOSSES],
)
def test_staleness_is_conserved(sizes, settings):
    """The ages of all trips, in steps from their download, sum up to what the steps add, exactly.

    A trip ages until it is applied (that is its staleness), until it is thrown away, or until the end. Each full
    step makes every trip under way one version older but the one whose arrival triggered it: M - 1 of them; a short
    one makes all M older. Where clients start after a step, it is those under way and not in the step: M - K. (With
    ties the replacements of an instant wait for all its steps, and the law is another.)
    """
    num_clients, concurrency, buffer_size = sizes
    failing = np.random.default_rng(num_clients).random(size=(num_clients, 2000)) < 0.2
    with_losses = "staleness_limit" in settings
    settings = drawn_world(sizes, num_clients, steps=60, **settings)
    replay = run(fails=lambda client, trip: with_losses and failing[client, trip], **settings)
    short = np.sum(np.bincount(ref.column(replay.applied, "step")) < buffer_size)
    assert (short > 0) == (settings.get("flush_after") is not None)
    assert len(replay.applied) == 60 * buffer_size or short
    assert len(replay.in_flight) == concurrency
    limited = [trip for trip in replay.discarded if not failing[trip.client, trip.trip]]
    assert 0 < len(limited) < len(replay.discarded) if with_losses else not replay.discarded

    age = sum(trip.staleness for trip in replay.applied)
    age += sum(trip.cancel_step - trip.download_version for trip in replay.discarded)
    age += sum(60 - trip.download_version for trip in replay.in_flight)
    assert age == 60 * (concurrency - (buffer_size if "restart" in settings else 1)) + short


def test_equal_constant_delays_give_the_staleness_of_round_robin():
    """N = M clients of equal speed that arrive in turn, K = 1: in the end each is M - 1 versions late."""
    replay = run(**world([[1.0 + client, 6.0] for client in range(6)]), stop_after_steps=30)
    assert list(ref.column(replay.applied, "staleness")) == [0, 1, 2, 3, 4, 5] + [5] * 24
    assert list(ref.column(replay.applied, "client")) == list(range(6)) * 5


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (5, 5, 1), (8, 3, 3), (12, 12, 5), (7, 7, 7), (9, 1, 4), (6, 4, 20)]
)
def test_each_round_holds_each_client_once(sizes, ties):
    num_clients, _, buffer_size = sizes
    replay = run(**drawn_world(sizes, num_clients, ties=ties, steps=41, restart="after_round"))
    assert len(replay.applied) == 41 * buffer_size
    for begin in range(0, len(replay.applied), num_clients):
        round_of_trips = replay.applied[begin : begin + num_clients]
        assert {trip.trip for trip in round_of_trips} == {begin // num_clients}
        clients = [trip.client for trip in round_of_trips]
        whole = begin + num_clients <= len(replay.applied)
        assert sorted(clients) == list(range(num_clients)) if whole else len(set(clients)) == len(clients)
    # Who is under way at the end is in the open round, or in the one that the last step opened.
    assert {trip.trip for trip in replay.in_flight} == {len(replay.applied) // num_clients}


# Laws for all settings together.


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
    return *windows(rows), sorted({begin for row in rows for begin, _ in row})


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
            settings["replace_lost"] = ("at_once", "after_time_out", "after_step")[seed % 3]
            if seed % 3 == 1:
                settings["time_out"] = 2.0
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
        if settings.get("too_stale") != "wait" and settings.get("flush_after") is None:
            assert step == sum(time <= trip.cancel_time for time in replay.step_times)
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


def reasons_in_a_lawful_run(settings, moments=()):
    """Runs these settings, checks all laws, and returns why each trip was thrown away, and the replay."""
    started = []
    replay = run(**with_notes(settings, [], started))
    assert_records_are_whole(settings, replay, started)
    reasons = assert_each_end_has_its_reason(settings, replay)
    assert_steps_come_when_they_must(settings, replay)
    assert_places_are_filled(settings, replay, moments)
    return reasons, replay


@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_all_settings_together_obey_the_laws(part):
    """Random settings, some of which starve; the others are many, and hold everything that may happen."""
    reasons, completed = [], []
    for seed in range(250 * part, 250 * part + 250):
        settings, moments = random_settings(seed)
        try:
            reasons += reasons_in_a_lawful_run(settings, moments)[0]
        except ValueError as error:
            if not str(error).startswith("starved"):
                raise
            continue
        completed.append(settings)
    assert len(completed) > 150
    assert set(reasons) == {"lost", "failed", "too stale", "cancelled", "left"}
    for restart in ref.RESTARTS:
        assert sum(settings["restart"] == restart for settings in completed) > 15


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sizes", SIZES)
def test_larger_runs_obey_the_laws(sizes, seed):
    """With durations 1, 2 or 3 many events tie."""
    replay = reasons_in_a_lawful_run(drawn_world(sizes, seed, ties=True, restart="at_once"))[1]
    # At the end, nothing that should have been handled before the last applied trip is left.
    last = replay.applied[-1]
    assert len(replay.in_flight) == sizes[1]
    assert all((t.arrival_time, t.client) > (last.arrival_time, last.client) for t in replay.in_flight)


@pytest.mark.parametrize("restart", ref.RESTARTS)
@pytest.mark.parametrize("sizes", [(5, 5, 1), (8, 3, 3), (12, 12, 5), (9, 6, 6), (10, 8, 3)])
def test_each_way_to_restart_obeys_the_laws_in_larger_runs(sizes, restart):
    reasons_in_a_lawful_run(drawn_world(sizes, sizes[0], ties=True, restart=restart))


@pytest.mark.few_by_default(10)
@pytest.mark.parametrize("vanish", [("step", (0, 3, 7), 5), ("time", (0, 3, 7), 5), ("trips", (0, 3, 7), 2)])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("concurrency", [8, 5])
@pytest.mark.parametrize("restart", ref.RESTARTS)
def test_every_trip_of_those_who_leave_obeys_the_laws(restart, concurrency, ties, vanish):
    kind, leaving, moment = vanish
    reasons = []
    for seed in range(5):
        settings = drawn_world((8, concurrency, 2), seed, ties=ties, steps=80, restart=restart, vanish=vanish)
        why, replay = reasons_in_a_lawful_run(settings)
        reasons += why
        made = {(trip.client, trip.trip) for trip in all_trips(replay) if trip.client in leaving}
        if kind == "trips":
            # With continuous durations a slow client may not have come so far.
            assert made <= {(client, trip) for client in leaving for trip in range(2)}
            assert len(made) == 6 or not ties
        assert {trip.client for trip in replay.in_flight} <= {1, 2, 4, 5, 6}
    assert set(reasons) == (set() if kind == "trips" else {"left"})
