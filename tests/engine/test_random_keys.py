"""Random keys that optimizers and rules hold: each trip, and each run, draws numbers of its own, in every plan."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from accelerator_forms import accelerator_forms
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import resumed
from tiers import in_tiers

import jafl
from jafl import rules
from jafl.clients.minibatch_gradients import trip_words
from jafl.records import Rule

CLIENTS, ENTRIES = 8, 5
X, Y = np.zeros((2 * CLIENTS, 1), np.float32), np.zeros(2 * CLIENTS, np.float32)
FEDERATION = jafl.Federation.from_arrays(
    X, Y, jafl.Partition.from_lists(np.split(np.arange(2 * CLIENTS), CLIENTS)), test_x=X[:2], test_y=Y[:2]
)
# Its gradient is 0, so that all that moves it is noise.
MODEL = jafl.Model(
    (
        lambda key, x: {"a": jnp.zeros(ENTRIES), "b": jnp.zeros(2)},
        lambda params, x: x[:, 0] * jnp.sum(params["a"]),
    ),
    task="regression",
)
START = MODEL.init(jax.random.key(0), X[:1])


def noisy(key=0):
    return optax.noisy_sgd(1.0, 1.0, 0.0, key)


def with_old_key():
    """Noise from a key of the old kind, beside other words of its type and shape."""

    def init(params):
        return {"words": jax.random.PRNGKey(5), "count": jnp.zeros(2, jnp.uint32)}

    def update(gradient, state, params=None):
        words, own = jax.random.split(state["words"])
        noise = jax.tree.map(lambda leaf: leaf + jax.random.normal(own, leaf.shape), gradient)
        return noise, {"words": words, "count": state["count"] + jnp.uint32(1)}

    return optax.GradientTransformation(init, update)


OPTIMIZERS = {
    "noisy_sgd": noisy,
    "a typed key": lambda: noisy(jax.random.key(7)),
    "an old key": with_old_key,
    "in a chain": lambda: optax.chain(optax.clip(1.0), noisy()),
    "masked": lambda: optax.masked(noisy(), {"a": True, "b": False}),
    "for some": lambda: optax.multi_transform(
        {"noisy": noisy(), "sgd": optax.sgd(0.1)}, {"a": "noisy", "b": "sgd"}
    ),
    "its numbers in the state": lambda: optax.inject_hyperparams(optax.noisy_sgd)(1.0, 1.0, 0.0, key=3),
    "unless infinite": lambda: optax.apply_if_finite(noisy(), 3),
    "every second step": lambda: optax.MultiSteps(noisy(), 2).gradient_transformation(),
}


def simulate(optimizer, *, steps=2, seed=0, rule=None, server=None, buffer_size=CLIENTS, **options):
    work = jafl.client_work(MODEL, optimizer=optimizer, local_steps=2, batch_size=1)
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=buffer_size,
        delay=jafl.delays.exponential(),
        server_steps=steps,
    )
    rule = rules.fedbuff() if rule is None else rule
    run = (schedule, FEDERATION, work, rule, START, jax.random.key(seed))
    return jafl.simulate(*run, server_optimizer=server, **{"evaluate_at": [], **options})


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("name", in_tiers(OPTIMIZERS.keys(), ("noisy_sgd", "an old key", "for some")))
def test_each_trip_draws_numbers_of_its_own(name):
    def moved(**options):
        """[T, entries]: what each of four server steps of one trip has added to the model."""
        seen = [np.zeros(ENTRIES)]
        options |= {"steps": 4, "buffer_size": 1, "evaluate_at": range(4)}
        simulate(
            OPTIMIZERS[name](),
            on_evaluation=lambda row, params: seen.append(np.array(params["a"])),
            **options,
        )
        return np.diff(seen, axis=0)[1:]

    first, again, other = moved(), moved(), moved(seed=1)
    np.testing.assert_array_equal(first, again)
    for one in (*first, *other):
        assert np.all(one != 0)
        assert sum(np.any(np.isclose(one, two)) for two in (*first, *other)) == 1  # itself


@pytest.mark.full
def test_a_trips_noise_follows_from_run_client_and_trip():
    """The definition, written out: the key of the state, folded with the trip's two random words."""
    seed, schedule = 3, None
    ended = simulate(noisy(11), steps=1, seed=seed, form="loop")
    schedule = ended.schedule
    total = np.zeros(ENTRIES)
    for client, trip in zip(schedule.client, schedule.trip, strict=True):
        words = trip_words(jax.random.key(seed), jnp.array([client]), jnp.array([trip]))[0]
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(11), words[0]), words[1])
        optimizer = optax.noisy_sgd(1.0, 1.0, 0.0, 11)
        state = optimizer.init(START)
        state = jax.tree.map(
            lambda leaf, key=key: key if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf, state
        )
        for _ in range(2):
            update, state = optimizer.update(jax.tree.map(jnp.zeros_like, START), state, START)
            total += np.asarray(update["a"])
    np.testing.assert_allclose(ended.params["a"], total / CLIENTS, rtol=1e-5)


