"""What clients keep between their trips, and what the server broadcasts beside the model, in every kind of plan."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import alone, resumed, small_parts

import jafl
from jafl import delays, rules
from jafl.clients import ClientResult, ClientStateRequest, ClientWork
from jafl.engine.loop import client_memory
from jafl.engine.plan.compatibility import check_exchange
from jafl.engine.plan.slots_and_waves import check_plan, previous_trips
from jafl.records import Rule
from jafl.simulation.simulate_many import simulate_many

MODEL = jafl.models.softmax(3)
CLIENTS = 7
SCHEDULES = {
    "trips that are lost": {"failure_rate": 0.3},
    "stale trips that are dropped": {"staleness_limit": 1, "too_stale": "drop", "buffer_size": 2},
    "clients that leave": {"dropout": jafl.Dropout(clients=(0, 3), server_step=6)},
    "a client twice in one buffer": {"buffer_size": 6},
    "rounds with over-selection": {"cohort_size": 3, "over_selection": 0.5},
}
PLANS: dict[str, dict[str, Any]] = {
    "trip by trip": {},
    "waves, one after the other": {"width": 5, "together": False},
    "waves, side by side": {"width": 4, "together": True},
    "as matrices, one after the other": {"width": 5, "together": False, "form": "matrix"},
    "as matrices, side by side": {"width": 4, "together": True, "form": "matrix"},
}


def schedule(**changes: Any) -> jafl.EventSchedule:
    settings = {
        "num_clients": CLIENTS,
        "concurrency": CLIENTS,
        "buffer_size": 3,
        "delay": delays.once_per_client(delays.log_normal(1.0, 1.2)),
        "server_steps": 25,
        "seed": 4,
    }
    if "cohort_size" in changes:
        left_out = ("concurrency", "buffer_size")
        settings = {name: value for name, value in settings.items() if name not in left_out}
        return jafl.synchronous(**{**settings, **changes})
    return jafl.asynchronous(**{**settings, **changes})


def federation() -> jafl.Federation:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 70)
    x = random.normal(size=(70, 4)) + np.eye(3, 4)[y]
    partition = jafl.Partition.from_lists(np.split(np.arange(70), CLIENTS))
    return jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y, num_classes=3)


@pytest.fixture(params=PLANS, ids=str)
def how(request) -> dict[str, Any]:
    return PLANS[request.param]


@pytest.fixture(params=[name for name in PLANS if "form" not in PLANS[name]], ids=str)
def how_in_a_loop(request) -> dict[str, Any]:
    return PLANS[request.param]


def options(events: jafl.EventSchedule, how: dict[str, Any]) -> dict[str, Any]:
    own = dict(how)
    width, form = own.pop("width", 0), own.pop("form", "loop")
    plan = jafl.trip_by_trip(events)
    if width:
        plan = jafl.in_waves(events, width, client_state=True, form=form)
    return {"plan": plan, "devices": 1, **own}


def simulate(events: jafl.EventSchedule, work: Any, rule: Any, **named: Any) -> jafl.History:
    params = jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, 0.5), MODEL.init(jax.random.key(0), np.zeros((1, 4)))
    )
    named = {"evaluate_at": [], "evaluators": {}, **named}
    return jafl.simulate(events, federation(), work, rule, params, jax.random.key(1), **named)


def counting_work(*, precision: str = "full") -> ClientWork:
    """It keeps how many trips it has made and a model, at first the initial one, and moves by both."""

    def initial(params):
        return {"mine": params, "trips": jnp.int32(0)}

    def train(data, start, client, key):
        def moved(kept, downloaded):
            # In few bits entries differ: a constant array is exact there.
            drift = 0.01 if precision == "full" else jnp.linspace(0.01, 0.03, kept.size).reshape(kept.shape)
            return 0.7 * kept + 0.3 * downloaded + drift * (client + 1)

        mine = jax.tree.map(moved, data.state["mine"], start)
        trips = data.state["trips"]
        update = jax.tree.map(lambda m, s: 0.1 * (m - s) + 0.001 * trips, mine, start)
        state, one = {"mine": mine, "trips": trips + 1}, jnp.int32(1)
        return ClientResult(update, jnp.ones(()), one, one, sent={"trips": trips}, state=state)

    return ClientWork(train, MODEL, state=ClientStateRequest(initial, precision))


def mean_that_reports_what_was_sent() -> Rule:
    mean = rules.fedavg().build()
    return mean._replace(
        fold=lambda buffer, arrival: (
            mean.fold(buffer, arrival)[0],
            {"earlier_trips": arrival.sent["trips"] * 1.0},
        ),
        linear=False,
        additive=False,
    )


def replay(events: jafl.EventSchedule) -> tuple[np.ndarray, list[int]]:
    """(the last bias, how many trips each trip's client had applied before): one number stands for the model."""
    versions, mine, trips, seen = [0.5], [0.5] * CLIENTS, [0] * CLIENTS, []
    for step in range(events.num_steps):
        updates = []
        for trip in range(*events.step_offsets[step : step + 2]):
            client, start = int(events.client[trip]), versions[events.download_version[trip]]
            mine[client] = 0.7 * mine[client] + 0.3 * start + 0.01 * (client + 1)
            updates.append(0.1 * (mine[client] - start) + 0.001 * trips[client])
            seen.append(trips[client])
            trips[client] += 1
        versions.append(versions[-1] + np.mean(updates))
    return np.array(versions[-1]), seen


@pytest.mark.full
@pytest.mark.few_in_full(5)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_client_reads_what_its_last_applied_trip_has_left(name: str, how: dict[str, Any]):
    """Lost, stale and cancelled trips leave the state as it was; the initial value is the initial model."""
    events = schedule(**SCHEDULES[name])
    assert len(events.discarded_client) > 0 or "twice" in name
    in_matrices = "form" in how  # where a rule reads nothing that was sent
    rule = rules.fedavg() if in_matrices else mean_that_reports_what_was_sent()
    history = simulate(events, counting_work(), rule, **options(events, how))
    last, seen = replay(events)
    assert max(seen) > 3
    if not in_matrices:
        np.testing.assert_array_equal(history.trip_reports["earlier_trips"], seen)
    for leaf in jax.tree.leaves(history.params):
        np.testing.assert_allclose(leaf, last, rtol=1e-12)


def remembering_work(first: float, precision: str = "full") -> ClientWork:
    """Its clients keep one number, ``first`` before their first trip, and move by what they kept."""

    def train(data, start, client, key):
        kept, one = data.state, jnp.int32(1)
        update = jax.tree.map(lambda s: jnp.full_like(s, jnp.where(kept == first, 0.0, kept)), start)
        return ClientResult(update, jnp.ones(()), one, one, state=1.0 + client.astype(kept.dtype))

    return ClientWork(train, MODEL, state=ClientStateRequest(lambda params: jnp.float32(first), precision))


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("first", [np.inf, 1e12])
def test_a_first_state_that_is_infinite_or_large_changes_no_later_one(how: dict[str, Any], first: float):
    """Its difference from a later state is infinite, or has lost the later state's digits."""
    events = schedule()
    expected = simulate(events, remembering_work(-1.0), rules.fedbuff(), **options(events, {}))
    history = simulate(events, remembering_work(first), rules.fedbuff(), **options(events, how))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), history.params, expected.params)


