"""Every model, with examples shaped as its data set's, trains in the engine under ACE and FedBuff."""

import dataclasses

import jax
import numpy as np
import pytest
from hugging_face_files import PIECES, TINY, tensors_of, write
from preparing import placed
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from jafl import data, models
from jafl.base.errors import SettingError
from jafl.config.builders.training import NEXT_TOKENS, make_model
from jafl.config.settings import Settings

CLIENTS = 3
# {model: (shape of an example, classes)}; token numbers where the shape has one number.
DATA = {
    "softmax": ((28, 28, 1), 10),
    "mlp": ((28, 28, 1), 10),
    "cnn": ((28, 28, 1), 10),
    "emnist_cnn": ((28, 28, 1), 62),
    "lenet5": ((32, 32, 3), 10),
    "celeba_cnn": ((84, 84, 3), 2),
    "leaf_celeba_cnn": ((32, 32, 3), 2),
    "fedbuff_cnn": ((32, 32, 3), 10),
    "fedstaleweight_fashion_cnn": ((28, 28, 1), 10),
    "fedstaleweight_cifar_cnn": ((32, 32, 3), 10),
    "resnet18": ((32, 32, 3), 100),
    "mnist_1d_cnn": ((40, 1), 10),
    "sent140_lstm": ((25,), 2),
    "character_lstm": ((12,), len(PIECES)),
    "causal_transformer": ((12,), len(PIECES)),
    "distilbert": ((12,), 20),
    "bert": ((12,), 20),
}
RULES = {"ace": (jafl.rules.ace, 1), "fedbuff": (jafl.rules.fedbuff, 2)}


def source_of(name):
    """Random examples: two for each client, as many for the test."""
    shape, classes = DATA[name]
    random = np.random.default_rng(0)
    if len(shape) == 1:
        x = random.integers(1, len(PIECES), (4 * CLIENTS, *shape)).astype(np.int32)
        x[::3, -4:] = 0
    else:
        x = random.uniform(-1, 1, (4 * CLIENTS, *shape)).astype(np.float32)
    y = np.arange(4 * CLIENTS, dtype=np.int32) % classes
    if name in NEXT_TOKENS:
        y = np.roll(x, -1, axis=1)
    half = len(x) // 2
    source = data.Source("random", x[:half], y[:half], x[half:], y[half:], num_classes=classes)
    return dataclasses.replace(source, vocabulary=tuple(PIECES) if len(shape) == 1 else None)


def settings_of(name, tmp_path, **changes):
    """Settings with this model, ``changes`` its arguments."""
    if name in ("bert", "distilbert") and "model_dir" not in changes:
        changes["model_dir"] = str(write(tmp_path, name, tensors_of(name)))
    arguments = {f"model.{argument}": value for argument, value in changes.items()}
    return Settings(model=name, algorithm="ace", **arguments)


def started(model, source):
    """Initial parameters: the model's own where they come from a file, else small random ones, drawn at once."""
    if model.initial is not None:
        return model.init(jax.random.key(0), source.x)
    random = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), source.x))
    return jax.tree.map(lambda leaf: random.normal(0, 0.05, leaf.shape).astype(leaf.dtype), shapes)


def trained(model, source, rule, steps=4, **arguments):
    """The history of a few server steps, and the initial parameters."""
    make, buffer_size = RULES[rule]
    made = make(**arguments)
    initial = made.build().initial_round
    federation = data.federate(source, data.iid(np.arange(len(source.y)), CLIENTS, seed=0))
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=buffer_size,
        delay=jafl.delays.exponential(1.0),
        server_steps=steps,
        initial_round=initial,
    )
    params = started(model, source)
    work = jafl.client_work(model, learning_rate=0.01, batch_size=2)
    history = jafl.simulate(schedule, federation, work, made, params, jax.random.key(1), evaluators={})
    return history, params


@pytest.mark.full
@pytest.mark.few_in_full(5)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", in_tiers(list(models.MODELS), ("mlp",)))
def test_every_model_trains(name, rule, tmp_path):
    source = source_of(name)
    history, params = trained(make_model(settings_of(name, tmp_path), source), source, rule)
    losses = history.trip_reports["loss"]
    assert history.server_steps == 4 and np.isfinite(losses).all() and np.all(losses > 0)
    moved = [np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (history.params, params)), strict=True)]
    assert np.mean(moved) > 0.5  # some token may not occur


def test_all_models_have_a_row():
    assert set(DATA) == set(models.MODELS)


@pytest.mark.parametrize("precision", ["full", "bfloat16"])
@pytest.mark.full
def test_client_memory_holds_the_head_alone(precision, tmp_path):
    source = source_of("bert")
    model = make_model(settings_of("bert", tmp_path, fine_tune="head"), source)
    history, params = trained(model, source, "ace", memory_precision=precision)
    assert set(history.params) == {"head"}
    assert all(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (history.params, params)), strict=True))
    rule = jafl.rules.ace(memory_precision=precision)
    work = jafl.client_work(model, learning_rate=0.01, batch_size=2)
    federation = data.federate(source, data.iid(source.y, CLIENTS, seed=0))
    schedule = jafl.asynchronous(
        num_clients=CLIENTS, concurrency=3, buffer_size=1, delay=jafl.delays.exponential(1.0), server_steps=2,
        initial_round=True,
    )  # fmt: skip
    _, carry = placed(schedule, federation, work, rule, params, jax.random.key(0))
    rows = jax.tree.leaves(carry.memory.codes)
    assert sum(leaf.size for leaf in rows) == CLIENTS * (TINY["size"] * 20 + 20)
    # A CPU holds the bits of bfloat16 (``BitRows``).
    assert {leaf.dtype.name for leaf in rows} == {"float32" if precision == "full" else "uint16"}


