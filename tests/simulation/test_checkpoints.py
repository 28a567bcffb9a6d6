"""Checkpoints from Python: every kind of state comes back to the last bit, and another run's is refused."""

import time

import jax
import jax.numpy as jnp
import optax
import pytest
from small_runs import resumed, small_parts, stopping_at
from tiers import in_tiers

import jafl
from jafl import rules
from jafl.records import Rule
from jafl.simulation import checkpoints as saving
from jafl.specifications import as_specification

MODEL = jafl.models.softmax(10)
SOURCE = jafl.data.digits()
CLIENTS = 12


def with_odd_state():
    """A rule whose state holds a typed random key, an empty array and nothing at all; it adds noise to the mean."""

    def init(params, num_clients):
        return {"key": jax.random.key(7), "empty": jnp.zeros((0, 3)), "nothing": None}

    def begin(state, params):
        return state, jax.tree.map(jnp.zeros_like, params)

    def fold(buffer, arrival):
        state, total = buffer
        return (state, jax.tree.map(jnp.add, total, arrival.update)), {}

    def finish(buffer, params):
        state, total = buffer
        key, own = jax.random.split(state["key"])
        noisy = jax.tree.map(lambda a: -a / 4 + 0.01 * jax.random.normal(own, a.shape, a.dtype), total)
        return noisy, {**state, "key": key}, {}, True

    return Rule(init=init, begin=begin, fold=fold, finish=finish)


CASES = {
    "moments of Adam": (rules.fedbuff(), 4, jafl.specify(optax.adam, learning_rate=0.01)),
    "momentum, synchronous": (
        rules.fedavg(),
        4,
        jafl.specify(optax.sgd, learning_rate=1.0, momentum=0.9),
    ),
    "client memory in bfloat16": (rules.ca2fl(memory_precision="bfloat16"), 4, None),
    "client memory in 8 bits, recalled": (rules.aced(active_steps=9, memory_precision="int8"), 1, None),
    "a key, an empty array, nothing": (with_odd_state(), 4, None),
    "trips trained ahead, in waves": (rules.fedbuff(), 4, None),
    "clients' state in full, a broadcast": (rules.masfl(), 4, None),
    "clients' state in 8 bits, a broadcast, in waves": (rules.scaffold(), 4, None),
    "clients' optimizers and a rule's memory, kept": (rules.ca2fl(), 4, None),
    "what compression left out, in waves": (rules.fedbuff(), 4, None),
    "personal models, in waves": (rules.fedbuff(), 4, None),
    "a hidden model, and what compression left out": (rules.qafel(jafl.compression.top_k(0.3)), 4, None),
}


def arguments(name, *, learning_rate=0.1, seed=0):
    """The positional and keyword arguments of ``jafl.simulate`` for one of the cases."""
    rule, buffer_size, optimizer = CASES[name]
    federation = jafl.federate(SOURCE, jafl.data.dirichlet(SOURCE.y, CLIENTS, alpha=0.5, seed=0))
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=buffer_size,
        delay=jafl.delays.exponential(1.0),
        server_steps=40,
        initial_round=buffer_size == 1,
        seed=seed,
    )
    given = {"learning_rate": learning_rate, "local_steps": 1, "batch_size": 8}
    given["correction"] = as_specification(rule).build().correction
    if "8 bits" in name and "state" in name:
        given["state_precision"] = "int8"
    if "kept" in name:
        given |= {"learning_rate": None, "optimizer": jafl.specify(optax.adam, learning_rate=0.01)}
        given |= {"keep_optimizer_state": True, "local_steps": 2}
    if "compression" in name:
        given |= {"compression": jafl.compression.top_k(0.1), "error_feedback": True}
    if "personal" in name:
        given |= {"personal": jafl.ditto(0.5, 0.2, local_steps=2)}
    work = jafl.client_work(MODEL, **given)
    positional = (schedule, federation, work, rule, MODEL.init(jax.random.key(0), SOURCE.x))
    named = {"server_optimizer": optimizer, "evaluate_at": [13]}
    if "waves" in name:
        named |= {
            "plan": jafl.in_waves(schedule, 3, client_state=work.build().state is not None),
            "together": True,
        }
    return (*positional, jax.random.key(1)), named


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("name", in_tiers(CASES.keys(), ("trips trained ahead, in waves",)))
def test_every_kind_of_state_comes_back_to_the_last_bit(name, tmp_path):
    positional, named = arguments(name)
    # Stopped between evaluations, before and after one.
    resumed(lambda **options: jafl.simulate(*positional, **named, **options), tmp_path, 5, 20)


@pytest.mark.parametrize("name", ["runs [1]", "of [a-z]?*", "one\\two"])
def test_a_folder_may_have_a_name_that_is_a_pattern(name, tmp_path):
    (tmp_path / name).mkdir()
    resumed(lambda **options: jafl.simulate(**small_parts(), **options), tmp_path / name, 5)


