"""FedStaleWeight (Ma et al. 2024), figure 2: slow clients that alone hold four of ten labels.

Command: python run.py --experiment=fedstaleweight_fig2
    --tune searches for the learning rates first; --scale=paper takes FashionMNIST and CIFAR-10, once
    ``run.py --prepare=fashion_mnist`` and ``--prepare=cifar10`` have been run.

Minutes: desk: 1.5, with --tune 6, on two cores of a busy machine. Paper: not measured; 4,000 and 16,000 server
    steps of five trips, six arms, three seeds.

Published: test accuracy over server steps, in a figure without a table: FedStaleWeight above buffered averaging on
both data sets. 15 clients, ten with durations U(1, 2) and labels 4-9, five with U(8, 12) and labels 0-3; b = 5,
Q = 1, learning rate 0.01; 4,000 (FashionMNIST) and 16,000 (CIFAR-10) aggregations; 20 % of all labels held out.

Open choices: equation 8's weights (E[staleness] b + 1) contradict algorithm 1's (E[staleness] + 1): both are arms.
"Buffered averaging" is the plain mean of the buffer; FedBuff with its own staleness weight, 1 / sqrt(1 + staleness),
is another arm, and the test bench's exponential weighting and its reverse are two more. A fresh duration is drawn for
every trip; all 15 clients are in flight; a finished client starts again at once. The CNNs and the batch of 32 are
those of the authors' test bench. On paper size every arm takes the published rate.

Desk size: digits, an MLP 64-32-10, batch 32, 200 and 400 server steps. With one local step the clients' and the
server's rate are one number: nine server's rates from 0.003 to 30 are searched for each arm and number of steps.
"""

from experiments.machinery import Claim, Override, PaperExperiment, Published, Scale, Search, server_rates

OURS, FIRST, MEAN = "FedStaleWeight", "FedStaleWeight, algorithm 1", "buffered mean"
FEDBUFF, FRESH, STALE = "FedBuff", "exponential, fresh first", "exponential, stale first"
ARMS = {
    OURS: {"algorithm": "fedstaleweight"},
    FIRST: {"algorithm": "fedstaleweight", "rule_arguments": "weight_form=algorithm_1"},
    MEAN: {"algorithm": "fedbuff", "staleness_weight": "constant"},
    FEDBUFF: {"algorithm": "fedbuff"},
    FRESH: {"algorithm": "exponential_weighting", "rule_arguments": "base=0.5"},
    STALE: {"algorithm": "exponential_weighting", "rule_arguments": "base=1.5"},
}
WORLD = {
    "num_clients": 15,
    "concurrency": 15,
    "partition": "label_groups",
    "label_groups": "10:4-9;5:0-3",
    "delay": "groups",
    "delay_groups": "10:uniform(1,2);5:uniform(8,12)",
    "delay_draw": "per_trip",
    "buffer_size": 5,
    "local_steps": 1,
    "batch_size": 32,
    "test_fraction": 0.2,
}

EXPERIMENT = PaperExperiment(
    paper="FedStaleWeight",
    figure="figure 2",
    title="weights by average staleness against buffered averaging, slow clients with labels of their own",
    published=Published(
        note="Figure 2: FedStaleWeight's curve above buffered averaging's on FashionMNIST and CIFAR-10."
    ),
    scales={
        "paper": Scale(
            settings=WORLD | {"learning_rate": 0.01, "server_learning_rate": 1.0},
            arms=ARMS,
            conditions={"dataset": ["fashion_mnist", "cifar10"]},
            overrides=[
                Override(
                    {"dataset": "fashion_mnist"},
                    None,
                    {"model": "fedstaleweight_fashion_cnn", "server_steps": 4000},
                ),
                Override(
                    {"dataset": "cifar10"}, None, {"model": "fedstaleweight_cifar_cnn", "server_steps": 16000}
                ),
            ],
            seeds=(0, 1, 2),
        ),
        "desk": Scale(
            settings=WORLD
            | {"dataset": "digits", "model": "mlp", "hidden_sizes": "32", "learning_rate": 1.0},
            arms=ARMS,
            conditions={"server_steps": [200, 400]},
            search=Search(
                space={"server_learning_rate": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]}
            ),
            seeds=tuple(range(10)),
            tuned=dict.fromkeys(
                ("server_steps=200", "server_steps=400"),
                server_rates(dict.fromkeys(ARMS, 0.3) | {STALE: 0.1}),
            ),
            minutes=1.5,
            hardware="two CPU cores of a busy machine",
        ),
    },
    claims=[
        Claim(sentence="FedStaleWeight is above buffered averaging", better=OURS, worse=MEAN),
        Claim(sentence="with algorithm 1's weights, too", better=FIRST, worse=MEAN),
        Claim(sentence="FedStaleWeight is above FedBuff's staleness weight", better=OURS, worse=FEDBUFF),
        Claim(sentence="the two forms of its weights are equal", better=OURS, worse=FIRST, expected="a tie"),
    ],
)
