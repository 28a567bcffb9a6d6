"""What every rule must keep, one row per public rule; the table is checked against the package's rules."""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import rules
from jafl.engine.loop import first_carry, server_steps
from jafl.records import Arrival
from jafl.specifications import Specification, as_specification


class Row(NamedTuple):
    """A rule with one set of numbers, and the same rule with every number another one (None: it has no numbers)."""

    rule: Specification
    other_numbers: Specification | None
    buffer_size: int
    restart: str | Mapping[str, Any] = "at_once"  # or more arguments of the schedule


def own_gradient(params: Any) -> Any:
    """A server's gradient that agrees with the updates of ``arrival``, and with some of those of ``small_run``."""
    return jax.tree.map(lambda p: jnp.zeros_like(p).at[..., ::2].set(-0.3), params)


# Of nearly the same durations, so that other ones make schedules of nearly the same size.
BY_MEAN = {"step_when": "harmonic_mean", "delay": jafl.delays.uniform(0.9, 1.2)}
POLLS = {
    "delay": jafl.delays.per_step(jafl.delays.uniform(0.3, 0.9)),
    "interval": 1.0,
    "most_local_steps": 3,
}
TOP_K = jafl.compression.top_k(0.5)
ROWS = {
    "ace": Row(rules.ace(), None, 3),
    "aced": Row(rules.aced(active_steps=5), None, 1),
    "area": Row(rules.area(), None, 4),
    "asgd": Row(rules.asgd(), None, 1),
    "ca2fl": Row(rules.ca2fl(), None, 4),
    "delay_adaptive_asgd": Row(
        rules.delay_adaptive_asgd("bound", smoothness=1.0),
        rules.delay_adaptive_asgd("bound", smoothness=5.0),
        1,
    ),
    "dude_asgd": Row(rules.dude_asgd(), None, 4),
    "mifa": Row(rules.mifa(), None, 4),
    "exponential_weighting": Row(rules.exponential_weighting(0.5), rules.exponential_weighting(1.5), 4),
    "fadas": Row(
        rules.fadas("paper", server_learning_rate=1.0), rules.fadas("paper", server_learning_rate=2.0), 4
    ),
    "fedcompass": Row(
        rules.fedcompass(rules.staleness.polynomial(0.5)),
        rules.fedcompass(rules.staleness.polynomial(2.0)),
        4,
    ),
    "fedat": Row(rules.fedat(2), None, 3, {"protocol": jafl.tiered, "tiers": 2}),
    "favas": Row(rules.favas(), None, 3, {"protocol": jafl.polled, **POLLS}),
    "fedfa": Row(rules.fedfa(3), None, 1),
    "asyncfeded": Row(rules.asyncfeded(1.0), rules.asyncfeded(2.0), 1),
    "cgad": Row(rules.cgad(0.1, 16.0), rules.cgad(0.3, 4.0), 4),
    "port": Row(rules.port(10.0, 1.0, 1.0), rules.port(5.0, 2.0, 3.0), 4),
    "quafl": Row(rules.quafl(5), None, 5, {"protocol": jafl.polled, **POLLS, "download": "before_step"}),
    "ef21": Row(rules.ef21(), None, 4),
    "qafel": Row(
        rules.qafel(TOP_K, rules.staleness.polynomial(0.5)),
        rules.qafel(TOP_K, rules.staleness.polynomial(2.5)),
        4,
    ),
    "feddyn": Row(rules.feddyn(0.1), rules.feddyn(0.3), 4),
    "fedfix": Row(rules.fedfix(), None, 4, {"step_every": 0.5, "restart": "after_step", "buffer_size": None}),
    "ringleader": Row(
        rules.ringleader(),
        None,
        4,
        {**BY_MEAN, "step_when": "each_client_once_a_round", "concurrency": 8, "buffer_size": None},
    ),
    "malenia": Row(rules.malenia(), None, 4, {**BY_MEAN, "concurrency": 8}),
    "fednova": Row(rules.fednova(), None, 4),
    "fedstaleweight": Row(
        rules.fedstaleweight(average="exponential", decay=0.5),
        rules.fedstaleweight(average="exponential", decay=0.9),
        4,
    ),
    "masfl": Row(rules.masfl(0.9), rules.masfl(0.5), 4),
    "scaffold": Row(rules.scaffold(), None, 4),
    "generalized_async_sgd": Row(rules.generalized_async_sgd(tuple(range(1, 9))), None, 1),
    "gsgm": Row(rules.gsgm(0.1), rules.gsgm(0.9), 3, "after_round"),
    "rescaled_asgd": Row(rules.rescaled_asgd(), None, 1),
    "sasgd": Row(rules.sasgd(), None, 4),
    "twafl": Row(rules.twafl(), None, 4),
    "wkafl": Row(
        rules.wkafl(4),
        rules.wkafl(4, 0.2, 5.0, 0.1, 10.0, 5.0, 1.0, 0.3),
        4,
    ),
    "zeno_plus_plus": Row(
        rules.zeno_plus_plus(own_gradient, 2, 0.1, 0.001, 0.5),
        rules.zeno_plus_plus(own_gradient, 2, 0.2, 0.01, 0.1),
        1,
    ),
    "fedasync": Row(
        rules.fedasync(rules.staleness.polynomial(0.5)), rules.fedasync(rules.staleness.polynomial(0.9)), 1
    ),
    "fedavg": Row(rules.fedavg(weigh_by_examples=True), None, 4),
    "fedbuff": Row(
        rules.fedbuff(rules.staleness.polynomial(0.5)), rules.fedbuff(rules.staleness.polynomial(2.5)), 4
    ),
}
each_rule = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
PARAMS = {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3, jnp.bfloat16)}


