"""A rule that cannot work is refused before anything is computed: by name, value and remedy."""

import dataclasses
import tracemalloc
import warnings
from typing import Any

import jax
import numpy as np
import pytest
from preparing import prepared

import jafl
from jafl import rules
from jafl.engine.loop import first_carry
from jafl.engine.plan import device_memory

CLIENTS = 6


def make_schedule(**changes) -> jafl.EventSchedule:
    settings = {
        "num_clients": CLIENTS,
        "concurrency": CLIENTS,
        "delay": jafl.delays.exponential(1.0),
        "server_steps": 12,
    }
    return jafl.asynchronous(**{**settings, **changes})


def experiment(rule: Any, schedule: jafl.EventSchedule) -> tuple:
    clients = schedule.num_clients
    source = jafl.data.synthetic(num_clients=clients, alpha=1.0, beta=1.0, mean_examples=3, num_features=50)
    federation = jafl.federate(source, source.natural_partition)
    model = jafl.models.softmax(source.num_classes)
    params = model.init(jax.random.key(0), source.x)
    work = jafl.client_work(model, learning_rate=0.1)
    return schedule, federation, work, rule, params


def assert_refused(rule: Any, schedule: jafl.EventSchedule, *parts: str) -> None:
    """Refused with a message that holds ``parts`` in this order, before the engine's first allocation."""
    compiled = first_carry.allocate._cache_size()
    with pytest.raises(jafl.SettingError, match="(?s)" + ".*".join(parts)):
        jafl.simulate(*experiment(rule, schedule), jax.random.key(1))
    assert first_carry.allocate._cache_size() == compiled


CACHED = {
    "ace": rules.ace(),
    "ace, direct": rules.ace("direct"),
    "ace, 8 bits": rules.ace(memory_precision="int8"),
    "aced": rules.aced(),
    "aced by cached age": rules.aced(age="cached"),
}


def test_weights_beyond_the_numbers_of_the_device_are_told_and_not_trained_with():
    far_apart = rules.generalized_async_sgd(routing=[1e30] * (CLIENTS - 1) + [1e-30])
    said = (
        "the rule's 'weight' of trip 0 of client 5 is 8.33",
        "but must be finite in float32",
        "such as routing",
    )
    assert_refused(far_apart, make_schedule(), *said)
    own = rules.asgd().build()

    def column(value):
        return {"unread": np.full((12, 2), value)}

    changed = own._replace(columns=lambda schedule: {**own.columns(schedule), **column(-1e39)})
    assert_refused(changed, make_schedule(), "the rule's 'unread' of trip 0 of client", "is -1e[+]39")
    # What a rule itself calls infinite is no number that was lost.
    infinite = own._replace(columns=lambda schedule: {**own.columns(schedule), **column(np.inf)})
    jafl.simulate(*experiment(infinite, make_schedule()), jax.random.key(1))


def test_steps_of_other_sizes_are_told_with_what_makes_them():
    """Nobody asked for the buffer size that one of the steps happens to have."""
    one = "must be 1, the only number of trips per server step"
    waits = make_schedule(staleness_limit=1, too_stale="wait", server_steps=40)
    assert set(np.diff(waits.step_offsets)) > {1}
    assert_refused(
        rules.asgd(), waits, r"^the number of trips in a server step is \d+,", one, "too_stale='wait'"
    )
    by_three = rules.fedbuff().build()._replace(buffer_size=3)
    flushed = make_schedule(buffer_size=3, flush_after=0.1)
    assert 3 in np.diff(flushed.step_offsets)
    parts = ("^the number of trips in a server step is [12],", "must be 3", "flush_after")
    assert_refused(by_three, flushed, *parts)


POISSON = {
    "num_clients": CLIENTS,
    "cohort_size": 2,
    "delay": jafl.delays.exponential(1.0),
    "cohorts": "poisson",
}


@pytest.mark.parametrize(
    "rule", [rules.fedavg(), rules.fedbuff(), rules.fednova()], ids=["fedavg", "fedbuff", "fednova"]
)
def test_a_step_of_nobody_is_refused_by_a_mean(rule):
    schedule = jafl.synchronous(**POISSON, server_steps=60)
    assert 0 in np.diff(schedule.step_offsets)
    parts = (
        "smallest number of trips per server step is 0",
        "at least 1 for this rule",
        "fedavg.divide_by=cohort_size",
    )
    assert_refused(rule, schedule, *parts)


