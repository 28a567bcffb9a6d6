"""What a rule's order hides: accuracy on slow clients' labels, and how far a rule settles from the clients' optimum.

    python -m experiments.orderings                    # both settings
    python -m experiments.orderings --settings=bias    # one of them

Beside ``fedstaleweight_fig2`` and ``ace_fig2``, which judge the same rules by their accuracy, on handwritten digits
(1,797 images):

  fairness   FedStaleWeight's clients (its section 6.2): ten with durations U(1, 2) hold labels 4-9, five with
             U(8, 12) hold labels 0-3; MLP 64-32-10, K = 5, one local step on 32 examples.
  bias       ACE's question: softmax with L2 0.01, 20 clients, all in flight, Dirichlet 0.1; the fifth of them that is
             richest in labels 0-2 is 20 times slower (exponential durations); one local step on 32 examples.

The search is the same for every rule and budget: one learning rate of the server (with one local step the clients'
is the same number) out of nine between 0.003 and 30, by mean accuracy on a fifth of the training examples held out,
over three seeds that the results do not use. Then five other seeds. Figures are means of the last ten of 100
evaluations; the gradient norm is that of the clients' mean objective, each client counting the same, over all its
examples. Each is printed as the mean over seeds with its standard error.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

import jafl
from experiments.machinery import report
from jafl import delays, rules

RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SETTINGS = flags.DEFINE_list("settings", ["fairness", "bias"], "Which of the two to run.")
SEEDS = flags.DEFINE_integer("seeds", 5, "Seeds per result.", lower_bound=2)
TUNING_SEEDS = (100, 101, 102)
# {name in the results: metric of the evaluations}
METRICS = {
    "accuracy": "test_accuracy",
    "slow": "slow_accuracy",
    "gradient_norm": "gradient_norm",
    "held_out": "held_out_accuracy",
}
FIGURES = ("accuracy", "slow", "gradient_norm")  # of the table, after the rule and its rate
OUTPUT = flags.DEFINE_string("output", None, "A file to add every result to, a JSON object per line.")


@dataclasses.dataclass(frozen=True)
class Contender:
    """A rule with its trips per server step."""

    rule: Any
    buffer_size: int
    initial_round: bool = False


@dataclasses.dataclass(frozen=True)
class Setting:
    """A federation per seed, a schedule per contender, and what is compared.

    budgets   {name: how the run stops}, given to ``jafl.asynchronous``
    """

    model: jafl.Model
    l2: float | None
    federation: Callable[[int], jafl.Federation]
    delay: delays.Delay
    contenders: dict[str, Contender]
    budgets: dict[str, dict[str, Any]]
    slow_labels: tuple[int, ...]


def source() -> jafl.Source:
    """Digits with a fifth of the training examples held out for the search."""
    return jafl.data.digits(validation_fraction=0.16)


def fairness_federation(seed: int) -> jafl.Federation:
    """Ten clients with labels 4-9 and five with labels 0-3."""
    digits = source()
    groups = [(10, range(4, 10)), (5, range(4))]
    return jafl.federate(digits, jafl.data.label_groups(digits.y, groups, seed=seed))


def bias_federation(seed: int) -> jafl.Federation:
    """Twenty clients, Dirichlet 0.1; the last four are those richest in labels 0-2."""
    digits = source()
    partition = jafl.data.dirichlet(digits.y, 20, alpha=0.1, seed=seed)
    held = np.split(partition.indices, partition.offsets[1:-1])
    share = [np.mean(digits.y[indices] < 3) for indices in held]
    order = np.argsort(share, kind="stable")
    return jafl.federate(digits, jafl.Partition.from_lists([held[client] for client in order]))


BIAS_CONTENDERS = {
    "ace": Contender(rules.ace(), 1, initial_round=True),
    "ca2fl": Contender(rules.ca2fl(), 10),
    "fedbuff": Contender(rules.fedbuff(), 10),
    "delay_adaptive_asgd": Contender(rules.delay_adaptive_asgd(), 1),
    "asgd": Contender(rules.asgd(), 1),
}
ACED = {
    f"aced, {steps} active steps": Contender(rules.aced(active_steps=steps), 1, initial_round=True)
    for steps in (10, 20, 50, 200)
}
SLOW_FIFTH = delays.groups(((16, delays.exponential(1.0)), (4, delays.exponential(20.0))))


def settings() -> dict[str, Setting]:
    """The two settings."""
    fast_and_slow = delays.groups(((10, delays.uniform(1, 2)), (5, delays.uniform(8, 12))))
    mean = Contender(rules.fedbuff(rules.staleness.constant()), 5)
    fairness = Setting(
        model=jafl.models.mlp(10, [32]),
        l2=None,
        federation=fairness_federation,
        delay=fast_and_slow,
        contenders={
            "fedstaleweight": Contender(rules.fedstaleweight(), 5),
            "fedstaleweight, algorithm 1": Contender(rules.fedstaleweight("algorithm_1"), 5),
            "buffered mean": mean,
            "fedbuff": Contender(rules.fedbuff(), 5),
            "exponential weighting": Contender(rules.exponential_weighting(0.5), 5),
            "reverse exponential": Contender(rules.exponential_weighting(1.5), 5),
        },
        budgets={"200 steps": {"server_steps": 200}, "400 steps": {"server_steps": 400}},
        slow_labels=(0, 1, 2, 3),
    )
    bias = Setting(
        model=jafl.models.softmax(10),
        l2=0.01,
        federation=bias_federation,
        delay=SLOW_FIFTH,
        contenders=BIAS_CONTENDERS | ACED,
        budgets={"4,000 trips": {"client_trips": 4000}, "400 steps": {"server_steps": 400}},
        slow_labels=(0, 1, 2),
    )
    return {"fairness": fairness, "bias": bias}


@jax.jit
def _gradient_norm(program: Any, params: Any, x: Any, y: Any, weights: Any, l2: float) -> jax.Array:
    model = program.build()

    def objective(params):
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return jnp.sum(weights * model.losses(params, x, y)) + 0.5 * l2 * squares

    return optax.global_norm(jax.grad(objective)(params))


def evaluators(setting: Setting, data: jafl.Federation) -> dict[str, Callable[[Any], dict[str, float]]]:
    """Accuracy on test and held-out examples, on the test examples of slow labels, and the gradient norm."""
    order = data.partition.indices
    weights = np.repeat(1.0 / (data.num_clients * data.num_examples), data.num_examples).astype(np.float32)
    slow = np.isin(data.test_y, setting.slow_labels)
    model = jafl.specify(lambda model: model, setting.model)
    arrays = (data.x[order], data.y[order], weights, setting.l2 or 0.0)
    return {
        "test": jafl.Evaluator(setting.model, data.test_x, data.test_y),
        "held_out": jafl.Evaluator(setting.model, data.validation_x, data.validation_y),
        "slow": jafl.Evaluator(setting.model, data.test_x[slow], data.test_y[slow]),
        "gradient": lambda params: {"norm": float(_gradient_norm(model, params, *arrays))},
    }


def measure(
    setting: Setting, contender: Contender, budget: dict[str, Any], rate: float, seed: int
) -> dict[str, float]:
    """The final figures of one run; accuracies of 0 if it diverges."""
    data = setting.federation(seed)
    schedule = jafl.asynchronous(
        num_clients=data.num_clients,
        concurrency=data.num_clients,
        buffer_size=contender.buffer_size,
        delay=setting.delay,
        initial_round=contender.initial_round,
        seed=seed,
        **budget,
    )
    work = jafl.client_work(setting.model, learning_rate=1.0, local_steps=1, batch_size=32, l2=setting.l2)
    init_key, key = jax.random.split(jax.random.key(seed))
    try:
        history = jafl.simulate(
            schedule,
            data,
            work,
            contender.rule,
            setting.model.init(init_key, data.x),
            key,
            server_optimizer=jafl.specify(optax.sgd, learning_rate=rate),
            evaluate_at=np.ceil(schedule.num_steps * np.arange(0.91, 1.0, 0.01)).astype(int),
            evaluators=evaluators(setting, data),
        )
    except jafl.DivergenceError:
        return dict.fromkeys(METRICS, 0.0) | {"gradient_norm": np.inf}
    last = history.evaluations[-10:]
    return {name: float(np.mean([row[metric] for row in last])) for name, metric in METRICS.items()}


def search(
    setting: Setting, contender: Contender, budget: dict[str, Any]
) -> tuple[float, dict[float, float]]:
    """The best learning rate, and every rate's mean accuracy on the held-out examples."""
    scores = {
        rate: float(np.mean([measure(setting, contender, budget, rate, s)["held_out"] for s in TUNING_SEEDS]))
        for rate in RATES
    }
    return max(scores, key=scores.__getitem__), scores


def main(_: list[str]) -> None:
    """Prints one table per setting and budget."""
    for name in SETTINGS.value:
        setting = settings()[name]
        for budget_name, budget in setting.budgets.items():
            print(f"\n### {name}, {budget_name}\n")
            print(report.heading(["rule", "rate", "accuracy", "slow labels", "gradient norm"]), flush=True)
            for contender_name, contender in setting.contenders.items():
                rate, scores = search(setting, contender, budget)
                runs = [measure(setting, contender, budget, rate, seed) for seed in range(SEEDS.value)]
                cells = [contender_name, f"{rate:g}"]
                cells += [report.number([run[key] for run in runs]) for key in FIGURES]
                print(report.row(cells), flush=True)
                if OUTPUT.value:
                    with open(OUTPUT.value, "a") as file:
                        line = {"setting": name, "budget": budget_name, "rule": contender_name, "rate": rate}
                        file.write(json.dumps({**line, "search": scores, "runs": runs}) + "\n")


if __name__ == "__main__":
    app.run(main)
