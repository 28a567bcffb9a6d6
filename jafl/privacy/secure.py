"""Secure aggregation: a rule whose server sees sums of updates alone, in the arithmetic that makes it possible."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.described import described
from jafl.base.errors import SettingError, real_number, refusal, require, seed_number, whole_number
from jafl.privacy import masks, ring
from jafl.privacy.buffer_totals import counted, fold_weights, small, weights_of_sums, with_total
from jafl.privacy.clipping import clip
from jafl.privacy.weights import COUNTS, eligible_rules, examined, rule_name
from jafl.records import Array, Arrival, Columns, EventSchedule, Requirements, Rounding, Rule, Updates
from jafl.rules import RULES, accumulate
from jafl.specifications import Specification, as_rule

# Names of the columns that a secure rule adds to its rule's own.
WEIGHT, TRIP = "secure_weight", "secure_trip"


class SecureBuffer(NamedTuple):
    """What has arrived of a server step. All of it adds up, in any order."""

    masked: Any  # [*P] uint32: the sum of what clients have sent
    masks: Any  # [*P] uint32: their sum, which a server learns once no more arrives
    counts: Any  # the rule's own buffer, without the updates: what it counts and adds up beside them
    unfit: Array  # [] float: 0, or NaN if an update was not finite, which whole numbers cannot say


class Sent(NamedTuple):
    """What one client sends, and what hides it."""

    masked: Any  # [*P] uint32: weight x rounded update + mask
    mask: Any  # [*P] uint32
    clipped: Array  # [] float: 1 if the update was longer than the clip norm, else 0
    unfit: Array  # [] float: 0, or NaN if the update was not finite


class Numbers(NamedTuple):
    """The numbers of a secure rule: data, so that others run the same compiled program."""

    clip_norm: Array  # [] float
    scale: Array  # [] float: units in an update of 1, a power of two
    most: Array  # [] int32: the largest absolute value of a rounded entry, in units
    weight_scale: Array  # [] float: units in a weight of 1, a power of two
    key: Array  # [2] uint32, of all masks and rounding bits of the run


@described
def secure(
    rule: Specification | Rule,
    *,
    clip_norm: float,
    fraction_bits: int = 16,
    weight_bits: int = 8,
    seed: int = 0,
) -> Specification:
    """A rule as it runs under secure aggregation, where the server learns sums of updates and no single one.

    It simulates the arithmetic of asynchronous secure aggregation (BASecAgg: So et al. 2021, arXiv:2110.02177;
    LightSecAgg: So et al. 2021, arXiv:2109.14236), not its cryptography: no keys are exchanged, and nothing is kept
    from anybody. It shows what the arithmetic costs a run: rounding, weights in whole numbers, and sums that must fit
    into 32 bits. In the ring of integers modulo 2^32, trip i sends

        W_i * q_i + mask_i,  q_i = round(clip(update_i) * 2^fraction_bits),  W_i = round(w_i * 2^weight_bits)

    The update is clipped to the L2 norm ``clip_norm`` over all parameters, and rounded up or down at random so that
    its mean is right. w_i is the weight that the rule gives it (FedBuff: that of its staleness), rounded to the
    nearest whole number. The mask is of uniform words. The server adds up what arrives, subtracts the sum of the
    masks, divides by 2^(fraction_bits + weight_bits), and hands the sum to the rule's own ``finish``. Integers add up
    in any order: the same rounded updates give the same bits on any number of devices. A trip that is lost is in
    neither sum, whatever it had masked before.

    The simulation knows what a deployment does not. It draws masks by (seed, client, trip), where clients would agree
    on them and share them so that only their sum can be found. It reads the weights, the largest of them, and the
    number of trips of each step off the schedule before the run, where a deployment would fix bounds. It passes on
    that an update was not finite, so that a run that diverges is seen to. And it reports losses, weights and
    ``clipped`` of single trips.

    Reports ``weight`` per trip as W_i / 2^weight_bits if the rule reports it, and ``clipped``, 1 or 0.

    Args:
      rule: one whose direction is a weighted sum of updates, with weights known from the schedule and numbers of
        examples, without memory or state, and for more than one trip per server step. ``jafl.private`` goes around
        the result, not inside: the noise is added to the sum.
      clip_norm: the largest L2 norm of an update over all parameters, above 0.
      fraction_bits: bits after the binary point of an update, 0 to 30.
      weight_bits: bits after the binary point of a weight, 0 to 30.
      seed: of the masks and of the rounding.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a rule that is not eligible, or numbers out of their range; when a run is prepared, before
        anything is compiled, where a sum of a server step could leave the 32 bits (says which bits would do), where
        all weights round to 0, and for a schedule whose steps have one trip each.

    Examples:
      >>> jafl.secure(jafl.rules.fedbuff(), clip_norm=1.0, fraction_bits=18)
      secure(rule=fedbuff(...), clip_norm=1.0, fraction_bits=18, weight_bits=8, seed=0)
    """
    rule = as_rule(rule)
    _check_rule(rule)
    real_number("clip_norm", clip_norm, lambda norm: 0 < norm < np.inf, "a finite number above 0")
    for name, bits in (("fraction_bits", fraction_bits), ("weight_bits", weight_bits)):
        whole_number(name, bits, 0)
        require(bits <= ring.MOST_BITS, name, bits, f"at most {ring.MOST_BITS}")
    seed = seed_number("seed", seed)
    arguments = {"rule": rule, "clip_norm": float(clip_norm), "fraction_bits": int(fraction_bits)}
    return SecureRule(secure, {**arguments, "weight_bits": int(weight_bits), "seed": seed})


def _check_rule(rule: Specification) -> None:
    """Raises SettingError unless the sums of a rule can be made in the ring."""
    built = rule.build()
    if isinstance(built, Rule) and built.for_schedule is not None:
        remedy = (
            "Noise goes to the sum, which the server sees, not to what clients send: write "
            "jafl.private(jafl.secure(rule, ...), ...), and jafl.secure once."
        )
        raise refusal("rule", rule, "a rule as jafl.rules has them, neither private nor secure yet", remedy)
    if reason := reason_against(rule):
        allowed = "a rule that adds up updates, several in a server step, with weights that are known before the run"
        remedy = f"{reason[0].upper()}{reason[1:]}. Eligible are {', '.join(secure_rules())}."
        raise refusal("rule", rule_name(rule), allowed, remedy)


def reason_against(rule: Specification) -> str | None:
    """Why the sums of a rule cannot be made in the ring, a sentence without a full stop; None if they can."""
    reads = examined(rule)
    if isinstance(reads, str):
        return reads
    if rule.build().buffer_size == 1:
        return "each trip is a server step of its own: there is no other update to hide one in"
    unknown = [COUNTS[name] for name in reads if name != "num_examples"]
    return f"its weights depend on {unknown[0]}, which is not known before the run" if unknown else None


def secure_rules() -> list[str]:
    """The rules that can run under secure aggregation (``jafl.secure``), with their default numbers.

    Returns:
      Their names in ``jafl.rules.RULES``.

    Examples:
      >>> secure_rules()
      ['cgad', 'exponential_weighting', 'fadas', 'fedavg', 'fedbuff', 'fedcompass', 'fedfix', 'fedstaleweight',
       'malenia', 'sasgd']
    """
    return [name for name in eligible_rules() if not reason_against(RULES[name]())]


@jax.tree_util.register_pytree_node_class
class SecureRule(Specification):
    """A secure rule whose weights are not known before its schedule is; its arguments are those of ``secure``."""

    def build(self) -> Rule:
        """The rule, which can say which schedules it needs, and cannot run before it has got one."""
        rule = self.arguments["rule"].build()

        def begin(state, params):
            raise SettingError(
                "rule is secure, and its weights follow from a schedule: run it with jafl.simulate, or give it its "
                "schedule first (rule.build().for_schedule(schedule, num_examples)).",
                setting="rule",
            )

        unit = 2.0 ** -self.arguments["fraction_bits"]
        return rule._replace(
            begin=begin,
            requirements=_requirements(rule),
            for_schedule=self._on_schedule,
            rounding=Rounding(rule, rule, unit, self.arguments["clip_norm"]),
        )

    def _on_schedule(self, schedule: EventSchedule, num_examples: np.ndarray | None) -> Specification:
        rule, clip_norm, fraction_bits, weight_bits, seed = (
            self.arguments[name] for name in ("rule", "clip_norm", "fraction_bits", "weight_bits", "seed")
        )
        weights = fold_weights(rule, schedule, num_examples)
        most_trips = int(np.diff(schedule.step_offsets).max(initial=0))
        remedy = "A sum of one update is that update, which the server then sees."
        require(
            most_trips > 1, "the largest number of trips of a server step", most_trips, "at least 2", remedy
        )
        ring.check_weights(weights, weight_bits)
        largest = float(np.abs(weights).max())
        ring.check_headroom(most_trips, clip_norm, fraction_bits, largest, weight_bits)
        numbers = Numbers(
            clip_norm=clip_norm,
            scale=2.0**fraction_bits,
            most=np.array(ring.most_units(clip_norm, fraction_bits), np.int32),
            weight_scale=2.0**weight_bits,
            key=np.array(masks.seed_key(seed), np.uint32),
        )
        known = np.ones(schedule.num_clients) if num_examples is None else num_examples
        counts = np.asarray(known, np.int32)
        return Specification(_secure_on_schedule, {"rule": rule, "num_examples": counts, **numbers._asdict()})


def _secure_on_schedule(rule: Rule, num_examples: np.ndarray, **numbers: Any) -> Rule:
    own = Numbers(**numbers)

    def columns(schedule: EventSchedule) -> Columns:
        weights = weights_of_sums(rule, schedule, num_examples)[:, 0] * float(own.weight_scale)
        added = {WEIGHT: np.rint(weights).astype(np.int32), TRIP: schedule.trip}
        return {**rule.columns(schedule), **added}

    def begin(state: Any, params: Any) -> SecureBuffer:
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.uint32), params)
        return SecureBuffer(nothing, nothing, rule.begin((), small(params)), accumulate.number(0))

    def fold(buffer: SecureBuffer, arrival: Arrival) -> tuple[SecureBuffer, Any]:
        weight = arrival.columns[WEIGHT]
        sent = message(arrival.update, arrival.client, arrival.columns[TRIP], weight, own)
        counts, report = counted(rule, buffer.counts, arrival)
        folded = SecureBuffer(
            ring.added(buffer.masked, sent.masked),
            ring.added(buffer.masks, sent.mask),
            counts,
            buffer.unfit + sent.unfit,
        )
        if "weight" in report:
            report = {**report, "weight": accumulate.number(weight) / own.weight_scale}
        return folded, {**report, "clipped": sent.clipped}

    def finish(buffer: SecureBuffer, params: Any) -> Any:
        remainders = ring.subtracted(buffer.masked, buffer.masks)
        total = ring.reals(remainders, jnp.asarray(own.scale) * own.weight_scale, params)
        total = jax.tree.map(lambda leaf: leaf + buffer.unfit.astype(leaf.dtype), total)
        return rule.finish(with_total(rule, buffer.counts, total, params), params)

    unrounded = _unrounded(rule, columns, own.weight_scale)
    return Rule(
        rule.init,
        begin,
        fold,
        finish,
        columns,
        requirements=_requirements(rule),
        rounding=Rounding(rule, unrounded, 1 / own.scale, own.clip_norm),
        check_schedule=rule.check_schedule,
    )


def _unrounded(rule: Rule, columns: Any, weight_scale: Array) -> Rule:
    """The rule with weights in whole units, and updates as they are: what its privacy is accounted for."""

    def begin(state: Any, params: Any) -> Any:
        return accumulate.zeros(params), rule.begin((), small(params))

    def fold(buffer: Any, arrival: Arrival) -> Any:
        total, counts = buffer
        counts, report = counted(rule, counts, arrival)
        weight = accumulate.number(arrival.columns[WEIGHT]) / weight_scale
        return (accumulate.add(total, weight, arrival.update), counts), report

    def finish(buffer: Any, params: Any) -> Any:
        total, counts = buffer
        return rule.finish(with_total(rule, counts, total, params), params)

    return Rule(rule.init, begin, fold, finish, columns, requirements=rule.requirements)


def message(update: Updates, client: Array, trip: Array, weight: Array, numbers: Numbers) -> Sent:
    """What a client sends of its trip of this number, from 0: the masked row, and its mask; weight: in units."""
    key = masks.trip_key(masks.Key(numbers.key[0], numbers.key[1]), client, trip)
    mask, bits = masks.words(key, update)
    short = clip(update, numbers.clip_norm)
    units = ring.rounded(short.update, bits, numbers.scale, numbers.most)
    masked = ring.added(ring.weighed(units, weight), mask)
    unfit = jnp.where(short.not_finite > 0, jnp.nan, accumulate.number(0))
    return Sent(masked, mask, short.clipped, unfit)


def _requirements(rule: Rule) -> Requirements:
    """Those of the rule; what is rounded is not linear, but adds up."""
    return rule.requirements._replace(linear=False, additive=True)
