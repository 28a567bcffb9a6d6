"""The splits of the server's error, against slow sums over every client at every version of the model."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference as ref
import reference_rules
from against_reference import MinibatchDraws
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from jafl import rules
from jafl.engine.loop import first_carry, server_steps
from jafl.rules.decomposition.checks import NOT_LINEAR

CLIENTS, STEPS = 8, 60
CHOSEN = (0, 1, 7, 8, 23, 40, 41, 59)
CLIENT_RATE, SERVER_RATE, L2 = 0.2, 0.7, 0.05
PLAIN = jafl.specify(optax.sgd, learning_rate=SERVER_RATE)
KEY = jax.random.key(2)


@dataclasses.dataclass(frozen=True)
class Case:
    """A rule, and the same written slowly, on gradients: its updates are minus gradients."""

    rule: Any
    slow: Callable[[], ref.Rule]
    buffer_size: int = 4
    initial_round: bool = False
    restart: str = "at_once"


CASES = {
    "asgd": Case(rules.asgd(), lambda: reference_rules.VanillaASGD(1.0), 1),
    "delay-adaptive asgd that skips": Case(
        rules.delay_adaptive_asgd("drop", threshold=5),
        lambda: reference_rules.DelayAdaptiveASGD(1.0, 5, "drop"),
        1,
    ),
    "fedbuff": Case(rules.fedbuff(), lambda: ref.FedBuff(ref.polynomial(0.5))),
    "fedavg by examples": Case(rules.fedavg(weigh_by_examples=True), lambda: ref.FedAvg(True)),
    "fedstaleweight": Case(rules.fedstaleweight(), reference_rules.FedStaleWeight),
    "twafl": Case(rules.twafl(), lambda: reference_rules.TWAFL(1.0)),
    "ace": Case(rules.ace(), lambda: reference_rules.ACE(1.0), 1, True),
    "ace, direct": Case(rules.ace("direct"), lambda: reference_rules.ACE(1.0), 1, True),
    "aced": Case(rules.aced(3), lambda: reference_rules.ACED(1.0, 3), 1, True),
    "aced that skips": Case(rules.aced(3, "cached"), lambda: reference_rules.ACED(1.0, 3, "cached"), 1, True),
    "ace in buffers": Case(rules.ace(), lambda: reference_rules.ACE(1.0), 4, True),
    "aced in buffers": Case(rules.aced(1), lambda: reference_rules.ACED(1.0, 1), 4, True),
    "ca2fl": Case(rules.ca2fl(), reference_rules.CA2FL),
    "ca2fl, by step": Case(rules.ca2fl("step"), lambda: reference_rules.CA2FL("step")),
    "gsgm": Case(rules.gsgm(0.3), lambda: reference_rules.GSGM(1.0, 0.3), 3, restart="after_round"),
}


def make_federation(dtype=np.float64) -> jafl.Federation:
    """Clients of 1 to 40 examples, with 4 features and 3 classes, each with its own leaning."""
    random = np.random.default_rng(5)
    sizes = [1, 3, 40, 33, 8, 12, 20, 5]
    y = random.integers(0, 3, sum(sizes))
    x = (
        random.normal(size=(len(y), 4))
        + np.eye(3, 4)[y]
        + np.repeat(random.normal(size=(8, 4)), sizes, axis=0)
    )
    partition = jafl.Partition.from_lists(np.split(np.arange(len(y)), np.cumsum(sizes)[:-1]))
    return jafl.Federation.from_arrays(
        x.astype(dtype), y, partition, test_x=x[:9].astype(dtype), test_y=y[:9], num_classes=3
    )


def make_schedule(case: Case, steps: int = STEPS) -> jafl.EventSchedule:
    return jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=case.buffer_size,
        delay=jafl.delays.half_normal(1.0),
        server_steps=steps,
        initial_round=case.initial_round,
        restart=case.restart,
        seed=3,
    )


def initial_params(model: jafl.Model, federation: jafl.Federation) -> Any:
    """A model that is nowhere at rest: its gradients are neither zero nor of one sign."""
    params = model.init(jax.random.key(1), federation.x)
    random = np.random.default_rng(8)
    return jax.tree.map(lambda p: np.asarray(p + 0.3 * random.normal(size=p.shape), p.dtype), params)


def train(
    schedule, federation, work, rule, *, server_optimizer=PLAIN, keep: bool = True
) -> tuple[jafl.History, list]:
    """The history, and the parameters of every version [T + 1], or of the first and the last unless ``keep``."""
    versions: list = []
    history = jafl.simulate(
        schedule,
        federation,
        work,
        rule,
        initial_params(work.build().model, federation),
        KEY,
        server_optimizer=server_optimizer,
        evaluate_at=range(schedule.num_steps) if keep else [],
        evaluators={},
        on_evaluation=lambda evaluation, params: versions.append(params),
    )
    return history, [ref.float64_copy(each) for each in versions]


class Slow:
    """Everything that the splits are made of, in NumPy, from the parameters of every version of a run."""

    def __init__(self, schedule, federation, versions, l2: float = 0.0):
        self.schedule, self.federation, self.versions, self.l2 = schedule, federation, versions, l2

    def gradient(self, client: int, params: Any) -> Any:
        """grad F_client(params)."""
        return ref.objective(params, *self.federation.client(client), l2=self.l2)[1]

    def global_gradient(self, step: int) -> Any:
        """grad F(w^t)."""
        return reference_rules.mean_of([self.gradient(c, self.versions[step]) for c in range(CLIENTS)])

    def stale_versions(self, step: int) -> list[int]:
        """The version of each client's last update that the server has received by then, 0 before the first."""
        newest = [0] * CLIENTS
        for trip in range(self.schedule.step_offsets[step + 1]):
            newest[self.schedule.client[trip]] = int(self.schedule.download_version[trip])
        return newest

    def stale_gradient(self, step: int) -> Any:
        newest = enumerate(self.stale_versions(step))
        return reference_rules.mean_of([self.gradient(c, self.versions[version]) for c, version in newest])

    def trips(self, step: int) -> range:
        return range(*self.schedule.step_offsets[step : step + 2])

    def trip(self, number: int, batch_size: int, params: Any = None) -> ref.Trip:
        """A trip that has sent its full gradient at ``params``, the model that it started from unless given."""
        client, version = int(self.schedule.client[number]), int(self.schedule.download_version[number])
        trip = ref.Trip(client, int(self.schedule.trip[number]), version, 0.0, 1.0)
        gradient = self.gradient(client, self.versions[version] if params is None else params)
        trip.update, trip.staleness = ref.scale(-1.0, gradient), int(self.schedule.staleness[number])
        trip.num_examples = int(self.federation.num_examples[client])
        trip.batch_examples = min(batch_size, trip.num_examples) if batch_size else trip.num_examples
        return trip

    def directions(self, rule: ref.Rule, batch_size: int) -> list:
        """u_bar of every step; a step that is skipped has zeros."""
        rule.begin(self.versions[0], CLIENTS)
        directions = [
            rule.pseudo_gradient(self.versions[t], [self.trip(n, batch_size) for n in self.trips(t)])
            for t in range(self.schedule.num_steps)
        ]
        return [ref.zeros_like(self.versions[0]) if u is None else u for u in directions]


