"""BERT and DistilBERT encoders with a classification head, parameters named after what they do."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jafl.base.errors import require
from jafl.models.common import check_tokens, floating

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_new": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_pytorch_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The configuration of an encoder, from ``config.json``."""

    kind: str  # "bert" or "distilbert", which has neither token types nor a pooler
    tokens: int  # rows of the table of tokens
    positions: int
    types: int  # rows of the table of token types, 0 for none
    size: int
    layers: int
    heads: int
    inner_size: int
    activation: str  # a name in ``ACTIVATIONS``
    epsilon: float
    hidden_dropout: float  # after embeddings and sublayers
    attention_dropout: float  # on attention weights
    classifier_dropout: float  # before the classifier
    padding: int
    initial_deviation: float


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    dropped: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """softmax(Q K^T / sqrt(size) + mask) V of each head: [B, T, heads, size], as query, key and value are.

    mask: 0, or the smallest number where a query does not see a key, as [B, heads, queries, keys] or less. dropped:
    the dropout of the attention weights. Source: Vaswani et al. 2017, equation 1.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    scores = (scores + mask).astype(floating(scores))  # a sum over many tokens: in float32 at least
    weights = dropped(nn.softmax(scores).astype(value.dtype))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


class Encoder(nn.Module):
    """Token numbers [B, length] to vectors [B, size]: those of the first tokens, for BERT after the pooler.

    Source: Devlin et al. 2019, "BERT"; Sanh et al. 2019, "DistilBERT".
    """

    config: TransformerConfig
    param_dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        c = self.config
        embed = functools.partial(
            nn.Embed,
            features=c.size,
            param_dtype=self.param_dtype,
            embedding_init=nn.initializers.normal(c.initial_deviation),
        )
        h = embed(c.tokens, name="token_table")(x)
        h = h + embed(c.positions, name="position_table")(jnp.arange(x.shape[1])[None])
        if c.types:
            h = h + embed(c.types, name="type_table")(jnp.zeros((1, 1), jnp.int32))
        h = self._dropped(self._normalized(h, "norm"), train)
        mask = jnp.where(x != c.padding, 0.0, jnp.finfo(h.dtype).min).astype(h.dtype)[:, None, None, :]
        for number in range(c.layers):
            name = f"layer_{number}"
            attended = self._dropped(self._attention(h, mask, name, train), train)
            h = self._normalized(h + attended, f"{name}_attention_norm")
            inner = ACTIVATIONS[c.activation](self._dense(c.inner_size, f"{name}_inner")(h))
            inner = self._dropped(self._dense(c.size, f"{name}_output")(inner), train)
            h = self._normalized(h + inner, f"{name}_output_norm")
        return jnp.tanh(self._dense(c.size, "pooler")(h[:, 0])) if c.kind == "bert" else h[:, 0]

    def _attention(self, h: jax.Array, mask: jax.Array, name: str, train: bool) -> jax.Array:
        c = self.config
        split = (*h.shape[:2], c.heads, c.size // c.heads)
        query, key, value = (
            self._dense(c.size, f"{name}_{part}")(h).reshape(split) for part in ("query", "key", "value")
        )
        mixed = attend(query, key, value, mask, nn.Dropout(c.attention_dropout, deterministic=not train))
        return self._dense(c.size, f"{name}_attention")(mixed.reshape(h.shape))

    def _dense(self, features: int, name: str) -> nn.Dense:
        start = nn.initializers.normal(self.config.initial_deviation)
        return nn.Dense(features, param_dtype=self.param_dtype, kernel_init=start, name=name)

    def _normalized(self, h: jax.Array, name: str) -> jax.Array:
        layer = nn.LayerNorm(
            self.config.epsilon, param_dtype=self.param_dtype, use_fast_variance=False, name=name
        )
        return layer(h)

    def _dropped(self, h: jax.Array, train: bool) -> jax.Array:
        return nn.Dropout(self.config.hidden_dropout, deterministic=not train)(h)


class Head(nn.Module):
    """An encoder's vectors [B, size] to logits [B, classes]; DistilBERT has a dense layer with ReLU first."""

    config: TransformerConfig
    num_classes: int
    param_dtype: Any

    @nn.compact
    def __call__(self, h: jax.Array, train: bool) -> jax.Array:
        c = self.config
        dense = functools.partial(
            nn.Dense,
            param_dtype=self.param_dtype,
            kernel_init=nn.initializers.normal(c.initial_deviation),
        )
        if c.kind == "distilbert":
            h = nn.relu(dense(c.size, name="hidden")(h))
        h = nn.Dropout(c.classifier_dropout, deterministic=not train)(h)
        return dense(self.num_classes, name="dense")(h)


class TransformerClassifier(nn.Module):
    """Token numbers [B, length] int32, ``config.padding`` after the end, to logits [B, classes]."""

    config: TransformerConfig
    num_classes: int
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        check_tokens(x)
        require(
            x.shape[1] <= self.config.positions,
            "the length of the texts in tokens",
            x.shape[1],
            f"at most {self.config.positions}, the model's number of positions",
            "Cut the texts.",
        )
        h = Encoder(self.config, self.param_dtype, name="encoder")(x, train)
        return Head(self.config, self.num_classes, self.param_dtype, name="head")(h, train)