@pytest.mark.full
def test_training_the_head_alone_is_training_all_with_the_encoder_held_still(tmp_path):
    source = source_of("distilbert")
    settings = settings_of("distilbert", tmp_path, fine_tune="head")
    model = dataclasses.replace(make_model(settings, source), dropout=False)
    history, params = trained(model, source, "fedbuff", steps=1)
    whole = dataclasses.replace(
        make_model(settings.changed({"model.fine_tune": "all"}), source), dropout=False
    )
    every = {**whole.init(jax.random.key(0), source.x), "head": params["head"]}
    schedule = history.schedule
    update = jax.tree.map(np.zeros_like, params["head"])
    federation = data.federate(source, data.iid(source.y, CLIENTS, seed=0))
    slope_of = jax.jit(lambda params, x, y: jax.grad(lambda p: whole.losses(p, x, y).mean())(params)["head"])
    for client in schedule.client:
        rows = federation.partition.indices[federation.partition.offsets[client] :][:2]
        slope = slope_of(every, source.x[rows], source.y[rows])
        update = jax.tree.map(lambda u, g: u - 0.01 * g / 2, update, slope)
    for new, old, change in zip(
        *map(jax.tree.leaves, (history.params["head"], params["head"], update)), strict=True
    ):
        np.testing.assert_allclose(new, old + change, atol=1e-6)


def test_settings_reach_the_models(tmp_path):
    source = source_of("bert")
    assert make_model(settings_of("resnet18", tmp_path, normalization_layer="layer"), source_of("resnet18"))
    glove = tmp_path / "glove.txt"
    glove.write_text("piece1 1 2 3\n")
    text = source_of("sent140_lstm")
    model = make_model(settings_of("sent140_lstm", tmp_path, embeddings_file=str(glove)), text)
    assert model.frozen["word_vectors"]["embedding"].shape == (len(PIECES), 3)
    with jax.enable_x64(True):
        for name in ("sent140_lstm", "character_lstm", "bert"):
            model = make_model(
                settings_of(name, tmp_path / name).changed({"precision": "float64"}), source_of(name)
            )
            shapes = jax.eval_shape(lambda model=model, x=source.x: model.init(jax.random.key(0), x))
            assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes)} == {"float64"}


@pytest.mark.parametrize(
    ("name", "examples", "changes", "message"),
    [
        ("resnet18", "resnet18", {"normalization_layer": "batch"}, "no meaning across clients"),
        ("bert", "mlp", {}, r"model is .bert[(].*random has no texts"),
        ("emnist_cnn", "bert", {}, r"model is .emnist_cnn\b.*random has no images"),
        ("bertt", "bert", {}, "Did you mean 'bert'"),
        ("mnist_1d_cnn", "mlp", {}, r"model is .mnist_1d_cnn\b.*random has no signals"),
        (
            "cnn",
            "mnist_1d_cnn",
            {},
            r"model is .cnn\b.*softmax, mlp or mnist_1d_cnn, for random has no images",
        ),
        ("character_lstm", "bert", {}, r"model is .character_lstm\b.*the class of a whole text"),
        ("character_lstm", "mlp", {}, r"model is .character_lstm\b.*random has no texts"),
        (
            "mlp",
            "character_lstm",
            {},
            r"model is .mlp\b.*must be character_lstm or causal_transformer, for random asks for the next token",
        ),
        ("sent140_lstm", "character_lstm", {}, r"model is .sent140_lstm\b.*the next token at each place"),
    ],
)
def test_settings_that_do_not_fit(name, examples, changes, message, tmp_path):
    with pytest.raises(SettingError, match=message):
        make_model(settings_of(name, tmp_path, **changes), source_of(examples))


def test_tokens_beyond_the_embedding_are_refused(tmp_path):
    source = source_of("bert")
    source.x[0, 0] = TINY["tokens"]
    for name, where in (("bert", str(tmp_path)), ("sent140_lstm", "the vocabulary of random")):
        with pytest.raises(SettingError, match=f"largest token in random is 40.*{where}.*Number the texts"):
            make_model(settings_of(name, tmp_path), source)


def test_classes_unlike_the_datas_are_refused(tmp_path):
    source = source_of("bert")
    directory = write(tmp_path, "bert", tensors_of("bert", 5))
    with pytest.raises(SettingError, match=f"head in {directory}.* is 5, but must be the data's, 20"):
        make_model(settings_of("bert", tmp_path, model_dir=str(directory)), source)
    with pytest.raises(SettingError, match="model's number of classes is 2"):
        trained(models.emnist_cnn(2), source_of("cnn"), "fedbuff")
