"""How clients correct what they compute, with what they keep between trips and what the server broadcasts.

Letters: x the downloaded model, y the model in training, g(y) a minibatch gradient, Q the local steps of a trip.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import choose, require
from jafl.clients.compression import Feedback, with_compressed_difference
from jafl.clients.records import ClientWork
from jafl.records import ArrayTree, Gradients, Params, Rule, Updates


class Correction(NamedTuple):
    """A correction, as functions of the client's ``state`` [*P] and of what the rule broadcasts.

    Attributes:
      begin: (state, broadcast) -> term, any pytree: computed once per trip, for all its local steps.
      direction: (gradient, term, y, x, broadcast) -> [*P]: what the client's optimizer gets in place of the gradient.
      end: (state, broadcast, mean gradient of the trip or None, update, x) -> (sent, new state), with ``sent`` what
        goes to the server beside the update.
      needs_mean: whether ``end`` reads the mean gradient.
      first: (state, broadcast, x) -> [*P]: the model with which local training begins; None: with x. With it a trip
        without local steps has an update, too.
      initial: (params) -> state before the client's first trip; None: zeros.
      start: (broadcast) -> [*P]: the model that takes the place of x, the downloaded one; None: x itself.
      feedback: how updates are compressed, as ``compression.with_error_feedback`` does; or None. With one, the
        clients' updates must be compressed.
      may_compress: whether the clients' updates may be compressed.
    """

    begin: Callable[[ArrayTree, Any], Any] | None = None
    direction: Callable[[Gradients, Any, Params, Params, Any], Gradients] | None = None
    end: Callable[[ArrayTree, Any, Gradients | None, Updates, Params], tuple[Any, ArrayTree]] | None = None
    needs_mean: bool = False
    first: Callable[[ArrayTree, Any, Params], Params] | None = None
    initial: Callable[[Params], ArrayTree] | None = None
    start: Callable[[Any], Params] | None = None
    feedback: Feedback | None = None
    may_compress: bool = False

    @property
    def keeps(self) -> bool:
        """Whether the client keeps a state between its trips."""
        return self.end is not None or self.feedback is not None


def _difference(first: ArrayTree, second: ArrayTree) -> ArrayTree:
    return jax.tree.map(jnp.subtract, first, second)


def _control_difference(state: ArrayTree, broadcast: Any) -> ArrayTree:
    """[*P]: c - c_i."""
    return _difference(broadcast["control"], state)


def _new_control(
    state: ArrayTree, broadcast: Any, mean: Gradients | None, update: Updates, x: Params
) -> tuple[Any, ArrayTree]:
    """The mean gradient is the new c_i; its difference from the old one is sent."""
    return {"control": _difference(mean, state)}, mean


def _by_control(gradient: Gradients, term: Any, y: Params, x: Params, broadcast: Any) -> Gradients:
    return jax.tree.map(jnp.add, gradient, term)


def _with_momentum(gradient: Gradients, term: Any, y: Params, x: Params, broadcast: Any) -> Gradients:
    """[*P]: beta (g - c_i + c) + (1 - beta) m."""

    def mix(g, t, m):
        beta = broadcast["beta"].astype(g.dtype)
        return beta * (g + t) + (1 - beta) * m

    return jax.tree.map(mix, gradient, term, broadcast["momentum"])


def _of_length_one(gradient: Gradients, term: Any, y: Params, x: Params, broadcast: Any) -> Gradients:
    """[*P]: what ``_with_momentum`` returns, divided by its norm over the whole model; 0 if that norm is 0."""
    mixed = _with_momentum(gradient, term, y, x, broadcast)
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(mixed)]
    norm = jnp.sqrt(jnp.sum(jnp.stack(squares)))
    return jax.tree.map(lambda leaf: leaf / jnp.where(norm > 0, norm, 1).astype(leaf.dtype), mixed)


def _dynamic(gradient: Gradients, term: Any, y: Params, x: Params, broadcast: Any) -> Gradients:
    """[*P]: g - h_i + alpha (y - x)."""

    def add(g, h, now, start):
        return g - h + broadcast["alpha"].astype(g.dtype) * (now - start)

    return jax.tree.map(add, gradient, term, y, x)


def _after_dynamic(
    state: ArrayTree, broadcast: Any, mean: Gradients | None, update: Updates, x: Params
) -> tuple[Any, ArrayTree]:
    """h_i - alpha (y - x) is the new h_i; nothing is sent but the update."""
    return None, jax.tree.map(lambda h, u: h - broadcast["alpha"].astype(h.dtype) * u, state, update)


def _mixed(state: ArrayTree, broadcast: Any, x: Params) -> Params:
    """[*P]: (x + s Y) / (s + 1), Y the model that the client has had at its last poll, x the server's then."""

    def mix(own, server):
        # Exactly x where both are x.
        return server + (1 - 1 / (broadcast["cohort_size"].astype(own.dtype) + 1)) * (own - server)

    return jax.tree.map(mix, state, x)


