"""The ring of integers modulo 2^32: rounding, sums in any order, and the headroom that is proven before a run."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tiers import in_tiers

import jafl
from jafl.privacy import masks, ring

RANDOM = np.random.default_rng(0)


def random_words(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint32)


def by_fractions(values: np.ndarray, words: np.ndarray, bits: int, most: int) -> list[int]:
    """The rounding, in exact arithmetic: up where the upper 24 bits of the word are below the fraction."""
    whole = []
    for value, word in zip(values.tolist(), words.tolist(), strict=True):
        units = Fraction(value) * 2**bits
        below = units.numerator // units.denominator
        whole.append(below + (Fraction(word >> 8, 2**24) < units - below))
    return [max(-most, min(most, each)) for each in whole]


@pytest.mark.parametrize("bits", in_tiers({"0": 0, "4": 4, "16": 16, "24": 24}, ["16"]))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_is_exact_arithmetic(bits, dtype):
    values = np.concatenate(
        [RANDOM.normal(0, 1, 500), [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0**-24, 3.0, -3.0]]
    )
    values, most = values.astype(dtype), 2 * 2**bits
    words = random_words(len(values), bits)
    with jax.enable_x64(dtype == np.float64):
        made = ring.rounded(jnp.asarray(values), jnp.asarray(words), 2.0**bits, np.int32(most))
        np.testing.assert_array_equal(
            np.asarray(made).astype(np.int32), by_fractions(values, words, bits, most)
        )


def test_small_numbers_below_zero_are_rounded_to_zero_or_to_minus_one_unit():
    """Their fraction lies within the rounding of float32 of 1: the next unit above is 0."""
    values = np.full(2**14, -1e-12, np.float32)
    made = np.asarray(ring.rounded(values, random_words(2**14), 2.0**16, np.int32(9))).astype(np.int32)
    assert not made.any()


@pytest.mark.parametrize(
    "value",
    in_tiers({str(value): value for value in (0.3, -0.3, 2.0**-10, 1 - 2.0**-10, -7.25, 5.0)}, ["-0.3"]),
)
def test_rounding_is_unbiased_and_has_the_variance_of_its_fraction(value):
    """Over 2^20 words: the number of those rounded up is binomial with the fraction for its chance."""
    number = 2**20
    made = ring.rounded(jnp.full(number, value), random_words(number, 7), 1.0, np.int32(100))
    fraction = value - np.floor(value)
    up = int(np.sum(np.asarray(made).astype(np.int32) - int(np.floor(value))))
    assert stats.binomtest(up, number, fraction).pvalue > 1e-5 if fraction else up == 0


def test_sums_of_masked_rows_have_the_same_bits_in_any_order():
    """100 orders of 40 rows: the masked sum, and after the masks are subtracted the sum of Python's integers."""
    rows, entries = 40, 50
    units = RANDOM.integers(-(2**16), 2**16, (rows, entries))
    weights = RANDOM.integers(1, 257, rows)
    mask = random_words((rows, entries), 2)
    sent = np.stack(
        [
            ring.added(ring.weighed(jnp.asarray(q.astype(np.uint32)), np.int32(w)), m)
            for q, w, m in zip(units, weights, mask, strict=True)
        ]
    )
    exact = [sum(int(w) * int(q) for w, q in zip(weights, column, strict=True)) for column in units.T]
    sums = set()
    for seed in range(100):
        order = np.random.default_rng(seed).permutation(rows)
        masked, hidden = np.zeros(entries, np.uint32), np.zeros(entries, np.uint32)
        for place in order:
            masked = np.asarray(ring.added(masked, sent[place]))
        for place in np.random.default_rng(seed + 1000).permutation(rows):
            hidden = np.asarray(ring.added(hidden, mask[place]))
        sums.add(masked.tobytes())
        assert np.asarray(ring.integers(ring.subtracted(masked, hidden))).tolist() == exact
    assert len(sums) == 1


