"""The adaptive server optimizers, step by step, against Reddi et al.'s algorithm 2 in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference_rules as papers
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.rules import server_optimizers

SECOND_MOMENTS = {
    "fedadagrad": lambda v, square, b2: v + square,
    "fedadam": lambda v, square, b2: b2 * v + (1 - b2) * square,
    "fedyogi": lambda v, square, b2: v - (1 - b2) * square * np.sign(v - square),
}
# The paper's defaults: beta_1, beta_2 and tau (section 5); adagrad has no beta_1 of its own.
DEFAULTS = {"b1": 0.9, "b2": 0.99, "epsilon": 1e-3}
GIVEN = {"b1": 0.4, "b2": 0.7, "epsilon": 0.05}


@pytest.mark.parametrize("given", [{}, GIVEN], ids=["defaults", "given"])
@pytest.mark.parametrize("name", SECOND_MOMENTS)
def test_three_steps(name, given):
    adagrad = name == "fedadagrad"
    options = {key: value for key, value in given.items() if key != "b2" or not adagrad}
    optimizer = getattr(server_optimizers, name)(0.3, **options)
    numbers = DEFAULTS | ({"b1": 0.0} if adagrad else {}) | given
    b1, b2, tau = numbers["b1"], numbers["b2"], numbers["epsilon"]
    params = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    state = optimizer.init(params)
    gradients = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32) * [1, 0.01, 0, 5]
    first, second = np.zeros(4), np.full(4, tau**2)
    for gradient in gradients:
        step, state = optimizer.update({"w": jnp.asarray(gradient[:3]), "b": jnp.asarray(gradient[3])}, state)
        first = b1 * first + (1 - b1) * gradient
        second = SECOND_MOMENTS[name](second, gradient**2, b2)
        expected = -0.3 * first / (np.sqrt(second) + tau)
        np.testing.assert_allclose([*step["w"], step["b"]], expected, rtol=1e-5)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("form", ["paper", "release", "optax"])
def test_forms_of_amsgrad(form):
    """Forty gradients that shrink, so that the maximum counts: each form as written out, one of them optax's."""
    numbers = {"b1": 0.8, "b2": 0.9, "epsilon": 1e-3}
    random, mine = np.random.default_rng(0), server_optimizers.fedamsgrad(0.1, form=form, **numbers)
    theirs, params = papers.AMSGrad(0.1, form, **numbers), {"w": np.zeros(4)}
    own = optax.amsgrad(0.1, 0.8, 0.9, eps=1e-3)
    theirs.begin(params)
    state, own_state, total, of_optax = mine.init(params), own.init(params), np.zeros(4), np.zeros(4)
    for step in range(40):
        gradient = {"w": random.normal(size=4) / (1 + step)}
        change, state = mine.update(gradient, state)
        total, params = total + change["w"], theirs.apply(params, gradient)
        change, own_state = own.update(gradient, own_state)
        of_optax = of_optax + change["w"]
    np.testing.assert_allclose(total, params["w"], rtol=1e-12)
    assert np.allclose(total, of_optax, rtol=1e-12) == (form == "optax")
    if form != "optax":
        assert np.abs(total - of_optax).max() > 0.05


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_amsgrad_whose_moments_stay_is_plain_sgd():
    """beta_1 = 0, beta_2 = 1, and v from v_0 on: so FADAS of one trip a step is asynchronous SGD at this rate."""
    random, params = np.random.default_rng(0), np.zeros(4)
    optimizer = server_optimizers.fedamsgrad(0.3, b1=0.0, b2=1.0, epsilon=1e-3)
    state = optimizer.init(params)._replace(second=np.full(4, 0.25))
    for _ in range(5):
        gradient = random.normal(size=4)
        change, state = optimizer.update(gradient, state)
        np.testing.assert_allclose(change, -0.3 / (0.5 + 1e-3) * gradient, rtol=1e-14)


def test_an_unknown_form_of_amsgrad_is_refused():
    with pytest.raises(jafl.SettingError, match="form is 'papr'.*Did you mean 'paper'"):
        server_optimizers.fedamsgrad(0.1, form="papr")