def test_a_first_state_that_is_infinite_is_refused_in_few_bits():
    with pytest.raises(jafl.SettingError, match="what a client keeps at .* at first is inf, .*'int8'"):
        simulate(schedule(), remembering_work(np.inf, "int8"), rules.fedbuff())


@pytest.mark.full
@pytest.mark.few_in_full(2)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("precision, bound", [("bfloat16", 2e-3), ("int8", 5e-3)])
def test_a_state_in_few_bits_is_near_the_state_in_full(precision: str, bound: float, how: dict[str, Any]):
    """Its whole numbers are exact."""
    events = schedule()
    # In matrices a rule reads nothing that was sent.
    rule = rules.fedavg() if "form" in how else mean_that_reports_what_was_sent()
    work = counting_work(precision=precision)
    history = simulate(events, work, rule, **options(events, how))
    in_full = work._replace(state=work.state._replace(precision="full"))
    full = simulate(events, in_full, rule, **options(events, how))
    for name in {"earlier_trips"} & set(full.trip_reports):
        np.testing.assert_array_equal(history.trip_reports[name], full.trip_reports[name])
    distances = [
        np.abs(mine - exact).max()
        for mine, exact in zip(*map(jax.tree.leaves, (history.params, full.params)), strict=True)
    ]
    assert 0 < max(distances) < bound


