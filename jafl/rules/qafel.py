"""QAFeL: buffered asynchronous aggregation with a compressed broadcast (Ortega and Jafarkhani, 2023, algorithm 1)."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jafl.base.errors import require
from jafl.base.random_keys import threefry_key
from jafl.clients.compression import Compressor, top_k
from jafl.records import Requirements, Rule
from jafl.rules import accumulate, staleness
from jafl.specifications import specification


@specification
def qafel(
    compression: Any = top_k(0.1),  # noqa: B008  (immutable)
    staleness_weight: Any = staleness.polynomial(0.5),  # noqa: B008  (immutable)
) -> Rule:
    """QAFeL: FedBuff whose server sends compressed changes, by which server and clients keep the same hidden model.

    Clients train from the hidden model h, not from the server's model w. Once K trips have arrived, the server makes
    FedBuff's step, w <- w + eta (1/K) sum s(staleness_i) update_i, and sends q = C(w - h) to all clients; then
    everyone makes h <- h + q (Ortega and Jafarkhani, arXiv 2308.00263 and 2410.00242, algorithm 1). h is the initial
    model at first. What q leaves out stays in w - h and is sent later, so a biased compressor does no harm: the
    hidden state is the server's error feedback. The clients' updates are compressed by
    ``jafl.client_work(..., compression=...)``, with which they begin at the h of the version that they download.

    Evaluations and ``History.params`` see w. The compressor must bring any vector nearer to itself: QSGD does only
    with more levels than the square root of the number of parameters, and with fewer w - h grows without bound.
    Usual mistake: to compress w itself, which leaves clients with a model that never becomes w.

    The time that the broadcast takes is not simulated: ``jafl.delays.with_network`` counts ``model_bytes`` for a
    download. ``compression.bytes(params)`` is the size of q, which every client gets at every server step.

    Use it with ``jafl.client_work(..., correction="qafel")``. Reports ``weight`` per trip, and ``hidden_distance``
    per step: ||w - h|| at its beginning.

    Args:
      compression: C, of the broadcast: ``jafl.compression.top_k``, for example. The authors' code has QSGD of each
        array by itself; the default is a choice that is safe for every model.
      staleness_weight: s, from ``jafl.rules.staleness``, or any function of the staleness, [] float in server steps.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: if ``compression`` is no compressor or ``staleness_weight`` no function, when the rule is built;
        for a model that has too many parameters for the levels of QSGD, before training.

    Examples:
      >>> model = jafl.models.softmax(10)
      >>> up = jafl.compression.qsgd(4)
      >>> work = jafl.client_work(model, learning_rate=0.1, correction="qafel", compression=up)
      >>> jafl.rules.qafel(jafl.compression.top_k(0.2))
      qafel(compression=top_k(fraction=0.2), staleness_weight=polynomial(exponent=0.5))
    """
    remedy = "Write jafl.compression.top_k(fraction=0.1), for example."
    fits = isinstance(compression, Compressor)
    require(fits, "compression", compression, "a compressor of jafl.compression", remedy)
    staleness.check(staleness_weight)

    def init(params, num_clients):
        return jax.tree.map(jnp.asarray, params), threefry_key(0), jnp.int32(0)

    def begin(state, params):
        distance = accumulate.norm(jax.tree.map(jnp.subtract, params, state[0]))
        return state, accumulate.zeros(params), accumulate.number(0), distance

    def fold(buffer, arrival):
        state, total, count, distance = buffer
        weight = staleness.weigh(staleness_weight, arrival.staleness)
        total = accumulate.add(total, weight, arrival.update)
        return (state, total, count + 1, distance), {"weight": weight}

    def finish(buffer, params):
        state, total, count, distance = buffer
        report = {"weight_scale": 1 / count, "hidden_distance": distance}
        return accumulate.scaled(-1 / count, total), state, report, True

    def after_step(state, params):
        hidden, key, step = state
        words = jax.random.bits(jax.random.fold_in(key, step), (2,), jnp.uint32)
        change = compression.compress(jax.tree.map(jnp.subtract, params, hidden), words)
        return jax.tree.map(jnp.add, hidden, change), key, step + 1

    def check_model(params):
        compression.check_error_feedback(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)))

    return Rule(
        init,
        begin,
        fold,
        finish,
        requirements=Requirements(correction="qafel"),
        check_model=check_model,
        broadcast=lambda state: {"hidden": state[0]},
        after_step=after_step,
    )