def squared(tree: Any) -> float:
    return ref.inner_product(tree, tree)


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("case", in_tiers(CASES, ("ace",)))
def test_each_term_is_that_of_slow_sums_over_every_version(case: Case):
    """A, B, C and their sum u - grad F(w^t), at every chosen step, in float64."""
    with jax.enable_x64(True):
        federation, schedule = make_federation(), make_schedule(case)
        work = jafl.client_work(jafl.models.softmax(3), learning_rate=CLIENT_RATE, batch_size=4, l2=L2)
        rule = jafl.decomposed(case.rule, work, federation, CHOSEN)
        history, versions = train(schedule, federation, work, rule)
    slow = Slow(schedule, federation, versions, L2)
    u_bars = slow.directions(case.slow(), 4)
    reports = history.step_reports
    assert np.flatnonzero(reports["measured"]).tolist() == list(CHOSEN)
    for step in CHOSEN:
        moved = ref.subtract(versions[step], versions[step + 1])
        u, u_bar = ref.scale(1 / (SERVER_RATE * CLIENT_RATE), moved), u_bars[step]
        stale, now = slow.stale_gradient(step), slow.global_gradient(step)
        expected = {
            "noise": squared(ref.subtract(u, u_bar)),
            "bias": squared(ref.subtract(u_bar, stale)),
            "delay": squared(ref.subtract(stale, now)),
            "error": squared(ref.subtract(u, now)),
            "gradient": squared(now),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(reports[name][step], value, rtol=1e-9, atol=1e-20, err_msg=name)
    if "ace" in case.rule.factory.__name__ and case.slow().__class__ is reference_rules.ACE:
        assert reports["bias"].max() <= 1e-18
    else:
        assert reports["bias"].max() > 1e-3
    others = np.setdiff1d(np.arange(STEPS), CHOSEN)
    assert not any(np.any(reports[name][others]) for name in (*expected, "measured"))
    assert min(reports[name].max() for name in ("noise", "delay", "gradient")) > 1e-3


@pytest.mark.few_in_full(2)
@pytest.mark.parametrize(
    "name, local_steps",
    [
        pytest.param("fedbuff", 3, marks=pytest.mark.full),
        pytest.param("fedstaleweight", 3, marks=pytest.mark.full),
        pytest.param("fedstaleweight", 1, marks=pytest.mark.full),
        pytest.param("delay-adaptive asgd that skips", 1, marks=pytest.mark.full),
    ],
)
def test_the_split_in_four_is_that_of_slow_sums_along_every_trip(name: str, local_steps: int):
    """Staleness, sampling, drift and re-weighting for each local step, from trips trained anew by hand."""
    case = CASES[name]
    with jax.enable_x64(True):
        federation, schedule = make_federation(), make_schedule(case)
        plain = jafl.client_work(
            jafl.models.softmax(3), learning_rate=CLIENT_RATE, batch_size=4, l2=L2, local_steps=local_steps
        )
        work, rule = jafl.decomposed_four_ways(case.rule, plain, federation, CHOSEN)
        history, versions = train(schedule, federation, work, rule)
        slow = Slow(schedule, federation, versions, L2)
        paths = {n: path_of(slow, n, local_steps) for step in CHOSEN for n in slow.trips(step)}
    judge = case.slow()
    judge.begin(versions[0], CLIENTS)
    for step in range(STEPS):
        trips = [slow.trip(n, 4) for n in slow.trips(step)]
        if step not in CHOSEN:
            judge.pseudo_gradient(versions[step], trips)  # so that it has seen them all
            continue
        weights = weights_of(judge, versions[step], trips)
        stale, now = slow.stale_gradient(step), slow.global_gradient(step)
        terms: dict[str, list[float]] = {}
        mean_given = ref.zeros_like(now)
        first = None
        for q in range(local_steps):
            gradients = [slow.gradient(int(schedule.client[n]), paths[n][q]) for n in slow.trips(step)]
            plain_mean, given = reference_rules.mean_of(gradients), ref.weighted_sum(weights, gradients)
            first = plain_mean if first is None else first
            mean_given = ref.add(mean_given, ref.scale(1 / local_steps, given))
            parts = {
                "staleness_error": ref.subtract(now, stale),
                "sampling_error": ref.subtract(stale, first),
                "drift_error": ref.subtract(first, plain_mean),
                "reweighting_error": ref.subtract(plain_mean, given),
            }
            total = ref.subtract(now, given)
            assert squared(ref.subtract(total, ref.weighted_sum([1.0] * 4, list(parts.values())))) < 1e-28
            for key, value in (*parts.items(), ("four_way_error", total)):
                terms.setdefault(key, []).append(squared(value))
        moved = ref.subtract(versions[step], versions[step + 1])
        u = ref.scale(1 / (SERVER_RATE * CLIENT_RATE * local_steps), moved)
        terms |= {"noise": [squared(ref.subtract(u, mean_given))], "gradient": [squared(now)]}
        for key, values in terms.items():
            reported = history.step_reports[key][step]
            np.testing.assert_allclose(reported, np.mean(values), rtol=1e-9, atol=1e-20, err_msg=key)
    largest = {key: history.step_reports[key].max() for key in terms}
    assert largest.pop("drift_error") > 1e-3 if local_steps > 1 else largest.pop("drift_error") == 0
    assert min(largest.values()) > 1e-3


def path_of(slow: Slow, number: int, local_steps: int) -> list:
    """y_0, ..., y_(Q - 1) of a trip, by the minibatches that it used."""
    client, schedule = int(slow.schedule.client[number]), slow.schedule
    x, y = slow.federation.client(client)
    draw = MinibatchDraws(
        KEY, trips=STEPS, epochs=local_steps, largest=int(slow.federation.num_examples.max())
    )
    batches = draw(client, int(schedule.trip[number]), num_examples=len(y), batch_size=4, steps=local_steps)
    params = slow.versions[schedule.download_version[number]]
    path = [params]
    for batch in batches[:-1]:
        params = ref.subtract(
            params, ref.scale(CLIENT_RATE, ref.objective(params, x[batch], y[batch], l2=L2)[1])
        )
        path.append(params)
    return path


def weights_of(judge: ref.Rule, params: Any, trips: list[ref.Trip]) -> list[float]:
    """The alpha_k that a slow rule gives to the trips of a step, from unit vectors in the place of updates."""
    for place, trip in enumerate(trips):
        trip.update = {"w": -np.eye(len(trips))[place]}
    direction = judge.pseudo_gradient(params, trips)
    return [0.0] * len(trips) if direction is None else direction["w"].tolist()


# What tells whether a program rounds like another: the buffer is closed at once where K is 1, and Adam and momentum
# read the direction more than once.
SAME = [
    ("asgd", "momentum", np.float32),
    ("fedbuff", "plain", np.float32),
    ("ace", "momentum", np.float32),
    ("ca2fl", "adam", np.float32),
    ("gsgm", "plain", np.float32),
    ("gsgm", "adam", np.float64),
]
OPTIMIZERS = {
    "plain": PLAIN,
    "momentum": jafl.specify(optax.sgd, learning_rate=0.1, momentum=0.9),
    "adam": jafl.specify(optax.adam, learning_rate=0.01),
}


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.compiled_as_for_users
@pytest.mark.parametrize("name, server, dtype", SAME)
def test_the_run_is_bit_for_bit_that_of_the_rule_alone(name: str, server: str, dtype):
    case = CASES[name]
    with jax.enable_x64(dtype is np.float64):
        federation, schedule = make_federation(dtype), make_schedule(case, 120)
        work = jafl.client_work(jafl.models.mlp(3, (5,)), learning_rate=CLIENT_RATE, batch_size=4, l2=L2)
        watched = jafl.decomposed(case.rule, work, federation, range(0, 120, 7))
        alone, with_terms = (
            train(schedule, federation, work, rule, server_optimizer=OPTIMIZERS[server], keep=False)[0]
            for rule in (case.rule, watched)
        )
    assert_same_runs(alone, with_terms)


@pytest.mark.gate
@pytest.mark.compiled_as_for_users
def test_the_run_split_in_four_is_that_of_the_rule_alone():
    """To rounding: with several local steps and Adam the compiler contracts other products and sums there."""
    federation, schedule = make_federation(np.float32), make_schedule(CASES["fedbuff"], 120)
    model = jafl.models.mlp(3, (5,))
    work = jafl.client_work(model, learning_rate=CLIENT_RATE, batch_size=4, l2=L2, local_steps=3)
    watched = jafl.decomposed_four_ways(rules.fedbuff(), work, federation, range(0, 120, 7))
    alone, with_terms = (
        train(schedule, federation, *parts, server_optimizer=OPTIMIZERS["adam"], keep=False)[0]
        for parts in ((work, rules.fedbuff()), watched)
    )
    assert_same_runs(alone, with_terms, functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6))


