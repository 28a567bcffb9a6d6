"""What a private run claims is what it does: skipped steps, updates that are not finite, norms, other schedules."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from test_private_runs import SERVERS, arguments, assert_same, federation, private, relative, run, schedule

import jafl
from jafl import rules, specifications
from jafl.privacy import trip_weights
from jafl.privacy.clipping import clip
from jafl.privacy.noise import key_words, node_noise
from jafl.privacy.private import report_of
from jafl.records import Arrival
from jafl.rules import accumulate

# Steps that the rule skips


@jafl.specification
def fresh_enough(mean_staleness: float = 2.0) -> jafl.Rule:
    """The mean of the updates; a step is skipped whose updates are staler on average than this."""
    rule = rules.fedbuff().build()

    def begin(state, params):
        return rule.begin(state, params), accumulate.number(0), accumulate.number(0)

    def fold(buffer, arrival):
        own, staleness, count = buffer
        own, report = rule.fold(own, arrival)
        return (own, staleness + arrival.staleness, count + 1), report

    def finish(buffer, params):
        own, staleness, count = buffer
        direction, state, report, _ = rule.finish(own, params)
        return direction, state, report, staleness <= mean_staleness * count

    return rule._replace(begin=begin, fold=fold, finish=finish)


@pytest.mark.full
def test_a_step_that_the_rule_skips_has_noise_alone_and_its_trips_weigh_nothing():
    """The account says 0 for these trips; with noise the step is made, so that it must be without them."""
    skipping = fresh_enough()
    weights = trip_weights(skipping, schedule())
    counts = np.bincount(schedule().step, weights > 0) > 0
    assert 5 < counts.sum() < 35
    without, noisy = run(private("tree", skipping, 0.0)), run(private("tree", skipping, 1e-12))
    np.testing.assert_array_equal(without.step_reports["applied"], counts)
    assert noisy.step_reports["applied"].all() and noisy.step_reports["noise_norm"].all()
    np.testing.assert_array_equal(noisy.step_reports["signal_norm"] > 0, counts)
    assert_same(without, noisy, bits=False)


@pytest.mark.full
def test_whether_a_step_is_made_may_not_depend_on_updates():
    @jafl.specification
    def picky(longest: float = 1.0) -> jafl.Rule:
        rule = rules.fedbuff().build()

        def finish(buffer, params):
            direction, state, report, _ = rule.finish(buffer, params)
            return direction, state, report, jnp.max(jnp.abs(jax.tree.leaves(direction)[0])) < longest

        return rule._replace(finish=finish)

    with pytest.raises(jafl.SettingError, match="weights depend on the updates"):
        private("tree", picky())


# Updates that are not finite, and norms


def test_no_update_is_longer_than_the_clip_norm_whatever_its_type_and_its_numbers():
    random, jitted = np.random.default_rng(0), jax.jit(clip)
    longest = 0.0
    for kind in (jnp.bfloat16, jnp.float16, jnp.float32):
        for scale in (1e-6, 1.0, 1e3, 1e20, 8.6e37, 3.3e38)[: 3 if kind == jnp.float16 else None]:
            for _ in range(8):
                numbers = np.clip(scale * random.uniform(-1, 1, (700, 7)), -3.38e38, 3.38e38)
                update = {"a": jnp.asarray(numbers, kind), "b": jnp.full(5, scale, kind)}
                made = jitted(update, 0.37)
                norms = [
                    np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in tree.values()))
                    for tree in (update, made.update)
                ]
                assert (made.clipped, made.not_finite) == (norms[0] > 0.37, 0)
                assert norms[1] == pytest.approx(min(norms[0], 0.37), rel=1e-6)
                longest = max(longest, norms[1])
    assert 0.37 * (1 - 1e-6) < longest <= 0.37 * (1 + 1e-6)


def one_client_sends(value: float, client: int):
    """A rule's update of one client replaced by ``value``: as if it had sent that."""

    def changed(rule: jafl.Rule) -> jafl.Rule:
        def fold(buffer, arrival):
            wrong = jax.tree.map(
                lambda leaf: jnp.where(arrival.client == client, value, leaf).astype(leaf.dtype),
                arrival.update,
            )
            return rule.fold(buffer, arrival._replace(update=wrong))

        return rule._replace(fold=fold, for_schedule=None)

    return changed