def same(one, other):
    np.testing.assert_allclose(one.params["a"], other.params["a"], rtol=1e-5, atol=1e-6)


MANY = {"optimizer": noisy(), "steps": 12, "buffer_size": 2}


@pytest.mark.full
def test_waves_and_matrices_draw_the_same_noise():
    whole = simulate(**MANY)
    same(simulate(**MANY, plan=jafl.in_waves(whole.schedule, 4), together=True), whole)
    same(simulate(**MANY, form="matrix"), whole)


@pytest.mark.full
def test_forms_for_accelerators_resumed_runs_and_batches_draw_the_same_noise(tmp_path):
    whole = simulate(**MANY)
    with accelerator_forms():
        same(simulate(**MANY, together=True), whole)
    resumed(lambda **options: simulate(**MANY, **{"evaluate_at": [5], **options}), tmp_path, 5)
    work = jafl.client_work(MODEL, optimizer=noisy(), local_steps=2, batch_size=1)
    runs = [
        jafl.Run(whole.schedule, FEDERATION, work, rules.fedbuff(), START, jax.random.key(seed), None, [])
        for seed in (0, 1)
    ]
    one, two = jafl.simulate_many(runs)
    same(one, whole)
    assert np.max(np.abs(one.params["a"] - two.params["a"])) > 0.1


def random_mean(key):
    """A linear rule that takes a random share of each update."""

    def init(params, num_clients):
        return key

    def begin(state, params):
        return state, jax.tree.map(jnp.zeros_like, params)

    def fold(buffer, arrival):
        key, total = buffer
        key, own = jax.random.split(key)
        share = jax.random.uniform(own)
        return (key, jax.tree.map(lambda a, u: a + share * u, total, arrival.update)), {}

    def finish(buffer, params):
        key, total = buffer
        return jax.tree.map(lambda a: -a, total), key, {}, True

    return Rule(init, begin, fold, finish, linear=True)