def assert_same_runs(
    alone: jafl.History, with_terms: jafl.History, same: Callable = np.testing.assert_array_equal
) -> None:
    jax.tree.map(same, alone.params, with_terms.params)
    assert alone.trip_reports.keys() == with_terms.trip_reports.keys()
    for name, rows in alone.trip_reports.items():
        same(rows, with_terms.trip_reports[name])
    for name, rows in alone.step_reports.items():
        same(rows, with_terms.step_reports[name])


@pytest.mark.gate
def test_full_batches_have_no_noise():
    with jax.enable_x64(True):
        federation, schedule = make_federation(), make_schedule(CASES["fedbuff"])
        for batch_size in (0, 100):
            work = jafl.client_work(jafl.models.softmax(3), learning_rate=CLIENT_RATE, batch_size=batch_size)
            rule = jafl.decomposed(rules.fedbuff(), work, federation, range(STEPS))
            reports = train(schedule, federation, work, rule, keep=False)[0].step_reports
            assert reports["noise"].max() <= 1e-28
            assert min(reports["bias"].min(), reports["delay"][10:].min()) > 1e-6


@pytest.mark.full
def test_where_nothing_is_stale_there_is_no_delay():
    """All clients in every round: no staleness, no sampling, and a plain mean does not re-weight."""
    with jax.enable_x64(True):
        federation = make_federation()
        schedule = jafl.synchronous(
            num_clients=CLIENTS, cohort_size=CLIENTS, delay=jafl.delays.exponential(1.0), server_steps=20
        )
        work = jafl.client_work(jafl.models.softmax(3), learning_rate=CLIENT_RATE, batch_size=4)
        rule = jafl.decomposed(rules.fedavg(), work, federation, range(20))
        reports = train(schedule, federation, work, rule, keep=False)[0].step_reports
        assert max(reports["delay"].max(), reports["bias"].max()) <= 1e-28 < reports["noise"].min()
        np.testing.assert_allclose(reports["noise"], reports["error"], rtol=1e-9)
        parts = jafl.decomposed_four_ways(rules.fedavg(), work, federation, range(20))
        reports = train(schedule, federation, *parts, keep=False)[0].step_reports
        four = [n for n in reports if n.endswith("_error")]
        assert len(four) == 5 and max(reports[name].max() for name in four) <= 1e-28


