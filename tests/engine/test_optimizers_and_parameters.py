"""Optimizers and parameters with which a run would be wrong without a word are refused before it begins."""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from preparing import prepared
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import rules
from jafl.engine.plan import optimizer_checks

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
SIZES = (5, 7, 20, 28)
FEDERATION = jafl.Federation.from_arrays(
    X, Y, jafl.Partition.from_lists(np.split(np.arange(60), np.cumsum(SIZES)[:-1])), test_x=X, test_y=Y
)
MODEL = jafl.models.softmax(2)


def run(optimizer=None, *, server=None, steps=6, model=MODEL, params=None, **work):
    schedule = jafl.asynchronous(
        num_clients=4, concurrency=4, buffer_size=2, delay=jafl.delays.exponential(), server_steps=steps
    )
    options = {"learning_rate": 0.5} if optimizer is None else {"optimizer": optimizer}
    work = jafl.client_work(model, batch_size=4, **options, **work)
    params = model.init(jax.random.key(0), X[:1]) if params is None else params
    return (schedule, FEDERATION, work, rules.fedbuff(), params), {"server_optimizer": server}


def prepare(*arguments, **options):
    positional, named = run(*arguments, **options)
    return prepared(*positional, **named)


SGD = optax.sgd(0.1)


def every(period):
    """Gathers gradients over a period, and applies their mean."""
    return optax.MultiSteps(SGD, period).gradient_transformation()


KEPT = {
    "MultiSteps": (every(2), "1 of them"),
    "MultiSteps in a chain": (
        optax.chain(optax.clip(1.0), optax.MultiSteps(SGD, 4).gradient_transformation()),
        "1 of them",
    ),
    "longer and longer": (
        every(lambda step: jnp.where(step < 1, 2, 4)),
        "3 of them",
    ),
    "apply_every": (optax.chain(optax.apply_every(3), SGD), "2 of them"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", KEPT)
def test_what_would_be_lost_at_the_end_of_a_trip_is_refused(name):
    optimizer, left = KEPT[name]
    with pytest.raises(
        jafl.SettingError, match=f"local steps of a trip is 5, but.*{left} would be lost.*multiple"
    ):
        prepare(optimizer, local_steps=5)
    prepare(optimizer, local_steps=12 if name != "longer and longer" else 6)


def test_with_epochs_the_clients_sizes_decide():
    optimizer = every(2)
    with pytest.raises(jafl.SettingError, match="local steps of a trip is 5"):  # of 20 examples
        prepare(optimizer, local_epochs=1)
    prepare(optimizer, local_epochs=2)


def test_what_a_client_keeps_is_not_lost_at_the_end_of_a_trip():
    """Three trips of one local step each: the second applies the mean of two gradients, which are the same."""
    client = jafl.Federation.from_arrays(X, Y, jafl.Partition.from_lists([range(len(X))]), test_x=X, test_y=Y)
    schedule = jafl.synchronous(num_clients=1, cohort_size=1, server_steps=3, delay=jafl.delays.constant(1.0))
    params = MODEL.init(jax.random.key(0), X)
    work = jafl.client_work(MODEL, optimizer=every(2), batch_size=0, keep_optimizer_state=True)
    history = jafl.simulate(schedule, client, work, jafl.rules.fedavg(), params, jax.random.key(0))
    gradient = jax.grad(lambda params: MODEL.losses(params, X, Y).mean())(params)
    expected = jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, gradient)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), history.params, expected
    )


def test_a_server_that_gathers_says_what_its_last_steps_lose():
    server = every(4)
    with pytest.warns(UserWarning, match="After the last of 6 server steps.*still holds 2.*MultiSteps"):
        prepare(server=server)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(server=server, steps=8)