def arrival(number: int = 1, staleness: int = 2) -> Arrival:
    """A trip whose update is ``number`` everywhere."""
    return Arrival(
        update=jax.tree.map(lambda p: jnp.full_like(p, number), PARAMS),
        start=PARAMS,
        client=jnp.int32(number % 5),
        staleness=jnp.int32(staleness),
        num_examples=jnp.int32(10 + number),
        batch_examples=jnp.int32(4),
        local_steps=jnp.int32(2),
        loss=jnp.float32(0.5),
        columns={},
        # What SCAFFOLD's clients send is a change of their gradients, which point against updates.
        sent={"control": jax.tree.map(lambda p: jnp.full_like(p, -number), PARAMS)},
    )


def one_step(row: Row, arrivals: list[Arrival], state: Any) -> tuple:
    """Opens a buffer, folds the arrivals and closes it: what ``finish`` returns, and the trips' reports."""
    rule = row.rule.build()
    buffer, reports = rule.begin(state, PARAMS), []
    schedule = small_schedule(rule, len(arrivals), row.restart)
    columns = {name: jnp.asarray(rows[0]) for name, rows in rule.columns(schedule).items()}
    for each in arrivals:
        each = each._replace(columns=columns)
        if rule.remembers:  # columns and memory are those of a client's first trip
            stored = rule.remembers(each)
            each = each._replace(previous=jax.tree.map(jnp.zeros_like, stored), stored=stored)
        buffer, report = rule.fold(buffer, each)
        reports.append(report)
    return rule.finish(buffer, PARAMS), reports


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda a: (jnp.shape(a), jnp.asarray(a).dtype), tree)


def test_every_public_rule_has_a_row():
    assert set(ROWS) == set(rules.RULES)


def test_every_file_of_the_package_is_imported():
    """A rule that nobody can choose is not there: each file but the shared ones bears a public rule's name."""
    files = {file.stem for file in pathlib.Path(rules.__file__).parent.glob("*.py")}
    shared = {
        "__init__",
        "accumulate",
        "cached",
        "compensated",
        "expected_staleness",
        "rows",
        "server_optimizers",
        "staleness",
    }
    assert files - shared == set(rules.RULES)


