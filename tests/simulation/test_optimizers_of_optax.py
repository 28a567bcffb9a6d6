"""Every optimizer and schedule of optax trains as it stands in optax, or is refused by name and with the reason."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from refusals import refuses
from tiers import in_tiers

import jafl
from jafl.engine.plan.optimizer_checks import check_optimizers, check_states_of_optimizers
from jafl.engine.plan.run import Run

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
FEDERATION = jafl.Federation.from_arrays(X, Y, jafl.Partition.from_lists([range(24)]), test_x=X, test_y=Y)
MODEL = jafl.models.softmax(2)
PARAMS = MODEL.init(jax.random.key(0), X)
STEPS = 4
SCHEDULE = jafl.synchronous(num_clients=1, cohort_size=1, delay=jafl.delays.constant(1.0), server_steps=STEPS)

# {name: (positional, named arguments)}
SCHEDULES = {
    "constant_schedule": ((0.1,), {}),
    "exponential_decay": ((0.1, 2, 0.5), {"end_value": 0.01, "staircase": True}),
    "warmup_constant_schedule": ((0.01, 0.1, 2), {}),
    "warmup_cosine_decay_schedule": ((0.01, 0.1, 2, 4), {"end_value": 0.02, "exponent": 2.0}),
    "warmup_exponential_decay_schedule": ((0.01, 0.1, 2, 3, 0.5), {}),
    "piecewise_constant_schedule": ((0.1, {1: 0.5, 3: 0.1}), {}),
    "piecewise_interpolate_schedule": (("linear", 0.1, {1: 0.5, 3: 0.1}), {}),
    "polynomial_schedule": ((0.1, 0.01, 2.0, 3), {}),
    "linear_schedule": ((0.1, 0.01, 3), {}),
    "cosine_decay_schedule": ((0.1, 4), {}),
    "cosine_onecycle_schedule": ((10, 0.1), {}),
    "linear_onecycle_schedule": ((10, 0.1), {}),
    "sgdr_schedule": (
        ([{"init_value": 0.01, "peak_value": 0.1, "decay_steps": 3, "warmup_steps": 1, "end_value": 0.0}],),
        {},
    ),
    "join_schedules": (([optax.constant_schedule(0.1), optax.linear_schedule(0.1, 0.0, 3)], [2]), {}),
}


@pytest.mark.parametrize(
    ("whose", "specified"),
    [("learning_rate", True), ("learning_rate", False), ("the server optimizer's learning_rate", False)],
)
def test_a_schedule_that_goes_below_0_within_the_run_is_refused(whose, specified):
    def prepare(end):
        arguments = (0.1, end, STEPS - 1)
        make = optax.linear_schedule
        rate = jafl.specify(make, *arguments) if specified else make(*arguments)
        of_server = whose != "learning_rate"
        work = jafl.client_work(MODEL, learning_rate=0.1 if of_server else rate)
        optimizer = jafl.specify(optax.sgd, learning_rate=make(*arguments)) if of_server else None
        return Run(SCHEDULE, FEDERATION, work, jafl.rules.fedavg(), PARAMS, jax.random.key(0), optimizer)

    check_states_of_optimizers(prepare(0.0))
    with refuses(f"{whose} in server step 2 is -0.0", "at least 0 in each of the 4 server steps"):
        check_states_of_optimizers(prepare(-0.1))


LONG = optax.linear_schedule(0.1, 0.0, 100)
SCHEDULED = {
    "sgd": lambda schedule: optax.sgd(schedule),
    "specified": lambda schedule: jafl.specify(optax.sgd, learning_rate=schedule),
    "momentum": lambda schedule: optax.sgd(schedule, momentum=0.9),
    "clipped Adam": lambda schedule: optax.chain(optax.clip(1.0), optax.adamw(schedule)),
    "injected": lambda schedule: optax.inject_hyperparams(optax.sgd)(learning_rate=schedule),
}


def with_schedule(rate_or_optimizer, **options):
    work = jafl.client_work(MODEL, **rate_or_optimizer, **options)
    return Run(SCHEDULE, FEDERATION, work, jafl.rules.fedavg(), PARAMS, jax.random.key(0))


def model_of(run):
    return jafl.simulate(*run[:6]).params


@pytest.mark.parametrize("name", SCHEDULED)
def test_that_a_schedule_in_a_clients_optimizer_begins_anew_at_each_trip_is_told(name):
    run = with_schedule({"optimizer": SCHEDULED[name](LONG)}, local_steps=2)
    with pytest.warns(
        UserWarning, match="begins anew at each trip and counts its local steps.* at most 2: it gets no"
    ):
        check_states_of_optimizers(run)


@pytest.mark.filterwarnings("ignore:The schedule in the optimizer begins anew")
def test_of_a_schedule_that_begins_anew_nothing_is_left_but_its_first_rates():
    first_two = optax.piecewise_interpolate_schedule("linear", 0.1, {1: 0.99})
    long, short = (
        with_schedule({"optimizer": optax.sgd(rates)}, local_steps=2) for rates in (LONG, first_two)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), model_of(long), model_of(short))


@pytest.mark.filterwarnings("error")
def test_of_a_schedule_that_ends_within_a_trip_or_goes_on_from_trip_to_trip_nothing_is_told():
    within = optax.linear_schedule(0.1, 0.01, 3)  # its fourth rate is its last one
    for make in SCHEDULED.values():
        check_states_of_optimizers(with_schedule({"optimizer": make(within)}, local_steps=4))
        check_states_of_optimizers(with_schedule({"optimizer": make(optax.constant_schedule(0.1))}))
    kept = with_schedule({"optimizer": optax.sgd(LONG)}, keep_optimizer_state=True)
    by_steps = with_schedule({"learning_rate": LONG})  # of one client, whose trips are the server steps
    jax.tree.map(np.testing.assert_array_equal, model_of(kept), model_of(by_steps))


def test_every_schedule_of_optax_is_tried():
    schedules = {name for name, value in vars(optax.schedules).items() if inspect.isfunction(value)}
    schedules -= {name for name in schedules if "inject" in name}
    assert schedules <= set(SCHEDULES)


def specified(name):
    positional, named = SCHEDULES[name]
    return jafl.specify(getattr(optax, name), *positional, **named)


@jax.jit
def rate_at(schedule, step):
    return schedule.build()(step)


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_is_specified_is_the_one_of_optax(name):
    positional, named = SCHEDULES[name]
    direct = getattr(optax, name)(*positional, **named)
    for step in range(6):
        assert float(rate_at(specified(name), step)) == pytest.approx(float(direct(step)), rel=1e-5, abs=1e-8)


def trained(client=0.1, server=None, **arguments):
    own = {"optimizer": client} if isinstance(client, jafl.Specification) and not arguments else arguments
    work = jafl.client_work(MODEL, **(own or {"learning_rate": client}), batch_size=0)
    rule, key = jafl.rules.fedavg(), jax.random.key(0)
    return jafl.simulate(
        SCHEDULE, FEDERATION, work, rule, PARAMS, key, server_optimizer=server, evaluate_at=[]
    ).params


def by_hand(rates):
    """Gradient descent with these rates, one a server step."""
    loss = jax.jit(jax.grad(lambda params: MODEL.losses(params, X, Y).mean()))
    params = PARAMS
    for rate in rates:
        params = jax.tree.map(lambda p, g, rate=rate: p - rate * g, params, loss(params))
    return params


def assert_alike(params, others):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), params, others)


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    in_tiers(
        ["exponential_decay", "warmup_cosine_decay_schedule", "piecewise_constant_schedule"],
        ["warmup_cosine_decay_schedule"],
    ),
)
def test_schedules_that_decide_by_their_numbers_train(name):
    positional, named = SCHEDULES[name]
    direct = getattr(optax, name)(*positional, **named)
    rates = [float(direct(step)) for step in range(STEPS)]
    assert_alike(trained(learning_rate=specified(name)), by_hand(rates))
    server = jafl.specify(optax.sgd, learning_rate=specified(name))
    assert_alike(trained(learning_rate=1.0, server=server), by_hand(rates))
    counted_anew = jafl.specify(optax.sgd, specified(name))  # at each trip, of one step
    assert_alike(trained(counted_anew), by_hand([rates[0]] * STEPS))


def test_numbers_by_which_a_factory_decides_are_static_and_the_others_are_data():
    one, other = (jafl.specify(optax.exponential_decay, rate, 5, 0.9) for rate in (0.1, 0.2))
    assert jax.tree.leaves(one) == [0.1] and jax.tree.structure(one) == jax.tree.structure(other)
    steeper = jafl.specify(optax.exponential_decay, 0.1, 5, 0.8)
    assert jax.tree.structure(one) != jax.tree.structure(steeper)
    pieces = [jafl.specify(optax.piecewise_constant_schedule, 0.1, {3: scale}) for scale in (0.5, 0.5, 0.4)]
    first, same, third = map(jax.tree.structure, pieces)
    assert first == same and hash(first) == hash(same) and first != third
    assert jax.tree.leaves(jafl.specify(optax.adam, learning_rate=0.1, b1=0.5)) == [0.5, 0.1]


def test_a_rule_of_ones_own_may_decide_by_its_numbers():
    @jafl.specification
    def decaying(base: float = 1.0, power: float = 0.0):
        return (lambda x: x * base) if power == 0 else (lambda x: x * base**power)

    for power, value in ((0.0, 6.0), (2.0, 12.0)):
        assert float(jax.jit(lambda rule: rule.build()(3.0))(decaying(2.0, power))) == value
    assert jax.tree.leaves(decaying(2.0, 0.0)) == [2.0]


def test_specifications_in_lists_and_dicts_are_built():
    pieces = [jafl.specify(optax.exponential_decay, 0.1, 5, 0.9), jafl.specify(optax.constant_schedule, 0.2)]
    joined = jafl.specify(optax.join_schedules, pieces, [2])
    assert float(rate_at(joined, 3)) == pytest.approx(0.2)
    parts = {"w": jafl.specify(optax.sgd, 0.1), "rest": jafl.specify(optax.set_to_zero)}
    labels = {"dense": {"kernel": "w", "bias": "rest"}}
    moved = trained(jafl.specify(optax.multi_transform, parts, labels))
    assert np.array_equal(moved["dense"]["bias"], PARAMS["dense"]["bias"])
    assert not np.array_equal(moved["dense"]["kernel"], PARAMS["dense"]["kernel"])


ARGUMENTS = {
    "learning_rate": 0.1,
    "decay": 0.9,
    "max_norm": 1.0,
    "max_delta": 1.0,
    "clipping": 0.1,
    "l2_norm_clip": 1.0,
    "noise_multiplier": 0.0,
    "seed": 0,
    "key": 0,
    "weight_decay": 0.01,
    "eta": 1e-4,
    "gamma": 0.1,
    "step_size": 0.1,
    "step_size_fn": lambda count: 0.1,
    "threshold": 1.0,
    "max_consecutive_errors": 3,
    "every_k_schedule": 1,
    "mask": True,
    "sync_period": 2,
    "slow_step_size": 0.5,
    "delta": 0.1,
    **dict.fromkeys(
        ["optimizer", "opt", "inner", "base_optimizer", "adv_optimizer", "fast_optimizer"], optax.sgd(0.1)
    ),
}
# What needs more than a gradient, its state and the parameters, or moves other parameters than the model's.
REFUSED = {
    "lbfgs": "missing 3 required keyword-only arguments",
    "polyak_sgd": "'value'",
    "scale_by_polyak": "'value'",
    "reduce_on_plateau": "'value'",
    "momo": "'value'",
    "momo_adam": "'value'",
    "sophia": "obj_fn must be provided",
    "dpsgd": "per_example",
    "differentially_private_aggregate": "per_example",
    "lookahead": "fast",
    "sam": "where it only looks",
    "schedule_free": "schedule_free_eval_params",
    "schedule_free_sgd": "schedule_free_eval_params",
    "schedule_free_adamw": "schedule_free_eval_params",
}


def optimizers():
    """{name: a factory of optax whose result is an optimizer, with arguments}."""
    for module in (optax, optax.contrib):
        for name, factory in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(factory):
                continue
            signature = inspect.signature(factory)
            needed = [
                p for p in signature.parameters.values() if p.default is p.empty and p.kind not in (2, 4)
            ]
            known = all(parameter.name in ARGUMENTS for parameter in needed)
            made = "GradientTransformation" in str(signature.return_annotation) or name in REFUSED
            if made and known and name not in ("chain", "named_chain", "masked_chain"):
                yield name, (factory, {parameter.name: ARGUMENTS[parameter.name] for parameter in needed})


OPTIMIZERS = dict(optimizers())


def test_there_are_many_optimizers_and_all_that_are_refused_are_among_them():
    assert len(OPTIMIZERS) > 60 and set(REFUSED) <= set(OPTIMIZERS)


@pytest.mark.few_by_default(1)
@pytest.mark.parametrize("how", ["specified", "as it is"])
def test_every_optimizer_makes_a_step_or_is_refused(how):
    params = {"matrix": np.ones((4, 3), np.float32), "vector": np.ones(3, np.float32)}
    work = jafl.client_work(MODEL, learning_rate=0.1)
    for name, (factory, arguments) in OPTIMIZERS.items():
        made = jafl.specify(factory, **arguments) if how == "specified" else factory(**arguments)
        try:
            check_optimizers(work, made, params)
            refused = None
        except jafl.SettingError as error:
            refused = str(error)
        if name in REFUSED:
            assert refused and REFUSED[name] in refused and "server_optimizer is" in refused, (name, refused)
        else:
            assert refused is None or name == "scale_by_muon", (name, refused)


@pytest.mark.parametrize("made", [optax.lbfgs(), jafl.specify(optax.contrib.reduce_on_plateau)])
@pytest.mark.parametrize("side", ["client", "server"])
def test_clients_and_server_refuse_an_optimizer_that_reads_the_loss(made, side):
    setting = "optimizer is" if side == "client" else "server_optimizer is"
    options = {"optimizer": made} if side == "client" else {"learning_rate": 0.1, "server": made}
    with pytest.raises(
        jafl.SettingError, match=f"^{setting}.*must be an optimizer that makes a step from a gradient"
    ):
        trained(**options)


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_schedule_that_asks_for_its_count_in_an_if_is_refused_by_name(side):
    made = optax.sgd(lambda count: 0.1 if count < 2 else 0.01)
    setting = "optimizer" if side == "client" else "server_optimizer"
    options = {"optimizer": made} if side == "client" else {"learning_rate": 0.1, "server": made}
    with pytest.raises(jafl.SettingError, match=f"^{setting} is one of .* while JAX traces it.*jnp.where"):
        trained(**options)


def test_an_optimizer_that_has_no_first_state_is_refused_by_name_where_clients_keep_it():
    # optax takes a seed or a key of the new kind here.
    made = optax.add_noise(0.1, 0.55, key=jax.random.PRNGKey(0))
    with pytest.raises(jafl.SettingError, match="^optimizer is one of add_noise, but must be an optimizer"):
        trained(optimizer=made, keep_optimizer_state=True)


@pytest.mark.parametrize("rule", ["fedbuff", jafl.rules.fedbuff, None])
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda rule: jafl.private(rule, clip_norm=1.0, noise_multiplier=1.0, delta=1e-5),
        lambda rule: jafl.secure(rule, clip_norm=1.0, fraction_bits=18),
        lambda rule: jafl.decomposed(rule, jafl.client_work(MODEL, learning_rate=0.1), FEDERATION, [0]),
    ],
)
def test_a_name_in_the_place_of_a_rule_is_refused(rule, wrapped):
    with pytest.raises(
        jafl.SettingError, match=r"rule is .* must be a rule. Call its factory: jafl.rules.fedbuff\(\)"
    ):
        wrapped(rule)


def test_client_work_is_no_rule_and_a_rule_no_client_work():
    work, key = jafl.client_work(MODEL, learning_rate=0.1), jax.random.key(0)
    with pytest.raises(jafl.SettingError, match="rule is client_work.*must be a rule"):
        jafl.simulate(SCHEDULE, FEDERATION, work, work, PARAMS, key)
    with pytest.raises(jafl.SettingError, match="client_work is fedbuff.*what jafl.client_work returns"):
        jafl.simulate(SCHEDULE, FEDERATION, jafl.rules.fedbuff(), jafl.rules.fedbuff(), PARAMS, key)


def test_a_learning_rate_that_is_traced_is_data():
    assert_alike(trained(learning_rate=jnp.float32(0.1)), by_hand([0.1] * STEPS))


@pytest.mark.parametrize("side", ["client", "server"])
def test_an_optimizer_that_climbs_is_warned_of_with_the_parameters_that_it_moves_so(side):
    def train(made):
        return trained(
            **({"optimizer": made} if side == "client" else {"learning_rate": 0.1, "server": made})
        )

    # optax.masked leaves the gradient itself where the mask is False, and optax adds what an optimizer returns.
    kernel = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)  # noqa: E731
    with pytest.warns(UserWarning, match=r"optimizer climbs: it moves \['dense'\]\['bias'\] along") as seen:
        train(optax.masked(optax.sgd(0.1), kernel))
    assert "kernel" not in str(seen[0].message)
    with pytest.warns(UserWarning, match="climbs.*kernel"):
        train(jafl.specify(optax.scale, 0.1))


@pytest.mark.parametrize(
    "made",
    [
        lambda: optax.chain(optax.clip_by_global_norm(1e-3), optax.noisy_sgd(0.1, key=0)),
        lambda: optax.chain(optax.add_decayed_weights(-1e3), optax.sgd(0.1)),
        lambda: optax.multi_transform({"a": optax.sgd(0.1), "b": optax.set_to_zero()}, lambda params: "a"),
        lambda: optax.sgd(0.0),
        lambda: optax.contrib.muon(0.1),
    ],
)
def test_an_optimizer_that_descends_is_not_warned_of(made, recwarn):
    check_optimizers(jafl.client_work(MODEL, optimizer=made()), made(), PARAMS)
    assert not [warning for warning in recwarn if "climbs" in str(warning.message)]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: optax.masked(optax.sgd(0.1), {"other": True}), "metadata"),
        (lambda: optax.multi_transform({"a": optax.sgd(0.1)}, lambda params: "b"), "labels: .*'b'"),
    ],
)
def test_a_mask_or_labels_of_another_form_are_refused_with_the_parameters(made, said):
    expected = f"(?s)^optimizer is one of .*{said}.*A mask or labels in it have the form of .*'bias': "
    with pytest.raises(jafl.SettingError, match=expected) as refused:
        trained(optimizer=made())
    assert "searches along a line" not in str(refused.value)


def test_multi_steps_is_refused_with_the_method_that_makes_an_optimizer_of_it():
    made = optax.MultiSteps(optax.sgd(0.1), 2)
    for optimizer in (made, jafl.specify(optax.MultiSteps, optax.sgd(0.1), 2)):
        with pytest.raises(jafl.SettingError, match=r"MultiSteps.*gradient_transformation\(\) returns one"):
            trained(optimizer=optimizer)
    trained(optimizer=made.gradient_transformation(), local_steps=2)


@pytest.mark.parametrize("rate", ["0.1", np.array([0.1, 0.2, 0.3, 0.4, 0.5])])
def test_a_rate_that_is_no_number_is_refused_as_such(rate):
    with pytest.raises(jafl.SettingError, match="optimizer is one of .*other numbers are single numbers"):
        trained(optimizer=optax.sgd(rate))