def test_updates_of_other_shapes_than_the_model_are_refused():
    summed = optax.stateless(lambda gradient, params: jax.tree.map(lambda leaf: leaf.sum(0), gradient))
    for name, given in (("optimizer", {"optimizer": summed}), ("server_optimizer", {"server": summed})):
        with pytest.raises(
            jafl.SettingError, match=f"shape of the {name}'s update of .*is \\(.*, the parameter's"
        ):
            prepare(**given)


class ComplexLinen(nn.Module):
    """A layer whose kernel is complex; the logits are the real part."""

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", nn.initializers.normal(1.0, jnp.complex64), (4, 2))
        return jnp.real(x.astype(jnp.complex64) @ kernel)


def complex_nnx():
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self):
            self.kernel = nnx.Param(jnp.ones((4, 2), jnp.complex64))

        def __call__(self, x):
            return jnp.real(x.astype(jnp.complex64) @ self.kernel[...])

    return Layer()


def complex_equinox():
    import equinox

    class Layer(equinox.Module):
        kernel: jax.Array

        def __call__(self, x):
            return jnp.real(x.astype(jnp.complex64) @ self.kernel)

    return Layer(jnp.ones((4, 2), jnp.complex64))


def complex_functions():
    return (
        lambda key: {"kernel": jnp.ones((4, 2), jnp.complex64)},
        lambda params, x: jnp.real(x @ params["kernel"]),
    )


@pytest.mark.parametrize("make", [ComplexLinen, complex_nnx, complex_equinox, complex_functions])
def test_complex_parameters_are_refused_by_name(make):
    with pytest.raises(jafl.SettingError, match="type.*is.*complex64.*, but must be.*floating"):
        prepare(model=jafl.Model(make()))


@pytest.mark.full
def test_complex_values_within_a_model_of_real_parameters_train():
    def use(params, x):
        spectrum = jnp.fft.fft(x, axis=-1) * (params["real"] + 1j * params["imaginary"])
        return jnp.real(jnp.fft.ifft(spectrum, axis=-1))[:, :2]

    model = jafl.Model((lambda key: {"real": jnp.ones(4), "imaginary": jnp.zeros(4)}, use))
    positional, named = run(model=model, steps=60)
    history = jafl.simulate(*positional, jax.random.key(1), **named, evaluate_at=[0])
    before, after = (history.evaluations[number]["test_loss"] for number in (0, -1))
    assert after < 0.8 * before


@pytest.mark.full
@pytest.mark.parametrize("true", [True, np.True_])
def test_a_mask_is_no_data_and_the_numbers_beside_it_are(true):
    masked = jafl.specify(
        optax.masked, jafl.specify(optax.sgd, 0.5), {"dense": {"kernel": true, "bias": False}}
    )
    assert jax.tree.leaves(masked) == [0.5]
    prepare(masked, server=jafl.specify(optax.adamw, 0.1, mask={"dense": {"kernel": true, "bias": False}}))


def test_runs_that_differ_in_numbers_alone_are_traced_once(monkeypatch):
    """A sweep has hundreds of them, and tracing takes as long as a short run."""
    looked = []
    of_server = optimizer_checks.check_server_optimizer
    monkeypatch.setattr(optimizer_checks, "_PASSED", {})
    monkeypatch.setattr(
        optimizer_checks,
        "check_server_optimizer",
        lambda *given: looked.append(given[2]) or of_server(*given),
    )
    for rate in (0.1, 0.2):
        prepare(jafl.specify(optax.sgd, rate), server=jafl.specify(optax.sgd, rate))
    assert looked == [6]
    prepare(server=jafl.specify(optax.adam, 0.1))  # another optimizer
    prepare(server=jafl.specify(optax.adam, 0.1), steps=7)
    assert looked == [6, 6, 7]
    for _ in range(2):  # what is to be said is said each time
        with pytest.warns(UserWarning, match="After the last of 6 server steps"):
            prepare(server=jafl.specify(every, 4))
        with pytest.raises(jafl.SettingError, match="local steps of a trip"):
            prepare(jafl.specify(every, 2), local_steps=3)
