"""The vectors of conformance/: made by the reference, equal to what the engine computes, and of use to others.

The engine runs each vector in all forms in 64 bits. What is given in a file is enough for that: the tests read it as
a stranger would.
"""

import ast
import functools
import json
import pathlib
import re
import runpy
import subprocess
import sys
from typing import Any

import conformance_vectors as made
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from both_simulators import Durations
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import rules
from jafl.clients import compression
from jafl.clients.corrections import CORRECTIONS, Correction
from jafl.clients.records import ClientResult, ClientStateRequest, ClientWork
from jafl.rules import server_optimizers

FOLDER = pathlib.Path(__file__).parent.parent / "conformance"
CHECKER = runpy.run_path(str(FOLDER / "check.py"))
VECTORS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("vectors/*.json"))}
AGGREGATION = [name for name, vector in VECTORS.items() if vector["kind"] == "aggregation"]
SCHEDULES = [name for name, vector in VECTORS.items() if vector["kind"] == "schedule"]
TOLERANCE = 1e-12
TRIP = ("client", "download_version", "step")
LASTS = ("last", "last_with_updates_given")  # the second not where clients correct their steps


def test_every_rule_has_a_vector():
    """A row of ``AGGREGATION`` makes one; a rule that can have none has its reason in ``WITHOUT``."""
    have = {VECTORS[name]["rule"] for name in AGGREGATION}
    lacking = set(rules.RULES) - have - set(made.WITHOUT)
    assert not lacking, (
        f"no conformance vector for {', '.join(sorted(lacking))}: add a row to AGGREGATION of "
        f"tests/reference/conformance_vectors.py (or a reason to WITHOUT) and run {made.COMMAND}"
    )
    assert have <= set(rules.RULES)
    assert not have & set(made.WITHOUT), "a rule with a vector has no reason to have none"
    assert set(made.WITHOUT) <= set(rules.RULES) and all(made.WITHOUT.values())