@pytest.mark.full
def test_the_delay_is_bounded_by_how_far_the_clients_models_are_behind():
    """||C||^2 <= (L^2 / N) sum_i ||w_stale_i - w^t||^2, L of softmax: the Hessian in the outputs is at most 1/2."""
    with jax.enable_x64(True):
        federation, schedule = make_federation(), make_schedule(CASES["ace"])
        work = jafl.client_work(jafl.models.softmax(3), learning_rate=CLIENT_RATE, batch_size=4)
        rule = jafl.decomposed(rules.ace(), work, federation, range(STEPS))
        history, versions = train(schedule, federation, work, rule)
    slow = Slow(schedule, federation, versions)
    with_ones = [
        np.column_stack([federation.client(c)[0], np.ones(n)]) for c, n in enumerate(federation.num_examples)
    ]
    largest = max(np.linalg.eigvalsh(x.T @ x / len(x))[-1] / 2 for x in with_ones)
    behind = [
        sum(squared(ref.subtract(versions[v], versions[step])) for v in slow.stale_versions(step))
        for step in range(STEPS)
    ]
    delay = history.step_reports["delay"]
    assert np.all(delay <= largest**2 / CLIENTS * np.array(behind) + 1e-28)
    assert delay[1:].min() > 0


@pytest.mark.gate
def test_the_noise_of_ace_at_a_fixed_model_is_that_of_one_minibatch_over_the_clients():
    """E||A||^2 = (1/N^2) sum_i sigma_i^2: sigma^2 / N, where all clients have the same sigma.

    sigma_i^2 of b of n examples without repetition: (n - b) / (n - 1) / b times the variance of one example's
    gradient. The measured steps are 6 N apart, so that nearly all cached gradients are other ones; the mean of 400
    of them may be off by 4 of its standard errors, which are a twentieth of it.
    """
    apart, samples, batch = 6 * CLIENTS, 400, 4
    with jax.enable_x64(True):
        federation, schedule = make_federation(), make_schedule(CASES["ace"], apart * samples)
        work = jafl.client_work(jafl.models.softmax(3), learning_rate=CLIENT_RATE, batch_size=batch)
        rule = jafl.decomposed(rules.ace(), work, federation, range(apart - 1, apart * samples, apart))
        still = jafl.specify(optax.sgd, learning_rate=0.0)
        history, (params, _) = train(schedule, federation, work, rule, server_optimizer=still, keep=False)
    variances = []
    for client, count in enumerate(federation.num_examples):
        x, y = federation.client(client)
        each = [ref.objective(params, x[[e]], y[[e]])[1] for e in range(count)]
        mean = reference_rules.mean_of(each)
        variance = np.mean([squared(ref.subtract(gradient, mean)) for gradient in each])
        variances.append(variance * max(count - batch, 0) / max(count - 1, 1) / batch)
    expected = np.sum(variances) / CLIENTS**2
    noise = history.step_reports["noise"][history.step_reports["measured"] > 0]
    assert len(noise) == samples
    error = noise.std() / np.sqrt(samples)
    assert error < 0.06 * expected
    assert abs(noise.mean() - expected) < 4 * error