@functools.cache
def hostile(value: float):
    """A private run of 40 steps in which client 3 sends an update of this number; and the run's rule."""
    ready = specifications.for_schedule(
        private("tree", noise=0.5), schedule(), federation().num_examples
    ).build()
    return run(one_client_sends(value, 3)(ready))


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize(
    "value",
    [np.nan, pytest.param(np.inf, marks=pytest.mark.full), pytest.param(3e38, marks=pytest.mark.full)],
)
def test_one_client_cannot_destroy_the_model(value):
    history = hostile(value)
    own = schedule().client == 3
    assert own.any() and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(history.params))
    expected = own if not np.isfinite(value) else np.zeros(len(own), bool)
    np.testing.assert_array_equal(history.trip_reports["not_finite"], expected)
    assert history.trip_reports["clipped"][own].all() == (value == 3e38)


@pytest.mark.full
def test_an_update_that_is_not_finite_counts_as_zero():
    assert_same(hostile(np.nan), hostile(0.0))
    assert_same(hostile(np.inf), hostile(0.0))


@pytest.mark.full
def test_updates_of_bfloat16_are_added_up_and_get_their_noise_in_float32():
    """A sum of three updates in bfloat16 would be off by far more than their norms."""
    rule = private("tree", noise=0.0, clip=1e-3)
    built = specifications.for_schedule(rule, schedule(), federation().num_examples).build()
    params = {"w": jnp.ones(4, jnp.bfloat16)}
    buffer = built.begin(built.init(params, 12), params)
    one = jnp.int32(1)
    for value in (1.0, 1 + 1 / 128, 0.5):
        update = {"w": jnp.full(4, value, jnp.bfloat16)}
        arrival = Arrival(update, None, one, jnp.int32(0), one, one, one, jnp.float32(0), {})
        buffer, _ = built.fold(buffer, arrival)
    assert all(leaf.dtype != jnp.bfloat16 for leaf in jax.tree.leaves(buffer))
    direction, _, report, _ = built.finish(buffer, params)
    assert direction["w"].dtype == jnp.bfloat16
    assert float(report["signal_norm"]) == pytest.approx(1e-3, rel=1e-6)


# Another schedule than was accounted for


@functools.cache
def accounted(weigh_by_examples: bool = False):
    rule = private("tree", rules.fedbuff(weigh_by_examples=weigh_by_examples))
    return specifications.for_schedule(rule, schedule(), federation().num_examples)


@pytest.mark.parametrize("built", [False, True])
def test_an_accounted_rule_runs_on_its_own_schedule_alone(built):
    rule = accounted().build() if built else accounted()
    later = schedule(steps=39)
    message = "schedule is another one than was accounted.*jafl.private"
    with pytest.raises(jafl.SettingError, match=message) as refused:
        run(rule, later)
    assert refused.value.setting == "schedule"
    _, held, work, _, params, key = arguments(None)
    with pytest.raises(jafl.SettingError, match=message):
        jafl.simulate_many([jafl.Run(later, held, work, rule, params, key)] * 2)
    resolved = jafl.Run(schedule(), held, work, rule, params, key).for_its_schedule().rule
    assert resolved is rule  # also where a user has changed what is built, to report more for example
    assert built or report_of(resolved).num_steps == 40


def test_an_accounted_rule_whose_weights_read_numbers_of_examples_runs_on_these_alone():
    others = federation().num_examples + 1
    with pytest.raises(jafl.SettingError, match="other numbers of examples than were accounted"):
        specifications.for_schedule(accounted(True), schedule(), others)
    assert specifications.for_schedule(accounted(), schedule(), others) is accounted()


