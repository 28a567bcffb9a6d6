"""Client work: what a trip uses, and what it returns; its arithmetic is checked against the reference."""

import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from against_reference import MinibatchDraws
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.clients.minibatch_gradients import LARGEST_BATCH_AT_ONCE, ROWS_AT_ONCE, minibatches, trip_words
from jafl.clients.records import ClientData
from jafl.engine.loop import server_steps

SIZES = [1, 3, 8, 20, 70]
MODEL = jafl.models.softmax(3)


@pytest.fixture(scope="module")
def federation():
    random = np.random.default_rng(0)
    y = random.integers(0, 3, sum(SIZES))
    x = random.normal(size=(len(y), 4)).astype(np.float32)
    partition = jafl.Partition.from_lists(np.split(random.permutation(len(y)), np.cumsum(SIZES)[:-1]))
    return jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y, num_classes=3)


def data_of(federation) -> ClientData:
    partition = federation.partition
    arrays = (
        federation.x,
        federation.y,
        partition.indices.astype(np.int32),
        partition.offsets.astype(np.int32),
    )
    return ClientData(*map(jnp.asarray, arrays))


def train(federation, client, trip=0, *, start=None, **settings):
    work = jafl.client_work(MODEL, **{"learning_rate": 0.5, **settings}).build()
    start = MODEL.init(jax.random.key(0), federation.x) if start is None else start
    words = trip_words(jax.random.key(9), np.array([client], np.int32), np.array([trip], np.int32))[0]
    return jax.jit(work.train)(data_of(federation), start, jnp.int32(client), words)


@pytest.mark.full
@pytest.mark.parametrize("client", range(len(SIZES)))
def test_an_epoch_uses_every_example_once(federation, client):
    result = train(federation, client, local_epochs=3, batch_size=8)
    assert int(result.batch_examples) == 3 * SIZES[client]


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("client", range(len(SIZES)))
def test_short_batches_are_never_empty_and_never_dropped(federation, client):
    count = SIZES[client]
    steps = minibatches(jax.random.key(9), client, 0, num_examples=count, batch_size=8, steps=10)
    sizes = [len(batch) for batch in steps]
    epoch = [8] * (count // 8) + [count % 8] * (count % 8 > 0)
    assert sizes == (epoch * 10)[:10] and min(sizes) > 0
    result = train(federation, client, local_steps=10, batch_size=8)
    assert int(result.batch_examples) == sum(sizes)


@pytest.mark.full
@pytest.mark.parametrize("num_examples, batch_size, steps", [(1, 5, 3), (21, 4, 12), (30, 10, 9)])
def test_minibatches_drawn_many_trips_at_a_time_are_those_of_each_trip(num_examples, batch_size, steps):
    """So that comparisons with the reference simulator may draw them so."""
    given = {"num_examples": num_examples, "batch_size": batch_size, "steps": steps}
    draw = MinibatchDraws(jax.random.key(9), trips=4, epochs=3, largest=30)
    for client, trip in ((0, 0), (3, 2), (3, 7)):
        expected = minibatches(jax.random.key(9), client, trip, **given)
        for batch, expected_batch in zip(draw(client, trip, **given), expected, strict=True):
            np.testing.assert_array_equal(batch, expected_batch)


def test_minibatches_are_shuffled_afresh_by_epoch_trip_and_client_and_repeat_by_key():
    def first(client, trip, key=9):
        batches = minibatches(jax.random.key(key), client, trip, num_examples=40, batch_size=10, steps=8)
        return np.concatenate(batches[:4]), np.concatenate(batches[4:])

    one, next_epoch = first(3, 0)
    assert sorted(one) == sorted(next_epoch) == list(range(40))
    for other in (next_epoch, first(4, 0)[0], first(3, 1)[0], first(3, 0, key=8)[0]):
        assert not np.array_equal(one, other)
    assert np.array_equal(one, first(3, 0)[0])


def test_loss_is_that_of_the_first_minibatch_at_the_downloaded_model(federation):
    result = train(federation, 4, local_epochs=2, batch_size=8, l2=0.3, proximal=0.2)
    assert float(result.loss) == pytest.approx(np.log(3), rel=1e-6)  # softmax regression starts from zeros


@pytest.mark.full
def test_the_update_of_one_step_is_not_rounded_to_the_parameters(federation):
    """The same number added to all biases changes no gradient; what is added to it keeps few digits."""
    start = MODEL.init(jax.random.key(0), federation.x)
    far = jax.tree.map(lambda leaf: leaf + 4096.0 if leaf.ndim == 1 else leaf, start)
    updates = (train(federation, 3, start=each, local_steps=1, batch_size=8).update for each in (start, far))
    jax.tree.map(np.testing.assert_array_equal, *updates)


@pytest.mark.full
def test_a_large_batch_is_the_same_whether_at_once_or_in_rows(federation):
    """70 examples as one whole batch (32 rows at a time) and as a batch of 100 (at once)."""
    whole = train(federation, 4, batch_size=0)
    at_once = train(federation, 4, batch_size=100)
    above = train(federation, 4, batch_size=200)
    for other in (at_once, above):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7), whole, other)