@pytest.mark.few_in_full(29)
@pytest.mark.few_by_default(2)
@each_rule
def test_pseudo_gradient_has_the_shapes_and_types_of_the_parameters(row: Row):
    rule = row.rule.build()
    (direction, _, _, _), _ = one_step(row, [arrival()] * row.buffer_size, rule.init(PARAMS, 5))
    assert shapes(direction) == shapes(PARAMS)


@pytest.mark.few_by_default(12)
@each_rule
def test_pseudo_gradient_points_against_the_updates(row: Row):
    rule = row.rule.build()
    (direction, _, _, _), _ = one_step(row, [arrival(1)] * row.buffer_size, rule.init(PARAMS, 5))
    assert sum(float(jnp.sum(leaf)) for leaf in jax.tree.leaves(direction)) < 0


@each_rule
def test_state_and_buffer_keep_their_shapes_and_types(row: Row):
    rule = row.rule.build()
    state = rule.init(PARAMS, 5)
    opened = rule.begin(state, PARAMS)
    columns = rule.columns(small_schedule(rule, row.buffer_size, row.restart))
    trip = arrival()._replace(columns={name: jnp.asarray(rows[0]) for name, rows in columns.items()})
    if rule.remembers:
        stored = rule.remembers(trip)
        trip = trip._replace(previous=stored, stored=stored)
    folded, _ = rule.fold(opened, trip)
    assert shapes(folded) == shapes(opened)
    (_, after, _, _), _ = one_step(row, [arrival()] * row.buffer_size, state)
    assert shapes(after) == shapes(state)


@each_rule
def test_buffer_starts_empty_at_each_step(row: Row):
    """The same arrivals give the same direction in a second step where the rule keeps no state."""
    rule = row.rule.build()
    first, _ = one_step(row, [arrival()] * row.buffer_size, rule.init(PARAMS, 5))
    second, _ = one_step(row, [arrival()] * row.buffer_size, first[1])
    if not jax.tree.leaves(first[1]):
        jax.tree.map(np.testing.assert_array_equal, first[0], second[0])


@each_rule
def test_parts_of_an_additive_rules_buffer_add_up(row: Row):
    """Trips folded apart, each into an empty buffer, and added up give the buffer of all of them."""
    rule = row.rule.build()
    if not rule.additive:
        pytest.skip("its buffers do not add up")
    assert not (rule.remembers or rule.recalls or rule.needs_start)
    empty = rule.begin(rule.init(PARAMS, 5), PARAMS)
    assert not any(np.any(np.asarray(leaf, np.float32)) for leaf in jax.tree.leaves(empty))
    arrivals = [arrival(1, 3), arrival(-2, 0), arrival(5, 1)]
    columns = rule.columns(small_schedule(rule, row.buffer_size, row.restart))
    columns = {name: jnp.asarray(rows[0]) for name, rows in columns.items()}
    arrivals = [each._replace(columns=columns) for each in arrivals]
    whole, apart = empty, []
    for each in arrivals:
        whole, together = rule.fold(whole, each)
        part, alone = rule.fold(empty, each)
        apart.append(part)
        assert together == alone
    added = jax.tree.map(lambda *parts: sum(parts), *apart)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), added, whole)


@each_rule
def test_reports_are_scalars_with_fixed_names(row: Row):
    rule = row.rule.build()
    arrivals = [arrival(1), arrival(2), arrival(3), arrival(4)][: row.buffer_size]
    (_, _, report, _), trip_reports = one_step(row, arrivals, rule.init(PARAMS, 5))
    weights = jnp.shape(report.get("weight", 0.0))
    assert weights in ((), (row.buffer_size,)), "only weights of a whole buffer are not scalars"
    report = {name: value for name, value in report.items() if name != "weight"}
    for each in (*trip_reports, report):
        assert all(isinstance(name, str) and jnp.shape(value) == () for name, value in each.items())
    assert trip_reports[0].keys() == trip_reports[-1].keys()
    assert {"loss"}.isdisjoint(trip_reports[0]), "loss is the engine's"