def alike(found: Any, expected: Any) -> bool:
    """Whether two contents of files are the same but for the last digit, which a mathematics library may decide."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            alike(found[name], expected[name]) for name in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    if isinstance(expected, float):
        return bool(np.isclose(found, expected, rtol=1e-13, atol=1e-13))
    return type(found) is type(expected) and found == expected


def test_the_files_are_those_that_the_reference_makes():
    files = made.files()
    assert {f"{name}.json" for name in VECTORS} == set(files), f"run {made.COMMAND}"
    for name, content in files.items():
        assert alike(json.loads(made.text(content)), VECTORS[name.removesuffix(".json")]), (
            f"{name} is out of date: run {made.COMMAND}"
        )


def test_the_command_writes_the_same_text_twice():
    first, second = ([made.text(content) for content in made.files().values()] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", AGGREGATION)
def test_what_a_vector_gives_fits_together(name: str):
    """Its clients train its updates from its models, its weights make its models, and it is no easy one."""
    vector = VECTORS[name]
    trips, clients, models = vector["trips"], vector["clients"], np.array(vector["expected"]["models"])
    client, version, step = (np.array(trips[column]) for column in TRIP)
    update = np.array(trips["update"])
    assert np.max(step - version) >= 2 or vector["rule"] in made.NEVER_STALE
    assert len(np.unique(client)) < len(client)
    assert np.all(version <= step) and np.all(np.diff(step) >= 0) and len(models) == step[-1] + 2
    if not clients.keys() & {"correction", "compression"}:
        a, b, steps = (np.array(clients[column])[client] for column in ("curvature", "minimum", "steps"))
        steps = np.array(trips.get("local_steps", steps))
        kept = (1 - clients["rate"] * a) ** steps[:, None]
        np.testing.assert_allclose(update, (kept - 1) * (models[version] - b), rtol=0, atol=TOLERANCE)
    if "weights" in vector["expected"]:
        weights = np.array(vector["expected"]["weights"])
        moved = [weights[step == t] @ update[step == t] for t in range(len(models) - 1)]
        rate = vector["server"]["learning_rate"]
        np.testing.assert_allclose(np.diff(models, axis=0), rate * np.array(moved), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_a_schedule_gives_fits_together(name: str):
    vector = VECTORS[name]
    trips, last = vector["expected"]["trips"], [len(row) - 1 for row in vector["durations"]]
    taken = np.array(trips["arrival_time"]) - trips["download_time"]
    durations = [
        vector["durations"][client][min(trip, last[client])]
        for client, trip in zip(trips["client"], trips["trip"], strict=True)
    ]
    if "local_steps" in trips:  # durations are those of a local step
        made_in, most = np.multiply(trips["local_steps"], durations), max(trips["local_steps"])
        assert np.all(made_in <= taken)
        assert np.all((made_in + durations > taken) | (np.array(trips["local_steps"]) == most))
    else:
        np.testing.assert_array_equal(taken, durations)
    assert len(vector["expected"]["step_time"]) == vector["server_steps"]
    assert len(set(trips["client"])) < len(trips["client"])
    stalest = np.max(np.subtract(trips["step"], trips["download_version"]))
    assert (stalest < 2) == (name in made.NEVER_STALE)


def test_some_schedules_have_ties_and_lost_trips():
    expected = [VECTORS[name]["expected"] for name in SCHEDULES]
    times = [each["trips"]["arrival_time"] for each in expected]
    assert any(len(set(each)) < len(each) for each in times)
    assert any(each["thrown_away"]["client"] for each in expected)


@pytest.mark.parametrize("name", VECTORS)
def test_every_known_mistake_shows_and_is_named(name: str):
    """It differs from the right result by far more than the tolerance, and the checker says which one it is."""
    vector = VECTORS[name]
    assert vector["known_wrong"]
    right = {"trips": vector["expected"].get("trips"), "models": vector["expected"].get("models")}
    assert CHECKER["check"](vector, right) is None
    for mistake in vector["known_wrong"]:
        if vector["kind"] == "schedule":
            columns = {*TRIP, "local_steps"} & set(right["trips"])
            assert any(mistake["trips"][name] != right["trips"][name] for name in columns), mistake["why"]
            assert mistake["why"] in CHECKER["check"](vector, {"trips": mistake["trips"]})
            continue
        for last in (mistake[kind] for kind in LASTS if kind in mistake):
            assert np.max(np.abs(np.subtract(last, right["models"][-1]))) > 1e-6, mistake["why"]
            said = CHECKER["check"](vector, {"models": [*right["models"][:-1], last]})
            assert mistake["why"] in said and said.startswith(f"model {len(right['models']) - 1} is")


def test_the_known_mistakes_of_a_vector_differ_from_each_other():
    """Else the checker would name two mistakes for one."""
    for name in AGGREGATION:
        for kind in LASTS[: len(VECTORS[name]["known_wrong"][0]) - 1]:
            lasts = np.array([mistake[kind] for mistake in VECTORS[name]["known_wrong"]])
            apart = np.abs(lasts[:, None] - lasts).max(axis=2) + np.eye(len(lasts))
            assert apart.min() > 1e-6, f"{name}, {kind}"


FIGURES = {
    "client": [0, 1, 0, 2, 1, 0],
    "download_version": [0, 0, 0, 0, 1, 1],
    "step": [0, 0, 1, 1, 2, 2],
}


def test_figures_that_were_worked_out_elsewhere():
    """Of FedBuff with two trips a step, by a program that shares nothing with the reference."""
    (vector,) = (row for row in made.AGGREGATION if row.name == "fedbuff")
    made_by_reference = [
        params["w"] for params in made.replay(made.dataclasses.replace(vector, trips=FIGURES)).params
    ]
    figures = [[0, 0], [0.04625, 0.19], [0.11342514421272203, 0.1725433013394571]]
    figures.append([0.14142767760205494, 0.26994726044790407])
    np.testing.assert_allclose(made_by_reference, figures, rtol=1e-15)
    wrong = {
        made.FROM_1: [0.11154020090928163, 0.20846253162411724],
        made.BY_SUM: [0.18085156250000003, 0.3030625],
    }
    for why, last in wrong.items():
        changed = made.dataclasses.replace(vector, trips=FIGURES, **vector.wrong[why])
        np.testing.assert_allclose(made.replay(changed).params[-1]["w"], last, rtol=1e-15)


def test_figures_of_scaffold_that_were_worked_out_elsewhere():
    (vector,) = (row for row in made.AGGREGATION if row.name == "scaffold")
    rule = made.scaffold()()
    changed = made.dataclasses.replace(vector, trips=FIGURES, server=made.SGD, rule=lambda: rule)
    last = made.replay(changed).params[-1]["w"]
    np.testing.assert_allclose(last, [0.07304739583333333, 0.23972916666666666], rtol=1e-14)
    np.testing.assert_allclose(rule.control[3]["w"], [-0.14071354166666666, -0.37687499999999996], rtol=1e-14)


# The checker, as a stranger uses it.


def check(*arguments: Any, cwd: pathlib.Path) -> subprocess.CompletedProcess:
    program = [sys.executable, FOLDER / "check.py", *map(str, arguments)]
    return subprocess.run(program, cwd=cwd, capture_output=True, text=True)


def test_the_checker_needs_numpy_and_nothing_of_jafl():
    tree = ast.parse((FOLDER / "check.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"json", "pathlib", "runpy", "sys", "numpy"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def test_the_example_of_the_page_is_a_simulator_that_passes(tmp_path):
    """And with a usual mistake it does not, by its name."""
    page = (FOLDER / "README.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    simulator = tmp_path / "my_simulator.py"
    simulator.write_text(example)
    passed = check(simulator, cwd=tmp_path)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "fedbuff: right" in passed.stdout and "ace: skipped" in passed.stdout
    weight = "(1 + staleness) ** -0.5"
    assert weight in example
    simulator.write_text(example.replace(weight, "(2 + staleness) ** -0.5"))
    failed = check(simulator, "fedbuff", cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stdout in page and failed.stdout.endswith("mistake: staleness counted from 1.\n")


def test_the_checker_reads_files_of_results(tmp_path):
    for name, vector in VECTORS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(vector["expected"]))
    passed = check(tmp_path, cwd=tmp_path)
    assert passed.returncode == 0 and passed.stdout.count(": right\n") == len(VECTORS)
    (tmp_path / "ace.json").unlink()
    short = {"models": VECTORS["asgd"]["expected"]["models"][:-1]}
    (tmp_path / "asgd.json").write_text(json.dumps(short))
    failed = check(tmp_path, "ace", "asgd", cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stdout.startswith("ace: skipped\nasgd: there are 9 models, but must be 10.")


def test_the_checker_without_arguments_says_how_it_is_called(tmp_path):
    said = check(cwd=tmp_path)
    assert said.returncode == 1 and "python check.py my_simulator.py" in said.stderr


# The engine.


def schedule_of(vector: dict) -> jafl.EventSchedule:
    """The trips of a vector as a schedule; where no times are given, any that fit."""
    trips = vector["trips"]
    client, version, step = (np.array(trips[column], np.int32) for column in TRIP)
    nothing, no_time = np.zeros(0, np.int32), np.zeros(0)
    return jafl.EventSchedule(
        client=client,
        trip=np.array([np.sum(client[:n] == each) for n, each in enumerate(client)], np.int32),
        download_version=version,
        step=step,
        download_time=np.array(trips.get("download_time", version), float),
        arrival_time=np.array(trips.get("arrival_time", step + 1.0), float),
        step_time=np.arange(1.0, step[-1] + 2),
        inflight_client=nothing,
        inflight_trip=nothing,
        inflight_version=nothing,
        inflight_start_time=no_time,
        discarded_client=nothing,
        discarded_trip=nothing,
        discarded_step=nothing,
        discarded_start_time=no_time,
        discarded_end_time=no_time,
        num_clients=len(vector["clients"]["examples"]),
        concurrency=len(vector["clients"]["examples"]),
        local_steps=np.array(trips["local_steps"], np.int32) if "local_steps" in trips else None,
        tier=np.array(vector["tiers"], np.int32) if "tiers" in vector else None,
    )


def rule_of(vector: dict) -> Any:
    """The rule that the vector's call in jafl makes."""
    names = {**rules.RULES, "staleness": rules.staleness, "top_k": compression.top_k}
    if "server_loss" in vector:
        a, b = (np.array(vector["server_loss"][name]) for name in ("curvature", "minimum"))

        def server_gradient(params):
            kernel = params["dense"]["kernel"]
            return {"dense": {"kernel": a * (kernel - b), "bias": jnp.zeros_like(params["dense"]["bias"])}}

        names["server_gradient"] = server_gradient
    return eval(vector["jafl"], {"__builtins__": {}}, names)


