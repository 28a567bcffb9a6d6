"""Personal models (Ditto): limits, the server's model beside them, and what is measured on clients' own examples.

Their steps are held against the slow reference in ``tests/rules``.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference as ref
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import alone
from tiers import in_tiers

import jafl
from jafl import rules
from jafl.engine.evaluation import Evaluator
from jafl.simulation import run_group

MODEL = jafl.models.softmax(3)
SIZES = (1, 5, 60, 9, 33)  # one client's examples are evaluated in several pieces, one holds nothing out


def federation(clients: int = len(SIZES), share: float = 0.6) -> jafl.Federation:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, sum(SIZES[:clients]))
    x = random.normal(size=(len(y), 4)) + np.eye(3, 4)[y]
    partition = jafl.Partition.from_lists(np.split(np.arange(len(y)), np.cumsum(SIZES[: clients - 1])))
    # Of one example nothing can be held out.
    rest, held_out = jafl.data.hold_out(partition, share, seed=1) if clients > 1 else (partition, None)
    options = {"test_x": x, "test_y": y, "num_classes": 3, "held_out": held_out}
    return jafl.Federation.from_arrays(x, y, rest, **options)


def run(personal: Any, *, clients: int = len(SIZES), rule: Any = None, **changes: Any) -> jafl.Run:
    work = {"learning_rate": 0.1, "local_steps": 3, "batch_size": 4, "personal": personal}
    named = {name: changes.pop(name) for name in list(changes) if name in jafl.Run._fields}
    events = jafl.asynchronous(
        num_clients=clients,
        concurrency=clients,
        buffer_size=min(clients, 2),
        delay=jafl.delays.exponential(1.0),
        server_steps=15,
    )
    data = federation(clients)
    params = MODEL.init(jax.random.key(0), data.x)
    parts = (events, data, jafl.client_work(MODEL, **{**work, **changes}), rule or rules.fedbuff(), params)
    return jafl.Run(*parts, jax.random.key(1), **{"evaluate_at": [], "evaluators": {}, **named})


def assert_close(first: Any, second: Any, **tolerance: float) -> None:
    for mine, other in zip(*map(jax.tree.leaves, (first, second)), strict=True):
        np.testing.assert_allclose(mine, other, **tolerance)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("local_steps, strength", [(1, 5.0), pytest.param(4, 0.0, marks=pytest.mark.full)])
def test_of_one_client_alone_the_personal_model_is_the_servers(local_steps: int, strength: float):
    """Both make the same steps: without a pull, or where each trip begins where the last one has ended."""
    history = alone(run(jafl.ditto(strength, 0.1), clients=1, rule=rules.asgd(), local_steps=local_steps))
    assert_close(jax.tree.map(lambda leaf: leaf[0], history.personal_params), history.params, rtol=1e-11)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_without_a_pull_every_personal_model_is_its_clients_own_training():
    """Gradient descent on its own examples from w_0, whatever the server makes of the others' updates."""
    asked = run(jafl.ditto(0.0, 0.3), batch_size=0)
    personal, data = alone(asked).personal_params, asked.federation
    for client in range(len(SIZES)):
        expected = ref.float64_copy(asked.params)
        for _ in range(3 * np.count_nonzero(asked.schedule.client == client)):
            _, slope = ref.softmax_regression(expected, *data.client(client))
            expected = ref.subtract(expected, ref.scale(0.3, slope))
        own = jax.tree.map(lambda leaf, client=client: leaf[client], personal)
        assert_close(own, expected, rtol=1e-11, atol=1e-13)
    assert min(np.bincount(asked.schedule.client, minlength=len(SIZES))) > 0


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_a_strong_pull_makes_the_personal_model_the_downloaded_one():
    versions = []
    asked = run(jafl.ditto(1e7, 1e-7), evaluate_at=range(16))
    history = alone(asked, on_evaluation=lambda evaluation, params: versions.append(params))
    events, distances = asked.schedule, []
    for client in range(len(SIZES)):
        last = int(events.download_version[events.client == client][-1])
        own = jax.tree.map(lambda leaf, client=client: leaf[client], history.personal_params)
        assert_close(own, versions[last], atol=1e-5)
        distances += [
            np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (own, versions[-1])), strict=True)
        ]
    assert max(distances) > 1e-2


BESIDE: dict[str, dict[str, Any]] = {
    "fedbuff": {},
    "epochs": {"local_steps": None, "local_epochs": 2},
    "scaffold": {"rule": rules.scaffold(), "correction": "scaffold"},
    "error feedback": {"compression": jafl.compression.top_k(0.3), "error_feedback": True},
    "kept Adam": {
        **{"learning_rate": None, "keep_optimizer_state": True},
        "optimizer": jafl.specify(optax.adam, 0.01),
    },
    "qafel": {"rule": rules.qafel(jafl.compression.top_k(0.5)), "correction": "qafel"},
    "ca2fl": {"rule": rules.ca2fl(), "local_steps": 1},
}


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("changes", in_tiers(BESIDE, ["fedbuff"]))
def test_the_servers_model_has_the_same_bits_as_without(changes: dict[str, Any]):
    with_personal, without = run(jafl.ditto(0.5, 0.3), **changes), run(None, **changes)
    plan = jafl.in_waves(without.schedule, 4, client_state=True)
    first, second = (alone(each, plan=plan, together=False, devices=1) for each in (with_personal, without))
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)
    np.testing.assert_array_equal(first.trip_reports["loss"], second.trip_reports["loss"])
    assert second.personal_params is None
    kernels = [jax.tree.leaves(each)[-1] for each in (first.personal_params, first.params)]
    assert np.abs(kernels[0] - kernels[1]).max(axis=(1, 2)).min() > 1e-3


