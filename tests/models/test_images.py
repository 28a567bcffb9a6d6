"""The papers' convolutional networks: sizes, and values and gradients as plain Flax layers give them."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

from jafl.base.errors import SettingError
from jafl.models import MODELS, common, images, resnet, resnet18


def dense(inputs, outputs):
    return inputs * outputs + outputs


def convolution(size, inputs, outputs):
    return size * size * inputs * outputs + outputs


# {case: (model, classes, shape of an example, parameters in closed form)}
SIZES = {
    # McMahan et al. 2017 publish 1,663,370.
    "mnist": ("emnist_cnn", 10, (28, 28, 1), 1_663_370),
    "emnist": ("emnist_cnn", 62, (28, 28, 1), 1_663_370 + dense(512, 62) - dense(512, 10)),
    "lenet5": ("lenet5", 10, (32, 32, 3), 62_006),
    "lenet5 on 28 pixels": ("lenet5", 10, (28, 28, 1), 61_706),
    "celeba_cnn": ("celeba_cnn", 2, (84, 84, 3), convolution(4, 3, 10) + dense(16_000, 100) + dense(100, 2)),
    "leaf_celeba_cnn": (
        "leaf_celeba_cnn",
        2,
        (32, 32, 3),
        convolution(3, 3, 32) + 3 * convolution(3, 32, 32) + 4 * 64 + dense(2 * 2 * 32, 2),
    ),
    "leaf_celeba_cnn as LEAF has it": (
        "leaf_celeba_cnn",
        2,
        (84, 84, 3),
        convolution(3, 3, 32) + 3 * convolution(3, 32, 32) + 4 * 64 + dense(6 * 6 * 32, 2),
    ),
    "fedbuff_cnn": (
        "fedbuff_cnn",
        10,
        (32, 32, 3),
        convolution(3, 3, 32) + 3 * convolution(3, 32, 32) + 4 * 64 + dense(3 * 3 * 32, 10),
    ),
    "fedstaleweight_fashion_cnn": (
        "fedstaleweight_fashion_cnn",
        10,
        (28, 28, 1),
        convolution(3, 1, 32)
        + convolution(3, 32, 32)
        + convolution(3, 32, 64)
        + convolution(3, 64, 64)
        + 2 * (64 + 128)
        + dense(7 * 7 * 64, 128)
        + 256
        + dense(128, 10),
    ),
    "fedstaleweight_cifar_cnn": (
        "fedstaleweight_cifar_cnn",
        10,
        (32, 32, 3),
        convolution(3, 3, 32)
        + convolution(3, 32, 32)
        + convolution(3, 32, 64)
        + convolution(3, 64, 64)
        + convolution(3, 64, 128)
        + convolution(3, 128, 128)
        + 2 * (64 + 128 + 256)
        + dense(4 * 4 * 128, 128)
        + 256
        + dense(128, 10),
    ),
    # The number of torchvision-like ResNet-18s with a 3x3 stem for CIFAR-10.
    "resnet18": ("resnet18", 10, (32, 32, 3), 11_173_962),
}


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize(("name", "classes", "shape", "expected"), SIZES.values(), ids=SIZES)
def test_numbers_of_parameters(name, classes, shape, expected):
    model = MODELS[name](classes)
    example = jax.ShapeDtypeStruct((1, *shape), np.float32)
    shapes = jax.eval_shape(lambda x: model.init(jax.random.key(0), x), example)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected
    outputs = jax.eval_shape(model.apply, shapes, jax.ShapeDtypeStruct((5, *shape), np.float32))
    assert outputs.shape == (5, classes)


@pytest.fixture
def linen_layers(monkeypatch):
    """Calling it makes the models use Flax's own convolution and pool."""

    def max_pool(x, window=2, *, padding="VALID"):
        return nn.max_pool(x, (window, window), strides=(window, window), padding=padding)

    def switch():
        for module in (common, images, resnet):
            monkeypatch.setattr(module, "Conv", nn.Conv)
            if hasattr(module, "max_pool"):
                monkeypatch.setattr(module, "max_pool", max_pool)

    return switch


