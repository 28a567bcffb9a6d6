"""Secure aggregation inside a private rule: clip, round, mask, add up, unmask, and the noise on the sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from test_secure import BITS, WORLD, directions, learning, num_examples, updates_of
from tiers import in_tiers

import jafl
from jafl import rules
from jafl.privacy import account, ring, trip_weights
from jafl.privacy.buffer_totals import fold_weights
from jafl.records import Arrival
from jafl.specifications import as_specification, for_schedule


def private(rule, noise: float = 0.0, clip_norm: float = BITS["clip_norm"], **more):
    return jafl.private(
        rule, clip_norm=clip_norm, noise_multiplier=noise, delta=1e-5, **{"noise_seed": 0, **more}
    )


@pytest.mark.full
def test_without_noise_and_with_many_bits_it_approaches_the_private_rule(float64):
    schedule = jafl.asynchronous(**WORLD)
    updates = updates_of(schedule)
    plain = directions(private(rules.fedavg()), schedule, updates)

    def off(bits: int) -> float:
        secure = jafl.secure(rules.fedavg(), clip_norm=BITS["clip_norm"], fraction_bits=bits, weight_bits=0)
        return float(np.abs(directions(private(secure), schedule, updates) - plain).max())

    errors = [off(bits) for bits in (8, 14, 26)]
    assert errors[0] > 16 * errors[1] > 256 * errors[2] > 0
    assert errors[2] < 1e-6


@pytest.mark.full
def test_the_noise_is_that_of_the_private_rule_and_enters_after_the_sum(float64):
    """What noise changes in the directions is the noise alone, with a ring and without."""
    schedule = jafl.asynchronous(**WORLD)
    updates = updates_of(schedule)
    secure = jafl.secure(rules.fedavg(), **{**BITS, "weight_bits": 0})
    noises = [
        directions(private(rule, 0.7), schedule, updates) - directions(private(rule), schedule, updates)
        for rule in (rules.fedavg(), secure)
    ]
    np.testing.assert_allclose(noises[1], noises[0], atol=1e-9)
    assert np.abs(noises[0]).max() > 0.1


@pytest.mark.full
def test_the_account_counts_whole_weights(float64):
    """FedBuff's weights as they are used, rounded to whole units: with one bit 0.5, 1 or 0."""
    schedule = jafl.asynchronous(**WORLD)
    secure = jafl.secure(rules.fedbuff(), clip_norm=1.0, fraction_bits=20, weight_bits=1)
    exact = fold_weights(rules.fedbuff(), schedule, num_examples(schedule))
    weights = trip_weights(secure, schedule, num_examples(schedule))
    np.testing.assert_allclose(weights, np.rint(2 * exact) / 2 / WORLD["buffer_size"], rtol=1e-12)
    assert not np.allclose(weights, trip_weights(rules.fedbuff(), schedule))
    resolved = as_specification(for_schedule(private(secure, 1.0, 1.0), schedule, num_examples(schedule)))
    own_report = account(schedule, secure, clip_norm=1.0, noise_multiplier=1.0, delta=1e-5)
    assert resolved.report.epsilon_realised == own_report.epsilon_realised
    plain = account(schedule, rules.fedbuff(), clip_norm=1.0, noise_multiplier=1.0, delta=1e-5)
    assert own_report.epsilon_realised != plain.epsilon_realised


@pytest.mark.full
@pytest.mark.parametrize("bits", in_tiers({"3": 3, "6": 6, "12": 12}, ["3"]))
def test_no_rounded_update_is_longer_than_the_clip_norm(bits):
    """The noise hides updates of norm clip_norm; rounding lengthens them, so they are clipped to less before."""
    schedule = jafl.asynchronous(**WORLD)
    secure = jafl.secure(rules.fedavg(), clip_norm=1.0, fraction_bits=bits, weight_bits=0)
    ready = for_schedule(private(secure, clip_norm=1.0), schedule, num_examples(schedule))
    rule = as_specification(ready).build()
    params = jnp.zeros(20)
    random = np.random.default_rng(bits)

    @jax.jit
    def rounded(update, client):
        columns = {"secure_weight": jnp.int32(1), "secure_trip": jnp.int32(0)}
        one = jnp.int32(1)
        arrival = Arrival(update, None, client, one, one, one, one, jnp.zeros(()), columns)
        buffer, _ = rule.fold(rule.begin(rule.init(params, 9), params), arrival)
        return ring.integers(ring.subtracted(buffer[0].masked, buffer[0].masks))

    norms = [
        np.linalg.norm(np.asarray(rounded(jnp.asarray(random.normal(size=20)), jnp.int32(client)), float))
        for client in range(60)
    ]
    assert max(norms) <= 2**bits
    assert max(norms) > (0.2 if bits == 3 else 0.6) * 2**bits


@pytest.mark.full
def test_too_few_bits_for_the_clip_norm_are_refused_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr("jafl.engine.loop.server_steps.run", None)
    schedule = jafl.asynchronous(**WORLD)
    secure = jafl.secure(rules.fedavg(), clip_norm=1.0, fraction_bits=4, weight_bits=0)
    with pytest.raises(jafl.SettingError, match="fraction_bits.*650 parameters.*fraction_bits=5"):
        learning(private(secure, clip_norm=1.0), schedule)
    fits = jafl.secure(rules.fedavg(), clip_norm=1.0, fraction_bits=5, weight_bits=0)
    ready = as_specification(for_schedule(private(fits, clip_norm=1.0), schedule, num_examples(schedule)))
    ready.build().check_model(jnp.zeros(650))
    with pytest.raises(jafl.SettingError, match="1,025 parameters .* fraction_bits=6"):
        ready.build().check_model(jnp.zeros(1025))


def test_the_order_that_makes_no_sense_and_other_clip_norms_are_refused():
    with pytest.raises(jafl.SettingError, match=r"jafl\.private\(jafl\.secure\(rule"):
        jafl.secure(private(rules.fedbuff()), clip_norm=1.0)
    with pytest.raises(jafl.SettingError, match="clip_norm is 0.5, but must be 1, that of the rule"):
        private(jafl.secure(rules.fedbuff(), clip_norm=1.0), clip_norm=0.5)
    with pytest.raises(jafl.SettingError):
        private(private(jafl.secure(rules.fedbuff(), clip_norm=1.0), clip_norm=1.0), clip_norm=1.0)


@pytest.mark.full
def test_another_number_is_the_same_program():
    def prepared(seed, clip_norm, noise, bits):
        schedule = jafl.asynchronous(**WORLD, seed=seed)
        secure = jafl.secure(rules.fedbuff(), clip_norm=clip_norm, fraction_bits=bits, weight_bits=4)
        return for_schedule(private(secure, noise, clip_norm), schedule, num_examples(schedule))

    first, second = prepared(0, 1.0, 0.5, 12), prepared(4, 2.0, 0.1, 9)
    assert jax.tree.structure(first) == jax.tree.structure(second)