@pytest.mark.parametrize("changes", [{}, *SCHEDULES.values()], ids=["plain", *SCHEDULES])
@pytest.mark.parametrize(
    "width, form", [(2, "loop"), (5, "loop"), (64, "loop"), (5, "matrix"), (64, "matrix")]
)
def test_no_trip_trains_before_its_clients_last_one_is_folded(changes: dict[str, Any], width: int, form: str):
    events = schedule(server_steps=80, **changes)
    plan = jafl.in_waves(events, width, client_state=True, form=form)
    check_plan(events, plan, client_state=True)
    last: dict[int, int] = {}
    for trip, client in enumerate(events.client.tolist()):
        assert last.get(client, -1) == previous_trips(events)[trip]
        assert last.get(client, -1) < plan.wave_before[plan.wave[trip]]
        last[client] = trip
    for wave in range(len(plan.wave_before)):
        clients = events.client[plan.wave == wave]
        assert len(np.unique(clients)) == len(clients), "a wave holds no client twice"
    usual = jafl.in_waves(events, width, form=form)
    assert len(usual.wave_before) <= len(plan.wave_before), "it only ever costs waves"


@pytest.mark.parametrize("form", ["loop", "matrix"])
def test_a_plan_that_trains_a_client_too_early_is_refused(form: str):
    events = schedule(buffer_size=6)
    early = jafl.in_waves(events, 8, form=form)
    check_plan(events, early)
    said = "a trip that trains before its client's last one is folded is .* client_state=True"
    with pytest.raises(jafl.SettingError, match=said) as refusal:
        check_plan(events, early, client_state=True)
    assert ('form="matrix"' in str(refusal.value)) == (form == "matrix")
    with pytest.raises(jafl.SettingError, match=said):
        simulate(events, counting_work(), rules.fedavg(), plan=early)


def test_where_no_client_is_early_the_plan_is_the_usual_one():
    events = schedule(buffer_size=1)
    usual, own = (jafl.in_waves(events, 4, client_state=keeps) for keeps in (False, True))
    for name, value in vars(usual).items():
        np.testing.assert_array_equal(getattr(own, name), value)


def scaffold_work(**changes: Any) -> jafl.Specification:
    given = {"learning_rate": 0.1, "local_steps": 2, "batch_size": 4, "correction": "scaffold"}
    return jafl.client_work(MODEL, **{**given, **changes})


@pytest.mark.parametrize(
    "rule, work, said",
    [
        (
            lambda: mean_that_reports_what_was_sent(),
            lambda: counting_work(),
            "Clients send something else than",
        ),
        (rules.qafel, lambda: scaffold_work(correction="qafel"), "The rule draws random numbers"),
    ],
)
def test_the_matrix_form_is_refused_by_name_where_others_are_exchanged(rule, work, said):
    with pytest.raises(jafl.SettingError, match=f"form is .matrix., but must be loop for this run. {said}"):
        simulate(schedule(), work(), rule(), form="matrix")


@pytest.mark.parametrize(
    "rule, work, said",
    [
        (
            rules.scaffold(),
            {"correction": None},
            'must be .scaffold., that of the rule. .*correction="scaffold"',
        ),
        (rules.fedavg(), {}, r"correction is 'scaffold', but must be None, .*jafl.rules.scaffold\(\)"),
        (rules.feddyn(), {}, "correction is 'scaffold', but must be 'feddyn'"),
        (rules.masfl(), {"correction": "adamasfl"}, "correction is 'adamasfl', but must be 'masfl'"),
    ],
)
def test_a_rule_and_a_work_that_do_not_suit_each_other_are_refused(rule, work, said):
    with pytest.raises(jafl.SettingError, match=said):
        simulate(schedule(), scaffold_work(**work), rule)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"correction": "scafold"}, "correction is 'scafold', but must be one of .*scaffold"),
        ({"state_precision": "int4"}, "state_precision is 'int4'"),
        (
            {"correction": None, "state_precision": "int8"},
            "state_precision is 'int8', but must be 'full' where",
        ),
        ({"keep_optimizer_state": 1}, "keep_optimizer_state is 1, but must be True or False"),
    ],
)
def test_arguments_of_the_work_are_checked(changes, said):
    with pytest.raises(jafl.SettingError, match=said):
        scaffold_work(**changes)