@pytest.mark.gate
def test_a_skipped_step_has_no_direction():
    """Whatever the rule returned with it: the error is the gradient, for a rule object of one's own as well."""
    plain = rules.fedavg().build()
    skipping = plain._replace(
        finish=lambda buffer, params: (*plain.finish(buffer, params)[:3], jnp.asarray(False))
    )
    federation, schedule = make_federation(np.float32), make_schedule(CASES["fedbuff"])
    work = jafl.client_work(jafl.models.softmax(3), learning_rate=CLIENT_RATE, batch_size=4)
    rule = jafl.decomposed(skipping, work, federation, range(STEPS))
    reports = train(schedule, federation, work, rule, keep=False)[0].step_reports
    assert not np.any(reports["noise"]) and not np.any(reports["applied"])
    np.testing.assert_allclose(reports["error"], reports["gradient"], rtol=1e-6)
    np.testing.assert_allclose(
        reports["bias"], reports["gradient"], rtol=1e-5
    )  # nothing moves, nothing is stale
    parts = jafl.decomposed_four_ways(skipping, work, federation, range(STEPS))
    reports = train(schedule, federation, *parts, keep=False)[0].step_reports
    assert not np.any(reports["noise"]) and reports["reweighting_error"].min() > 0.01
    np.testing.assert_allclose(reports["four_way_error"], reports["gradient"], rtol=1e-6)