def server_of(vector: dict) -> Any:
    """jafl's optimizer for the vector's server."""
    numbers = dict(vector["server"])
    if (
        vector["clients"].get("correction") == "adamasfl"
    ):  # its rule leaves the division by the clients' rate to this
        numbers["learning_rate"] /= vector["clients"]["rate"]
    makers = {
        "sgd": optax.sgd,
        "adam": lambda epsilon, **others: optax.adam(eps=epsilon, **others),
        "fedamsgrad": server_optimizers.fedamsgrad,
        "reddi_adam": server_optimizers.fedadam,
        "delayed_nesterov": server_optimizers.delayed_nesterov,
    }
    return makers[numbers.pop("optimizer")](**numbers)


def quadratic_work(clients: dict, model: jafl.Model, scheduled: bool) -> ClientWork:
    """Client work of a vector's clients, on the kernel of softmax regression with one feature; its bias stays 0.

    scheduled: whether each trip has a number of local steps of its own.
    """
    a, b = (jnp.asarray(clients[name]) for name in ("curvature", "minimum"))
    steps, used = (jnp.asarray(clients[name], jnp.int32) for name in ("steps", "batch_examples"))

    name = clients.get("correction")
    correction = CORRECTIONS[name] if name else Correction()
    feedback, top_1 = None, compression.top_k(0.25)
    if "compression" in clients:  # of one number of the model's four, of which two, the biases, stay 0
        assert (clients["compression"], clients["kept"]) == ("top_k", top_1.kept(4))
        feedback = correction.feedback if name else compression.with_error_feedback

    def train(data, start, client, key):
        start = correction.start(data.broadcast) if correction.start else start

        def gradient(y):
            away = y["dense"]["kernel"] - b[client]
            return {"dense": {"kernel": a[client] * away, "bias": jnp.zeros_like(y["dense"]["bias"])}}

        def step(_, carry):
            y, total = carry
            own = found = gradient(y)
            if correction.direction:
                own = correction.direction(found, term, y, start, data.broadcast)
            moved = jax.tree.map(lambda y, g: y - clients["rate"] * g, y, own)
            return moved, jax.tree.map(jnp.add, total, found)

        count = data.local_steps if scheduled else steps[client]
        first = correction.first(data.state, data.broadcast, start) if correction.first else start
        term = correction.begin(data.state, data.broadcast) if correction.begin else None
        nothing = jax.tree.map(jnp.zeros_like, start)
        trained, total = jax.lax.fori_loop(0, count, step, (first, nothing))
        update = jax.tree.map(jnp.subtract, trained, start)
        mean = jax.tree.map(lambda total: total / jnp.maximum(count, 1), total)
        kept = correction.end(data.state, data.broadcast, mean, update, start) if correction.end else ()
        if feedback:
            update, left = feedback(top_1, update, data.state, key)
            kept = (None, left)
        elif "compression" in clients:
            update = top_1.compress(update, key)
        loss = jnp.sum(a[client] * (start["dense"]["kernel"][0] - b[client]) ** 2) / 2
        return ClientResult(update, loss, used[client], count, *kept)

    state = None
    if correction.keeps or feedback:
        state = ClientStateRequest(correction.initial) if correction.initial else ClientStateRequest()
    return ClientWork(train, model, state=state, correction=name, reads_local_steps=scheduled)


