"""CGAD: stale updates are damped by an exponential and a cosine gate before Adam (Shah and Sun 2026)."""

import math

import jax.numpy as jnp

from jafl.base.errors import number_unless_traced
from jafl.records import Rule
from jafl.rules.fedbuff import fedbuff
from jafl.specifications import specification


@specification
def cgad(decay: float = 0.1, cutoff: float = 16.0) -> Rule:
    """CGAD: before the server's Adam takes an update, it is multiplied by gate(staleness) exp(-alpha staleness).

    The direction is (1/K) sum_i gate(t_i) exp(-alpha t_i) update_i with t_i the staleness, and the gate (1 + cos(pi
    min(t / t_cut, 1))) / 2, which is 1 at 0 and 0 from the cutoff on (Shah and Sun, "Cosine-gated Adam-decay", 2026).
    The paper treats asynchronous DiLoCo, where every arrival makes a step; the mean over K trips is FedBuff's. Use
    Adam at the server (``optax.adam``); if no update is stale, the method is plain Adam. The shape of the gate is a
    reading of the paper's abstract, and both defaults are jafl's. An infinite cutoff gives the paper's Adam-decay.
    The variant with fragments of the model (PA-CGAD) is left out.

    Reports ``weight`` per trip.

    Args:
      decay: alpha, per server step, at least 0.
      cutoff: t_cut in server steps, above 0.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for numbers outside these ranges.
    """
    number_unless_traced("decay", decay, lambda value: 0 <= value < math.inf, "a finite number, at least 0")
    number_unless_traced("cutoff", cutoff, lambda value: value > 0, "above 0")

    def weight(staleness):
        gate = (1 + jnp.cos(math.pi * jnp.minimum(staleness / cutoff, 1.0))) / 2
        return gate * jnp.exp(-decay * staleness)

    return fedbuff(weight).build()
