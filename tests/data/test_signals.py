"""MNIST-1D: each number by the published steps, sizes, seeds, and how well models do on it."""

import jax
import numpy as np
import optax
import pytest
from scipy.ndimage import gaussian_filter

import jafl
from jafl.base.errors import SettingError
from jafl.data import mnist_1d
from jafl.data.sources import mnist_1d as module


def by_the_published_steps(template, uniform, normal):
    """One signal, a step after the other; ``uniform`` [4] and ``normal`` [2, 72] are its random numbers."""

    def read_at(values, count):
        return np.interp(np.linspace(0, 1, count), np.linspace(0, 1, len(values)), values)

    zeros = 36 + int(25 * uniform[0])
    stretched = read_at(np.concatenate([template + 1e-8, np.zeros(zeros)]), 72)
    scaled = stretched * (1 + 0.4 * (uniform[1] - 0.5))
    shift = int(48 * uniform[2])
    turned = np.concatenate([scaled[72 - shift :], scaled[: 72 - shift]])
    noisy = np.where(turned != 0, turned, gaussian_filter(0.25 * normal[0], 2)) + 0.02 * normal[1]
    return read_at(noisy - 0.75 * (uniform[3] - 0.5) * np.linspace(-0.5, 0.5, 72), 40)


def test_signals_are_those_of_the_published_steps():
    random = np.random.default_rng(3)
    labels = np.arange(200) % 10
    uniform, normal = random.random((200, 4)), random.standard_normal((200, 2, 72))
    uniform[0], uniform[1] = 0.0, 1 - 1e-12  # the ends of all ranges
    found = module._transformed(labels, uniform, normal)
    templates = module._templates()
    for place, label in enumerate(labels):
        expected = by_the_published_steps(templates[label], uniform[place], normal[place])
        np.testing.assert_allclose(found[place], expected, atol=1e-7)


def test_templates_begin_at_zero_and_are_ten():
    templates = module._templates()
    assert templates.shape == (10, 12) and np.all(templates[:, 0] == 0)
    np.testing.assert_allclose(templates.std(axis=1), 1 / 6)
    apart = [np.abs(templates[a] - templates[b]).max() for a in range(10) for b in range(a)]
    assert min(apart) > 0.05


def test_the_published_sizes_are_the_default():
    source = mnist_1d()
    assert (source.x.shape, source.test_x.shape) == ((4000, 40, 1), (1000, 40, 1))
    assert (source.x.dtype, source.y.dtype, source.num_classes) == (np.float32, np.int32, 10)
    assert source.validation_x is source.validation_y is None
    assert np.bincount(source.y).tolist() == [400] * 10 and np.bincount(source.test_y).tolist() == [100] * 10
    assert abs(source.x.mean()) < 0.02 and abs(source.x.std() - 1) < 0.02


def test_a_larger_data_set_has_the_smaller_ones_examples_first():
    small, large = (mnist_1d(examples=count, data_seed=4) for count in (300, 12_000))
    assert len(large.x) > 2 * module._EXAMPLES_AT_ONCE
    for name in ("x", "y", "test_x", "test_y"):
        less, more = getattr(small, name), getattr(large, name)
        np.testing.assert_array_equal(less, more[: len(less)])
    with_validation = mnist_1d(examples=300, data_seed=4, test_fraction=0.1, validation_fraction=0.3)
    np.testing.assert_array_equal(with_validation.x, small.x[:180])
    np.testing.assert_array_equal(with_validation.test_x, small.test_x[:30])
    assert len(with_validation.validation_x) == 90


def test_no_split_shares_an_example_with_another():
    source = mnist_1d(examples=600, test_fraction=0.3, validation_fraction=0.3)
    every = np.concatenate([source.x, source.test_x, source.validation_x, mnist_1d(data_seed=1).x])
    assert len(np.unique(every, axis=0)) == len(every)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": 2.5}, "examples is 2.5"),
        ({"examples": 1}, "examples is 1, but must be a whole number of at least 2"),
        ({"examples": 2}, "examples is 2, but must be more: test_fraction 0.2 and"),
        ({"examples": 10, "validation_fraction": 0.01}, "examples is 10, but must be more"),
        ({"test_fraction": 0}, "test_fraction is 0"),
        ({"validation_fraction": 0.8}, "validation_fraction is 0.8"),
        ({"data_seed": -1}, "data_seed is -1"),
    ],
)
def test_what_cannot_work_is_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        mnist_1d(**arguments)


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize(
    ("make", "published", "epochs"),
    [
        (lambda: jafl.models.softmax(10), 0.32, 30),
        (lambda: jafl.models.mlp(10, [100, 100]), 0.68, 30),
        (lambda: jafl.models.mnist_1d_cnn(10), 0.94, 60),
    ],
    ids=["logistic regression", "MLP", "CNN"],
)
def test_models_are_as_good_as_published(make, published, epochs):
    """The paper's accuracies, with Adam, its rate and its batches, on other draws; within 5 points."""
    source, model = mnist_1d(data_seed=2), make()
    federation = jafl.federate(source, jafl.Partition.from_lists([range(len(source.x))]))
    schedule = jafl.asynchronous(
        num_clients=1, concurrency=1, buffer_size=1, client_trips=1, delay=jafl.delays.constant(1.0)
    )
    work = jafl.client_work(
        model, optimizer=jafl.specify(optax.adam, learning_rate=0.01), local_epochs=epochs, batch_size=100
    )
    params = model.init(jax.random.key(0), source.x)
    history = jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))
    assert history.evaluations[-1]["test_accuracy"] == pytest.approx(published, abs=0.05)