@each_rule
def test_no_update_moves_nothing(row: Row):
    """Where every client returns the model that it downloaded, which is the newest, the direction is zero."""
    rule = row.rule.build()
    (direction, _, _, _), _ = one_step(row, [arrival(0, 0)] * row.buffer_size, rule.init(PARAMS, 5))
    assert all(not np.any(np.asarray(leaf, np.float32)) for leaf in jax.tree.leaves(direction))


@each_rule
def test_huge_staleness_stays_finite(row: Row):
    rule = row.rule.build()
    arrivals = [arrival(1, 10_000)] * row.buffer_size
    (direction, _, report, _), _ = one_step(row, arrivals, rule.init(PARAMS, 5))
    leaves = jax.tree.leaves((direction, report))
    assert all(np.all(np.isfinite(np.asarray(leaf, np.float32))) for leaf in leaves)


def small_schedule(
    rule: jafl.Rule, buffer_size: int, restart: str | Mapping[str, Any] = "at_once", seed: int = 0
) -> jafl.EventSchedule:
    if not isinstance(restart, str) and "protocol" in restart:
        options = {
            "num_clients": 8,
            "cohort_size": buffer_size,
            "delay": jafl.delays.exponential(1.0),
            **restart,
        }
        return options.pop("protocol")(**options, server_steps=24, seed=seed)
    arguments = {
        "num_clients": 8,
        "concurrency": 8 if rule.initial_round else 6,
        "buffer_size": buffer_size,
        "delay": jafl.delays.exponential(1.0),
        "server_steps": 24,
        "initial_round": rule.initial_round,
        "seed": seed,
    }
    return jafl.asynchronous(**arguments | ({"restart": restart} if isinstance(restart, str) else restart))


def small_arguments(
    rule: Any,
    buffer_size: int,
    restart: str | Mapping[str, Any] = "at_once",
    *,
    learning_rate: float = 0.1,
    seed: int = 0,
) -> tuple:
    """The first arguments of ``jafl.simulate``, and of ``jafl.Run``."""
    source = jafl.data.synthetic(num_clients=8, alpha=1.0, beta=1.0, mean_examples=20, num_features=5)
    if jax.config.jax_enable_x64:
        source = source.in_precision("float64")
    federation = jafl.federate(source, source.natural_partition)
    schedule = small_schedule(as_specification(rule).build(), buffer_size, restart, seed)
    model = jafl.models.softmax(source.num_classes)
    correction = as_specification(rule).build().correction
    steps = None if schedule.local_steps is None else "scheduled"
    compression = TOP_K if correction == "ef21" else None
    work = jafl.client_work(
        model,
        learning_rate=learning_rate,
        correction=correction,
        compression=compression,
        local_steps=steps,
    )
    return schedule, federation, work, rule, model.init(jax.random.key(0), source.x), jax.random.key(1)


def small_run(
    rule: Any,
    buffer_size: int,
    restart: str | Mapping[str, Any] = "at_once",
    *,
    learning_rate: float = 0.1,
    seed: int = 0,
    **changes,
) -> jafl.History:
    arguments = small_arguments(rule, buffer_size, restart, learning_rate=learning_rate, seed=seed)
    return jafl.simulate(*arguments, evaluate_at=[], **changes)


def compilations() -> int:
    return server_steps.run._cache_size() + first_carry.allocate._cache_size()