@pytest.mark.full
def test_optimizer_state_is_new_at_each_trip(federation):
    """Two trips in a row with momentum equal two single ones, each started from the other's end."""
    settings = {
        "learning_rate": None,
        "optimizer": jafl.specify(optax.sgd, learning_rate=0.5, momentum=0.9),
        "batch_size": 0,
        "local_steps": 3,
    }
    once = train(federation, 3, 0, **settings)
    again = train(federation, 3, 1, **settings)
    jax.tree.map(np.testing.assert_array_equal, once.update, again.update)


@pytest.mark.full
def test_fedprox_without_a_term_is_fedavg(federation):
    plain = train(federation, 4, local_steps=5, batch_size=8)
    none = train(federation, 4, local_steps=5, batch_size=8, proximal=0.0)
    pulled = train(federation, 4, local_steps=5, batch_size=8, proximal=1.0)
    jax.tree.map(np.testing.assert_array_equal, plain.update, none.update)
    norm = lambda tree: float(optax.tree.norm(tree))  # noqa: E731
    assert norm(pulled.update) < norm(plain.update)


QUICK = ((0, {"local_steps": 4}), (8, {"local_epochs": 2}), (200, {"local_steps": 1}))


@pytest.mark.full
@pytest.mark.few_in_full(4)
@pytest.mark.parametrize(
    ("batch_size", "length"),
    [
        pytest.param(size, length, marks=() if (size, length) in QUICK else pytest.mark.full)
        for size in (0, 8, 200)
        for length in ({"local_steps": 1}, {"local_steps": 4}, {"local_epochs": 1}, {"local_epochs": 2})
    ],
)
def test_a_trip_says_how_many_steps_it_made(federation, length, batch_size):
    for client, size in enumerate(SIZES):
        per_epoch = math.ceil(size / (batch_size or size))
        expected = length.get("local_steps") or per_epoch * length["local_epochs"]
        assert int(train(federation, client, batch_size=batch_size, **length).local_steps) == expected


@pytest.mark.parametrize("batch_size", [0, 1, 8, 40, LARGEST_BATCH_AT_ONCE, LARGEST_BATCH_AT_ONCE + 1, 700])
@pytest.mark.parametrize(
    "length", [{"local_steps": 1}, {"local_steps": 7}, {"local_epochs": 1}, {"local_epochs": 3}]
)
def test_what_a_trip_computes_at_a_time_is_counted(batch_size, length):
    """A minibatch at once, or parts of a large one: as many as a client's loop makes (``_sums``)."""
    work = jafl.client_work(MODEL, learning_rate=0.1, batch_size=batch_size, **length).build()
    sizes = np.array([1, 2, 8, 63, 64, 65, 500, 1300])
    expected = []
    for size in sizes:
        at_once = batch_size or size
        batches = [min(at_once, size - begin) for begin in range(0, size, at_once)]
        steps = length.get("local_steps") or len(batches) * length["local_epochs"]
        used = [batches[step % len(batches)] for step in range(steps)]
        whole = 0 < batch_size <= LARGEST_BATCH_AT_ONCE
        expected.append(sum(1 if whole else math.ceil(examples / ROWS_AT_ONCE) for examples in used))
    assert work.minibatches(sizes).tolist() == expected


