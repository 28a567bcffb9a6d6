"""The forecast of memory: arrays to the byte, temporary values within a factor, the width that fits, the refusal."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from preparing import prepared

import jafl
from jafl import rules
from jafl.engine.devices import Placement
from jafl.engine.evaluation import Evaluator
from jafl.engine.loop import server_steps
from jafl.engine.plan import device_memory
from jafl.engine.plan.make_program import allocation
from jafl.engine.plan.tried_plans import TriedPlans

pytestmark = pytest.mark.without_compilation_cache

SIDE_BY_SIDE = {"devices": 1, "together": True}
# How far the estimate of temporary values may be from what XLA allocates.
AT_LEAST, AT_MOST = 0.5, 2.5
COMPRESSED = {"correction": "ef21", "compression": jafl.compression.top_k(0.1)}


def experiment(rule="fedbuff", *, model=None, size=8, buffer_size=5, concurrency=30, **work):
    """Gaussian noise [size, size, 1] of 30 clients with 20 examples each."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(600, size, size, 1)).astype(np.float32), random.integers(0, 10, 600)
    parts = jafl.data.iid(y, 30, seed=0)
    federation = jafl.Federation.from_arrays(x, y, parts, test_x=x[:100], test_y=y[:100], num_classes=10)
    from_all = rule in ("ace", "aced")
    schedule = jafl.asynchronous(
        num_clients=30,
        concurrency=concurrency,
        buffer_size=1 if from_all else 10 if rule == "wkafl" else buffer_size,
        delay=jafl.delays.exponential(1.0),
        server_steps=40,
        initial_round=from_all,
    )
    model = model or jafl.models.mlp(10, (30,))
    made = jafl.client_work(model, learning_rate=0.1, **work)
    return schedule, federation, made, rules.RULES[rule](), model.init(jax.random.key(0), x)


def bytes_there(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("wide", [False, True], ids=["trip by trip", "in waves"])
@pytest.mark.parametrize("rule", ["fedbuff", "fedasync", "ace", "aced", "ca2fl", "wkafl"])
def test_arrays_are_foretold_to_the_byte(rule, wide):
    arguments = experiment(rule, buffer_size=1 if rule == "fedasync" else 5)
    plan = jafl.in_waves(arguments[0], 6) if wide else None
    optimizer = jafl.specify(optax.adam, learning_rate=0.1)
    options = {"plan": plan, "server_optimizer": optimizer, "devices": 1, "together": wide}
    preparation = prepared(*arguments, **options)
    found, (program, carry) = preparation.forecast, preparation.place()
    training, server = program.training, program.server
    evaluator = Evaluator(training.client_work.build().model, arguments[1].test_x, arguments[1].test_y)
    assert {name: size for name, size in found.parts.items() if name != "temporaries"} == {
        "data": bytes_there(program.data),
        "evaluation": bytes_there(evaluator._batches),
        "schedule": bytes_there(
            (training.trips, server.arrivals, server.steps, program.waves, server.recall, server.key)
        ),
        "model": bytes_there(
            (carry.params, training.client_work, server.rule, server.optimizer),
        ),
        "snapshots": bytes_there(carry.snapshots),
        "client_memory": bytes_there(carry.memory),
        "rule_state": bytes_there((carry.rule_state, carry.optimizer_state)),
        "waiting": bytes_there(carry.waiting),
        "reports": bytes_there((carry.trip_reports, carry.step_reports)),
    }
    assert found.needed == bytes_there((program, carry, evaluator._batches)) + found.parts["temporaries"]
    assert (found.parts["client_memory"] > 0) == (rule in ("ace", "aced", "ca2fl"))
    assert (found.parts["waiting"] > 0) == wide and found.width == (6 if wide else 1)


@pytest.mark.full
def test_what_the_run_writes_is_allocated_without_a_copy():
    arguments = experiment("ace")
    preparation = prepared(*arguments, devices=1, together=False)
    start = allocation(preparation.run, preparation.plan)
    lowered = start.func.lower(preparation.program_with_keys(), arguments[-1], **start.keywords)
    found = lowered.compile().memory_analysis()
    assert found.temp_size_in_bytes < 0.1 * preparation.forecast.parts["snapshots"]


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("case", "width"),
    [
        ({}, 1),
        ({"rule": "wkafl"}, 1),
        ({"rule": "aced"}, 1),
        ({"local_epochs": 2, "batch_size": 8}, 1),
        ({"local_epochs": 2, "batch_size": 8}, 16),
        ({"rule": "ace"}, 8),
        ({"model": jafl.models.cnn(10, (8,))}, 1),
        ({"model": jafl.models.cnn(10, (8,))}, 4),
    ],
)
def test_temporary_values_are_foretold_within_a_factor(case, width):
    arguments = experiment(**{"model": jafl.models.mlp(10, (200,)), "size": 16, **case})
    plan = jafl.in_waves(arguments[0], width) if width > 1 else None
    preparation = prepared(*arguments, plan=plan, together=width > 1, devices=1)
    found, (program, carry) = preparation.forecast, preparation.place()
    compiled = server_steps.run.lower(program, carry, 0, 0).compile().memory_analysis().temp_size_in_bytes
    assert AT_LEAST * compiled <= found.parts["temporaries"] <= AT_MOST * compiled


