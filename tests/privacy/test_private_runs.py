"""Private runs of the engine: no privacy to the last bit, clipping, numbers that are data, and what is refused."""

import functools

import jax
import jax.monitoring
import numpy as np
import optax
import pytest
from protocols import protocol_of
from tiers import in_tiers

import jafl
from jafl import rules, specifications
from jafl.engine.loop import server_steps
from jafl.privacy.private import clip, report_of
from jafl.privacy.weights import eligible_rules

MODEL = jafl.models.mlp(3, (5,))
MECHANISMS = {
    "independent": {},
    "tree": {},
    "tree_honaker": {"restarts": 2},
    "banded_toeplitz": {"bands": 5},
}
SERVERS = {
    "sgd": jafl.specify(optax.sgd, learning_rate=0.7),
    "momentum": jafl.specify(optax.sgd, learning_rate=0.3, momentum=0.9),
    "adam": jafl.specify(optax.adam, learning_rate=0.02),
}


@functools.cache
def federation(dtype=np.float32) -> jafl.Federation:
    random = np.random.default_rng(5)
    sizes = random.integers(1, 30, 12)
    y = random.integers(0, 3, sizes.sum())
    x = random.normal(size=(len(y), 6)) + np.eye(3, 6)[y]
    partition = jafl.Partition.from_lists(np.split(random.permutation(len(y)), np.cumsum(sizes)[:-1]))
    x = x.astype(dtype)
    return jafl.Federation.from_arrays(x, y, partition, test_x=x[:20], test_y=y[:20], num_classes=3)


@functools.cache
def schedule(size: int = 4, steps: int = 40, **changes) -> jafl.EventSchedule:
    arguments = {
        "num_clients": 12,
        "concurrency": 9,
        "buffer_size": size,
        "server_steps": steps,
        "seed": 3,
    }
    return jafl.asynchronous(delay=jafl.delays.half_normal(1.0), **arguments | changes)


def arguments(rule, events=None, key: int = 1, dtype=np.float32) -> tuple:
    work = jafl.client_work(MODEL, learning_rate=0.2, batch_size=4, local_epochs=1)
    params = MODEL.init(jax.random.key(0), federation(dtype).x)
    return events or schedule(), federation(dtype), work, rule, params, jax.random.key(key)


def run(rule, events=None, *, server="sgd", dtype=np.float32, key: int = 1, **how) -> jafl.History:
    how = {"evaluate_at": [], "evaluators": {}, **how}
    return jafl.simulate(*arguments(rule, events, key, dtype), server_optimizer=SERVERS[server], **how)


def private(mechanism: str = "tree", rule=None, noise: float = 0.5, clip: float = 0.3, **more):
    more = {"noise_seed": 0, **MECHANISMS[mechanism], **more}
    return jafl.private(
        rule or rules.fedbuff(),
        clip_norm=clip,
        noise_multiplier=noise,
        delta=1e-5,
        mechanism=mechanism,
        **more,
    )


def assert_same(history, other, *, bits: bool = True, rtol: float = 2e-5) -> None:
    for mine, its in zip(*map(jax.tree.leaves, (history.params, other.params)), strict=True):
        if bits:
            np.testing.assert_array_equal(mine, its)
        else:
            np.testing.assert_allclose(mine, its, rtol=rtol, atol=rtol)


# Without noise and clipping


def no_privacy(mechanism: str, rule=None):
    """A private rule whose clipping and noise are there, and change nothing."""
    return private(mechanism, rule, noise=1e-36, clip=1e15)


TRAINABLE = [name for name in eligible_rules() if name not in ("fednova", "twafl")]


@pytest.mark.few_in_full(5)
@pytest.mark.parametrize("name", in_tiers(TRAINABLE, ()))
def test_no_noise_and_an_infinite_clip_give_the_rules_own_run_to_the_last_bit(name):
    rule = rules.RULES[name]()
    events = schedule(rule.build().buffer_size or 4, **protocol_of(name, 12))
    own, same = (
        run(rule, events, server="adam"),
        run(private("tree", rule, 0.0, np.inf), events, server="adam"),
    )
    assert_same(own, same)
    assert not same.trip_reports["clipped"].any()
    for reported, values in own.trip_reports.items():
        np.testing.assert_array_equal(same.trip_reports[reported], values)