# The seed of the noise


@pytest.mark.full
def test_the_noise_of_each_run_is_drawn_for_it_alone_and_is_not_shown():
    """One rule object in two runs, and one resolved rule: the noise must not cancel."""
    rule = private("tree", noise_seed=None)
    first, second = run(rule), run(rule)
    assert relative(first, second) > 0.01
    ready = specifications.for_schedule(rule, schedule(), federation().num_examples)
    third, fourth = run(ready), run(ready)
    assert relative(third, fourth) > 0.01 and relative(first, third) > 0.01
    assert "words=drawn from the system's entropy" in repr(ready)
    assert "drawn from the system's entropy for this run alone" in report_of(ready).conditions[-1]
    words = ready.arguments["words"].words
    assert words.shape == (4,) and words.dtype == np.uint32
    given = report_of(accounted())
    assert "whoever knows it can take the noise away" in given.conditions[-1]


def test_all_128_bits_of_the_seed_count():
    words = np.array([1, 2, 3, 4], np.uint32)
    made = node_noise(words, 0, 1, 2, 50, jnp.float32)
    for place in range(4):
        other = words.copy()
        other[place] ^= 1 << 31
        assert np.abs(made - node_noise(other, 0, 1, 2, 50, jnp.float32)).max() > 0.1
    seeds = [0, 1, 2**32, 2**32 + 1, 2**64 - 1]
    assert len({tuple(key_words(seed)) for seed in seeds}) == len(seeds)


@pytest.mark.full
def test_several_runs_in_one_program_draw_each_its_own_noise():
    events, held, work, _, params, key = arguments(None)
    rule = private("tree_honaker", noise_seed=None)
    runs = [jafl.Run(events, held, work, rule, params, key, SERVERS["sgd"], []) for _ in range(3)]
    first, second, third = jafl.simulate_many(runs)
    assert min(relative(first, second), relative(first, third), relative(second, third)) > 0.01


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("mechanism", ["tree", "tree_honaker", "banded_toeplitz"])
def test_a_run_that_is_resumed_goes_on_with_the_noise_that_it_had(mechanism, tmp_path):
    """Twice from one checkpoint: the same bits, which no seed in the arguments decides."""
    asked = iter([False] + [True] * 100)
    rule = private(mechanism, noise_seed=None)
    kept = jafl.Checkpoints(tmp_path / "kept", every=40)
    stopped = run(rule, evaluate_at=[20], checkpoints=kept, should_stop=lambda: next(asked))
    done = stopped.server_steps
    assert 0 < done < 40
    shutil.copytree(tmp_path / "kept", tmp_path / "copy")
    first, second = (run(rule, evaluate_at=[20], checkpoints=tmp_path / name) for name in ("kept", "copy"))
    assert_same(first, second)
    for name in ("noise_norm", "signal_norm"):
        np.testing.assert_array_equal(first.step_reports[name][:done], stopped.step_reports[name])


@pytest.mark.full
def test_a_run_that_diverges_is_repeated_with_its_own_noise():
    """To find the step: the model of the last evaluation comes out of the repetition, bit for bit."""
    events, held, work, _, params, key = arguments(None)
    models = []
    with pytest.raises(jafl.DivergenceError) as found:
        jafl.simulate(
            events,
            held,
            work,
            private("tree", noise_seed=None),
            params,
            key,
            server_optimizer=jafl.specify(optax.sgd, learning_rate=1.0, momentum=30.0),
            evaluate_at=[5],
            on_evaluation=lambda evaluation, model: models.append(model),
        )
    assert found.value.client is None and found.value.server_step > 10
    last = jax.device_get(models[-1])
    for mine, its in zip(*map(jax.tree.leaves, (last, found.value.history.params)), strict=True):
        np.testing.assert_array_equal(mine, its)