@pytest.mark.gate
def test_trips_that_train_side_by_side_have_the_same_terms():
    """As on an accelerator, where an additive rule alone would fold parts of its buffer apart."""
    federation, schedule = make_federation(np.float32), make_schedule(CASES["fedbuff"], 40)
    work = jafl.client_work(jafl.models.softmax(3), learning_rate=CLIENT_RATE, batch_size=4)
    rule = jafl.decomposed(rules.fedbuff(), work, federation, (3, 10, 30))
    params = initial_params(work.build().model, federation)
    in_turn, side_by_side = (
        jafl.simulate(schedule, federation, work, rule, params, KEY, evaluate_at=[], **options)
        for options in ({}, {"plan": jafl.in_waves(schedule, 6), "together": True})
    )
    for name, values in in_turn.step_reports.items():
        np.testing.assert_allclose(side_by_side.step_reports[name], values, rtol=1e-4, err_msg=name)


@pytest.mark.full
def test_averages_between_evaluations_are_those_of_the_measured_steps():
    federation, schedule = make_federation(np.float32), make_schedule(CASES["fedbuff"])
    work = jafl.client_work(jafl.models.softmax(3), learning_rate=CLIENT_RATE, batch_size=4)
    rule = jafl.decomposed(rules.fedbuff(), work, federation, (31, 35, 59))
    params = initial_params(work.build().model, federation)
    history = jafl.simulate(schedule, federation, work, rule, params, KEY, evaluate_at=[30, 50])
    between = history.evaluations[2]
    mean = history.step_reports["noise"][[31, 35]].mean()
    np.testing.assert_allclose(between["noise"] / between["measured"], mean, rtol=1e-5)
    assert history.evaluations[1]["measured"] == 0


