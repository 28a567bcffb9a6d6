"""Models, losses and metrics that compare the examples of a minibatch would read the rows that fill it up."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from quick_compilation import quick_compilation  # noqa: F401
from refusals import refuses

import jafl
from jafl.engine.plan.model_checks import check_model

SOURCE = jafl.data.synthetic(num_clients=8, alpha=1.0, beta=1.0, mean_examples=20, num_features=6)
FEDERATION = jafl.federate(SOURCE, SOURCE.natural_partition)
CLASSES = SOURCE.num_classes
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def checked(module, *, shapes=False, **options):
    model = jafl.Model(module, **options)
    params = model.init(jax.random.key(0), SOURCE.x)
    if shapes:
        params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    check_model(FEDERATION, model, params)


def standardised(x):
    return (x - jnp.mean(x, axis=0)) / (jnp.std(x, axis=0) + 1e-3)


class Normalised(nn.Module):
    """Behind it lies a layer of zeros, through which nothing is seen at the start."""

    only_in_training: bool = False

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(8)(x)
        x = standardised(x) if train or not self.only_in_training else x
        return nn.Dense(CLASSES, kernel_init=nn.initializers.zeros)(x)


class NormalisedNnx(nnx.Module):
    def __init__(self):
        self.layer = nnx.Linear(6, CLASSES, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.layer(standardised(x))


class NormalisedEquinox(eqx.Module):
    layer: eqx.nn.Linear

    def __init__(self):
        self.layer = eqx.nn.Linear(6, CLASSES, key=jax.random.key(0))

    def __call__(self, x):
        return self.layer(x)


def contrastive(outputs, labels):
    directions = outputs / jnp.linalg.norm(outputs, axis=-1, keepdims=True)
    return cross_entropy(directions @ directions.T, jnp.arange(len(outputs)))


def of_the_minibatch(outputs, labels):
    return jnp.full(len(labels), jnp.mean(cross_entropy(outputs, labels)))


def of_earlier_examples(outputs, labels):
    return jnp.cumsum(cross_entropy(outputs, labels))


def with_counts_of_the_minibatch(outputs, labels):
    losses = cross_entropy(outputs, labels)
    return losses, jnp.full(len(labels), jnp.max(losses))


BY_THE_MODEL = "the loss of an example depends on is .*on which the outputs of the model {} depend"
BY_THE_LOSS = "the loss of an example depends on is 'the other examples of its minibatch', but must be"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda: checked(Normalised()), BY_THE_MODEL.format("Normalised")),
        (lambda: checked(Normalised(), shapes=True), BY_THE_MODEL.format("Normalised")),
        (lambda: checked(Normalised(only_in_training=True)), BY_THE_MODEL.format("Normalised")),
        (lambda: checked(NormalisedNnx()), BY_THE_MODEL.format("NormalisedNnx")),
        (
            lambda: checked(
                (
                    lambda key, x: {"w": jnp.zeros((6, CLASSES))},
                    lambda params, x: standardised(x) @ params["w"],
                )
            ),
            "depend",
        ),
        (lambda: checked(NormalisedEquinox(), loss_per_example=contrastive), BY_THE_LOSS),
        (lambda: checked(nn.Dense(CLASSES), loss_per_example=of_the_minibatch), BY_THE_LOSS),
        (lambda: checked(nn.Dense(CLASSES), loss_per_example=of_earlier_examples), BY_THE_LOSS),
        (lambda: checked(nn.Dense(CLASSES), loss_per_example=with_counts_of_the_minibatch), BY_THE_LOSS),
        (
            lambda: checked(
                jafl.models.mlp(CLASSES, [4]).module,
                loss_per_example=lambda outputs, labels: cross_entropy(standardised(outputs), labels),
            ),
            BY_THE_LOSS,
        ),
        (
            lambda: checked(nn.Dense(CLASSES), metrics={"spread": of_the_minibatch}),
            "what the metric 'spread' of an example depends on",
        ),
    ],
)
def test_what_compares_examples_is_refused(asked, said):
    with pytest.raises(jafl.SettingError, match=said):
        asked()


class OneByOne(nn.Module):
    """Dropout by minibatch, layer norms, choices by the data, and attention among an example's own places."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dropout(0.5, broadcast_dims=(0,), deterministic=not train)(x)
        x = nn.Dense(8)(x[..., None])
        x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(2)(x))
        x = jnp.max(x, axis=1)
        experts = jnp.stack([nn.Dense(8)(x), nn.Dense(8)(x)], axis=1)
        chosen = jnp.argmax(nn.Dense(2)(x), axis=-1)
        x = jnp.take_along_axis(experts, chosen[:, None, None], axis=1)[:, 0]
        return nn.Dense(CLASSES)(jnp.sort(x, axis=-1))


def until_all_are_there(outputs, labels):
    """A loss by steps that end once all examples are there: the others' last steps move an example a little."""

    def step(carry):
        roots, _ = carry
        after = 0.5 * (roots + losses / roots)
        return after, jnp.max(jnp.abs(after - roots) / after)

    losses = 1.0 + cross_entropy(outputs, labels)
    first = step((losses, jnp.float32(1)))
    roots, _ = jax.lax.while_loop(lambda carry: carry[1] > 1e-3, step, first)
    return jax.lax.stop_gradient(roots) + cross_entropy(outputs, labels)


@pytest.mark.parametrize(
    "asked",
    [
        lambda: checked(OneByOne()),
        lambda: checked(OneByOne(), compute_dtype="bfloat16"),
        lambda: checked(nn.Dense(CLASSES), loss_per_example=until_all_are_there),
        lambda: checked(
            nn.Dense(CLASSES), loss_per_example=lambda outputs, labels: jnp.log(outputs[:, 0] - 1e9 * labels)
        ),
        lambda: checked(
            nn.Dense(CLASSES),
            loss_per_example=lambda outputs, labels: (cross_entropy(outputs, labels), 1 + labels),
        ),
    ],
)
def test_what_takes_each_example_by_itself_is_taken(asked):
    asked()


def test_it_is_said_before_anything_trains():
    model = jafl.Model(Normalised())
    schedule = jafl.asynchronous(
        num_clients=8, concurrency=4, buffer_size=2, server_steps=2, delay=jafl.delays.exponential()
    )
    with refuses("what the loss of an example depends on", "GroupNorm or LayerNorm"):
        jafl.simulate(
            schedule,
            FEDERATION,
            jafl.client_work(model, learning_rate=0.1),
            jafl.rules.fedbuff(),
            model.init(jax.random.key(0), np.zeros((1, 6), np.float32)),
            jax.random.key(1),
        )