@pytest.mark.full
@pytest.mark.parametrize(
    ("mechanism", "server"),
    [
        ("tree", "momentum"),
        ("tree_honaker", "adam"),
        ("banded_toeplitz", "sgd"),
    ],
)
def test_clipping_and_noise_that_are_too_small_to_see_change_the_rounding_alone(mechanism, server):
    """The whole of the private step runs here, whatever the server optimizer."""
    own, same = run(rules.fedbuff(), server=server), run(no_privacy(mechanism), server=server)
    assert_same(own, same, bits=False, rtol=2e-6)
    assert same.step_reports["noise_norm"].all() and not same.trip_reports["clipped"].any()


# Every trip is clipped


@pytest.mark.few_by_default(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_update_is_clipped_by_its_norm_over_all_parameters(dtype):
    random, jitted = np.random.default_rng(0), jax.jit(clip)
    with jax.enable_x64(dtype == np.float64):
        for scale in (1e-30, 1e-3, 1.0, 1e15, 1e30):
            update = {"a": random.normal(size=(7, 3)).astype(dtype), "b": random.normal(size=5).astype(dtype)}
            update = {name: (scale * leaf).astype(dtype) for name, leaf in update.items()}
            length = np.sqrt(sum(np.sum(leaf.astype(np.float64) ** 2) for leaf in update.values()))
            for share in (0.01, 0.999, 1.001, 100.0, np.inf):
                clipped, longer, not_finite = jitted(update, length * share)
                assert longer == (share < 1) and not not_finite
                for name, leaf in update.items():
                    assert clipped[name].dtype == dtype
                    np.testing.assert_allclose(clipped[name], leaf * min(1, share), rtol=1e-5)
                    if share > 1:
                        np.testing.assert_array_equal(clipped[name], leaf)
        nothing = {"a": np.zeros(4, dtype)}
        clipped, longer, not_finite = jitted(nothing, 1e-3)
        assert not np.any(clipped["a"]) and longer == 0 and not_finite == 0
        for wrong in (np.nan, np.inf, -np.inf):
            for norm in (1.0, np.inf):
                clipped, longer, not_finite = jitted({"a": np.array([1.0, wrong, 2.0, 0.0], dtype)}, norm)
                assert not np.any(clipped["a"]) and longer == 0 and not_finite == 1


@pytest.mark.full
def test_every_trip_is_clipped_and_told():
    """Without noise the model moves by clipped updates alone: each step by at most the weights times the norm."""
    history = run(private("tree", noise=0.0, clip=0.05))
    assert 0.5 < history.trip_reports["clipped"].mean() <= 1
    weights = history.weights.reshape(-1, 4).sum(axis=1)
    assert np.all(history.step_reports["signal_norm"] <= 0.05 * weights * (1 + 1e-5))
    assert not history.step_reports["noise_norm"].any()


def relative(history, other) -> float:
    pairs = list(zip(*map(jax.tree.leaves, (history.params, other.params)), strict=True))
    return np.sqrt(sum(np.sum((a - b) ** 2) for a, b in pairs) / sum(np.sum(b**2) for _, b in pairs))


# Numbers are data


class Compilations:
    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration: float, **_) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


COMPILATIONS = Compilations()


@pytest.mark.full
@pytest.mark.without_compilation_cache
def test_another_epsilon_clip_delta_or_seed_compiles_nothing():
    def private_run(epsilon=5.0, clip=0.3, delta=1e-5, seed=0, key=1):
        rule = jafl.private(
            rules.fedbuff(),
            clip_norm=clip,
            epsilon=epsilon,
            delta=delta,
            noise_seed=seed,
            mechanism="tree_honaker",
        )
        return run(rule, key=key)

    first = private_run()
    before, programs = COMPILATIONS.count, server_steps.run._cache_size()
    for change in ({"epsilon": 9.0}, {"clip": 0.7}, {"delta": 1e-3}, {"seed": 5}):
        assert relative(private_run(**change), first) > 1e-3, f"{change} changes nothing"
    assert (COMPILATIONS.count, server_steps.run._cache_size()) == (before, programs)
    run(private("banded_toeplitz", bands=3))
    assert COMPILATIONS.count > before  # the counter can fail