@pytest.mark.few_in_full(12)
@pytest.mark.full
@each_rule
def test_runs_in_the_engine_and_does_not_recompile_for_other_numbers(row: Row):
    """Other numbers of the rule, other learning rates and other events are other data, and change the result."""
    server = jafl.specify(optax.sgd, learning_rate=1.0)
    settings = {"buffer_size": row.buffer_size, "restart": row.restart, "server_optimizer": server}
    history = small_run(row.rule, **settings)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(history.params))
    assert abs(history.influence.sum() - 1) < 1e-5
    half = jafl.specify(optax.sgd, learning_rate=0.5)
    changes = [{"learning_rate": 0.05, "server_optimizer": half, "seed": 1}]
    if row.other_numbers is not None:
        changes.append({"rule": row.other_numbers})
    compiled = compilations()
    for change in changes:
        changed = small_run(**{"rule": row.rule, **settings, **change})
        assert compilations() == compiled, f"recompiled for {change}"
        moved = not np.allclose(
            changed.params["dense"]["kernel"], history.params["dense"]["kernel"], rtol=1e-4
        )
        assert moved, f"{change} changes nothing"


@pytest.mark.full
def test_a_number_that_is_no_data_recompiles():
    """What the test above counts is there to be counted: a whole number is part of the program."""
    small_run(rules.aced(active_steps=5), 1)
    compiled = compilations()
    small_run(rules.aced(active_steps=6), 1)
    assert compilations() > compiled


@pytest.mark.few_in_full(12)
@pytest.mark.full
@each_rule
def test_a_rule_object_gives_the_same_as_its_specification(row: Row):
    deferred = small_run(row.rule, row.buffer_size, row.restart)
    built = small_run(row.rule.build(), row.buffer_size, row.restart)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), deferred.params, built.params)


@pytest.mark.few_in_full(12)
@pytest.mark.full
@each_rule
def test_a_run_whose_updates_are_all_zero_stays_where_it_is(row: Row):
    if row.rule.build().correction == "masfl":
        pytest.skip("its server descends what clients send beside their updates")
    history = small_run(row.rule, row.buffer_size, row.restart, learning_rate=0.0)
    assert history.server_steps == 24
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(history.params)), "softmax starts from zeros"
    for name, rows in (*history.trip_reports.items(), *history.step_reports.items()):
        assert np.all(np.isfinite(rows)), name
    assert np.all(np.isfinite(history.weights))
    given = 1 if np.any(history.weights) else 0  # Zeno++ gives updates of length 0 no weight
    assert abs(history.influence.sum() - given) < 1e-5


@each_rule
def test_updates_that_are_zero_at_first_spoil_nothing(row: Row):
    """Three steps of zeros, then ordinary updates: the direction is finite, and points against those."""
    state = row.rule.build().init(PARAMS, 5)
    for _ in range(3):
        (direction, state, _, _), _ = one_step(row, [arrival(0, 0)] * row.buffer_size, state)
        assert not any(np.any(np.asarray(leaf, np.float32)) for leaf in jax.tree.leaves(direction))
    (direction, state, report, _), _ = one_step(row, [arrival(1)] * row.buffer_size, state)
    for leaf in jax.tree.leaves((direction, report)):
        assert np.all(np.isfinite(np.asarray(leaf, np.float32)))
    assert sum(float(jnp.sum(leaf)) for leaf in jax.tree.leaves(direction)) < 0


@pytest.mark.full
@pytest.mark.few_in_full(11)
@each_rule
def test_buffer_size_is_checked(row: Row):
    only = as_specification(row.rule).build().buffer_size
    if only is None:
        small_run(row.rule, 3, row.restart)
    else:
        with pytest.raises(jafl.SettingError, match=rf"buffer_size is {only + 2}, but must be {only}"):
            small_run(row.rule, only + 2, row.restart)


