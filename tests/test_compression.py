"""Compression of updates: what QSGD, top-k and error feedback promise, and every kind of plan that holds them."""

import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import alone, small_parts

import jafl
from jafl import compression, delays, rules
from jafl.clients.corrections import exchanged_bytes
from jafl.clients.minibatch_gradients import trip_words
from jafl.clients.records import ClientData
from jafl.config import calls
from jafl.config.builders.schedule import make_delay
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings
from jafl.runs.recording.pictures import diagnose
from jafl.simulation.simulate_many import simulate_many

CLIENTS, SIZE = 7, 40
MODEL = jafl.models.mlp(3, (5,))
TOP_K, QSGD = compression.top_k(0.2), compression.qsgd(3)


def vectors(number: int = 5, size: int = SIZE) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.normal(size=size) ** 3 for _ in range(number)]


def decoded(compressor: compression.Compressor, vector: np.ndarray, keys: int) -> np.ndarray:
    """[keys, d]: what is decoded of one vector with many random words."""
    words = jax.random.bits(jax.random.key(7), (keys, 2), jnp.uint32)
    return np.asarray(jax.vmap(lambda own: compressor.compress(jnp.asarray(vector), own))(words))


@pytest.mark.full
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("levels", [1, 4, 50])
def test_qsgd_is_right_in_the_mean_and_within_its_bound(levels: int):
    """Lemma 3.1: E Q = v; E||Q - v||^2 <= min(d / s^2, sqrt(d) / s) ||v||^2; E||Q||_0 <= s (s + sqrt(d))."""
    keys = 20_000
    for vector in vectors():
        sent = decoded(compression.qsgd(levels), vector, keys)
        norm = np.linalg.norm(vector)
        # A number is off by less than a level, so by at most half of one in the standard deviation.
        assert np.abs(sent.mean(axis=0) - vector).max() < 5 * norm / (2 * levels) / math.sqrt(keys)
        error = np.mean(np.sum((sent - vector) ** 2, axis=1))
        assert 0 < error <= 1.02 * min(SIZE / levels**2, math.sqrt(SIZE) / levels) * norm**2
        assert np.mean(np.sum(sent != 0, axis=1)) <= 1.02 * levels * (levels + math.sqrt(SIZE))
        places = sent * levels / norm
        np.testing.assert_allclose(places, np.round(places), atol=1e-12)
        assert np.abs(places).max() < levels + 0.5
        assert np.all(sent * vector >= 0), "no number changes its sign"


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_qsgd_of_zeros_is_zeros_and_of_one_number_is_that():
    assert not decoded(QSGD, np.zeros(SIZE), 10).any()
    one = np.where(np.arange(SIZE) == 7, -2.5, 0.0)
    np.testing.assert_array_equal(decoded(QSGD, one, 50), np.tile(one, (50, 1)))


@pytest.mark.full
@pytest.mark.parametrize("compressor", [QSGD, TOP_K], ids=str)
def test_what_is_not_finite_is_not_hidden(compressor: compression.Compressor):
    for wrong in (np.nan, np.inf):
        vector = np.where(np.arange(SIZE) == 7, wrong, vectors()[0]).astype(np.float32)
        assert not np.isfinite(decoded(compressor, vector, 3)).all(axis=1).any()