@pytest.mark.full
def test_other_numbers_and_other_steps_do_not_recompile():
    federation, schedule = make_federation(np.float32), make_schedule(CASES["fedbuff"])

    def compilations(exponent: float, rate: float, at_steps: tuple) -> int:
        work = jafl.client_work(jafl.models.softmax(3), learning_rate=rate, batch_size=4, l2=rate)
        rule = rules.fedbuff(rules.staleness.polynomial(exponent))
        decomposed = jafl.decomposed(rule, work, federation, at_steps)
        train(schedule, federation, work, decomposed, keep=False)
        return server_steps.run._cache_size() + first_carry.allocate._cache_size()

    assert compilations(0.5, 0.1, (0, 5, 9)) == compilations(2.0, 0.3, (1, 7, 50))


MODEL = jafl.models.softmax(3)
WORK = jafl.client_work(MODEL, learning_rate=0.1)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rule": rules.fedasync()}, "fedasync.*linear.*pulls towards the client's whole model"),
        ({"rule": rules.wkafl(4)}, "wkafl.*linear.*selects gradients by their angle, and clips them"),
        ({"rule": rules.zeno_plus_plus()}, "zeno_plus_plus.*linear.*length of the server's own, and refuses"),
        ({"rule": rules.fedbuff().build()._replace(linear=False)}, "linear=True"),
        ({"rule": rules.fedbuff}, "Call its factory"),
        ({"rule": rules.ace(memory_precision="int8")}, "memory_precision is 'int8'.*rounding is not linear"),
        ({"work": {"local_steps": 2}}, "local_steps is 2, but must be one local step.*drift"),
        ({"work": {"local_epochs": 3}}, "local_epochs is 3, but must be one local step"),
        ({"work": {"proximal": 0.1}}, "proximal is 0.1.*no part of the clients' objectives"),
        (
            {"work": {"learning_rate_normalization": True}},
            "learning_rate_normalization is True, but must be False",
        ),
        ({"work": {"learning_rate": 0.0}}, "learning rate is 0.0, but must be above 0"),
        ({"optimizer": jafl.specify(optax.adam, learning_rate=0.1)}, "optimizer is adam.*plain SGD"),
        ({"optimizer": jafl.specify(optax.sgd, learning_rate=0.1, momentum=0.9)}, "momentum=0.9.*plain SGD"),
        ({"optimizer": optax.sgd(0.1)}, "plain SGD.*jafl.client_work"),
        (
            {"optimizer": jafl.specify(optax.sgd, learning_rate=lambda count: 0.1)},
            "plain SGD of one learning rate",
        ),
        ({"client_work": WORK.build()}, "must be what jafl.client_work returns"),
        ({"federation": "digits"}, "federation is 'digits'"),
        ({"at_steps": ()}, "at_steps is .* at least one server step"),
        ({"at_steps": (3, -1)}, "a step of at_steps is -1"),
        ({"at_steps": (0.5,)}, "a step of at_steps is 0.5"),
    ],
)
def test_what_has_no_such_split_is_refused_and_says_why(changes, message):
    numbers = {"optimizer": changes["optimizer"]} if "optimizer" in changes else {"learning_rate": 0.1}
    arguments = {
        "rule": rules.fedbuff(),
        "client_work": jafl.client_work(MODEL, **(numbers | changes.get("work", {}))),
        "federation": make_federation(np.float32),
        "at_steps": (0, 1),
    }
    arguments |= {name: value for name, value in changes.items() if name in arguments}
    with pytest.raises(jafl.SettingError, match=message):
        jafl.decomposed(**arguments)