@pytest.mark.full
@pytest.mark.parametrize("old", [False, pytest.param(True, marks=pytest.mark.full)])
def test_keys_of_rules_and_server_optimizers_are_the_runs_own(old):
    optimizer = with_old_key() if old else noisy()
    first, second = (simulate(optax.sgd(0.1), seed=seed, server=optimizer) for seed in (0, 1))
    assert not np.any(np.isclose(first.params["a"], second.params["a"]))
    key = jax.random.PRNGKey(3) if old else jax.random.key(3)
    one = [simulate(jafl.specify(_constant), seed=seed, rule=random_mean(key)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(one[0].params["a"], one[1].params["a"])
    assert not np.any(np.isclose(one[0].params["a"], one[2].params["a"]))
    with pytest.raises(jafl.SettingError, match="draws random numbers, which are others in 64 bits"):
        simulate(optax.sgd(0.1), rule=random_mean(key), form="matrix")


def _constant():
    """Moves every parameter by 1 in each step."""
    return optax.stateless(lambda gradient, params: jax.tree.map(jnp.ones_like, gradient))


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_trips_draw_from_threefry_whatever_the_default_is(kind):
    """The numbers of a run with keys of another kind: those of a key that is made of their words."""
    client, trip = jnp.arange(6), jnp.array([0, 1, 2, 0, 0, 1])
    with jax.default_prng_impl(kind):
        key = jax.random.split(jax.random.key(5))[1]
        together = trip_words(key, client, trip)
        alone = [trip_words(key, client[one : one + 1], trip[one : one + 1])[0] for one in range(len(client))]
        of_the_seed = trip_words(jax.random.PRNGKey(3), client, trip)
    np.testing.assert_array_equal(together, alone)
    assert len(np.unique(np.asarray(together))) == together.size
    words = jax.random.key_data(key)
    made = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
    made = jax.random.fold_in(jax.random.fold_in(made, words[2]), words[3])
    np.testing.assert_array_equal(together, trip_words(made, client, trip))
    assert not np.array_equal(together, of_the_seed)


@pytest.mark.parametrize(
    "asked",
    [
        lambda key: {"optimizer": noisy(key)},
        lambda key: {"optimizer": optax.sgd(0.1), "server": noisy(key)},
        lambda key: {"optimizer": optax.sgd(0.1), "rule": random_mean(key)},
    ],
)
def test_keys_of_other_kinds_in_a_state_are_refused(asked):
    said = "the kind of a random key of (optimizer|server_optimizer|rule) is 'key<rbg>', .*threefry2x32"
    with pytest.raises(jafl.SettingError, match=said):
        simulate(**asked(jax.random.key(7, impl="rbg")))
    with jax.default_prng_impl("rbg"), pytest.raises(jafl.SettingError, match=said):
        simulate(**asked(jax.random.key(7)))


@pytest.mark.parametrize(("kind", "words", "wanted"), [("threefry2x32", 4, 2), ("rbg", 2, 4), ("rbg", 3, 4)])
def test_a_key_of_the_old_kind_with_another_number_of_words_is_refused(kind, words, wanted):
    key = jnp.zeros(words, jnp.uint32)
    said = f"the number of words of key is {words}, but must be {wanted}, .*{kind}"
    schedule = jafl.asynchronous(
        num_clients=CLIENTS, concurrency=2, buffer_size=1, delay=jafl.delays.exponential(), server_steps=1
    )
    work = jafl.client_work(MODEL, learning_rate=0.1)
    with jax.default_prng_impl(kind):
        with pytest.raises(jafl.SettingError, match=said):
            jafl.simulate(schedule, FEDERATION, work, rules.fedbuff(), START, key)
        with pytest.raises(jafl.SettingError, match=said):
            MODEL.init(key, X[:1])


def with_a_key_outside():
    def update(gradient, state, params=None):
        own = jax.random.fold_in(jax.random.key(0), state)
        return jax.tree.map(lambda leaf: leaf + jax.random.normal(own, leaf.shape), gradient), state + 1

    return optax.GradientTransformation(lambda params: jnp.int32(0), update)


def with_a_seed_in_the_state():
    def update(gradient, state, params=None):
        own = jax.random.key(state)
        return jax.tree.map(lambda leaf: leaf + jax.random.normal(own, leaf.shape), gradient), state + 1

    return optax.GradientTransformation(lambda params: jnp.int32(9), update)


@pytest.mark.parametrize("optimizer", [with_a_key_outside, with_a_seed_in_the_state])
def test_a_client_optimizer_that_draws_from_another_key_is_refused(optimizer):
    with pytest.raises(
        jafl.SettingError, match="the optimizer's random numbers is .*outside of its state.*init"
    ):
        simulate(optimizer())


def test_an_old_key_of_another_kind_in_a_state_is_refused():
    said = "the kind of a random key of (optimizer|rule) is 'key<rbg>'"
    with jax.default_prng_impl("rbg"):
        for asked in ({"optimizer": with_old_key()}, {"optimizer": optax.sgd(0.1), "rule": True}):
            if "rule" in asked:
                asked["rule"] = random_mean(jax.random.PRNGKey(7))
            with pytest.raises(jafl.SettingError, match=said):
                simulate(**asked)
