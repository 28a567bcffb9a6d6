"""The search behind the default learning rates of ``run.py``'s algorithms.

    python -m experiments.tune_main_job

The same for each algorithm: every pair of three clients' and three server's learning rates, the server's a
factor of about three apart around the algorithm's usual scale (for rules on gradients: seven server's rates
from 0.003 to 3, the clients' being 1), three seeds that the main job does not use, 8,000 client trips on the
main job's digits with a fifth of the training examples held out. The pair with the fewest trips to 0.95
accuracy on the held-out examples, averaged over seeds (the whole budget where it is never reached), wins; ties
go to the higher final accuracy. Takes about ten minutes on two cores. benchmarks/README.md holds its table.
"""

from typing import Any

import numpy as np
from absl import app, flags

import jafl
from experiments.machinery import Search
from experiments.machinery.search import trials
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings

CLIENT_RATES = (0.1, 0.3, 1.0)
SERVER_RATES = {
    "fedbuff": (0.3, 1.0, 3.0),
    "fedasync": (0.1, 0.3, 0.9),
    "fedavgm": (0.1, 0.3, 1.0),
    "fedavg": (0.3, 1.0, 3.0),
    "fedprox": (0.3, 1.0, 3.0),
    "fedadagrad": (0.01, 0.03, 0.1),
    "fedadam": (0.01, 0.03, 0.1),
    "fedyogi": (0.01, 0.03, 0.1),
}
SERVER_RATES |= dict.fromkeys(
    ("fedstaleweight", "exponential_weighting", "ca2fl", "fednova"), SERVER_RATES["fedbuff"]
)
TARGET, TRIPS = 0.95, 8000


# Rules on gradients take one local step with the clients' rate fixed at 1: all of the search goes to the server's.
ON_GRADIENTS = (
    "asgd",
    "delay_adaptive_asgd",
    "ace",
    "aced",
    "gsgm",
    "sasgd",
    "twafl",
    "wkafl",
    "zeno_plus_plus",
)
GRADIENT_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
SPACES: dict[str, Any] = {
    name: {"learning_rate": CLIENT_RATES, "server_learning_rate": rates}
    for name, rates in SERVER_RATES.items()
}
SPACES |= dict.fromkeys(ON_GRADIENTS, {"learning_rate": (1.0,), "server_learning_rate": GRADIENT_RATES})
SEARCH = Search(space={}, spaces=SPACES, settings={"validation_fraction": 0.2})
ALGORITHMS = flags.DEFINE_list("algorithms", list(SPACES), "Which to search for.")


def score(algorithm: str, rates: dict[str, Any]) -> tuple[float, float]:
    """(mean trips to the target, mean final accuracy) on validation examples, over the seeds."""
    settings = Settings(
        algorithm=algorithm,
        seed=",".join(map(str, SEARCH.seeds)),
        client_trips=TRIPS,
        evaluate_every=40,
        server_examples=100 if algorithm == "zeno_plus_plus" else 0,
        **SEARCH.settings,
        **rates,
    )
    trips, final = [], []
    for experiment in make_experiments(settings):
        try:
            history = experiment.simulate(evaluators={"validation": experiment.evaluators()["validation"]})
        except jafl.DivergenceError:
            return TRIPS, 0.0
        reached = [row["client_trips"] for row in history.evaluations if row["validation_accuracy"] >= TARGET]
        trips.append(reached[0] if reached else TRIPS)
        final.append(history.evaluations[-1]["validation_accuracy"])
    return float(np.mean(trips)), float(np.mean(final))


def main(_: list[str]) -> None:
    """Prints every pair's score and the winner of each algorithm."""
    for algorithm in ALGORITHMS.value:
        scores = {}
        for rates in trials(SEARCH, algorithm):
            trips, final = score(algorithm, rates)
            client, server = rates.values()
            scores[client, server] = trips, -final
            print(f"{algorithm:9} clients {client:5} server {server:5} {trips:8.0f} trips, final {final:.4f}")
        best = min(scores, key=scores.__getitem__)
        print(f"{algorithm:9} best: clients {best[0]}, server {best[1]}", flush=True)


if __name__ == "__main__":
    app.run(main)