@pytest.mark.parametrize("precision", client_memory.PRECISIONS)
def test_a_state_that_is_no_number_is_refused(precision: str):
    work = counting_work(precision=precision)
    work = work._replace(state=work.state._replace(initial=lambda params: {"there": jnp.array(True)}))
    with pytest.raises(
        jafl.SettingError, match=r"keeps at \['there'\] is 'bool', but must be a floating type, or"
    ):
        simulate(schedule(), work, rules.fedavg())


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_adams_state_is_kept_in_few_bits(precision: str):
    """Its count of steps is a whole number; asynchronous DiLoCo keeps such a state for each client."""

    def trained(precision: str) -> list[Any]:
        work = scaffold_work(
            state_precision=precision,
            correction=None,
            keep_optimizer_state=True,
            learning_rate=None,
            optimizer=jafl.specify(optax.adam, learning_rate=0.1),
        )
        return jax.tree.leaves(simulate(schedule(), work, rules.fedavg()).params)

    pairs = zip(trained(precision), trained("full"), strict=True)
    assert 0 < max(np.abs(few - full).max() for few, full in pairs) < 0.1


def test_a_state_of_another_form_is_refused():
    def train(data, start, client, key):
        one = jnp.int32(1)
        return ClientResult(start, jnp.ones(()), one, one, state={"mine": jnp.zeros(3)})

    work = ClientWork(train, MODEL, state=ClientStateRequest(lambda params: {"mine": jnp.zeros(2)}))
    with pytest.raises(
        jafl.SettingError, match=r"the state that client work returns is .*\(3,\).*must be .*\(2,\)"
    ):
        simulate(schedule(), work, rules.fedavg())


def test_one_row_has_one_precision():
    with pytest.raises(
        jafl.SettingError, match="precision of the clients' state is 'full', but must be 'int8'"
    ):
        simulate(schedule(), counting_work(), rules.ca2fl(memory_precision="int8"))
    nothing = counting_work()._replace(state=ClientStateRequest(lambda params: {}))
    check_exchange(nothing, rules.ca2fl(memory_precision="int8").build(), {})


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_a_rule_with_memory_and_a_work_with_state_share_a_row(how: dict[str, Any]):
    """CA2FL whose clients keep Adam's moments: in waves and trip by trip the same, and not as without them."""
    events = schedule(server_steps=40)
    kept = {
        "learning_rate": None,
        "optimizer": jafl.specify(optax.adam, learning_rate=0.01),
        "correction": None,
    }
    run = simulate(
        events, scaffold_work(keep_optimizer_state=True, **kept), rules.ca2fl(), **options(events, how)
    )
    plain = simulate(
        events, scaffold_work(keep_optimizer_state=True, **kept), rules.ca2fl(), **options(events, {})
    )
    forgetful = simulate(events, scaffold_work(**kept), rules.ca2fl())
    for mine, other, unlike in zip(
        *map(jax.tree.leaves, (run.params, plain.params, forgetful.params)), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-9)
        assert np.abs(mine - unlike).max() > 1e-3


def test_too_little_memory_is_said_by_name(monkeypatch):
    from jafl.engine.plan import device_memory

    monkeypatch.setattr(device_memory, "host_memory", lambda: 4_000)
    with pytest.raises(jafl.SettingError, match=r"needs .* for the clients' memory"):
        simulate(schedule(), scaffold_work(), rules.scaffold())


