"""A causal transformer: at each position of a text, scores for the next token from the tokens so far."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jafl.base.described import described
from jafl.base.errors import choose, require, whole_number
from jafl.models.common import check_classes, check_rate, check_tokens
from jafl.models.embeddings import PADDING
from jafl.models.model import Model
from jafl.models.tasks import language_modelling
from jafl.models.transformer import attend

POSITIONS = ("learned", "rotary")
_DEVIATION = 0.02  # of initial weights
_ROTARY_BASE = 10_000.0


class CausalTransformer(nn.Module):
    """Maps token numbers [B, T] to scores (logits) of the next token [B, T, tokens]."""

    tokens: int
    layers: int
    width: int
    heads: int
    inner_width: int
    context: int
    positions: str  # one of ``POSITIONS``
    dropout_rate: float
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        check_tokens(x)
        length = x.shape[1]
        allowed = f"at most {self.context}, the model's context"
        require(
            length <= self.context, "the length of the texts in tokens", length, allowed, "Cut the texts."
        )
        embed = functools.partial(
            nn.Embed,
            features=self.width,
            param_dtype=self.param_dtype,
            embedding_init=nn.initializers.normal(_DEVIATION),
        )
        h = embed(self.tokens, name="token_table")(x)
        if self.positions == "learned":
            h = h + embed(self.context, name="position_table")(jnp.arange(length)[None])
        h = self._dropped(h, train)
        for number in range(self.layers):
            name = f"layer_{number}"
            attended = self._attention(self._normalized(h, f"{name}_attention_norm"), name, train)
            h = h + self._dropped(attended, train)
            inner = self._dense(self.inner_width, f"{name}_inner")(self._normalized(h, f"{name}_inner_norm"))
            inner = self._into_residual(f"{name}_output")(jax.nn.gelu(inner, approximate=True))
            h = h + self._dropped(inner, train)
        return self._dense(self.tokens, "dense")(self._normalized(h, "norm"))

    def _attention(self, h: jax.Array, name: str, train: bool) -> jax.Array:
        length, size = h.shape[1], self.width // self.heads
        query, key, value = (
            self._dense(self.width, f"{name}_{part}")(h).reshape(*h.shape[:2], self.heads, size)
            for part in ("query", "key", "value")
        )
        if self.positions == "rotary":
            query, key = rotated(query), rotated(key)
        earlier = jnp.tril(jnp.ones((length, length), bool))  # a position sees itself and those before it
        mask = jnp.where(earlier, 0.0, jnp.finfo(h.dtype).min).astype(h.dtype)[None, None]
        mixed = attend(query, key, value, mask, functools.partial(self._dropped, train=train))
        return self._into_residual(f"{name}_attention")(mixed.reshape(h.shape))

    def _dense(self, features: int, name: str, deviation: float = _DEVIATION) -> nn.Dense:
        start = nn.initializers.normal(deviation)
        return nn.Dense(features, param_dtype=self.param_dtype, kernel_init=start, name=name)

    def _into_residual(self, name: str) -> nn.Dense:
        """A layer whose output is added to the residual stream; 2 ``layers`` such outputs are added in all."""
        return self._dense(self.width, name, _DEVIATION / (2 * self.layers) ** 0.5)

    def _normalized(self, h: jax.Array, name: str) -> jax.Array:
        return nn.LayerNorm(1e-5, param_dtype=self.param_dtype, use_fast_variance=False, name=name)(h)

    def _dropped(self, h: jax.Array, train: bool) -> jax.Array:
        return nn.Dropout(self.dropout_rate, deterministic=not train)(h)


def rotated(h: jax.Array) -> jax.Array:
    """Rotary position embedding: vectors [B, T, heads, size], rotated by angles that grow with the position t.

    The pair of entries 2i and 2i + 1 is rotated by the angle t 10000^(-2i / size), so that the product of a query and
    a key depends on their positions only by the distance between them (Su et al. 2021, "RoFormer", equation 34).
    """
    size = h.shape[-1]
    rates = _ROTARY_BASE ** (-jnp.arange(0, size, 2) / size)
    angles = (jnp.arange(h.shape[1])[:, None] * rates[None])[None, :, None, :]  # [1, T, 1, size / 2]
    cosine, sine = jnp.cos(angles).astype(h.dtype), jnp.sin(angles).astype(h.dtype)
    even, odd = h[..., ::2], h[..., 1::2]
    turned = jnp.stack((even * cosine - odd * sine, even * sine + odd * cosine), axis=-1)
    return turned.reshape(h.shape)


@described
def causal_transformer(
    num_classes: int,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    *,
    context: int = 80,
    inner_width: int | None = None,
    positions: str = "learned",
    dropout_rate: float = 0.0,
    param_dtype: Any = jnp.float32,
) -> Model:
    """A causal transformer: for each position of a text, scores of the next token.

    A decoder with layer normalization before each sublayer, as in GPT-2; padding does not count in its loss. Each
    layer has attention over the position itself and those before it, then two dense layers with the tanh form of
    GELU. Weights are initialized from a normal distribution with the standard deviation 0.02, divided by
    sqrt(2 ``layers``) in the layers whose outputs are added to the residual stream; biases start at 0.

    With V tokens, L layers, W = ``width``, I = ``inner_width`` and C = ``context`` it has
    V W + C W + L (4 W^2 + 2 W I + I + 9 W) + 2 W + W V + V parameters; the C W are there with learned positions only.

    Source: Vaswani et al. 2017, "Attention Is All You Need"; Radford et al. 2019, "Language Models are Unsupervised
    Multitask Learners", section 2.3. Unlike in GPT-2, the embedding and the output layer have
    separate weights (no weight tying).

    Args:
      num_classes: number of tokens V, padding and unknown ones included; at least 2.
      layers: number of attention layers, each followed by two dense layers.
      width: length of a token's vector, a multiple of ``heads``.
      heads: number of heads of each attention layer.
      context: largest number of tokens of an example.
      inner_width: width between the two dense layers. Default: 4 ``width``.
      positions: how positions are encoded. "learned": a learned vector for each position; "rotary": queries and keys
        are rotated by an angle that grows with the position (Su et al. 2021, "RoFormer"), for an even ``width`` /
        ``heads``.
      dropout_rate: dropout of embeddings, attention weights and sublayers' outputs, at least 0 and below 1.
      param_dtype: floating type of the parameters.

    Returns:
      The model, of the task ``jafl.models.language_modelling(padding=0)``: x [B, T] integers, 0 for padding at the
      end; outputs [B, T, num_classes]; y [B, T], as x.

    Raises:
      SettingError: for fewer than two tokens, a number below 1, a ``width`` that ``heads`` does not divide, an
        unknown kind of positions, and a rate out of range.

    Examples:
      >>> model = jafl.models.causal_transformer(99, layers=1, width=32, positions="rotary")
      >>> params = model.init(jax.random.key(0), jnp.zeros((1, 80), jnp.int32))
      >>> model.apply(params, jnp.zeros((3, 80), jnp.int32)).shape
      (3, 80, 99)
    """
    check_classes(num_classes)
    check_rate("dropout_rate", dropout_rate)
    choose("positions", positions, dict.fromkeys(POSITIONS))
    numbers = {"layers": layers, "width": width, "heads": heads, "context": context}
    for name, number in numbers.items():
        whole_number(name, number, 1)
    inner = 4 * width if inner_width is None else whole_number("inner_width", inner_width, 1)
    require(width % heads == 0, "width", width, f"a multiple of heads, {heads}")
    even = positions != "rotary" or width // heads % 2 == 0
    require(even, "width", width, f"an even multiple of heads, {heads}, for rotary positions")
    module = CausalTransformer(
        num_classes,
        layers,
        width,
        heads,
        inner,
        context,
        positions,
        float(dropout_rate),
        param_dtype,
    )
    return Model(module, task=language_modelling(padding=PADDING))