@pytest.mark.full
def test_both_models_are_measured_on_what_clients_hold_out_and_nobody_trains_on_it(tmp_path, monkeypatch):
    asked = run(jafl.ditto(0.5, 0.3), evaluate_clients=True, evaluate_at=[7])
    history = alone(asked)
    data, metrics = asked.federation, history.client_metrics
    assert max(data.held_out.sizes) > 32 and min(data.held_out.sizes) == 0
    start = {name: rows[0] for name, rows in metrics.items()}
    for name in ("accuracy", "loss"):
        np.testing.assert_allclose(start[f"personal_{name}"], start[name], rtol=1e-5)  # all are w_0
        for client, (begin, end) in enumerate(
            zip(data.held_out.offsets, data.held_out.offsets[1:], strict=False)
        ):
            rows = data.held_out.indices[begin:end]
            own = jax.tree.map(lambda leaf, client=client: leaf[client], history.personal_params)
            for column, params in ((name, history.params), (f"personal_{name}", own)):
                measured = metrics[column][-1, client]
                if len(rows):
                    expected = Evaluator(MODEL, data.x[rows], data.y[rows])(params)[name]
                    assert measured == pytest.approx(expected, rel=1e-5), (column, client)
                else:
                    assert np.isnan(measured)
        fair = history.evaluations[-1][f"client_personal_{name}_mean"]
        assert fair == pytest.approx(np.nanmean(metrics[f"personal_{name}"][-1]))
    x = np.array(data.x)
    x[data.held_out.indices] = 1e3
    monkeypatch.setattr(run_group, "MODELS_AT_ONCE", 2)  # five clients leave the device in three blocks
    poisoned = alone(asked._replace(federation=dataclasses.replace(data, x=x), evaluate_clients=False))
    jax.tree.map(np.testing.assert_array_equal, poisoned.personal_params, history.personal_params)
    history.save(tmp_path / "history.npz")
    saved = jafl.History.load(tmp_path / "history.npz").personal_params
    jax.tree.map(np.testing.assert_array_equal, saved, history.personal_params)


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("together", [False, True])
def test_runs_of_a_group_train_and_measure_their_own(together: bool):
    numbers = ((0.0, 0.1), (0.5, 0.3), (2.0, 0.05))
    runs = [run(jafl.ditto(*each), evaluate_clients=True) for each in numbers]
    histories = jafl.simulate_many(runs, together=together)
    for each, history in zip(runs, histories, strict=True):
        expected = alone(each)
        assert_close(history.personal_params, expected.personal_params, rtol=2e-5, atol=1e-6)
        assert_close(history.client_metrics, expected.client_metrics, rtol=1e-4, atol=1e-6)
    losses = {history.evaluations[-1]["client_personal_loss_mean"] for history in histories}
    assert (
        len(losses) == 3 and len({history.evaluations[-1]["client_loss_mean"] for history in histories}) == 1
    )


@pytest.mark.full
def test_in_8_bits_personal_models_are_near_those_in_full():
    full, few = (alone(run(jafl.ditto(0.5, 0.3), state_precision=each)) for each in ("full", "int8"))
    assert_close(few.personal_params, full.personal_params, atol=0.05)
    assert not np.array_equal(*(jax.tree.leaves(each.personal_params)[0] for each in (few, full)))


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: jafl.ditto(-0.1, 0.1), "strength is -0.1, but must be a finite number, at least 0"),
        (lambda: jafl.ditto(0.1, np.nan), "learning_rate is nan, but must be a finite number, at least 0"),
        (lambda: jafl.ditto(20, 0.1), "strength times learning_rate is 2.0, but must be below 2"),
        (
            lambda: jafl.ditto(1, 0.1, local_steps=0),
            "local_steps is 0, but must be a whole number of at least 1",
        ),
        (
            lambda: jafl.ditto(1, 0.1, local_steps="scheduled"),
            "local_steps is 'scheduled', but must be a whole",
        ),
        (lambda: run(0.5), "personal is 0.5, but must be None or a jafl.ditto"),
        (lambda: run(jafl.specify(optax.sgd, 0.1)), "personal is sgd.*, but must be None or a jafl.ditto"),
        (lambda: run(None, state_precision="int8"), "error_feedback and personal"),
    ],
)
def test_what_cannot_work_is_refused_by_name(call: Any, said: str):
    with pytest.raises(jafl.SettingError, match=said):
        call()


def test_numbers_are_data():
    """Another strength and rate run the program that is compiled."""
    first, second = (
        jax.tree.structure(jafl.ditto(*numbers)) for numbers in ((0.5, 0.1), (1, jnp.float32(0.2)))
    )
    assert first == second