@pytest.mark.full
def test_a_step_of_nobody_is_a_step():
    """Nothing moves in it but momentum, and the histories count it."""
    schedule = jafl.synchronous(**POISSON, server_steps=40, seed=4)
    sizes = np.diff(schedule.step_offsets)
    assert sizes[0] != 0 and 0 in sizes
    run = experiment(rules.fedavg(divide_by=2.0), schedule)
    end = [int(np.flatnonzero(sizes == 0)[0]) + more for more in (0, 1)]
    history = jafl.simulate(*run, jax.random.key(1), evaluate_at=end)
    before, after = (row for row in history.evaluations if row["server_step"] in end)
    assert before["test_loss"] == after["test_loss"] and before["client_trips"] == after["client_trips"]
    assert after["train_loss"] is None
    assert np.all(history.weights == 0.5)


@pytest.mark.full
def test_a_private_step_of_nobody_is_noise():
    """Or who sees the models would know that nobody took part."""
    schedule = jafl.synchronous(**POISSON, server_steps=40, seed=4)
    rule = jafl.private(
        rules.fedavg(divide_by=2.0), clip_norm=0.1, noise_multiplier=2.0, delta=1e-3, mechanism="independent"
    )
    history = jafl.simulate(*experiment(rule, schedule), jax.random.key(1))
    empty = np.diff(schedule.step_offsets) == 0
    assert empty.any()
    assert np.array_equal(history.step_reports["signal_norm"] == 0, empty)
    size = sum(leaf.size for leaf in jax.tree.leaves(history.params))
    expected = 2.0 * 0.1 / 2.0 * np.sqrt(size)
    assert np.all(np.abs(history.step_reports["noise_norm"] / expected - 1) < 6 / np.sqrt(2 * size))


@pytest.mark.full
def test_the_initial_round_alone_is_a_run():
    schedule = make_schedule(initial_round=True, server_steps=1)
    assert jafl.simulate(*experiment(rules.ace(), schedule), jax.random.key(1)).server_steps == 1


@pytest.mark.parametrize("rule", CACHED.values(), ids=CACHED)
def test_a_schedule_without_the_initial_round_is_refused(rule):
    for schedule in (make_schedule(), make_schedule(buffer_size=3)):
        call = r"Make the schedule by asynchronous\(initial_round=True, concurrency=num_clients"
        assert_refused(
            rule, schedule, "initial_round is False", "True for this rule", "every client trains", call
        )


@pytest.mark.parametrize("name", ["ace", "aced"])
def test_an_initial_round_that_a_client_leaves_is_refused(name: str):
    """Its gradient would be missing from the mean for ever, and another client be twice in the first step."""
    with pytest.raises(jafl.SettingError, match="initial_round"):
        schedule = make_schedule(initial_round=True, dropout=jafl.Dropout(clients=[1], time=0.01))
        prepared(*experiment(rules.RULES[name](), schedule))


def test_zeno_plus_plus_needs_a_server_gradient():
    for gradient in (None, np.zeros(3)):
        message = ("server_gradient is", "must be a function", r"jafl.server_gradient\(model, x, y\)")
        assert_refused(rules.zeno_plus_plus(gradient), make_schedule(), *message, "--split.server_examples")


GATED = (
    "gsgm needs rounds in which each client contributes once",
    "restart='after_round'",
    "--protocol.restart=",
)


def test_gsgm_needs_gated_rounds():
    assert_refused(rules.gsgm(), make_schedule(), *GATED)
    assert_refused(rules.gsgm(), make_schedule(restart="after_step"), *GATED)


WITHOUT_PROTOCOL = {
    "malenia": (
        rules.malenia(),
        {"buffer_size": 2},
        "step 0 has none of client .*step_when='harmonic_mean'",
    ),
    "fedfix": (
        rules.fedfix(),
        {"buffer_size": 2},
        "between two of them. .*step_every=..., restart='after_step'",
    ),
    "ringleader": (rules.ringleader(), {}, "step_when='each_client_once_a_round', concurrency=num_clients"),
    "ringleader in rounds": (
        rules.ringleader(),
        {"step_when": "harmonic_mean"},
        "rounds in which each client makes one server step, once all have been heard",
    ),
    "favas": (
        rules.favas(),
        {},
        r"train from poll to poll, and numbers of their local steps. .*polled\(cohort_size=.*--protocol=polled",
    ),
    "quafl": (
        rules.quafl(2),
        {"buffer_size": 2},
        r"get the model from before the step of their poll. .*polled\(download='before_step'",
    ),
    "fedat": (
        rules.fedat(3),
        {},
        r"rounds of 3 tiers, but the schedule has none. .*tiered\(tiers=3, cohort_size=.*--protocol=tiered",
    ),
    "routing of other clients": (
        rules.generalized_async_sgd((1, 2, 3)),
        {},
        "routing is .1, 2, 3., but must be a number for each of the 6 clients",
    ),
    "fedfix, at once": (rules.fedfix(), {"step_every": 0.5}, "starts at time .*, between two of them"),
    "a mean by the clock": (
        rules.fedbuff(),
        {"step_every": 1e-2},
        "no trip arrived: raise step_every, or take",
    ),
}