@pytest.mark.few_by_default(2)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 1.0])
def test_top_k_sends_the_largest_and_contracts(fraction: float):
    kept = max(round(fraction * SIZE), 1)
    for vector in vectors():
        (sent,) = decoded(compression.top_k(fraction), vector, 1)
        largest = np.argsort(-np.abs(vector))[:kept]
        np.testing.assert_array_equal(np.flatnonzero(sent), np.sort(largest))
        np.testing.assert_array_equal(sent[largest], vector[largest])
        left = np.sum((vector - sent) ** 2)
        assert left <= (1 - kept / SIZE) * np.sum(vector**2) + 1e-12
    ties = decoded(compression.top_k(0.5), np.ones(SIZE), 1)[0]
    np.testing.assert_array_equal(ties, np.arange(SIZE) < SIZE // 2)


@pytest.mark.parametrize("compressor", [QSGD, TOP_K], ids=str)
def test_the_model_is_one_vector(compressor: compression.Compressor):
    """Its arrays, of unlike lengths, have one norm and one k; their types stay."""
    vector = vectors()[0].astype(np.float32)
    tree = {"a": vector[:3], "b": {"c": (100 * vector[3:]).reshape(37, 1)}}
    words = jnp.uint32([1, 2])
    whole = compressor.compress(np.concatenate([tree["a"], tree["b"]["c"].ravel()]), words)
    sent = compressor.compress(tree, words)
    np.testing.assert_array_equal(whole[:3], sent["a"])
    np.testing.assert_array_equal(whole[3:], sent["b"]["c"].ravel())
    mixed = {"a": jnp.asarray(tree["a"], jnp.bfloat16), "b": tree["b"]["c"]}
    assert jax.tree.map(lambda leaf: str(leaf.dtype), compressor.compress(mixed, words)) == {
        "a": "bfloat16",
        "b": "float32",
    }


def test_bytes_are_those_of_the_code():
    """By hand: 1,000 numbers; QSGD of 4 levels has 9 values, 4 bits; a place among 1,000 has 10 bits."""
    params = {"a": jnp.zeros((10, 90)), "b": jax.ShapeDtypeStruct((100,), jnp.float32)}
    assert compression.qsgd(4).bytes(params) == 4 + 1000 * 4 // 8
    assert compression.qsgd(1).bytes(params) == 4 + 1000 * 2 // 8
    assert compression.qsgd(127).bytes(params) == 4 + 1000
    assert compression.top_k(0.01).bytes(params) == math.ceil((10 * 32 + 10 * 10) / 8)
    assert compression.top_k(0.5).bytes(params) == 500 * 4 + 1000 // 8
    assert compression.top_k(1.0).bytes(params) == 4000
    upload = compression.qsgd(4).bytes(params)
    law = delays.with_network(delays.constant(1.0), 4000, 1000.0, 100.0, upload_bytes=upload)
    assert law.durations(0, np.array([0]), np.array([0])) == [4.0 + 1.0 + upload / 100]


def schedule(**changes: Any) -> jafl.EventSchedule:
    settings = {"buffer_size": 3, "server_steps": 25, "seed": 4, "failure_rate": 0.2, **changes}
    return jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        delay=delays.once_per_client(delays.log_normal(1.0, 1.2)),
        **settings,
    )


def federation() -> jafl.Federation:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 70)
    x = random.normal(size=(70, 4)) + np.eye(3, 4)[y]
    partition = jafl.Partition.from_lists(np.split(np.arange(70), CLIENTS))
    return jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y, num_classes=3)


def work_of(compressor: Any, error_feedback: bool = False, **changes: Any) -> jafl.Specification:
    given = {"learning_rate": 0.1, "local_steps": 2, "batch_size": 4, **changes}
    return jafl.client_work(MODEL, compression=compressor, error_feedback=error_feedback, **given)


def simulate(work: Any, rule: Any = None, events: Any = None, **named: Any) -> jafl.History:
    data = federation()
    params = MODEL.init(jax.random.key(0), data.x)
    events = schedule() if events is None else events
    named = {"evaluate_at": [], "evaluators": {}, **named}
    rule = rules.fedbuff() if rule is None else rule
    return jafl.simulate(events, data, work, rule, params, jax.random.key(1), **named)


def assert_close(first: Any, second: Any, **how: Any) -> None:
    for mine, other in zip(*map(jax.tree.leaves, (first, second)), strict=True):
        np.testing.assert_allclose(mine, other, **how)