@pytest.mark.full
@pytest.mark.parametrize("proximal, l2", [(0.7, None), (None, 0.2), (0.7, 0.2)])
def test_three_steps_with_regularizers_by_hand(federation, proximal, l2):
    """The gradient gets mu (w - w_downloaded) and l2 w."""
    client, rate = 3, 0.5
    start = jax.tree.map(lambda p: p + 1.5, MODEL.init(jax.random.key(0), federation.x))
    result = train(
        federation,
        client,
        start=start,
        local_steps=3,
        batch_size=0,
        proximal=proximal,
        l2=l2,
        learning_rate=rate,
    )
    rows = federation.partition.indices[slice(*federation.partition.offsets[client : client + 2])]
    x, y = federation.x[rows], federation.y[rows]
    own = jax.grad(lambda params: jnp.mean(MODEL.losses(params, x, y)))
    params = start
    for _ in range(3):
        step = jax.tree.map(
            lambda g, w, w0: g + (proximal or 0) * (w - w0) + (l2 or 0) * w, own(params), params, start
        )
        params = jax.tree.map(lambda w, g: w - rate * g, params, step)
    expected = jax.tree.map(jnp.subtract, params, start)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), result.update, expected)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"learning_rate": None}, "learning_rate and optimizer"),
        ({"optimizer": optax.sgd(0.1)}, "learning_rate and optimizer"),
        ({"learning_rate": -0.1}, "learning_rate is -0.1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"local_steps": 1, "local_epochs": 1}, "local_steps and local_epochs"),
        ({"local_steps": 0}, "local_steps is 0"),
        ({"local_epochs": 0}, "local_epochs is 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"proximal": -1.0}, "proximal is -1.0"),
        ({"l2": float("inf")}, "l2 is inf"),
        ({"batch_size": 0, "learning_rate_normalization": True}, "learning_rate_normalization"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(jafl.SettingError, match=message):
        jafl.client_work(MODEL, **{"learning_rate": 0.1, **settings})


def test_an_unequal_client_does_not_make_everyone_pay():
    """The program's size does not depend on the largest client: no array of a trip is as long as it."""
    sizes = [5, 5000]
    y = np.zeros(sum(sizes), np.int32)
    x = np.zeros((len(y), 4), np.float32)
    partition = jafl.Partition.from_lists(np.split(np.arange(len(y)), [5]))
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=x[:1], test_y=y[:1], num_classes=3)
    for settings in ({"batch_size": 8, "local_epochs": 1}, {"batch_size": 0}):
        work = jafl.client_work(MODEL, learning_rate=0.1, **settings).build()
        start = MODEL.init(jax.random.key(0), x)
        trace = jax.make_jaxpr(work.train)(data_of(federation), start, jnp.int32(0), jnp.zeros(2, jnp.uint32))
        longest = max(
            max(value.aval.shape, default=0)
            for equation in all_equations(trace.jaxpr)
            for value in equation.outvars
        )
        assert longest <= 32


def all_equations(jaxpr):
    """Every equation of a program, those of its loops included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from all_equations(inner)


def scheduled(version, rate):
    """What a trip from a version of the model makes, with a schedule."""
    work = jafl.client_work(MODEL, learning_rate=rate, local_steps=3, batch_size=4).build()
    assert work.reads_version

    def train(data, start, words):
        return work.train(data._replace(version=jnp.int32(version)), start, jnp.int32(2), words)

    return train


@pytest.mark.full
@pytest.mark.parametrize("version", [0, 7])
def test_a_schedule_counts_the_server_steps_before_the_download(federation, version):
    schedule = optax.exponential_decay(0.5, transition_steps=4, decay_rate=0.3)
    start = MODEL.init(jax.random.key(0), federation.x)
    words = trip_words(jax.random.key(9), np.array([2], np.int32), np.array([0], np.int32))[0]
    for rate in (schedule, jafl.specify(optax.exponential_decay, 0.5, transition_steps=4, decay_rate=0.3)):
        ours = jax.jit(scheduled(version, rate))(data_of(federation), start, words)
        fixed = train(
            federation, 2, start=start, learning_rate=float(schedule(version)), local_steps=3, batch_size=4
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours.update, fixed.update)


@pytest.mark.full
def test_a_run_with_a_schedule_is_its_trips_with_their_own_rates(federation):
    """A constant one gives the bits of its number; a step to 0 leaves the model as it was from there on."""
    events = jafl.asynchronous(
        num_clients=5,
        concurrency=4,
        buffer_size=1,
        delay=jafl.delays.exponential(1.0),
        server_steps=12,
        seed=4,
    )
    params, key = MODEL.init(jax.random.key(0), federation.x), jax.random.key(1)

    def run(rate, **options):
        work = jafl.client_work(MODEL, learning_rate=rate, local_steps=2, batch_size=4)
        rule = jafl.rules.asgd()
        return jafl.simulate(events, federation, work, rule, params, key, **options).params

    number = run(0.25)
    jax.tree.map(np.testing.assert_array_equal, run(optax.constant_schedule(0.25)), number)
    jax.tree.map(np.testing.assert_array_equal, run(jnp.float32(0.25)), number)
    jax.tree.map(np.testing.assert_array_equal, run(np.float64(0.25)), number)
    fades = run(lambda version: jnp.where(version < 5, 0.25, 0.0))
    for options in ({"together": True}, {"plan": jafl.in_waves(events, 4)}):
        other = run(lambda version: jnp.where(version < 5, 0.25, 0.0), **options)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), other, fades)
    # By hand: only trips that were downloaded before version 5 move the model.
    moved = events.download_version < 5
    assert moved.any() and not moved.all()
    assert np.abs(fades["dense"]["kernel"] - number["dense"]["kernel"]).max() > 1e-3
    with pytest.raises(jafl.SettingError, match="form is 'matrix'.*schedule over server steps"):
        run(lambda version: 0.1, form="matrix")


@pytest.mark.full
def test_another_number_in_a_schedule_does_not_compile_again(federation):
    events = jafl.asynchronous(
        num_clients=5, concurrency=4, buffer_size=2, delay=jafl.delays.exponential(1.0), server_steps=4
    )
    params = MODEL.init(jax.random.key(0), federation.x)
    sizes, ends = [], []
    for rate in (0.1, 0.2):
        schedule = jafl.specify(optax.cosine_decay_schedule, rate, 100)
        work = jafl.client_work(MODEL, learning_rate=schedule, batch_size=4)
        history = jafl.simulate(events, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))
        sizes.append(server_steps.run._cache_size())
        ends.append(history.params["dense"]["kernel"])
    assert sizes[0] == sizes[1] and np.abs(ends[0] - ends[1]).max() > 1e-4


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (lambda version: jnp.ones(3), r"schedule learning_rate returns is 'float32 \(3,\)'"),
        (lambda version: "fast", "schedule learning_rate returns is .TypeError"),
        (lambda version: 0.1 if version > 3 else 0.2, "schedule learning_rate returns is .*Tracer.*traces"),
        (jnp.ones(2), "learning_rate is "),
        (jnp.float32(-1), "learning_rate is -1.0"),
        (jnp.float32(np.nan), "learning_rate is nan"),
    ],
)
def test_rates_that_are_none(rate, message):
    with pytest.raises(jafl.SettingError, match=message):
        jafl.client_work(MODEL, learning_rate=rate)


def test_a_schedule_is_no_rate_that_a_decomposition_divides_by(federation):
    work = jafl.client_work(MODEL, learning_rate=optax.constant_schedule(0.1), batch_size=4)
    with pytest.raises(jafl.SettingError, match="learning_rate is 'a schedule'.*one number"):
        jafl.decomposed(jafl.rules.fedbuff(), work, federation, at_steps=[0])


def test_a_trip_that_would_not_end_is_refused():
    with pytest.raises(jafl.SettingError, match="local_steps is 2000000000, but must be at most 100,000,000"):
        jafl.client_work(jafl.models.softmax(3), learning_rate=0.1, local_steps=2_000_000_000)