# Small images where the sizes of the layers allow it.
EQUAL = {
    "cnn": (8, 8, 1),
    "emnist_cnn": (8, 8, 1),
    "lenet5": (28, 28, 1),
    "celeba_cnn": (11, 11, 3),
    "leaf_celeba_cnn": (17, 17, 3),
    "fedbuff_cnn": (16, 16, 3),
    "fedstaleweight_fashion_cnn": (8, 8, 1),
    "fedstaleweight_cifar_cnn": (9, 9, 3),
    "resnet18": (8, 8, 3),
}


@pytest.mark.full
@pytest.mark.few_in_full(3)
@pytest.mark.parametrize("name", in_tiers(EQUAL.keys(), ("cnn", "celeba_cnn")))
def test_values_and_gradients_are_those_of_plain_layers(name, linen_layers):
    """Alone and for two clients with weights of their own, with dropout where there is any."""
    model, random = MODELS[name](10), np.random.default_rng(0)
    x = random.uniform(-1, 1, (2, 2, *EQUAL[name])).astype(np.float32)
    y = np.array([[1, 7], [0, 3]])
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), x[0]))
    params = jax.tree.map(
        lambda leaf: random.normal(0, 1 / np.sqrt(leaf.size // leaf.shape[-1]), (2, *leaf.shape)).astype(
            "f4"
        ),
        shapes,
    )
    key = jax.random.key(3)

    def both(params, x, y):
        slope = jax.grad(lambda params: model.losses(params, x, y, key).mean())(params)
        return model.apply(params, x), slope

    one = jax.tree.map(lambda leaf: leaf[1], params)
    alone, together = jax.jit(both)(one, x[1], y[1]), jax.jit(jax.vmap(both))(params, x, y)
    linen_layers()
    plain = jax.jit(lambda *arguments: both(*arguments))
    expected = [
        plain(jax.tree.map(lambda leaf, c=client: leaf[c], params), x[client], y[client]) for client in (0, 1)
    ]
    assert_close(alone, expected[1])
    assert_close(together, jax.tree.map(lambda *leaves: np.stack(leaves), *expected))


def assert_close(ours, theirs):
    """Within 1e-5 of the largest entry of all gradients, or of the outputs; entries beyond rounding exist."""
    for one, other in zip(ours, theirs, strict=True):
        one, other = (
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (one, other)
        )
        assert np.abs(other).max() > 1e-3
        assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max()


@pytest.mark.full
def test_the_small_cnn_starts_as_with_plain_layers(linen_layers):
    model, x = MODELS["cnn"](10), np.zeros((1, 8, 8, 1), np.float32)
    ours = model.init(jax.random.key(5), x)
    linen_layers()
    jax.tree.map(np.testing.assert_array_equal, ours, model.init(jax.random.key(5), x))


def test_batch_norm_is_refused_with_the_reason():
    for name in ("batch", "batch_norm"):
        with pytest.raises(SettingError, match="no meaning across clients.*GroupNorm"):
            resnet18(10, name)
    with pytest.raises(SettingError, match="normalization_layer is 'grup'.*Did you mean 'group'"):
        resnet18(10, "grup")


@pytest.mark.full
def test_layer_norm_is_one_group():
    def groups(name):
        module = resnet18(10, name).module
        found = []

        def see(next_call, arguments, options, context):
            if isinstance(context.module, nn.GroupNorm):
                found.append(context.module.num_groups)
            return next_call(*arguments, **options)

        with nn.intercept_methods(see):
            jax.eval_shape(module.init, jax.random.key(0), np.zeros((1, 8, 8, 3), np.float32))
        return set(found)

    assert groups("group") == {32} and groups("layer") == {1}


@pytest.mark.parametrize("name", [name for name in EQUAL if name != "cnn"])
def test_what_is_no_image_is_refused(name):
    model = MODELS[name](10)
    with pytest.raises(SettingError, match=r"shape of an example.*\[rows, columns, channels\]"):
        model.init(jax.random.key(0), np.zeros((1, 60), np.float32))
    with pytest.raises(SettingError, match="shape of an image.*at least .* pixels"):
        model.init(jax.random.key(0), np.zeros((1, 3, 9, 1), np.float32))
    with pytest.raises(SettingError, match="num_classes is 1"):
        MODELS[name](1)