@pytest.mark.parametrize("rule", [rules.ace(), rules.ca2fl(), rules.gsgm()])
def test_the_split_in_four_refuses_rules_with_memory(rule):
    with pytest.raises(jafl.SettingError, match="keeps nothing from step to step.*jafl.decomposed splits"):
        jafl.decomposed_four_ways(rule, WORK, make_federation(np.float32), (0,))


def test_the_split_in_four_refuses_local_steps_of_the_schedule():
    work = jafl.client_work(MODEL, learning_rate=0.1, local_steps="scheduled")
    with pytest.raises(jafl.SettingError, match="local_steps is 'scheduled'.*same number of local_steps"):
        jafl.decomposed_four_ways(rules.fedbuff(), work, make_federation(np.float32), (0,))


def test_the_split_in_four_refuses_local_epochs():
    work = jafl.client_work(MODEL, learning_rate=0.1, local_epochs=2)
    with pytest.raises(jafl.SettingError, match="local_epochs is 2.*same number of local_steps"):
        jafl.decomposed_four_ways(rules.fedbuff(), work, make_federation(np.float32), (0,))


def test_steps_after_the_end_are_refused():
    federation = make_federation(np.float32)
    rule = jafl.decomposed(rules.fedbuff(), WORK, federation, (3, 5, STEPS))
    with pytest.raises(jafl.SettingError, match="last of at_steps is 60, but must be below .* 60"):
        train(make_schedule(CASES["fedbuff"]), federation, WORK, rule)


def test_names_of_reports_are_not_taken_twice():
    plain = rules.fedavg().build()
    noisy = plain._replace(
        finish=lambda buffer, params: (*plain.finish(buffer, params)[:2], {"noise": 1.0}, True)
    )
    federation = make_federation(np.float32)
    with pytest.raises(jafl.SettingError, match="report is 'noise'"):
        rule = jafl.decomposed(noisy, WORK, federation, (0,))
        train(make_schedule(CASES["fedbuff"]), federation, WORK, rule)


def test_rules_say_whether_they_are_linear():
    unlike = {"area", "asyncfeded", "favas", "fedasync", "fedat", "fedfa", "port", "wkafl", "zeno_plus_plus"}
    made = {name: factory().build() for name, factory in rules.RULES.items()}
    unlike |= {"ef21", "feddyn", "masfl", "qafel", "quafl", "ringleader", "scaffold"}
    assert {name for name, rule in made.items() if not rule.linear} == unlike
    assert set(NOT_LINEAR) == unlike | {"private", "secure"}
