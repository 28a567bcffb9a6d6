"""Accuracy and loss of the model on each client's own examples, over time: against NumPy, and after a checkpoint."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from digits_runs import FEDERATION, MODEL, PARTITION, SOURCE
from digits_runs import run as digits_run
from small_runs import alone, resumed

import jafl
from jafl.engine.evaluation import Evaluator, fairness

run = functools.partial(digits_run, server_steps=12, evaluate_at=[4, 8], evaluate_clients=True)


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("held_out", [False, True])
def test_each_client_is_measured_on_its_own_examples(held_out):
    federation = FEDERATION
    if held_out:
        rest, kept = jafl.data.hold_out(PARTITION, 0.3, seed=1)
        federation = jafl.federate(SOURCE, rest, held_out=kept)
    seen = []
    history = alone(run(federation=federation), on_evaluation=lambda *arguments: seen.append(arguments))
    own = federation.held_out if held_out else federation.partition
    assert {name: rows.shape for name, rows in history.client_metrics.items()} == dict.fromkeys(
        ("accuracy", "loss"), (4, 12)
    )
    for place, (_, params) in enumerate(seen):
        for client in range(12):
            rows = own.indices[own.offsets[client] : own.offsets[client + 1]]
            if not len(rows):
                assert np.isnan(history.client_metrics["loss"][place, client])
                continue
            expected = Evaluator(MODEL, federation.x[rows], federation.y[rows])(params)
            for name, value in expected.items():
                assert history.client_metrics[name][place, client] == pytest.approx(value, rel=1e-5)
    accuracy, loss = (np.sort(history.client_metrics[name][-1]) for name in ("accuracy", "loss"))
    accuracy, loss = (values[~np.isnan(values)] for values in (accuracy, loss))
    last = history.evaluations[-1]
    assert last["client_accuracy_worst_tenth"] == pytest.approx(accuracy[:2].mean())  # two of twelve
    assert last["client_loss_worst_tenth"] == pytest.approx(loss[-2:].mean())
    assert last["client_loss_mean"] == pytest.approx(loss.mean())
    assert last["client_accuracy_std"] == pytest.approx(accuracy.std())


@pytest.mark.full
def test_they_come_back_from_a_checkpoint_and_from_a_file(tmp_path):
    ended, part = resumed(lambda **options: alone(run(), **options), tmp_path, 6)
    assert part.client_metrics["loss"].shape == (3, 12)  # steps 0, 4 and 6
    ended.save(tmp_path / "history.npz")
    saved = jafl.History.load(tmp_path / "history.npz").client_metrics
    jax.tree.map(np.testing.assert_array_equal, saved, ended.client_metrics)


@pytest.mark.full
def test_runs_in_one_program_measure_their_clients_each():
    histories = jafl.simulate_many(
        [run(), run()._replace(key=jax.random.key(2)), run()._replace(evaluate_clients=False)]
    )
    own = alone(run())
    np.testing.assert_allclose(histories[0].client_metrics["loss"], own.client_metrics["loss"], rtol=1e-4)
    assert not np.array_equal(histories[1].client_metrics["loss"], histories[0].client_metrics["loss"])
    assert histories[2].client_metrics is None
    assert "client_loss_mean" not in histories[2].evaluations[-1]


def test_fairness_numbers_by_hand():
    values = np.array([*np.arange(20.0), np.nan])
    assert fairness(values, better="larger") == {
        "mean": 9.5,
        "worst_tenth": 0.5,
        "std": values[:20].std(),
    }
    assert fairness(values, better="smaller")["worst_tenth"] == 18.5
    assert list(fairness(values, better=None)) == ["mean", "std"], "nobody knows which are the worst"


def test_the_worst_tenth_of_an_error_has_the_most_and_of_what_nobody_knows_there_is_none():
    errors = {
        "mean_absolute_error": lambda outputs, y: jnp.abs(outputs[:, 0] - y),
        "drift": lambda outputs, y: outputs[:, 0],
    }
    model = dataclasses.replace(MODEL, metrics=errors)
    work = jafl.client_work(model, learning_rate=0.3, local_steps=1, batch_size=8)
    history = alone(run()._replace(client_work=work))
    last, clients = history.evaluations[-1], history.client_metrics["mean_absolute_error"][-1]
    worst = np.sort(clients[~np.isnan(clients)])[-2:]  # two of twelve
    assert last["client_mean_absolute_error_worst_tenth"] == pytest.approx(worst.mean())
    assert "client_drift_mean" in last and "client_drift_worst_tenth" not in last


@pytest.mark.full
def test_wrong_uses_are_refused():
    with pytest.raises(jafl.SettingError, match="evaluate_clients is 1, but must be True or False"):
        alone(run()._replace(evaluate_clients=1))
    own = {"client_loss": lambda params: {"mean": 1.0}}
    with pytest.raises(jafl.SettingError, match="client_loss_mean"):
        alone(run(evaluators=own))