def models_of(vector: dict, **how: Any) -> np.ndarray:
    """[T + 1, P]: the models that the engine computes."""
    size, sizes = len(vector["start"]), vector["clients"]["examples"]
    x, y = np.zeros((sum(sizes), 1)), np.zeros(sum(sizes), int)
    partition = jafl.Partition.from_lists(np.split(np.arange(len(y)), np.cumsum(sizes)[:-1]))
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y, num_classes=size)
    model = jafl.models.softmax(size)
    schedule = schedule_of(vector)
    found: list[np.ndarray] = []
    jafl.simulate(
        schedule,
        federation,
        quadratic_work(vector["clients"], model, "local_steps" in vector["trips"]),
        rule_of(vector),
        {"dense": {"kernel": jnp.array([vector["start"]]), "bias": jnp.zeros(size)}},
        jax.random.key(0),
        server_optimizer=server_of(vector),
        evaluators={},
        evaluate_at=range(schedule.num_steps + 1),
        on_evaluation=lambda record, params: found.append(np.asarray(params["dense"]["kernel"][0])),
        **how,
    )
    return np.array(found)


@functools.cache
def has_matrix_form(name: str) -> bool:
    """Whether rule and server optimizer are linear; FedAsync is in its own way."""
    plain = VECTORS[name]["server"]["optimizer"] in ("sgd", "delayed_nesterov")
    keeps = "compression" in VECTORS[name]["clients"]
    return plain and rule_of(VECTORS[name]).build().linear and not keeps