@pytest.mark.usefixtures("float64")
def test_a_period_of_delayed_nesterov_is_one_step_of_nesterov_on_the_mean():
    """Exactly, whatever the gradients; so a period of 1 is Nesterov. In between nothing but g / N moves the model."""
    random, params = np.random.default_rng(0), np.zeros(4)
    for period in (1, 3):
        delayed = server_optimizers.delayed_nesterov(0.1, 0.8, period)
        nesterov = optax.sgd(0.1, momentum=0.8, nesterov=True)
        state, own_state = delayed.init(params), nesterov.init(params)
        for _ in range(6):
            gradients, moved = random.normal(size=(period, 4)), np.zeros(4)
            for place, gradient in enumerate(gradients):
                change, state = delayed.update(gradient, state)
                moved = moved + change
                if place < period - 1:
                    np.testing.assert_allclose(change, -0.1 * gradient / period, rtol=1e-14)
            change, own_state = nesterov.update(gradients.mean(axis=0), own_state)
            np.testing.assert_allclose(moved, change, rtol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("momentum_share", [0.0, 0.2])
def test_delayed_nesterov_without_momentum_is_plain_sgd_at_an_nth_of_the_rate(momentum_share):
    random, params = np.random.default_rng(0), np.zeros(4)
    optimizer = server_optimizers.delayed_nesterov(0.1, 0.0, 4, momentum_share)
    state = optimizer.init(params)
    for _ in range(9):
        gradient = random.normal(size=4)
        change, state = optimizer.update(gradient, state)
        np.testing.assert_allclose(change, -0.1 / 4 * gradient, rtol=1e-14)


@pytest.mark.parametrize(
    "given, match",
    [({"period": 0}, "period is 0"), ({"period": 4, "momentum_share": 0.3}, "momentum_share is 0.3.*0.25")],
)
def test_numbers_of_delayed_nesterov_are_checked(given, match):
    with pytest.raises(jafl.SettingError, match=match):
        server_optimizers.delayed_nesterov(0.1, **given)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_heloco_corrects_each_array_by_its_own_momentum():
    """Forty gradients of two arrays in which all three cases occur; with c_ok = -1 it is Nesterov's average."""
    mine = server_optimizers.heloco(0.1, 0.7, 0.5, 2.0, 0.4, 0.8, 0.5)
    plain = server_optimizers.heloco(0.1, 0.7, keep_cosine=-1.0)
    theirs, random = papers.HeLoCo(0.1, 0.7, 0.5, 2.0, 0.4, 0.8, 0.5), np.random.default_rng(0)
    params = start = {"w": np.zeros((2, 2)), "b": np.zeros(3)}
    theirs.begin(params)
    state, of_plain, moved, average = mine.init(params), plain.init(params), start, start
    for _ in range(40):
        gradient = jax.tree.map(lambda p: random.normal(size=p.shape) + 0.3, start)
        change, state = mine.update(gradient, state)
        moved, params = jax.tree.map(np.add, moved, change), theirs.apply(params, gradient)
        change, of_plain = plain.update(gradient, of_plain)
        average = jax.tree.map(lambda m, g: 0.7 * m + 0.3 * g, average, gradient)
        expected = jax.tree.map(lambda g, m: -0.1 * (g + 0.7 * m), gradient, average)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), change, expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), moved, params)
    assert min(theirs.kinds.values()) > 5


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        (name, setting, value)
        for name in ("fedadagrad", "fedadam", "fedyogi", "fedamsgrad")
        for setting, value in (("epsilon", 0.0), ("epsilon", -1e-3), ("b1", -0.1), ("b1", float("nan")))
    ]
    + [
        ("delayed_nesterov", "momentum", 1.5),
        ("heloco", "momentum", -0.1),
        ("heloco", "keep_cosine", 1.1),
        ("heloco", "shrinkage", -1.0),
        ("heloco", "largest_shrinkage", float("nan")),
        ("heloco", "turning", float("inf")),
        ("heloco", "relative_momentum", -0.5),
        ("heloco", "epsilon", 0.0),
    ],
)
def test_decays_and_epsilons_outside_their_ranges_are_refused(name, setting, value):
    with pytest.raises(jafl.SettingError, match=f"{setting} of the server optimizer is {value}"):
        getattr(server_optimizers, name)(0.3, **{setting: value})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("name", "setting"),
    [("polynomial", "exponent"), ("hinge", "slope"), ("hinge", "threshold"), ("exponential", "rate")],
)
def test_weights_that_would_grow_with_the_staleness_are_refused(name, setting, value):
    weight = getattr(jafl.rules.staleness, name)(**{setting: value})
    with pytest.raises(jafl.SettingError, match=f"{setting} is {value}, but must be a finite number"):
        jafl.rules.fedbuff(weight).build()