@pytest.mark.full
def test_plain_sgd_keeps_nothing():
    """The same carry and bits as without the argument."""
    events = schedule()
    kept = jafl.client_work(MODEL, learning_rate=0.1, keep_optimizer_state=True)
    assert kept.build().state_shapes({"w": jnp.zeros(2)}) is None
    first, second = (
        simulate(events, work, rules.fedavg()) for work in (kept, jafl.client_work(MODEL, learning_rate=0.1))
    )
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("local_steps", [1, 4])
def test_one_client_that_keeps_its_optimizer_makes_one_run_of_it(local_steps: int):
    """Without a server to mix anything in, trips of H steps follow one another as one training."""
    events = jafl.asynchronous(
        num_clients=1,
        concurrency=1,
        buffer_size=1,
        delay=delays.constant(1.0),
        server_steps=12 // local_steps,
    )
    data = federation()
    one = jafl.Federation.from_arrays(
        data.x,
        data.y,
        jafl.Partition.from_lists([np.arange(70)]),
        test_x=data.x,
        test_y=data.y,
        num_classes=3,
    )
    params = MODEL.init(jax.random.key(0), one.x)
    optimizer = jafl.specify(optax.adam, learning_rate=0.05)
    work = jafl.client_work(
        MODEL, optimizer=optimizer, local_steps=local_steps, batch_size=0, keep_optimizer_state=True
    )
    history = jafl.simulate(events, one, work, rules.asgd(), params, jax.random.key(1), evaluate_at=[])

    def loss(params):
        return jnp.mean(MODEL.loss_sums(params, one.x, one.y, None)[0])

    adam, expected = optimizer.build(), params
    state = adam.init(expected)
    for _ in range(12):
        updates, state = adam.update(jax.grad(loss)(expected), state, expected)
        expected = optax.apply_updates(expected, updates)
    for mine, theirs in zip(*map(jax.tree.leaves, (history.params, expected)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-11)


def broadcasting(momentum: float) -> Rule:
    """A user's rule that sends a count of its steps along with each version."""
    mean = rules.fedavg().build()
    return mean._replace(
        init=lambda params, num_clients: jnp.zeros(()),
        begin=lambda state, params: (state, mean.begin((), params)),
        fold=lambda buffer, arrival: (
            (buffer[0], mean.fold(buffer[1], arrival)[0]),
            {"read": arrival.sent},
        ),
        finish=lambda buffer, params: (
            *mean.finish(buffer[1], params)[:1],
            buffer[0] + 1,
            {},
            True,
        ),
        broadcast=lambda state: {"steps": state},
        linear=False,
        additive=False,
    )


@pytest.mark.full
def test_a_broadcast_is_that_of_the_downloaded_version(how_in_a_loop: dict[str, Any]):
    """The server optimizer, whose momentum moves the model, leaves it alone; parameters are the model's alone."""

    def train(data, start, client, key):
        one = jnp.int32(1)
        update = jax.tree.map(lambda leaf: 0.1 * jnp.ones_like(leaf), start)
        return ClientResult(update, jnp.ones(()), one, one, sent=data.broadcast["steps"])

    events = schedule()
    momentum = jafl.specify(optax.sgd, learning_rate=1.0, momentum=0.9)
    history = simulate(
        events,
        ClientWork(train, MODEL),
        broadcasting(0.9),
        server_optimizer=momentum,
        **options(events, how_in_a_loop),
    )
    np.testing.assert_array_equal(history.trip_reports["read"], events.download_version)
    assert jax.tree.structure(history.params) == jax.tree.structure(
        MODEL.init(jax.random.key(0), np.zeros((1, 4)))
    )
    assert events.staleness.max() > 1


def broadcasting_a_mean() -> Rule:
    """A user's rule that sends a count of its steps and a moving mean of its models along with each version."""
    mean = rules.fedavg().build()

    def moved(state, params):
        steps, models = state
        return steps + 1, jax.tree.map(lambda m, p: 0.8 * m + 0.2 * p, models, params)

    return mean._replace(
        init=lambda params, num_clients: (jnp.zeros(()), jax.tree.map(lambda p: 2.0 * p, params)),
        begin=lambda state, params: (state, mean.begin((), params)),
        fold=lambda buffer, arrival: ((buffer[0], mean.fold(buffer[1], arrival)[0]), {}),
        finish=lambda buffer, params: (mean.finish(buffer[1], params)[0], buffer[0], {}, True),
        broadcast=lambda state: {"inner": (state[0], state[1]), "again": state[1]},
        after_step=moved,
    )


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_arrays_and_numbers_of_a_broadcast_are_those_of_the_downloaded_version(how: dict[str, Any], tmp_path):
    """Trip by trip in NumPy, where one number stands for the model; and stopped on the way."""

    def train(data, start, client, key):
        (steps, models), again = data.broadcast["inner"], data.broadcast["again"]
        update = jax.tree.map(lambda s, m, a: 0.1 * (m - s) + 0.02 * a - 0.03 * steps, start, models, again)
        return ClientResult(update, jnp.ones(()), jnp.int32(1), jnp.int32(1))

    events = schedule()
    model, models, versions = 0.5, 1.0, [(0.5, 1.0)]
    for step in range(events.num_steps):
        trips = range(*events.step_offsets[step : step + 2])
        read = [(versions[version], version) for version in events.download_version[trips.start : trips.stop]]
        model += np.mean([0.1 * (m - s) + 0.02 * m - 0.03 * steps for (s, m), steps in read])
        models = 0.8 * models + 0.2 * model
        versions.append((model, models))
    given = {"rule": broadcasting_a_mean(), **options(events, how)}
    work = ClientWork(train, MODEL)
    whole, _ = resumed(
        lambda **asked: simulate(events, work, **given, evaluate_at=[5, 14], **asked), tmp_path, 5, 14
    )
    for leaf in jax.tree.leaves(whole.params):
        np.testing.assert_allclose(leaf, model, rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("form", ["loop", "matrix"])
@pytest.mark.parametrize("together", [False, True])
def test_runs_of_a_group_keep_their_own_states(together: bool, form: str):
    """Each of three runs with other rates and seeds ends as it does alone."""
    parts = small_parts(20)
    model = parts["client_work"].arguments["model"]
    runs = [
        jafl.Run(
            **parts
            | {
                "client_work": jafl.client_work(
                    model, learning_rate=rate, local_steps=2, batch_size=4, correction="scaffold"
                ),
                "rule": rules.scaffold(),
                "key": jax.random.key(seed),
            },
            evaluate_at=[],
        )
        for seed, rate in ((1, 0.1), (2, 0.05), (3, 0.2))
    ]
    histories = simulate_many(runs, together=together, form=form)
    for run, history in zip(runs, histories, strict=True):
        expected = alone(run)
        for mine, other in zip(*map(jax.tree.leaves, (history.params, expected.params)), strict=True):
            np.testing.assert_allclose(mine, other, rtol=2e-5, atol=1e-6)
    kernels = [np.asarray(jax.tree.leaves(history.params)[-1]) for history in histories]
    assert min(np.abs(kernels[0] - other).max() for other in kernels[1:]) > 1e-3


def test_runs_without_them_carry_nothing_more():
    """Neither a broadcast nor a state: snapshots are models, and there is no memory."""
    from jafl.engine.plan.preparation import prepare

    parts = small_parts()
    carry = prepare(jafl.Run(**parts), devices=1).place()[1]
    assert carry.memory is None
    assert jax.tree.structure(carry.snapshots) == jax.tree.structure(parts["params"])
    carry = prepare(jafl.Run(**{**parts, "rule": rules.ca2fl()}), devices=1).place()[1]
    assert jax.tree.structure(carry.memory.codes) == jax.tree.structure(parts["params"])
    assert carry.memory.first == ()


@pytest.mark.full
def test_a_divergence_with_states_is_explained():
    """The client is found by training its trip again, with what it kept and what was broadcast."""
    poisoned = federation()
    x = np.array(poisoned.x)
    x[60:] = 1e30  # of the last client
    poisoned = dataclasses.replace(poisoned, x=x)
    params = MODEL.init(jax.random.key(0), x)
    with pytest.raises(jafl.DivergenceError) as raised:
        jafl.simulate(
            schedule(), poisoned, scaffold_work(), rules.scaffold(), params, jax.random.key(1), evaluate_at=[]
        )
    assert raised.value.client is not None