@pytest.mark.parametrize(
    ("scheduled", "rule", "client"),
    [
        pytest.param([1, 1, 1, 5], [1, 1, 1, 5], None, id="the same"),
        pytest.param([2, 2, 2, 10], [1, 1, 1, 5], None, id="in proportion"),
        pytest.param([1, 1, 1, 5], None, 3, id="not given to the rule"),
        pytest.param(None, [1, 1, 1, 5], 3, id="not given to the schedule"),
    ],
)
def test_a_rule_tells_of_a_schedule_with_another_routing(scheduled, rule, client):
    schedule = jafl.queued(
        num_clients=4, tasks=3, routing=scheduled, delay=jafl.delays.exponential(1.0), server_steps=1000
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rules.generalized_async_sgd(rule).build().check_schedule(schedule)
    assert [f"routing says that client {client} gets" in str(one.message) for one in told] == [True] * bool(
        client
    )


@pytest.mark.parametrize("name", WITHOUT_PROTOCOL)
def test_a_rule_without_its_protocol_says_which_call_makes_one(name):
    rule, options, parts = WITHOUT_PROTOCOL[name]
    assert_refused(rule, make_schedule(**{"server_steps": 200, **options}), parts)


def test_fedat_wants_the_tiers_of_its_schedule():
    common = {"num_clients": 6, "cohort_size": 1, "delay": jafl.delays.exponential(1.0), "server_steps": 9}
    for tiers in (2, 4):
        assert_refused(
            rules.fedat(3), jafl.tiered(tiers=tiers, **common), f"3 tiers, but the schedule has {tiers}"
        )


def test_trips_without_duration_have_no_rescaled_rate():
    """As in a schedule written by hand. By frequency they have one."""
    schedule = make_schedule()
    still = dataclasses.replace(schedule, download_time=schedule.arrival_time)
    with pytest.raises(jafl.SettingError, match="delay is '0 for all trips.*durations='frequency'"):
        rules.rescaled_asgd().build().columns(still)
    rules.rescaled_asgd("frequency").build().columns(still)


def test_gsgm_needs_gated_rounds_even_where_the_ungated_client_never_arrives():
    """Two clients train all the time while the others are under way: their trips alone are numbered in order."""
    slow = jafl.delays.groups(((2, jafl.delays.constant(1.0)), (CLIENTS - 2, jafl.delays.constant(1e6))))
    schedule = make_schedule(delay=slow, buffer_size=2)
    assert set(schedule.client) == {0, 1}
    assert_refused(rules.gsgm(), schedule, *GATED)


@pytest.mark.parametrize(
    "rule, parts",
    [
        (rules.aced(active_steps=0), ["active_steps is 0", "at least 1"]),
        (rules.aced(active_steps=-3), ["active_steps is -3", "at least 1"]),
        (rules.aced(age="stat"), ["age is 'stat'", "one of cached, start", "Did you mean 'start'"]),
        (
            rules.ace("directly"),
            ["form is 'directly'", "one of direct, incremental", "Did you mean 'direct'"],
        ),
        (rules.ace(memory_precision="int9"), ["memory_precision is 'int9'", "Did you mean 'int8'"]),
        (rules.ca2fl("steps"), ["changes is 'steps'", "one of arrival, step", "Did you mean 'step'"]),
        (rules.ca2fl(memory_precision="half"), ["memory_precision is 'half'", "bfloat16, full, int8"]),
        (rules.favas("mean"), ["form is 'mean'", "one of expected, made"]),
        (rules.quafl(0), ["cohort_size is 0", "at least 1"]),
        (rules.fedat(0), ["tiers is 0", "at least 1"]),
        (rules.fedfa(0), ["window is 0", "at least 1"]),
        (rules.fedfa(form="update"), ["form is 'update'", "Did you mean 'updates'"]),
        (rules.asyncfeded(0.0), ["epsilon is 0", "above 0"]),
        (rules.port(staleness_bound=0.0), ["staleness_bound is 0", "above 0"]),
        (rules.port(similarity_factor=-1.0), ["similarity_factor is -1", "at least 0"]),
        (rules.cgad(decay=-0.1), ["decay is -0.1", "at least 0"]),
        (rules.cgad(cutoff=0.0), ["cutoff is 0", "above 0"]),
        (rules.fadas("papers"), ["delay_form is 'papers'", "Did you mean 'paper'"]),
        (rules.fadas(threshold=-1), ["threshold is -1", "at least 0"]),
        (rules.fadas(server_learning_rate=0.0), ["server_learning_rate is 0", "above 0"]),
        (rules.rescaled_asgd("means"), ["durations is 'means'", "Did you mean 'mean'"]),
        (rules.zeno_plus_plus(lambda p: p, 0), ["refresh_every is 0", "at least 1"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_arguments_of_rules_are_checked(rule, parts):
    initial_round = rule.factory.__name__ in ("ace", "aced")
    assert_refused(rule, make_schedule(initial_round=initial_round), *parts)


@pytest.mark.parametrize(
    "rule, settings, name",
    [
        (rules.aced(active_steps=10.0), {"initial_round": True}, "active_steps"),
        (rules.aced(active_steps="5"), {"initial_round": True}, "active_steps"),
        (rules.zeno_plus_plus(lambda p: p, refresh_every=2.0), {}, "refresh_every"),
        (rules.wkafl(3.0), {"buffer_size": 3}, "buffer_size"),
        (rules.fedstaleweight(average="window", window=2.5), {}, "window"),
    ],
    ids=["aced, 10.0", "aced, text", "zeno++", "wkafl", "fedstaleweight"],
)
def test_whole_numbers_of_rules_are_checked(rule, settings, name):
    """Neither an error from the inside of a program nor a number that is silently cut."""
    with pytest.raises(jafl.SettingError, match=f"{name} is .*whole number"):
        prepared(*experiment(rule, make_schedule(**settings)))


def test_an_unknown_number_of_losses_for_stage_two_is_refused():
    with pytest.raises(jafl.SettingError, match="stage_two_by is 'median'.*mean.*sum"):
        rules.wkafl(stage_two_by="median").build()


@pytest.mark.parametrize(
    "gradient",
    [lambda params: 3.0, lambda params: jax.tree.map(lambda p: p[..., :1], params)],
    ids=["a number", "other leaves"],
)
def test_a_server_gradient_of_other_shapes_is_refused(gradient):
    assert_refused(rules.zeno_plus_plus(gradient), make_schedule(), "server_gradient")


def test_a_threshold_beyond_the_run_costs_aced_no_memory():
    """An active_steps of millions, for never: what is prepared grows with the schedule alone."""
    schedule, peaks = make_schedule(initial_round=True), []
    for active_steps in (20, 200_000):
        rule = rules.aced(active_steps=active_steps).build()
        tracemalloc.start()
        rule.columns(schedule)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 10 * peaks[0]


@pytest.mark.parametrize("name", ["ace", "aced", "ca2fl"])
def test_client_memory_beyond_the_devices_is_refused_before_it_is_allocated(name: str, monkeypatch):
    """The message names the clients' memory and what lowers it; of a rule with few snapshots, at the first place."""
    few = {"num_clients": 200, "concurrency": 4}
    schedule = make_schedule(**few) if name == "ca2fl" else make_schedule(initial_round=True)
    rows = 4 * (50 + 1) * 10 * schedule.num_clients
    monkeypatch.setattr(device_memory, "device_memory", lambda: int(1.2 * rows))  # the rest needs less
    parts = (
        "The run needs .* of device memory, but the device has",
        f"{device_memory.readable(rows * (1 + 1 / schedule.num_clients))} for the clients' memory",
        "Take memory_precision int8, fewer clients or a smaller model.",
    )
    rule = rules.RULES[name]()
    assert_refused(rule, schedule, *parts, "Take fewer examples" if name == "ca2fl" else "")
    if name == "ca2fl":  # the remedies work: a quarter of the bytes, and half of the clients
        prepared(*experiment(rules.ca2fl(memory_precision="int8"), schedule))
        prepared(*experiment(rule, make_schedule(**{**few, "num_clients": 100})))
