"""The causal transformer: its equations by NumPy, that no place sees a later one, its size, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.base.errors import SettingError
from jafl.models import causal_transformer
from jafl.models.causal_transformer import rotated

TOKENS = np.random.default_rng(0).integers(1, 11, (2, 7)).astype(np.int32)
SMALL = {"num_classes": 11, "layers": 2, "width": 12, "heads": 3, "context": 9, "inner_width": 20}


def made(positions, **changes):
    """(the model, parameters of float64 that are all random, also those that start from 0 or 1)."""
    model = causal_transformer(**SMALL | changes, positions=positions, param_dtype=jnp.float64)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), TOKENS))
    random = np.random.default_rng(1)
    return model, jax.tree.map(lambda leaf: random.normal(0, 0.4, leaf.shape), shapes)


def by_numpy(params, text, *, layers, heads, positions):
    """The scores [T, tokens] of one text, place by place and head by head."""

    def dense(name, h):
        return h @ params[name]["kernel"] + params[name]["bias"]

    def normalized(name, h):
        spread = np.sqrt(h.var(axis=-1, keepdims=True) + 1e-5)
        return (h - h.mean(axis=-1, keepdims=True)) / spread * params[name]["scale"] + params[name]["bias"]

    def turned(vector, place):
        """By RoFormer's matrix of turns, equation 15."""
        size = len(vector)
        matrix = np.zeros((size, size))
        for pair in range(size // 2):
            angle = place * 10000.0 ** (-2 * pair / size)
            part = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
            matrix[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = part
        return matrix @ vector

    h = params["token_table"]["embedding"][text]
    if positions == "learned":
        h = h + params["position_table"]["embedding"][: len(text)]
    size = h.shape[1] // heads
    for layer in range(layers):
        name = f"layer_{layer}"
        normal = normalized(f"{name}_attention_norm", h)
        query, key, value = (dense(f"{name}_{part}", normal) for part in ("query", "key", "value"))
        mixed = np.zeros_like(h)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            for place in range(len(text)):
                scores = []
                for other in range(place + 1):
                    q, k = query[place, part], key[other, part]
                    if positions == "rotary":
                        q, k = turned(q, place), turned(k, other)
                    scores.append(q @ k / np.sqrt(size))
                weights = np.exp(scores - np.max(scores))
                mixed[place, part] = weights / weights.sum() @ value[: place + 1, part]
        h = h + dense(f"{name}_attention", mixed)
        a = dense(f"{name}_inner", normalized(f"{name}_inner_norm", h))
        h = h + dense(f"{name}_output", a / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))))
    return dense("dense", normalized("norm", h))


@pytest.mark.full
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_outputs_by_the_equations(positions):
    with jax.enable_x64():
        model, params = made(positions)
        scores = model.apply(params, TOKENS)
    assert scores.dtype == np.float64
    for text, row in zip(TOKENS, scores, strict=True):
        expected = by_numpy(params, text, layers=2, heads=3, positions=positions)
        np.testing.assert_allclose(row, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_token_changes_no_output_before_it_and_all_from_it_on(positions):
    with jax.enable_x64():
        model, params = made(positions)
        apply = jax.jit(model.apply)
        before = np.asarray(apply(params, TOKENS))
        for place in range(TOKENS.shape[1]):
            other = TOKENS.copy()
            other[:, place] = TOKENS[:, place] % 10 + 1
            changed = np.any(np.asarray(apply(params, other)) != before, axis=-1)
            assert not changed[:, :place].any() and changed[:, place:].all()


def test_with_rotary_positions_only_distances_count():
    with jax.enable_x64():
        vector = np.random.default_rng(2).normal(size=4)
        turned = np.asarray(rotated(jnp.asarray(np.broadcast_to(vector, (1, 7, 1, 4)))))[0, :, 0]
        products = turned @ turned.T
    for distance in range(7):
        np.testing.assert_allclose(np.diag(products, distance), products[0, distance], rtol=1e-12)
    assert not np.isclose(products[0, 0], products[0, 1])


@pytest.mark.parametrize(
    ("tokens", "layers", "width", "inner", "context", "learned"),
    [(99, 2, 64, 256, 80, True), (11, 3, 12, 20, 9, True), (11, 3, 12, 20, 9, False)],
)
def test_number_of_parameters(tokens, layers, width, inner, context, learned):
    model = causal_transformer(
        tokens,
        layers,
        width,
        heads=2,
        context=context,
        inner_width=inner,
        positions="learned" if learned else "rotary",
    )
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), np.zeros((1, 5), np.int32)))
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    expected = tokens * width + learned * context * width
    expected += layers * (4 * width**2 + 2 * width * inner + inner + 9 * width)
    expected += 2 * width + width * tokens + tokens
    assert count == expected
    if (tokens, width) == (99, 64):
        assert count == 117_987


