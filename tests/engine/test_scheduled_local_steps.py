"""Local steps that the schedule says, trip by trip; the tables of cases compare them with the reference."""

import dataclasses
import json
import zipfile

import jax
import numpy as np
import pytest
from refusals import refuses
from small_runs import resumed, small_parts, step_by_step, stopping_at

import jafl
from jafl.clients.records import ClientData
from jafl.engine.plan.preparation import prepare
from jafl.engine.plan.slots_and_waves import rounds

STEPS = 24


def parts(rule=None, steps=None, **work) -> dict:
    """Arguments of ``jafl.simulate``: trips of 0 to 4 local steps, or of the given ones."""
    own = small_parts(STEPS)
    if rule is not None:
        own["rule"] = rule
    schedule = own["schedule"]
    if steps is None:
        steps = (schedule.client + 2 * schedule.trip) % 5
    model = own["client_work"].build().model
    own["schedule"] = dataclasses.replace(schedule, local_steps=np.asarray(steps))
    own["client_work"] = jafl.client_work(
        model, learning_rate=0.3, batch_size=4, **{"local_steps": "scheduled", **work}
    )
    return own


@pytest.mark.full
def test_a_trip_of_no_steps_changes_nothing_and_has_the_loss_of_its_first_minibatch():
    own = parts(jafl.rules.fedavg())
    ours = jafl.simulate(**own)
    none = own["schedule"].local_steps == 0
    assert 3 < none.sum() < len(none) - 3
    of_fednova = jafl.simulate(**own | {"rule": jafl.rules.fednova()})
    assert np.array_equal(of_fednova.weights[none] == 0, np.ones(none.sum(), bool))
    # All trips of step 0 make one step or none: a trip's loss is that of version 0, whatever it does afterwards.
    first = own["schedule"].download_version == 0
    fixed = jafl.simulate(
        **own
        | {
            "schedule": dataclasses.replace(own["schedule"], local_steps=None),
            "client_work": parts(local_steps=4)["client_work"],
        }
    )
    np.testing.assert_array_equal(ours.trip_reports["loss"][first], fixed.trip_reports["loss"][first])