def test_one_missing_mask_leaves_nothing_of_the_sum():
    """The result is as uniform as a mask, whatever was added up."""
    entries, rows = 100_000, 5
    hidden = random_words((rows, entries), 5)
    sent = hidden + np.uint32(3)
    total = sent.sum(axis=0, dtype=np.uint32)
    right = np.asarray(ring.integers(ring.subtracted(total, hidden.sum(axis=0, dtype=np.uint32))))
    assert np.all(right == 3 * rows)
    for left_out in range(rows):
        others = np.delete(hidden, left_out, axis=0).sum(axis=0, dtype=np.uint32)
        wrong = np.asarray(ring.subtracted(total, others))
        assert stats.kstest(wrong / 2**32, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("like", [np.float32, np.float64, jnp.bfloat16])
def test_numbers_are_read_off_their_remainders(like):
    whole = np.array([0, 1, -1, 2**23, -(2**23), 2**31 - 1, -(2**31)])
    with jax.enable_x64(like == np.float64):
        made = ring.reals(jnp.asarray(whole.astype(np.uint32)), 2.0**24, jnp.zeros(1, like))
        assert made.dtype == like
        expected = whole.astype(np.promote_types(like, np.float32) if like != jnp.bfloat16 else np.float32)
        np.testing.assert_array_equal(np.asarray(made), (expected / 2**24).astype(like))


# (clip norm, fraction bits, largest weight, weight bits)
NUMBERS = [(1.0, 16, 1.0, 8), (1.0, 16, 1.0, 0), (10.3, 20, 0.77, 6), (1.2e-4, 30, 300.0, 3)]


def just_fitting(clip_norm, fraction_bits, largest_weight, weight_bits):
    """(the most trips whose sums fit, the largest entry, the largest weight), the last two in units."""
    most = ring.most_units(clip_norm, fraction_bits)
    weight = int(ring.whole_weights(np.array([largest_weight]), weight_bits)[0])
    return (2**31 - 1) // (most * weight), most, weight


@pytest.mark.parametrize("case", NUMBERS, ids=str)
def test_the_last_sum_that_fits_is_right_and_one_more_trip_is_refused(case):
    trips, most, weight = just_fitting(*case)
    ring.check_headroom(trips, *case)

    def summed(trips, sign):
        units = np.full(1, sign * most).astype(np.uint32)
        sent = ring.weighed(jnp.asarray(units), np.int32(weight))
        with np.errstate(over="ignore"):
            total = np.asarray(sent) * np.uint32(trips)
        return int(ring.integers(jnp.asarray(total))[0])

    for sign in (-1, 1):
        assert summed(trips, sign) == sign * trips * most * weight
    assert summed(trips + 1, 1) != (trips + 1) * most * weight
    with pytest.raises(jafl.SettingError, match="would do"):
        ring.check_headroom(trips + 1, *case)


@pytest.mark.parametrize(
    "case", [(128, 1.0, 16, 1.0, 8), (1000, 5.0, 30, 2.0, 30), (10, 1.0, 30, 0.01, 10)], ids=str
)
def test_a_refusal_names_bits_that_would_do_and_no_fewer(case):
    with pytest.raises(jafl.SettingError) as refused:
        ring.check_headroom(*case)
    for name, place in (("fraction_bits", 2), ("weight_bits", 4)):
        _, found, rest = refused.value.remedy.partition(f"{name}=")
        if found:
            bits = int(rest.split()[0].rstrip(".,"))
            ring.check_headroom(*case[:place], bits, *case[place + 1 :])
            with pytest.raises(jafl.SettingError):
                ring.check_headroom(*case[:place], bits + 1, *case[place + 1 :])
    assert "fraction_bits is" in str(refused.value) and "2**31" in str(refused.value)


def test_weights_that_all_round_to_zero_are_refused():
    weights = np.array([0.01, 0.02])
    with pytest.raises(jafl.SettingError, match="weight_bits=5 would do"):
        ring.check_weights(weights, 4)
    ring.check_weights(weights, 5)
    assert ring.whole_weights(weights, 5).tolist() == [0, 1]
    ring.check_weights(np.zeros(3), 0)  # a rule that gives no trip a weight says so itself


@pytest.mark.full
def test_masks_cancel_whatever_the_sum_is():
    """Rows of the trips' own masks, in three orders of clients."""
    like = jnp.zeros(64)
    total, hidden = jnp.zeros(64, jnp.uint32), jnp.zeros(64, jnp.uint32)
    for client, trip in [(3, 0), (1, 4), (3, 1)]:
        mask, _ = masks.words(masks.trip_key(masks.seed_key(9), client, trip), like)
        total = ring.added(total, ring.added(jnp.full(64, 2**32 - 5, jnp.uint32), mask))
        hidden = ring.added(hidden, mask)
    assert np.asarray(ring.integers(ring.subtracted(total, hidden))).tolist() == [-15] * 64
