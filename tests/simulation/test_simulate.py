"""The driver: evaluations, progress, stopping, divergence, memory, and what does not fit together."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from preparing import placed
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import rules
from jafl.engine.evaluation import Evaluator
from jafl.engine.loop import server_steps
from jafl.engine.plan import device_memory

MODEL = jafl.models.softmax(10)


@pytest.fixture(scope="module")
def source():
    return jafl.data.digits()


def experiment(source, *, steps=40, buffer_size=5, learning_rate=0.1, clients=30, **work):
    federation = jafl.federate(source, jafl.data.dirichlet(source.y, clients, alpha=0.5, seed=0))
    schedule = jafl.asynchronous(
        num_clients=clients,
        concurrency=10,
        buffer_size=buffer_size,
        delay=jafl.delays.exponential(1.0),
        server_steps=steps,
    )
    local = jafl.client_work(MODEL, learning_rate=learning_rate, **work)
    params = MODEL.init(jax.random.key(0), source.x)
    return schedule, federation, local, rules.fedbuff(), params, jax.random.key(1)


def test_evaluations_are_at_the_steps_asked_for_and_at_both_ends(source):
    history = jafl.simulate(*experiment(source), evaluate_at=[7, 3, 7])
    assert [e["server_step"] for e in history.evaluations] == [0, 3, 7, 40]
    schedule = history.schedule
    for evaluation in history.evaluations[1:]:
        step = evaluation["server_step"]
        assert evaluation["client_trips"] == 5 * step
        assert evaluation["time"] == schedule.step_time[step - 1]
    first = history.evaluations[0]
    assert (first["client_trips"], first["time"], first["train_loss"]) == (0, 0.0, None)
    assert first["test_loss"] == pytest.approx(np.log(10), rel=1e-6)
    losses = history.trip_reports["loss"][15:35]
    assert history.evaluations[2]["train_loss"] == pytest.approx(losses.mean(), rel=1e-6)


def test_evaluator_matches_numpy(source):
    random = np.random.default_rng(0)
    params = {"dense": {"kernel": random.normal(size=(64, 10)), "bias": random.normal(size=10)}}
    for count in (1, 360, 700):
        x, y = source.x[:count], source.y[:count]
        outputs = (
            x.reshape(count, 64).astype(np.float64) @ params["dense"]["kernel"] + params["dense"]["bias"]
        )
        loss = np.mean(np.log(np.exp(outputs).sum(axis=1)) - outputs[np.arange(count), y])
        measured = Evaluator(MODEL, x, y)(jax.tree.map(jnp.asarray, params))
        assert measured["accuracy"] == pytest.approx(np.mean(outputs.argmax(axis=1) == y), abs=1e-9)
        assert measured["loss"] == pytest.approx(loss, rel=1e-5)


def test_progress_counts_up_to_the_end(source):
    seen = []
    jafl.simulate(*experiment(source), on_progress=seen.append, evaluate_at=[10])
    assert seen == sorted(seen) and seen[-1] == 40 and 10 in seen


def test_stopping_keeps_what_was_measured(source):
    whole = jafl.simulate(*experiment(source), evaluate_at=[10, 20, 30])
    count = iter(range(1000))
    stopped = jafl.simulate(
        *experiment(source), evaluate_at=[10, 20, 30], should_stop=lambda: next(count) >= 2
    )
    steps = stopped.server_steps
    assert 0 < steps < 40
    assert stopped.evaluations[:-1] == whole.evaluations[: len(stopped.evaluations) - 1]
    assert stopped.evaluations[-1]["server_step"] == steps
    assert len(stopped.trip_reports["loss"]) == 5 * steps
    np.testing.assert_array_equal(stopped.trip_reports["loss"], whole.trip_reports["loss"][: 5 * steps])


def test_evaluation_callback_sees_each_evaluation_as_it_is_made(source):
    seen = []
    history = jafl.simulate(
        *experiment(source),
        evaluate_at=[20],
        on_evaluation=lambda e, params: seen.append((e, jnp.sum(jnp.abs(params["dense"]["kernel"])))),
    )
    assert [evaluation for evaluation, _ in seen] == history.evaluations
    assert float(seen[-1][1]) == pytest.approx(
        float(np.sum(np.abs(history.params["dense"]["kernel"]))), rel=1e-5
    )


@pytest.mark.full
@pytest.mark.parametrize("buffer_size", [1, 5])
def test_divergence_names_the_first_step_and_client(source, buffer_size):
    """A client with an infinite example is the one that is named, at the step that applies its first trip."""
    arguments = list(experiment(source, steps=60, buffer_size=buffer_size))
    schedule, federation = arguments[:2]
    counts = np.bincount(schedule.client, minlength=30)
    first_trip = np.array([np.argmax(schedule.client == c) if counts[c] else 10**6 for c in range(30)])
    victim = int(np.argsort(first_trip)[15])  # some client that comes neither first nor last
    x = federation.x.copy()
    held = federation.partition
    x[held.indices[held.offsets[victim] : held.offsets[victim + 1]]] = 1e38
    import dataclasses

    arguments[1] = dataclasses.replace(federation, x=x)
    with pytest.raises(jafl.DivergenceError) as raised:
        jafl.simulate(*arguments, evaluate_at=range(0, 60, 3))
    assert raised.value.client == victim
    assert raised.value.server_step == schedule.step[first_trip[victim]]
    assert f"client {victim}" in str(raised.value) and "learning rate" in str(raised.value)
    kept = raised.value.history.evaluations
    assert kept[-1]["server_step"] <= raised.value.server_step and len(kept) >= 1
    assert all(np.isfinite(e["test_loss"]) for e in kept)


def test_divergence_of_the_server_alone_names_no_client(source):
    arguments = experiment(source)
    with pytest.raises(jafl.DivergenceError) as raised:
        jafl.simulate(*arguments, server_optimizer=jafl.specify(optax.sgd, learning_rate=float("inf")))
    assert raised.value.client is None and raised.value.server_step == 0


def test_memory_beyond_the_device_is_refused_before_training(source, monkeypatch):
    monkeypatch.setattr(device_memory, "device_memory", lambda: 100_000)
    with pytest.raises(jafl.SettingError, match=r"needs .* of device memory.*97.7 KiB.*lower concurrency"):
        jafl.simulate(*experiment(source))


def test_what_does_not_fit_together_is_refused(source):
    schedule, federation, work, rule, params, key = experiment(source)
    other, *_ = experiment(source, clients=20)
    with pytest.raises(jafl.SettingError, match="num_clients is 20, but must be .* 30"):
        jafl.simulate(other, federation, work, rule, params, key)
    small = jafl.models.softmax(9)
    with pytest.raises(jafl.SettingError, match="number of classes is 9, but must be at least .* 10"):
        jafl.simulate(
            schedule,
            federation,
            jafl.client_work(small, learning_rate=0.1),
            rule,
            small.init(key, source.x),
            key,
        )
    with pytest.raises(jafl.SettingError, match="evaluate_at"):
        jafl.simulate(schedule, federation, work, rule, params, key, evaluate_at=[41])


@pytest.mark.full
def test_any_flax_module_and_any_loss_work(source):
    """A user's own module and loss, at the size of a small run."""
    import flax.linen as nn

    class Tiny(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(10)(nn.tanh(nn.Dense(12)(x.reshape(len(x), -1))))

    def squared(outputs, labels):
        return jnp.sum((outputs - jax.nn.one_hot(labels, 10)) ** 2, axis=-1)

    model = jafl.Model(Tiny(), squared)
    schedule, federation, _, rule, _, key = experiment(source, steps=200)
    work = jafl.client_work(model, learning_rate=0.05, local_epochs=1)
    history = jafl.simulate(schedule, federation, work, rule, model.init(key, source.x), key)
    assert history.evaluations[-1]["test_loss"] < 0.5 * history.evaluations[0]["test_loss"]


@pytest.mark.full
def test_cnn_and_several_optimizers_learn(source):
    model = jafl.models.cnn(10, (8,))
    schedule, federation, _, rule, _, key = experiment(source, steps=150)
    work = jafl.client_work(model, optimizer=jafl.specify(optax.adam, learning_rate=0.01), local_epochs=1)
    history = jafl.simulate(
        schedule,
        federation,
        work,
        rule,
        model.init(key, source.x),
        key,
        server_optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)),
    )
    assert history.evaluations[-1]["test_accuracy"] > 0.8


def test_plan_can_be_given_and_does_not_change_the_result(source):
    """The same schedule with every version in a slot of its own: another plan, the same numbers."""
    arguments = experiment(source)
    schedule = arguments[0]
    wide = dataclasses.replace(
        jafl.trip_by_trip(schedule),
        read_slot=schedule.download_version,
        write_slot=np.arange(1, schedule.num_steps + 1, dtype=np.int32),
        num_slots=schedule.num_steps + 1,
    )
    narrow, own_slots = jafl.simulate(*arguments), jafl.simulate(*arguments, plan=wide)
    assert narrow.num_slots < own_slots.num_slots
    jax.tree.map(np.testing.assert_array_equal, narrow.params, own_slots.params)


def test_run_is_pure_given_its_carry(source):
    program, carry = placed(*experiment(source))
    copy = jax.tree.map(jnp.copy, carry)
    first, second = server_steps.run(program, carry, 0, 40), server_steps.run(program, copy, 0, 40)
    jax.tree.map(np.testing.assert_array_equal, first, second)