@pytest.mark.full
def test_the_width_falls_until_it_fits():
    arguments = experiment(local_epochs=1, batch_size=8)
    run = jafl.Run(*arguments, jax.random.key(1))

    def needed(plan):
        """With room for twice the temporary values that are foretold."""
        found = prepared(*arguments, plan=plan, **SIDE_BY_SIDE).forecast
        return found.needed + found.parts["temporaries"]

    def chosen(available):
        return TriedPlans(run, Placement(side_by_side=True), available, on_training=False).fitting_plan(None)

    widest = chosen(2**40)
    assert widest.width == 30  # all that are in flight
    halves = [jafl.in_waves(arguments[0], width) for width in (15, 7, 3, 1)]
    for wider, narrower in zip([widest, *halves], halves, strict=False):
        assert needed(narrower) < needed(wider)
        assert chosen(needed(wider)).width == wider.width
        assert chosen(needed(wider) - 1).width == narrower.width
    assert chosen(1).width == 1
    with pytest.raises(jafl.SettingError, match="run needs"):
        prepared(*arguments, **SIDE_BY_SIDE, available=1000)


@pytest.mark.full
@pytest.mark.parametrize(
    ("case", "largest", "remedy"),
    [
        ({"rule": "ca2fl", "concurrency": 6}, "the clients' memory", "memory_precision int8, fewer clients"),
        (
            {"rule": "ef21", **COMPRESSED, "concurrency": 6},
            "the clients' memory",
            "a state of floating numbers alone, state_precision int8",
        ),
        ({}, "40 snapshots of a model of", "lower concurrency"),
        ({"model": jafl.models.softmax(10), "size": 40}, "the data", "Take fewer examples"),
    ],
    ids=["clients' memory", "clients' states", "snapshots", "data"],
)
def test_what_cannot_fit_is_refused_and_the_largest_part_comes_first(case, largest, remedy):
    arguments = experiment(**{"model": jafl.models.mlp(10, (300,)), **case})
    found = prepared(*arguments).forecast
    enough = found.needed - found.parts["temporaries"]
    assert prepared(*arguments, available=enough).forecast.arrays_fit
    with pytest.raises(jafl.SettingError) as refused:
        prepared(*arguments, available=enough - 1)
    size = device_memory.readable(max(found.parts.values()))
    have = device_memory.readable(enough - 1)
    assert f"the device has {have}: {size} for {largest}" in str(refused.value)
    assert remedy in str(refused.value).split(". ", 1)[1]


def test_more_devices_are_named_where_they_divide_what_is_too_large():
    parts = {"client_memory": 900, "model": 100}
    one = device_memory.Forecast(parts, 400, 3, 10, 1, divided=900)
    assert one.fewest_devices == 3 and "Or take 3 such devices" in str(one.too_large())
    two = device_memory.Forecast({**parts, "client_memory": 450}, 400, 3, 10, 1, devices=2, divided=450)
    assert two.fewest_devices == 3
    assert device_memory.Forecast(parts, 1000, 3, 10, 1, divided=900).fewest_devices == 1
    for too_little in (one, device_memory.Forecast(parts, 400, 3, 10, 1)):
        few = dataclasses.replace(too_little, available=100)
        assert few.fewest_devices is None and "such devices" not in str(few.too_large())


@pytest.mark.full
@pytest.mark.parametrize("form", ["loop", "matrix"])
def test_the_clients_memory_of_ace_fits_on_more_devices(form):
    arguments = experiment("ace", model=jafl.models.mlp(10, (300,)))
    found = prepared(*arguments, form=form).forecast
    few = dataclasses.replace(found, available=found.needed - found.divided // 2)
    assert found.divided >= found.parts["client_memory"] > 0
    assert few.fewest_devices == 2 and "Or take 2 such devices" in str(few.too_large())


def test_one_line_says_it():
    found = device_memory.Forecast({"data": 3 * 2**20, "client_memory": 2**20, "model": 10}, 2**30, 3, 10, 1)
    assert str(found) == "4 MiB of 1 GiB device memory needed: data 3 MiB, client memory 1 MiB"


def test_a_container_has_less_than_its_machine(tmp_path):
    for folder, text in (("", "max"), ("jobs", "5000\n"), ("jobs/mine", "9000")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "memory.max").write_text(text)
    for folder, text in (("memory", str(2**63 - 4096)), ("memory/mine", "7000")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "memory.limit_in_bytes").write_text(text)
    groups = tmp_path / "cgroup"

    def limits(lines):
        groups.write_text(lines)
        return sorted(device_memory._group_limits(str(groups), str(tmp_path)))

    assert limits("0::/jobs/mine\n") == [5000, 9000]
    assert limits("0::/\n") == []
    assert limits("5:cpu:/x\n4:cpuset,memory:/mine\n") == [7000, 2**63 - 4096]
    groups.unlink()
    assert list(device_memory._group_limits(str(groups), str(tmp_path))) == []
    assert 2**20 < device_memory.device_memory() <= 2**50