def _own_model(
    state: ArrayTree, broadcast: Any, mean: Gradients | None, update: Updates, x: Params
) -> tuple[Any, ArrayTree]:
    """The trained model is kept; nothing is sent but the update."""
    return None, jax.tree.map(jnp.add, x, update)


CORRECTIONS = {
    "scaffold": Correction(_control_difference, _by_control, _new_control, True),
    "feddyn": Correction(lambda state, broadcast: state, _dynamic, _after_dynamic, False),
    "quafl": Correction(end=_own_model, first=_mixed, initial=lambda params: params, may_compress=True),
    "masfl": Correction(_control_difference, _with_momentum, _new_control, True),
    "adamasfl": Correction(_control_difference, _of_length_one, _new_control, True),
    "ef21": Correction(feedback=with_compressed_difference, may_compress=True),
    "qafel": Correction(start=lambda broadcast: broadcast["hidden"], may_compress=True),
}


def exchanged_bytes(rule: Rule, work: ClientWork, params: Params, num_clients: int) -> tuple[int, int]:
    """The bytes that a client downloads for a trip and uploads after it, for a model [*P] or its shapes.

    With the model comes what the rule broadcasts, with the update what the correction sends: SCAFFOLD takes two
    vectors each way. Single numbers are settings, which clients know. QAFeL's hidden model takes the place of the
    model; that its server sends compressed changes of it after every step is not counted. Nor is what a user's own
    work hands over beside its update.

    Returns:
      (download, upload), in bytes of one client's trip.
    """
    correction = CORRECTIONS[work.correction] if work.correction else Correction()

    def exchange(params):
        broadcast = rule.broadcast(rule.init(params, num_clients)) if rule.broadcast else None
        sent = None
        if correction.end is not None:
            sent, _ = correction.end(params, broadcast, params, params, params)
        return params, None if correction.start else broadcast, sent

    model, broadcast, sent = jax.eval_shape(exchange, params)
    update = work.compression.bytes(params) if work.compression else _num_bytes(model)
    return _num_bytes(model) + _num_bytes(_arrays(broadcast)), update + _num_bytes(_arrays(sent))


def _arrays(tree: Any) -> list[Any]:
    """The leaves of a pytree that are no single numbers."""
    return [leaf for leaf in jax.tree.leaves(tree) if np.ndim(leaf)]


def _num_bytes(shapes: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def check_correction(correction: str | None, compression: Any, error_feedback: bool) -> None:
    """Raises SettingError for an unknown correction, or one that takes no compressed updates, or needs them."""
    if correction is None:
        return
    found = choose("correction", correction, CORRECTIONS)
    require(
        compression is None or found.may_compress,
        "compression",
        compression,
        f"None with correction={correction!r}, whose clients and server count on the whole update",
    )
    require(
        not (error_feedback and found.end),
        "error_feedback",
        error_feedback,
        f"False with correction={correction!r}, whose clients keep something else between their trips",
    )
    if found.feedback is None:
        return
    require(
        compression is not None,
        "compression",
        None,
        f"a compressor with correction={correction!r}, which sends compressed differences",
        "Write jafl.compression.top_k(fraction=0.01), for example.",
    )
    require(
        not error_feedback,
        "error_feedback",
        error_feedback,
        f"False with correction={correction!r}, which keeps what was sent in the place of what was left out",
    )
