"""Runs that are stopped at random places, again and again, end with the bits of one that never was."""

from functools import partial

import jax
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import assert_same_bits, stopping_at

import jafl
from jafl import rules

CLIENTS = 8
SOURCE = jafl.data.synthetic(num_clients=CLIENTS, alpha=1.0, beta=1.0, mean_examples=12, num_features=5)
MODEL = jafl.models.softmax(SOURCE.num_classes)
FEDERATION = jafl.federate(SOURCE, SOURCE.natural_partition)
WORLD = {"num_clients": CLIENTS, "concurrency": 6, "buffer_size": 3, "server_steps": 40}
K_ASYNCHRONOUS = {"restart": "after_step", "failure_rate": 0.2}
LEAVING = {"dropout": jafl.Dropout(0.4, trips=5)}
AWAY = {"availability": jafl.availability.on_and_off(6.0, 1.0)}
EVERYBODY = {"concurrency": CLIENTS, "buffer_size": 1, "initial_round": True}
MOMENTUM = jafl.specify(optax.sgd, learning_rate=0.5, momentum=0.9)

# (rule, server optimizer, what differs from WORLD)
RUNS = {
    "fedbuff, dropout": (rules.fedbuff(), MOMENTUM, LEAVING),
    "fedasync, clients that go away": (rules.fedasync(), None, {**AWAY, "buffer_size": 1}),
    "K-asynchronous, failures": (rules.fedbuff(), MOMENTUM, K_ASYNCHRONOUS),
    "K-asynchronous, a time-out": (
        rules.ca2fl(),
        None,
        {**K_ASYNCHRONOUS, **LEAVING, "replace_lost": "after_time_out", "trip_time_out": 0.7},
    ),
    "K-synchronous": (rules.fedavg(), MOMENTUM, {**K_ASYNCHRONOUS, "cancel_at_step": True}),
    "steps of unequal sizes": (rules.fedstaleweight(), None, {"flush_after": 0.3, "staleness_limit": 3}),
    "ace": (rules.ace(), None, EVERYBODY),
    "aced in 8 bits": (rules.aced(active_steps=9, memory_precision="int8"), None, EVERYBODY),
    "aced in buffers": (rules.aced(active_steps=2), None, {**EVERYBODY, "buffer_size": 3}),
}
CASES = {f"{form}: {name}": (form, *run) for form in ("loop", "matrix") for name, run in RUNS.items()}


def simulated(case, *, evaluate_at=(7, 22), **options):
    form, rule, optimizer, world = case
    schedule = jafl.asynchronous(**{**WORLD, "delay": jafl.delays.log_normal(1.0, 1.0), "seed": 3, **world})
    return jafl.simulate(
        schedule,
        FEDERATION,
        jafl.client_work(MODEL, learning_rate=0.1, local_steps=2, batch_size=4),
        rule,
        MODEL.init(jax.random.key(0), SOURCE.x),
        jax.random.key(1),
        server_optimizer=optimizer,
        form=form,
        evaluate_at=evaluate_at,
        **options,
    )


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_stopped_at_random_places_it_ends_with_the_same_bits(case, tmp_path, monkeypatch):
    """Each part asks for checkpoints at other places; in the matrix form the first part's decide the last bits."""
    parts = 0
    for seed in range(3):
        random, folder = np.random.default_rng(seed), tmp_path / str(seed)
        first = int(random.integers(5, 60))
        whole = simulated(case, checkpoints=jafl.Checkpoints(tmp_path / f"whole {seed}", every=first))
        assert whole.server_steps == WORLD["server_steps"]
        steps = 0
        while steps < whole.server_steps:
            monkeypatch.setattr("jafl.simulation.driver.SECONDS_PER_CHUNK", random.choice([0.0, 0.001, 0.1]))
            every = random.choice([None, 7, 20, 45]) if steps else first
            checkpoints = jafl.Checkpoints(folder, every=every and int(every))
            ended = simulated(case, checkpoints=checkpoints, should_stop=partial(stops_by_chance, random))
            steps, parts = ended.server_steps, parts + 1
        assert_same_bits(ended, whole)
    assert parts > 6


def stops_by_chance(random):
    return random.random() < 0.3


@pytest.mark.full
def test_other_evaluations_are_refused_where_they_decide_bits(tmp_path):
    """The matrix form cuts its waves where a run is evaluated: it cannot be looked at elsewhere later."""
    case = CASES["matrix: fedbuff, dropout"]
    simulated(case, checkpoints=jafl.Checkpoints(tmp_path), **stopping_at(7))
    with pytest.raises(
        jafl.SettingError, match=r"^evaluate_at is \[9\], but must be without these server steps"
    ):
        simulated(case, checkpoints=jafl.Checkpoints(tmp_path), evaluate_at=[7, 9, 22])
    fewer = simulated(case, checkpoints=jafl.Checkpoints(tmp_path), evaluate_at=[22])
    assert fewer.server_steps == WORLD["server_steps"]