FORMS = {
    "trip by trip": lambda schedule: {"plan": jafl.trip_by_trip(schedule)},
    "waves": lambda schedule, **how: {"plan": jafl.in_waves(schedule, 3, **how), "together": False},
    "waves side by side": lambda schedule, **how: {
        "plan": jafl.in_waves(schedule, 3, **how),
        "together": True,
    },
    "matrix": lambda schedule: {"plan": jafl.in_waves(schedule, 3, form="matrix")},
}
# The default tier has one vector of each rule, trip by trip; the full one all so, and one of each as matrices.
# Waves of these rules are compared with the same reference in tests/rules; here they are a gate.
FIRST = {VECTORS[name]["rule"]: name for name in sorted(AGGREGATION, key=len, reverse=True)}.values()


def tier(name: str, form: str) -> Any:
    """The mark of a vector in a form."""
    usual = (name in FIRST) + (form == "trip by trip")
    return () if usual == 2 else pytest.mark.full if usual and "waves" not in form else pytest.mark.gate


@pytest.mark.few_in_full(14)
@pytest.mark.few_by_default(5)
@pytest.mark.parametrize(
    "name, form",
    [
        pytest.param(name, form, marks=tier(name, form))
        for name in AGGREGATION
        for form in FORMS
        if form != "matrix" or has_matrix_form(name)
    ],
)
def test_the_engine_computes_the_models_of_the_vectors(name: str, form: str, float64):
    vector = VECTORS[name]
    keeps = vector["clients"].keys() & {"correction", "compression"}
    how = {"client_state": True} if keeps and "waves" in form else {}
    found = models_of(vector, **FORMS[form](schedule_of(vector), **how))
    np.testing.assert_allclose(found, vector["expected"]["models"], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", SCHEDULES)
def test_jafl_makes_the_schedules_of_the_vectors(name: str):
    vector = VECTORS[name]
    rows, expected = vector["durations"], vector["expected"]
    common = {
        "num_clients": len(rows),
        "delay": Durations(lambda client, trip: rows[client][min(trip, len(rows[client]) - 1)]),
        "server_steps": vector["server_steps"],
    }

    by_step = common | {"delay": jafl.delays.per_step(common["delay"])}

    def asynchronous(**settings):
        arguments = by_step if "local_steps" in settings else common
        return jafl.asynchronous(**arguments, concurrency=len(rows), **settings)

    def synchronous(**settings):
        return jafl.synchronous(**common, **settings)

    def drawn_staleness(**settings):
        return jafl.drawn_staleness(**common, **settings)

    def tiered(**settings):
        return jafl.tiered(**common, **settings)

    def polled(**settings):
        return jafl.polled(**by_step, **settings)

    protocols = asynchronous, synchronous, drawn_staleness, tiered, polled
    names = {each.__name__: each for each in protocols}
    schedule = eval(vector["jafl"], {"__builtins__": {}}, names)
    for column, numbers in expected["trips"].items():
        np.testing.assert_array_equal(getattr(schedule, column), numbers, err_msg=column)
    np.testing.assert_array_equal(schedule.step_time, expected["step_time"])
    thrown_away, under_way = expected["thrown_away"], expected["under_way"]
    np.testing.assert_array_equal(schedule.discarded_client, thrown_away["client"])
    np.testing.assert_array_equal(schedule.discarded_trip, thrown_away["trip"])
    np.testing.assert_array_equal(schedule.discarded_end_time, thrown_away["cancel_time"])
    order = np.argsort(schedule.inflight_client, kind="stable")
    np.testing.assert_array_equal(schedule.inflight_client[order], under_way["client"])
    np.testing.assert_array_equal(schedule.inflight_trip[order], under_way["trip"])
    np.testing.assert_array_equal(schedule.inflight_version[order], under_way["download_version"])
    np.testing.assert_array_equal(schedule.inflight_start_time[order], under_way["download_time"])