# What is refused

GOOD = {"clip_norm": 0.3, "delta": 1e-5, "noise_multiplier": 1.0}
BAD = {
    "clip 0": ({"clip_norm": 0.0}, "clip_norm is 0.0"),
    "clip NaN": ({"clip_norm": np.nan}, "clip_norm is nan"),
    "infinite clip with noise": ({"clip_norm": np.inf}, "clip_norm is inf.*finite where there is noise"),
    "delta 0": ({"delta": 0.0}, "delta is 0.0"),
    "delta 1": ({"delta": 1}, "delta is 1"),
    "no delta": ({"delta": None}, "delta is None"),
    "epsilon 0": ({"noise_multiplier": None, "epsilon": 0.0}, "epsilon is 0.0"),
    "epsilon -1": ({"noise_multiplier": None, "epsilon": -1.0}, "epsilon is -1.0"),
    "both": ({"epsilon": 3.0}, "epsilon is 3.0.*left out where noise_multiplier"),
    "neither": ({"noise_multiplier": None}, "epsilon is None"),
    "negative noise": ({"noise_multiplier": -1.0}, "noise_multiplier is -1.0"),
    "unknown mechanism": ({"mechanism": "trie"}, "mechanism.*tree"),
    "restarts without a tree": ({"mechanism": "independent", "restarts": 2}, "restarts is 2.*Only a tree"),
    "bands of a tree": ({"mechanism": "tree", "bands": 2}, "bands is 2"),
    "reading": ({"epsilon_reading": "twice"}, "epsilon_reading.*realised"),
    "seed": ({"noise_seed": -1}, "noise_seed is -1.*below 2\\*\\*64.*Left out, it is drawn"),
    "seed of 65 bits": ({"noise_seed": 2**64}, "noise_seed is 18446744073709551616"),
    "seed of text": ({"noise_seed": "3"}, "noise_seed is '3'"),
}


@pytest.mark.parametrize("row", BAD)
def test_bad_numbers_are_refused_by_name_before_anything_runs(row):
    changes, message = BAD[row]
    with pytest.raises(jafl.SettingError, match=message):
        jafl.private(rules.fedbuff(), **GOOD | changes)


@pytest.mark.parametrize("name", ["fedasync", "ace", "wkafl", "fednova"])
def test_a_rule_that_is_not_eligible_is_refused_by_name(name):
    wkafl = {"wkafl": lambda: rules.wkafl(4)}
    rule = wkafl.get(name, rules.RULES[name])()
    with pytest.raises(jafl.SettingError, match=f"rule is .*{name}"):
        jafl.private(rule, **GOOD)


def test_a_private_rule_in_a_private_rule_is_refused():
    with pytest.raises(jafl.SettingError, match="private already"):
        jafl.private(jafl.private(rules.fedbuff(), **GOOD), **GOOD)


@pytest.mark.full
def test_a_schedule_other_than_the_accounted_one_is_refused():
    rule = jafl.private(rules.fedbuff(), **GOOD, schedule=schedule())
    with pytest.raises(jafl.SettingError, match="schedule is another one than was accounted"):
        run(rule, schedule(steps=39))
    resolved = specifications.for_schedule(rule, schedule(), federation().num_examples)
    assert report_of(resolved).num_steps == 40
    assert report_of(rules.fedbuff()) is None


def test_more_restarts_than_steps_are_refused_when_the_run_starts():
    with pytest.raises(jafl.SettingError, match="restarts is 40"):
        run(private("tree", restarts=40))


def test_the_report_says_which_numbers_of_the_clients_are_public():
    rule = private("tree", rules.fedbuff(weigh_by_examples=True), data_in_schedule=("their sizes",))
    report = report_of(specifications.for_schedule(rule, schedule(), federation().num_examples))
    said = " ".join(report.conditions)
    assert "how many examples each client holds: these numbers are public" in said
    assert "The schedule depends on their sizes: these numbers are public" in said
