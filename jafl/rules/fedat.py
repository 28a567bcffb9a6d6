"""FedAT: a model of each tier, and slow tiers with the larger weights (Chai et al., SC 2021)."""

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import SettingError, whole_number
from jafl.records import Columns, EventSchedule, Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def fedat(tiers: int = 5, weigh_by_examples: bool = True) -> Rule:
    """FedAT: the global model is a mean of the tiers' models, in which slow tiers have the larger weights.

    A round of tier m = 1, ..., M (1 the fastest) replaces that tier's model by the mean of the models that its
    clients have trained, and its count T_m grows by 1. Then w <- sum_m (T_{M+1-m} / T) w_m, with T the sum of all
    counts: each tier has the count of the tier at the other end as its weight (Chai et al., SC 2021). The
    pseudo-gradient is w minus that mean, so use plain SGD with rate 1 at the server. The schedule is ``jafl.tiered``,
    with as many tiers. The clients' proximal term, 0.4 in the paper, is the client work's ``proximal``.

    Counts start at 1 and the tiers' models at the initial model, which is a reading. Usual mistake: counts that start
    at 0. Until the slowest tier has made its first round, the fastest tier then has no weight at all, and the slowest
    one, whose model is still the initial one, all that there is. The paper's compression by polylines is left out.

    Reports ``weight`` per trip: the share of its model in w when its round is over.

    Args:
      tiers: M, the number of tiers of the schedule; the server stores so many models. On the command line it follows
        from ``--protocol.tiers``, or that from it.
      weigh_by_examples: weigh the models of a round by the clients' numbers of examples, as the paper does, instead
        of uniformly.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a number of tiers below 1, when the rule is built; for a schedule without tiers, or with
        another number of them, when the run starts.
    """
    whole_number("tiers", tiers, 1)

    def init(params, num_clients):
        return (params,) * tiers

    def begin(state, params):
        whole = accumulate.number(0)
        return state, params, accumulate.zeros(params), whole, *(jnp.zeros(tiers, whole.dtype),) * 2

    def fold(buffer, arrival):
        state, _, total, shares, _, _ = buffer
        share = accumulate.number(arrival.num_examples if weigh_by_examples else 1)
        columns = arrival.columns
        total = accumulate.add(total, share, arrival.update)
        # All trips of a round have downloaded the same model.
        folded = state, arrival.start, total, shares + share, columns["in_tier"], columns["tier_weights"]
        return folded, {"weight": share * columns["own_weight"]}

    def finish(buffer, params):
        state, start, total, shares, in_tier, weights = buffer
        trained = jax.tree.map(jnp.add, start, accumulate.scaled(1 / shares, total))
        state = tuple(
            jax.tree.map(
                jnp.add, accumulate.scaled(1 - in_tier[m], old), accumulate.scaled(in_tier[m], trained)
            )
            for m, old in enumerate(state)
        )

        def away(w, *models):
            """Zero, whatever rounding does, where all models are w."""
            return sum(jnp.asarray(weights[m], w.dtype) * (w - model) for m, model in enumerate(models))

        direction = jax.tree.map(away, params, *state)
        return direction, state, {"weight_scale": 1 / shares}, True

    def check(schedule: EventSchedule) -> None:
        _check(schedule, tiers)

    return Rule(
        init,
        begin,
        fold,
        finish,
        columns=lambda schedule: _columns(schedule, tiers),
        requirements=Requirements(needs_start=True),
        check_schedule=check,
    )


def _columns(schedule: EventSchedule, tiers: int) -> Columns:
    """The tier of each trip, and the weights of the tiers' models at the end of its round.

    ``in_tier``: [J, M] float64, 1 for its own tier, else 0; ``tier_weights``: [J, M] float64; ``own_weight``: [J]
    float64, that of its own tier.
    """
    tier = np.zeros(schedule.num_clients, np.int32) if schedule.tier is None else schedule.tier
    in_tier = (tier[schedule.client][:, None] == np.arange(tiers)).astype(np.float64)
    rounds = in_tier[schedule.step_offsets[:-1].clip(max=max(schedule.num_trips - 1, 0))]
    counts = 1 + np.cumsum(rounds, axis=0)
    by_step = counts[:, ::-1] / counts.sum(axis=1, keepdims=True)
    weights = by_step[schedule.step]
    return {"in_tier": in_tier, "tier_weights": weights, "own_weight": np.sum(weights * in_tier, axis=1)}


def _check(schedule: EventSchedule, tiers: int) -> None:
    """Raises SettingError unless each step is a round of one of as many tiers."""
    found = 0 if schedule.tier is None else int(schedule.tier.max()) + 1
    if found == tiers:
        return
    has = f"the schedule has {found}" if found else "the schedule has none"
    raise SettingError(
        f"fedat needs rounds of {tiers} tiers, but {has}. Make the schedule by tiered(tiers={tiers}, "
        "cohort_size=..., ...), on the command line --protocol=tiered, or give the rule the schedule's number.",
        setting="protocol.tiers",
    )