def test_what_lies_beside_checkpoints_stays(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "001").mkdir()
    jafl.simulate(**small_parts(), checkpoints=tmp_path, **stopping_at(1))
    kept = {path.name for path in tmp_path.iterdir()}
    assert {"thesis.txt", "001"} < kept
    other = {**small_parts(), "key": jax.random.key(2)}
    with pytest.warns(UserWarning, match="of another run(.|\n)*They are removed") as told:
        jafl.simulate(**other, checkpoints=jafl.Checkpoints(tmp_path, refuse=False))
    assert len(told) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.txt", "001"}
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.full
def test_seconds_are_those_of_all_parts(tmp_path):
    positional, named = arguments("moments of Adam")

    def slowly(evaluation, params):
        time.sleep(1.0)

    folder, stop = tmp_path / "checkpoints", stopping_at(1)
    jafl.simulate(*positional, **named, **stop, on_evaluation=slowly, checkpoints=jafl.Checkpoints(folder))
    seen = []
    again = jafl.Checkpoints(folder, on_restore=seen.append)
    began = time.perf_counter()
    ended = jafl.simulate(*positional, **named, checkpoints=again)
    took = time.perf_counter() - began
    assert 1 < seen[0].run_seconds < ended.run_seconds < seen[0].run_seconds + took
    assert 0 < seen[0].compile_seconds < ended.compile_seconds


@pytest.mark.full
def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    positional, named = arguments("moments of Adam")

    def keep(**configuration):
        return jafl.Checkpoints(tmp_path / "checkpoints", configuration=configuration)

    jafl.simulate(*positional, **named, **stopping_at(1), checkpoints=keep(model="softmax", seed=0))
    with pytest.raises(jafl.SettingError) as refused:
        jafl.simulate(*positional, **named, checkpoints=keep(model="mlp", seed=0, more=1))
    assert str(refused.value).splitlines()[1:-1] == [
        "  model: was 'softmax', is 'mlp'",
        "  more: was None, is 1",
    ]
    for changes in ({"learning_rate": 0.2}, {"seed": 1}):
        others, _ = arguments("moments of Adam", **changes)
        with pytest.raises(jafl.SettingError, match="digest of .*: was"):
            jafl.simulate(*others, **named, checkpoints=keep(model="softmax", seed=0))
    *same, params, key = positional
    for other in ((params, jax.random.key(99)), (jax.tree.map(lambda leaf: leaf + 1, params), key)):
        with pytest.raises(jafl.SettingError, match=r"digest of numbers \(random key, initial parameters,"):
            jafl.simulate(*same, *other, **named, checkpoints=keep(model="softmax", seed=0))
    other_optimizer = {**named, "server_optimizer": jafl.specify(optax.sgd, learning_rate=0.01)}
    with pytest.raises(jafl.SettingError, match="server_optimizer: was '.*adam', is '.*sgd'"):
        jafl.simulate(*positional, **other_optimizer, checkpoints=keep(model="softmax", seed=0))


@pytest.mark.parametrize(("option", "value"), [("threefry_partitionable", False), ("random_seed_offset", 1)])
def test_a_run_does_not_go_on_with_other_random_numbers(option, value, tmp_path):
    positional, named = arguments("moments of Adam")
    keep = jafl.Checkpoints(tmp_path / "checkpoints")
    jafl.simulate(*positional, **named, **stopping_at(1), checkpoints=keep)
    before = getattr(jax.config, f"jax_{option}")
    jax.config.update(f"jax_{option}", value)
    try:
        with pytest.raises(jafl.SettingError, match=f"jax_{option}: was None, is {value}"):
            jafl.simulate(*positional, **named, checkpoints=keep)
    finally:
        jax.config.update(f"jax_{option}", before)


@pytest.mark.parametrize("every", [-1, 2.5, True])
def test_every_must_be_a_whole_number(every, tmp_path):
    with pytest.raises(jafl.SettingError, match="checkpoint_every"):
        jafl.Checkpoints(tmp_path, every=every)


def test_by_the_clock_a_checkpoint_takes_no_more_than_its_share(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    checkpoints = jafl.Checkpoints(tmp_path / "checkpoints")

    def save(step, takes):
        monkeypatch.setattr(saving.checksums, "write", lambda _: now.__setitem__(0, now[0] + takes))
        checkpoints.save(saving.Saved(step, {"w": jnp.ones(3)}, [], 0.0, 0.0))
        monkeypatch.undo()
        monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])

    def waits():
        began = now[0]
        while not checkpoints.due():
            now[0] += 1.0
        return now[0] - began

    assert waits() == saving.SECONDS_BETWEEN
    save(1, takes=1.0)
    assert waits() == saving.SECONDS_BETWEEN
    save(2, takes=30.0)
    assert waits() == pytest.approx(30 / saving.LARGEST_SHARE)
    assert not jafl.Checkpoints(tmp_path, every=0).due()


@pytest.mark.full
def test_no_checkpoint_imports_no_orbax():
    import subprocess
    import sys

    program = (
        "import sys, jafl.runs.runner, jafl.simulation.simulate; from pathlib import Path\n"
        "from jafl.simulation import checkpoints\n"
        "c = checkpoints.Checkpoints('nowhere'); c.due(); c.delete()\n"
        "assert not {'orbax.checkpoint', 'tensorboardX'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