@pytest.mark.full
def test_a_step_of_trips_without_steps_leaves_the_model():
    own = parts()
    late = own["schedule"].step >= 5
    own["schedule"] = dataclasses.replace(own["schedule"], local_steps=np.where(late, 0, 3).astype(np.int32))
    for rule in (jafl.rules.fednova(), jafl.rules.twafl(), jafl.rules.fedbuff()):
        with jax.debug_nans(True):
            whole = jafl.simulate(**own | {"rule": rule})
        with step_by_step():
            short = jafl.simulate(**own | {"rule": rule}, **stopping_at(5))
        jax.tree.map(np.testing.assert_array_equal, whole.params, short.params)


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("form", ["loop", pytest.param("matrix", marks=pytest.mark.full)])
def test_as_many_steps_in_every_trip_are_those_of_the_client_work(form):
    own = parts(steps=np.full(3 * STEPS, 3))
    fixed = own | {
        "schedule": dataclasses.replace(own["schedule"], local_steps=None),
        "client_work": parts(local_steps=3)["client_work"],
    }
    for waves in (1, 4):
        plan = jafl.in_waves(own["schedule"], waves, form=form)
        ours, theirs = (jafl.simulate(**each, plan=plan, together=True) for each in (own, fixed))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), ours.params, theirs.params
        )


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize(
    "shared",
    [
        pytest.param(True, id="one schedule"),
        pytest.param(False, id="own schedules", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("form", ["loop", pytest.param("matrix", marks=pytest.mark.full)])
def test_runs_that_go_together_give_what_each_gives_alone(shared, form):
    own = parts()
    runs = [
        jafl.Run(
            **own
            | {
                "key": jax.random.key(number),
                "schedule": own["schedule"]
                if shared
                else parts(steps=(own["schedule"].client * 3 + number) % 4)["schedule"],
            }
        )
        for number in range(3)
    ]
    together = jafl.simulate_many(runs, form=form)
    for run, history in zip(runs, together, strict=True):
        expected = jafl.simulate(*run[:6], form="loop")
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            history.params,
            expected.params,
        )


@pytest.mark.full
@pytest.mark.parametrize("form", ["loop", pytest.param("matrix", marks=pytest.mark.full)])
def test_a_run_that_stopped_goes_on(tmp_path, form):
    own = parts(jafl.rules.fednova())
    resumed(lambda **options: jafl.simulate(**own, form=form, **options), tmp_path, 5, 14)


def test_a_checkpoint_of_other_local_steps_is_refused(tmp_path):
    own = parts()
    with step_by_step():
        jafl.simulate(**own, checkpoints=jafl.Checkpoints(tmp_path), **stopping_at(5))
    other = own | {
        "schedule": dataclasses.replace(own["schedule"], local_steps=own["schedule"].local_steps + 1)
    }
    with refuses("schedule"):
        jafl.simulate(**other, checkpoints=jafl.Checkpoints(tmp_path))


@pytest.mark.full
def test_a_saved_history_has_the_column_only_where_its_schedule_has_it(tmp_path):
    own = parts()
    jafl.simulate(**own).save(tmp_path / "own.npz")
    np.testing.assert_array_equal(
        jafl.History.load(tmp_path / "own.npz").schedule.local_steps, own["schedule"].local_steps
    )
    jafl.simulate(**small_parts(3)).save(tmp_path / "plain.npz")
    with zipfile.ZipFile(tmp_path / "plain.npz") as archive:
        assert "local_steps" not in json.dumps(json.loads(archive.read("history.json"))["fields"]["schedule"])
    assert jafl.History.load(tmp_path / "plain.npz").schedule.local_steps is None


def test_who_says_how_many_steps_there_are_must_be_clear():
    own = parts()
    bare = dataclasses.replace(own["schedule"], local_steps=None)
    with refuses("the schedule's local_steps is None", "given where", "Make one with local_steps"):
        jafl.simulate(**own | {"schedule": bare})
    with refuses("the client work's local_steps", "'scheduled' here"):
        jafl.simulate(**own | {"client_work": parts(local_steps=3)["client_work"]})
    with refuses("local_steps", "'schedled'", "scheduled"):
        parts(local_steps="schedled")
    with refuses("local_steps and local_epochs", "not both given"):
        parts(local_epochs=1)


@pytest.mark.parametrize(
    "steps, said",
    [
        (np.zeros(3 * STEPS, np.int32), ("0 in every trip", "above 0 in some trip", "No trip would change")),
        (np.full(3 * STEPS, -1), ("-1", "from 0 to")),
        (np.full(3 * STEPS, 10**9), ("1000000000", "from 0 to 100,000,000")),
        (np.ones(3 * STEPS), ("float64", "whole numbers, one for each of the 72 trips")),
        (np.ones(5, np.int32), ("(5,)", "whole numbers, one for each of the 72 trips")),
    ],
)
def test_impossible_numbers_are_refused(steps, said):
    with refuses("the schedule's local_steps", *said):
        jafl.simulate(**parts(steps=steps))


def test_waves_see_how_much_work_each_trip_is():
    """Trips of very unequal work train in waves of their own kinds, as those of unequal clients do."""
    own = parts(steps=np.where(np.arange(3 * STEPS) % 2, 64, 1))
    plan = prepare(jafl.Run(**own), together=True, form="loop").plan
    cost = np.where(np.arange(3 * STEPS) % 2, 64.0, 1.0)
    even = prepare(jafl.Run(**parts(steps=np.full(3 * STEPS, 8))), together=True, form="loop").plan
    assert rounds(plan, cost) < rounds(even, cost)


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(
            {"error_feedback": True, "compression": jafl.compression.top_k(0.3)}, id="error feedback"
        ),
        pytest.param({"correction": "ef21", "compression": jafl.compression.top_k(0.3)}, id="ef21"),
        pytest.param({"personal": jafl.ditto(0.5, 0.1), "keep_optimizer_state": True}, id="personal"),
    ],
)
def test_a_model_that_is_one_bare_array_trains_as_one_in_a_dict(kept):
    """An array is no truth value, as a dict is: what a client keeps is looked for by None."""
    x, y = jax.random.normal(jax.random.key(0), (6, 4)), jax.numpy.arange(6) % 3
    update, keeps = {}, {}
    for name, wrap in (("bare", lambda w: w), ("in a dict", lambda w: {"w": w})):
        model = jafl.Model(
            (lambda key, x, wrap=wrap: wrap(jax.numpy.zeros((4, 3))), lambda w, x: _product(w, x))
        )
        work = jafl.client_work(
            model, learning_rate=0.3, batch_size=4, local_steps="scheduled", **kept
        ).build()
        start = wrap(jax.numpy.zeros((4, 3)))
        offsets, words = jax.numpy.array([0, 6]), jax.numpy.uint32([1, 2])
        data = ClientData(x, y, jax.numpy.arange(6), offsets, state=work.state.initial(start))
        trips = [
            work.train(data._replace(local_steps=jax.numpy.int32(steps)), start, jax.numpy.int32(0), words)
            for steps in (0, 2)
        ]
        update[name], keeps[name] = (
            [jax.tree.leaves(part) for part in column]
            for column in zip(*((trip.update, trip.state) for trip in trips), strict=True)
        )
    jax.tree.map(np.testing.assert_array_equal, update["bare"], update["in a dict"])
    jax.tree.map(np.testing.assert_array_equal, keeps["bare"], keeps["in a dict"])
    assert np.any(update["bare"][1][0])


def _product(params, x):
    """The logits of a linear model, whose parameters are a matrix or a dict with one."""
    return x @ jax.tree.leaves(params)[0]