@pytest.mark.full
def test_a_skipped_step_counts_but_moves_nothing():
    """apply = False: the version counts, parameters and optimizer state stay."""

    def skipping(every: int) -> jafl.Rule:
        plain = rules.fedavg().build()
        return plain._replace(
            init=lambda params, num_clients: jnp.int32(0),
            begin=lambda state, params: (state, plain.begin((), params)),
            fold=lambda buffer, arrival: ((buffer[0], plain.fold(buffer[1], arrival)[0]), {}),
            finish=lambda buffer, params: (
                plain.finish(buffer[1], params)[0],
                buffer[0] + 1,
                {"counted": (buffer[0] % every == 0) * 1.0},
                buffer[0] % every == 0,
            ),
        )

    momentum = jafl.specify(optax.sgd, learning_rate=1.0, momentum=0.9)
    never = small_run(jafl.specify(skipping, 1000), 3, server_optimizer=momentum)
    asked = iter([False, True])
    once = small_run(
        jafl.specify(skipping, 1000), 3, server_optimizer=momentum, should_stop=lambda: next(asked)
    )
    assert (once.server_steps, never.server_steps) == (1, 24)
    jax.tree.map(np.testing.assert_array_equal, never.params, once.params)
    assert never.step_reports["applied"].tolist() == [1.0] + [0.0] * 23
    always = small_run(jafl.specify(skipping, 1), 3, server_optimizer=momentum)
    assert not np.array_equal(always.params["dense"]["kernel"], never.params["dense"]["kernel"])


@pytest.mark.full
def test_a_scaled_step_moves_the_optimizer_and_a_skipped_one_does_not():
    """The type decides: 0.0 scales the step to nothing, and momentum has seen its direction; False skips it."""

    def every_second(other: Any) -> jafl.Rule:
        plain = rules.fedavg().build()
        return plain._replace(
            init=lambda params, num_clients: jnp.int32(0),
            begin=lambda state, params: (state, plain.begin((), params)),
            fold=lambda buffer, arrival: ((buffer[0], plain.fold(buffer[1], arrival)[0]), {}),
            finish=lambda buffer, params: (
                *plain.finish(buffer[1], params)[:1],
                buffer[0] + 1,
                {},
                jnp.where(buffer[0] % 2 == 0, type(other)(1), other),
            ),
            additive=False,
        )

    momentum = jafl.specify(optax.sgd, learning_rate=1.0, momentum=0.9)
    skipped, scaled, halved = (
        small_run(every_second(other), 3, server_optimizer=momentum) for other in (False, 0.0, 0.5)
    )
    assert [each.step_reports["applied"].tolist() for each in (skipped, scaled, halved)] == [
        [1.0, 0.0] * 12,
        [1.0, 0.0] * 12,
        [1.0, 0.5] * 12,
    ]
    kernels = [each.params["dense"]["kernel"] for each in (skipped, scaled, halved)]
    assert min(np.abs(kernels[a] - kernels[b]).max() for a, b in ((0, 1), (0, 2), (1, 2))) > 1e-3


@pytest.mark.parametrize(
    "scale, parts", [(0.5, None), (1.5, "is 1.5, but must be from 0 to 1"), (np.ones(2), "a single number")]
)
def test_a_scale_that_is_none_is_refused(scale: Any, parts: str | None):
    plain = rules.fedavg().build()
    rule = plain._replace(finish=lambda buffer, params: (*plain.finish(buffer, params)[:3], scale))
    with pytest.raises(jafl.SettingError, match=parts) if parts else contextlib.nullcontext():
        small_run(rule, 3)


@pytest.mark.full
def test_a_rule_from_a_notebook_needs_no_library_file():
    """A factory as a user would type it, with columns from the schedule."""

    def newest_first(share: float = 0.5) -> jafl.Rule:
        def begin(state, params):
            return jax.tree.map(jnp.zeros_like, params)

        def fold(buffer, arrival):
            weight = share * arrival.columns["fresh"]
            return jax.tree.map(lambda t, u: t + weight * u, buffer, arrival.update), {"weight": weight}

        def finish(buffer, params):
            return jax.tree.map(lambda t: -t, buffer), (), {}, True

        return jafl.Rule(
            init=lambda params, num_clients: (),
            begin=begin,
            fold=fold,
            finish=finish,
            columns=lambda schedule: {"fresh": (schedule.staleness <= 2).astype(np.float32)},
        )

    history = small_run(jafl.specify(newest_first, share=0.25), 3)
    expected = 0.25 * (history.schedule.staleness <= 2)
    np.testing.assert_array_equal(history.trip_reports["weight"], expected)
