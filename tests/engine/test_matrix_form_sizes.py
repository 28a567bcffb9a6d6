"""The matrix form runs rules on vectors: those that read sizes, shapes, types or names of the model are refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from accelerator_forms import accelerator_forms
from preparing import prepared
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import rules
from jafl.base.jaxpr_sizes import same_but_for_sizes
from jafl.engine.matrix.linearity import LinearForm, find_linear_form
from jafl.records import Rule

SHAPES = {
    "kernel": jax.ShapeDtypeStruct((64, 10), np.float32),
    "bias": jax.ShapeDtypeStruct((10,), np.float32),
}
ONE_VECTOR = {"w": jax.ShapeDtypeStruct((640,), np.float32)}
READS = "reads the number of a model's parameters, or their shapes or types"
DIFFERENT = "treats the arrays of a model differently"


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def rule_with(scaled, init=lambda params: {}):
    """The sum of a buffer's updates, ``scaled``: a function of the sum and of the state."""

    def begin(state, params):
        return state, jax.tree.map(jnp.zeros_like, params)

    def fold(buffer, arrival):
        return (buffer[0], jax.tree.map(jnp.add, buffer[1], arrival.update)), {}

    def finish(buffer, params):
        return scaled(buffer[1], buffer[0]), buffer[0], {}, True

    return Rule(lambda params, num_clients: init(params), begin, fold, finish, linear=True)


def each(function):
    return lambda total, state: jax.tree.map(function, total)


def in_state(params):
    return {"scale": jnp.asarray(1 / math.sqrt(count(params)))}


FACTORS = {
    "a number": (each(lambda u: -u / 4), None),
    "a vector and back": (
        lambda total, state: jax.flatten_util.ravel_pytree(total)[1](
            -jax.flatten_util.ravel_pytree(total)[0]
        ),
        None,
    ),
    "the number of parameters": (
        lambda total, state: jax.tree.map(lambda u: -40 * u / math.sqrt(count(total)), total),
        READS,
    ),
    "entries of each array": (each(lambda u: -u / u.size), DIFFERENT),
    "rows of each array": (each(lambda u: -u / u.shape[0]), DIFFERENT),
    "large arrays": (each(lambda u: -u if u.size < 300 else -2 * u), READS),
    "axes": (each(lambda u: -u if u.ndim > 1 else -2 * u), DIFFERENT),
    "arrays": (
        lambda total, state: jax.tree.map(lambda u: -u / len(jax.tree.leaves(total)), total),
        DIFFERENT,
    ),
    "the type": (each(lambda u: -u if u.dtype == jnp.float32 else -2 * u), READS),
    "names": (
        lambda total, state: jax.tree_util.tree_map_with_path(
            lambda path, u: -u if "bias" in str(path) else -2 * u, total
        ),
        DIFFERENT,
    ),
    "a norm": (each(lambda u: -u / jnp.linalg.norm(u)), "not linear"),
    "a model's own type": (
        lambda total, state: {name: -u for name, u in total.items()},
        "cannot run on vectors",
    ),
}


def found(rule, optimizer, params=SHAPES):
    form = find_linear_form(rule, optimizer, params, 10, {}, None)
    return None if isinstance(form, LinearForm) else form.reason


@pytest.mark.parametrize("name", FACTORS)
def test_what_a_rules_factors_may_depend_on(name):
    scaled, reason = FACTORS[name]
    said = found(rule_with(scaled), optax.sgd(1.0))
    assert said is None if reason is None else reason in said


@pytest.mark.full
def test_sizes_are_found_in_the_state_and_in_models_of_one_vector():
    assert READS in found(
        rule_with(lambda t, s: jax.tree.map(lambda u: -u * s["scale"], t), in_state), optax.sgd(1.0)
    )
    for name in ("the number of parameters", "entries of each array", "large arrays", "the type"):
        assert READS in found(rule_with(FACTORS[name][0]), optax.sgd(1.0), ONE_VECTOR), name
    for name in ("a number", "axes", "arrays"):  # are the same on any vector
        assert found(rule_with(FACTORS[name][0]), optax.sgd(1.0), ONE_VECTOR) is None, name


SERVERS = {
    "momentum": (optax.sgd(0.1, momentum=0.9, nesterov=True), None),
    "weight decay": (optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)), None),
    "weight decay of matrices": (
        optax.chain(
            optax.add_decayed_weights(0.1, mask=lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree)),
            optax.sgd(0.1),
        ),
        DIFFERENT,
    ),
    "centred": (optax.chain(optax.centralize(), optax.sgd(0.1)), DIFFERENT),
    "divided by the root": (
        optax.stateless(lambda g, p: jax.tree.map(lambda u: -u / math.sqrt(count(g)), g)),
        READS,
    ),
    "lars": (optax.lars(0.1), "not linear"),
    "signs": (optax.sign_sgd(0.1), "not linear"),
    "skipping": (
        optax.apply_if_finite(optax.sgd(0.1), 3),
        "keeps, broadcasts or reports numbers that depend on the updates",
    ),
    "blocks' rms": (optax.chain(optax.clip_by_block_rms(1.0), optax.sgd(0.1)), "not linear"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_what_a_server_optimizer_may_depend_on(name):
    optimizer, reason = SERVERS[name]
    said = found(rules.fedbuff().build(), optimizer)
    assert said is None if reason is None else reason in said


@pytest.mark.full
def test_a_run_falls_back_to_the_loop_and_the_matrix_form_says_why():
    source, model = jafl.data.digits(), jafl.models.softmax(10)
    federation = jafl.federate(source, jafl.data.iid(source.y, 12, seed=0))
    schedule = jafl.asynchronous(
        num_clients=12, concurrency=12, buffer_size=2, delay=jafl.delays.exponential(), server_steps=6
    )
    work = jafl.client_work(model, learning_rate=0.1, batch_size=8)
    rule = rule_with(FACTORS["the number of parameters"][0])
    run = (schedule, federation, work, rule, model.init(jax.random.key(0), source.x), jax.random.key(1))
    with pytest.raises(
        jafl.SettingError, match="form is 'matrix', but must be loop.*number of a model's parameters"
    ):
        jafl.simulate(*run, form="matrix", evaluate_at=[])
    with accelerator_forms():
        assert prepared(*run, together=True).plan.form == "loop"
        assert prepared(*run[:3], rules.fedbuff(), *run[4:], together=True).plan.form == "matrix"


def test_traces_that_differ_in_sizes_alone_are_the_same():
    def traces(function):
        return [jax.make_jaxpr(function)(jnp.ones((size, 2))) for size in (3, 5)]

    assert same_but_for_sizes(*traces(lambda x: jax.lax.fori_loop(0, 4, lambda _, y: 2.0 * y, x).reshape(-1)))
    assert not same_but_for_sizes(*traces(lambda x: jax.lax.fori_loop(0, 4, lambda _, y: y / x.size, x)))
    assert not same_but_for_sizes(*traces(lambda x: jnp.sin(x) if len(x) > 4 else jnp.cos(x)))
    assert not same_but_for_sizes(*traces(lambda x: (x, len(x))))
    assert not same_but_for_sizes(*traces(lambda x: x * np.full(x.shape, 1 / len(x))))
    assert same_but_for_sizes(*traces(lambda x: x * np.full(x.shape, 0.5)))