def apart(first: Any, second: Any) -> float:
    pairs = zip(*map(jax.tree.leaves, (first, second)), strict=True)
    return max(float(np.abs(mine - other).max()) for mine, other in pairs)


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("error_feedback", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_a_compressor_that_leaves_nothing_out_changes_no_bit(error_feedback: bool, keep: bool):
    optimizer = jafl.specify(optax.sgd, learning_rate=0.05, momentum=0.8)
    own = {"learning_rate": None, "optimizer": optimizer, "keep_optimizer_state": keep}
    whole = simulate(work_of(compression.top_k(1.0), error_feedback, **own))
    plain = simulate(work_of(None, **own))
    jax.tree.map(np.testing.assert_array_equal, whole.params, plain.params)


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("compressor", [TOP_K, compression.qsgd(8)], ids=str)
@pytest.mark.parametrize("local_steps, keep", [(1, False), (3, False), (3, True)])
def test_all_that_was_sent_and_what_is_kept_is_all_that_was_trained(compressor, local_steps, keep):
    """One client from model to model: the sum of what it sends + what it keeps = the sum of its updates."""
    data = federation()
    given = {"local_steps": local_steps, "keep_optimizer_state": keep}
    given |= {"learning_rate": None, "optimizer": jafl.specify(optax.adam, learning_rate=0.01)}
    work, plain = (
        work_of(one, feedback, **given).build() for one, feedback in ((compressor, True), (None, False))
    )
    params = MODEL.init(jax.random.key(0), data.x)
    where = (data.partition.indices.astype(np.int32), data.partition.offsets.astype(np.int32))
    clients = ClientData(*map(jnp.asarray, (data.x, data.y, *where)))
    kept, plain_kept = (one.state and one.state.initial(params) for one in (work, plain))
    sent = trained = jax.tree.map(jnp.zeros_like, params)
    largest = 0.0
    for trip in range(12):
        words = trip_words(jax.random.key(9), np.array([2], np.int32), np.array([trip], np.int32))[0]
        result = work.train(clients._replace(state=kept), params, jnp.int32(2), words)
        update = plain.train(clients._replace(state=plain_kept), params, jnp.int32(2), words)
        kept, plain_kept = result.state, update.state
        sent = jax.tree.map(jnp.add, sent, result.update)
        trained = jax.tree.map(jnp.add, trained, update.update)
        left = kept.correction if keep else kept
        assert_close(jax.tree.map(jnp.add, sent, left), trained, rtol=1e-12, atol=1e-14)
        largest = max(largest, *(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(left)))
        params = jax.tree.map(jnp.add, params, result.update)
    assert largest > 1e-3, "something is left out"


@pytest.mark.usefixtures("float64")
def test_whole_numbers_add_up_exactly():
    random = np.random.default_rng(1)
    left = sent = trained = np.zeros(SIZE)
    for _ in range(50):
        update = random.integers(-1000, 1000, SIZE).astype(float)
        whole = update + left
        own = np.asarray(TOP_K.compress(whole, jnp.uint32([0, 0])))
        left, sent, trained = whole - own, sent + own, trained + update
        np.testing.assert_array_equal(sent + left, trained)


PLANS: dict[str, dict[str, Any]] = {
    "waves, one after the other": {"width": 5, "together": False},
    "waves, side by side": {"width": 4, "together": True},
}


@pytest.mark.full
@pytest.mark.few_in_full(2)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("error_feedback", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_plans_agree(name: str, error_feedback: bool, keep: bool):
    work = work_of(
        compression.qsgd(8), error_feedback, learning_rate=None, keep_optimizer_state=keep,
        optimizer=jafl.specify(optax.sgd, learning_rate=0.05, momentum=0.8),
    )  # fmt: skip
    how, events = dict(PLANS[name]), schedule()
    plan = jafl.in_waves(events, how.pop("width"), client_state=True)
    waves = simulate(work, events=events, plan=plan, devices=1, **how)
    plain = simulate(work, events=events, plan=jafl.trip_by_trip(events), devices=1)
    assert_close(waves.params, plain.params, rtol=1e-9, atol=1e-12)


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("rule", [rules.fedbuff(), rules.ca2fl(), rules.ace()], ids=str)
@pytest.mark.parametrize("compressor", [QSGD, compression.top_k(1.0)], ids=str)
def test_the_matrix_form_of_a_linear_rule_holds(rule: Any, compressor: compression.Compressor):
    """The compressor acts at the client: the rule stays linear in what arrives, whose factors are the same."""
    own = {"buffer_size": 1, "initial_round": True, "failure_rate": 0.0} if "ace" in str(rule) else {}
    events = schedule(**own)
    work = work_of(compressor)
    matrix = simulate(work, rule, events, form="matrix")
    loop = simulate(work, rule, events, form="loop")
    assert_close(matrix.params, loop.params, rtol=1e-9, atol=1e-12)
    assert compressor is not QSGD or apart(loop.params, simulate(work_of(None), rule, events).params) > 1e-3


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("compressor, error_feedback", [(QSGD, False), (TOP_K, True)])
def test_runs_of_a_group_compress_as_each_does_alone(compressor, error_feedback, together: bool):
    parts = small_parts(20)
    model = parts["client_work"].arguments["model"]
    runs = [
        jafl.Run(
            **parts
            | {
                "client_work": jafl.client_work(
                    model,
                    learning_rate=rate,
                    local_steps=2,
                    batch_size=4,
                    compression=compressor,
                    error_feedback=error_feedback,
                ),
                "rule": rules.fedbuff(),
                "key": jax.random.key(seed),
            },
            evaluate_at=[],
        )
        for seed, rate in ((1, 0.1), (2, 0.05))
    ]
    for run, history in zip(runs, simulate_many(runs, together=together), strict=True):
        assert_close(history.params, alone(run).params, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decomposed", [jafl.decomposed, jafl.decomposed_four_ways], ids=["three", "four"])
def test_none_is_decomposed(decomposed: Any):
    with pytest.raises(jafl.SettingError, match="compression is .*None where the error is split"):
        decomposed(rules.fedbuff(), work_of(QSGD, local_steps=1), federation(), [3, 9])


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_error_feedback_reaches_what_top_k_alone_does_not():
    """Full gradients of unlike clients: each alone always sends its own largest numbers, which are not the sum's."""
    targets = np.array([[10.0, 0.1], [-10.0, 0.1]])

    def apply(params, x):
        return params["w"] - x

    def loss(outputs, y):
        return jnp.sum(jnp.square(outputs), axis=1) / 2

    model = jafl.Model(
        (lambda key, x: {"w": jnp.zeros(2, x.dtype)}, apply), loss_per_example=loss, task="regression"
    )
    y = np.zeros((2, 2))
    data = jafl.Federation.from_arrays(
        targets, y, jafl.Partition.from_lists([[0], [1]]), test_x=targets, test_y=y, num_classes=None
    )
    events = jafl.synchronous(num_clients=2, cohort_size=2, delay=delays.constant(1.0), server_steps=2000)

    def distance(**how: Any) -> float:
        given = {"learning_rate": 0.01, "batch_size": 0, **how}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work = jafl.client_work(model, **given)
            history = jafl.simulate(
                events, data, work, rules.fedavg(), {"w": jnp.zeros(2)}, jax.random.key(0), evaluate_at=[]
            )
        return float(np.abs(history.params["w"] - targets.mean(axis=0)).max())

    half = compression.top_k(0.5)
    assert distance() < 1e-8
    assert distance(compression=half) > 0.0999, "its second number never moves"
    assert distance(compression=half, error_feedback=True) < 0.06


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: compression.qsgd(0), "levels is 0, but must be a whole number of at least 1"),
        (lambda: compression.qsgd(2**20), "levels is 1048576, but must be at most 32,768"),
        (lambda: compression.top_k(0), "fraction is 0, but must be above 0 and at most 1"),
        (lambda: compression.top_k(1.5), "fraction is 1.5"),
        (lambda: compression.top_k("all"), "fraction is 'all'"),
        (lambda: work_of("top_k"), "compression is 'top_k', but must be None or a compressor"),
        (
            lambda: work_of(None, True),
            "error_feedback is True, but must be False where nothing is compressed",
        ),
        (lambda: work_of(QSGD, 1), "error_feedback is 1, but must be True or False"),
        (
            lambda: work_of(QSGD, correction="scaffold"),
            r"compression is qsgd\(levels=3\), but must be None with correction='scaffold'",
        ),
        (lambda: work_of(QSGD, state_precision="int8"), "state_precision is 'int8'"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, said: str):
    with pytest.raises(jafl.SettingError, match=said):
        make()


@pytest.mark.full
def test_feedback_of_too_few_levels_is_refused_by_the_number_that_is_enough():
    said = r"levels is 6, but must be above 6, the square root of the model's 43 parameters.*error_feedback"
    with pytest.raises(jafl.SettingError, match=said):
        simulate(work_of(compression.qsgd(6), True))
    simulate(work_of(compression.qsgd(7), True))


def test_a_biased_compressor_without_feedback_is_warned_of_and_no_other():
    with pytest.warns(UserWarning, match=r"top_k\(fraction=0.2\), which is biased.*error_feedback=True"):
        work_of(TOP_K)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work_of(TOP_K, True)
        work_of(QSGD)
        work_of(compression.top_k(1.0))


def test_none_is_private_or_secure():
    rule = rules.fedbuff(staleness_weight=rules.staleness.constant())
    events = schedule(failure_rate=0.0)
    with pytest.raises(jafl.SettingError, match="compression is .*must be None for a rule of jafl.private"):
        simulate(work_of(QSGD), jafl.private(rule, clip_norm=1.0, delta=1e-5, noise_multiplier=1.0), events)
    with pytest.raises(jafl.SettingError, match="compression is .*must be None for a rule of jafl.secure"):
        simulate(work_of(QSGD), jafl.secure(rule, clip_norm=1.0), events)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("precision, bound", [("bfloat16", 5e-3), ("int8", 2e-2)])
def test_what_is_kept_may_lie_in_few_bits(precision: str, bound: float):
    full, few = (
        simulate(work_of(compression.qsgd(20), True, state_precision=own)).params
        for own in ("full", precision)
    )
    assert 0 < apart(full, few) < bound


@pytest.mark.full
def test_a_compressor_of_ones_own():
    @dataclasses.dataclass(frozen=True)
    class sign(compression.Compressor):  # noqa: N801
        def of_vector(self, vector, words):
            return jnp.sign(vector) * jnp.mean(jnp.abs(vector))

        def bits(self, size, number_bits):
            return number_bits + size

    assert sign().bytes({"w": jnp.zeros(100)}) == 4 + 13
    history = simulate(work_of(sign(), True))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(history.params))
    assert apart(history.params, simulate(work_of(None)).params) > 1e-3


def test_settings_take_the_size_of_an_upload_from_the_compressor():
    """By hand: the model of 43 parameters has 172 bytes, top_k(0.2) sends 9 of them with 6 bits for each place."""
    upload = compression.top_k(0.2).bytes(MODEL.init(jax.random.key(0), federation().x))
    assert upload == math.ceil((9 * 32 + min(9 * 6, 43)) / 8)
    clients, trips = np.array([0]), np.array([0])

    def duration(delay: str, upload_bytes: float | None = upload) -> float:
        law = make_delay(Settings(delay=delay), np.array([3]), 172.0, upload_bytes)
        return float(law.durations(0, clients, trips)[0])

    network = "with_network(constant, download_bandwidth=172, upload_bandwidth=100)"
    assert duration(network) == 2 + upload / 100
    assert duration(network, None) == 2 + 172 / 100, "without compression an update is as large as the model"
    assert duration(network.replace("constant", "constant, upload_bytes=50")) == 2.5
    both = network.replace("constant", "constant, model_bytes=86, upload_bytes=50")
    assert duration(f"once_per_client({both})") == 2.0
    said = "delay.upload_bytes is None, but must be a number where updates are compressed and delay.model_bytes is 86"
    with pytest.raises(jafl.SettingError, match=said):
        duration(network.replace("constant", "constant, model_bytes=86"))


def test_a_run_of_settings_takes_as_long_as_its_compressed_updates():
    settings = Settings(
        dataset="synthetic(mean_examples=10)",
        num_clients=3,
        algorithm="fedbuff",
        delay="with_network(constant, upload_bandwidth=100)",
        server_steps=2,
        concurrency=3,
        buffer_size=3,
    )
    compressed = settings.changed({"client_work.compression": "qsgd(levels=4)"})
    (plain,), (small,) = map(make_experiments, (settings, compressed))
    model_bytes = 4 * sum(leaf.size for leaf in jax.tree.leaves(plain.params))
    assert plain.schedule.step_time[0] == 1 + model_bytes / 100
    assert small.schedule.step_time[0] == 1 + compression.qsgd(4).bytes(small.params) / 100


def test_the_command_line_has_them():
    grammar = calls.grammar("client_work")
    text = grammar.changed("client_work(error_feedback=True)", "compression", "top_k(fraction=0.05)")
    work = grammar.make(text, model=MODEL, optimizer=jafl.specify(optax.sgd, 0.1), correction=None)
    assert work.arguments["compression"] == compression.top_k(0.05)
    assert "top_k(fraction=0.05)" in jafl.config.describe(
        work_of(compression.top_k(0.05), True), "client_work"
    )


def test_a_run_of_scaffold_takes_as_long_as_two_vectors_each_way():
    settings = Settings(
        dataset="synthetic(mean_examples=10)",
        num_clients=3,
        algorithm="scaffold",
        delay="with_network(constant, upload_bandwidth=100, download_bandwidth=50)",
        server_steps=1,
        concurrency=3,
    )
    (run,) = make_experiments(settings)
    model_bytes = 4 * sum(leaf.size for leaf in jax.tree.leaves(run.params))
    assert run.schedule.step_time[0] == 1 + 2 * model_bytes / 100 + 2 * model_bytes / 50
    costs = diagnose(run, None)["costs"]
    assert (costs["upload_bytes"], costs["download_bytes"]) == (3 * 2 * model_bytes, 3 * 2 * model_bytes)


@pytest.mark.parametrize(
    ("rule", "options", "vectors"),
    [
        (rules.fedbuff(), {}, (1, 1)),
        (rules.feddyn(), {"correction": "feddyn"}, (1, 1)),
        (rules.quafl(2), {"correction": "quafl"}, (1, 1)),
        (rules.scaffold(), {"correction": "scaffold"}, (2, 2)),
        (rules.masfl(), {"correction": "masfl"}, (3, 2)),
        (rules.masfl(normalize=True), {"correction": "adamasfl"}, (3, 2)),
    ],
)
def test_what_comes_with_model_and_update_is_counted(rule: Any, options: Any, vectors: Any):
    """By hand: SCAFFOLD's server sends c and its clients c_i+ - c_i; MasFL's server its momentum, too."""
    params = MODEL.init(jax.random.key(0), federation().x)
    work = jafl.client_work(MODEL, learning_rate=0.1, local_steps=2, **options).build()
    model_bytes = 4 * 43
    assert exchanged_bytes(rule.build(), work, params, 3) == (
        vectors[0] * model_bytes,
        vectors[1] * model_bytes,
    )


def test_a_single_number_of_the_model_is_sent_and_one_of_the_rule_is_not():
    params = {"weights": jnp.zeros(3), "scale": jnp.float32(1)}
    work = jafl.client_work(MODEL, learning_rate=0.1, local_steps=2, correction="feddyn").build()
    assert exchanged_bytes(rules.feddyn().build(), work, params, 3) == (16, 16)