@pytest.mark.full
def test_initial_weights_and_their_deviations():
    model = causal_transformer(50, layers=8, width=64, heads=4)
    params = jax.jit(model.init)(jax.random.key(0), np.zeros((1, 80), np.int32))
    np.testing.assert_allclose(np.std(params["layer_3_query"]["kernel"]), 0.02, rtol=0.05)
    for name in ("layer_3_attention", "layer_5_output"):
        np.testing.assert_allclose(np.std(params[name]["kernel"]), 0.02 / 4, rtol=0.05)
    # Nothing is known at first: the loss of a token is that of a guess among 50.
    x = np.random.default_rng(0).integers(1, 50, (8, 80)).astype(np.int32)
    np.testing.assert_allclose(np.mean(model.losses(params, x, np.roll(x, -1, 1))), np.log(50), atol=0.05)


@pytest.mark.full
def test_dropout_in_training_alone():
    model = causal_transformer(**SMALL, dropout_rate=0.5)
    params = model.init(jax.random.key(0), TOKENS)
    keyed = [model.apply(params, TOKENS, jax.random.key(number)) for number in (1, 1, 2)]
    np.testing.assert_array_equal(keyed[0], keyed[1])
    assert np.any(keyed[0] != keyed[2]) and np.any(keyed[0] != model.apply(params, TOKENS))


@pytest.mark.full
def test_it_learns_a_text_that_repeats_itself():
    """Trips on the text 1 2 3 ... 8 1 2 ...: each token follows from the one before."""
    text = np.arange(400) % 8 + 1
    x = np.stack([text[start : start + 8] for start in range(0, 320)]).astype(np.int32)
    y = np.stack([text[start + 1 : start + 9] for start in range(0, 320)]).astype(np.int32)
    model = causal_transformer(9, layers=1, width=16, heads=2, context=8)
    partition = jafl.data.Partition.from_lists([np.arange(256)[client::4] for client in range(4)])
    federation = jafl.Federation.from_arrays(
        x[:256], y[:256], partition, test_x=x[256:], test_y=y[256:], num_classes=9
    )
    schedule = jafl.asynchronous(
        num_clients=4, concurrency=4, buffer_size=2, delay=jafl.delays.exponential(1.0), server_steps=12
    )
    work = jafl.client_work(
        model, optimizer=jafl.specify(optax.adam, learning_rate=0.01), local_steps=10, batch_size=16
    )
    params = model.init(jax.random.key(0), x)
    history = jafl.simulate(
        schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1), evaluate_at=[0, 12]
    )
    first, last = history.evaluations[0], history.evaluations[-1]
    assert first["test_perplexity"] > 7 and last["test_perplexity"] < 1.5 and last["test_accuracy"] > 0.9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 13}, "width is 13, but must be a multiple of heads, 3"),
        ({"width": 9, "positions": "rotary"}, "width is 9, but must be an even multiple of heads, 3"),
        ({"positions": "sine"}, "positions is 'sine', but must be one of"),
        ({"layers": 0}, "layers is 0, but must be a whole number of at least 1"),
        ({"dropout_rate": 1.0}, "dropout_rate is 1.0, but must be at least 0 and below 1"),
        ({"num_classes": 1}, "num_classes is 1"),
        ({"inner_width": 0}, "inner_width is 0"),
    ],
)
def test_refused(changes, message):
    with pytest.raises(SettingError, match=message.replace("(", r"\(")):
        causal_transformer(**SMALL | changes)


def test_refused_examples():
    model = causal_transformer(**SMALL)
    with pytest.raises(SettingError, match="at most 9, the model's context"):
        model.init(jax.random.key(0), np.zeros((1, 10), np.int32))
    with pytest.raises(SettingError, match="integer token numbers"):
        model.init(jax.random.key(0), np.zeros((1, 4), np.float32))
