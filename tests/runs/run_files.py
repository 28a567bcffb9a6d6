"""Reads a run directory as a stranger would: with json, NumPy and scikit-learn, and nothing of jafl.

``replay`` computes a run once more from its files alone, where nothing is random after the schedule and the
partition: softmax regression, a client's whole data set as one batch, one local step.
"""

import ast
import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits


class Split(NamedTuple):
    """``x`` [E, 64] in 0..1 and ``y`` [E]."""

    x: np.ndarray
    y: np.ndarray


class Step(NamedTuple):
    """One server step: its trips' clients [K], losses [K] and updates, and the model [65, 10] after it."""

    clients: np.ndarray
    losses: np.ndarray
    updates: list[np.ndarray]
    model: np.ndarray


def read_json(path: pathlib.Path) -> Any:
    """The content of a JSON file; refuses NaN and infinity, which are not JSON."""
    return json.loads(path.read_text(), parse_constant=_refuse)


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file whose last line is whole."""
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=_refuse) for line in text.splitlines()]


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """{name: array} of an npz file without pickled objects."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def split(folder: pathlib.Path, name: str) -> Split:
    """The training, test or validation examples: scikit-learn's digits at ``<name>_indices``."""
    digits = load_digits()
    chosen = read_arrays(folder / "partition.npz")[f"{name}_indices"]
    return Split(digits.data[chosen] / 16, digits.target[chosen])


def clients(folder: pathlib.Path) -> list[Split]:
    """Each client's examples, in its order."""
    training = split(folder, "train")
    partition = read_arrays(folder / "partition.npz")
    offsets = partition["offsets"]
    held = [partition["indices"][a:b] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    return [Split(training.x[one], training.y[one]) for one in held]


def params_as_model(folder: pathlib.Path) -> np.ndarray:
    """[65, 10]: the kernel of a softmax regression and, as its last row, the bias."""
    params = read_arrays(folder / "params.npz")
    return np.concatenate([params["dense/kernel"], params["dense/bias"][None]])


def scores(model: np.ndarray, examples: Split) -> tuple[float, float]:
    """Accuracy and mean loss of a softmax regression."""
    logits = examples.x @ model[:-1] + model[-1]
    return accuracy_and_loss(logits, examples.y)


def accuracy_and_loss(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The share of largest outputs at the label, and the mean cross-entropy."""
    right = np.mean(np.argmax(logits, axis=1) == labels)
    return float(right), float(np.mean(-_log_softmax(logits)[np.arange(len(labels)), labels]))


def replay(folder: pathlib.Path, dtype: type = np.float64) -> Iterator[Step]:
    """Yields every server step of a run of fedbuff, fedasync, fedavg or fedavgm, from its files alone."""
    config = read_json(folder / "config.json")
    schedule = read_arrays(folder / "schedule.npz")
    algorithm = name_of(config["algorithm"])
    work, client, server = (
        arguments_of(config[f"{name}"]) for name in ("client_work", "client_optimizer", "server_optimizer")
    )
    assert (config["model"], work["batch_size"], work["local_steps"]) == ("softmax", 0, 1)
    assert name_of(config["client_optimizer"]) == name_of(config["server_optimizer"]) == "sgd"
    data = [Split(one.x.astype(dtype), one.y) for one in clients(folder)]
    rate, server_rate = dtype(client["learning_rate"]), dtype(server["learning_rate"])
    l2 = dtype(work["l2"] or 0)
    versions = [np.zeros((65, 10), dtype)]
    velocity = np.zeros((65, 10), dtype)
    for step in range(len(schedule["step_time"])):
        trips = np.flatnonzero(schedule["step"] == step)
        starts = [versions[version] for version in schedule["download_version"][trips]]
        work = [
            _loss_and_slope(start, data[client])
            for client, start in zip(schedule["client"][trips], starts, strict=True)
        ]
        updates = [-rate * (slope + l2 * start) for start, (_, slope) in zip(starts, work, strict=True)]
        late = (step - schedule["download_version"][trips]).astype(dtype)
        discount = (1 + late) ** dtype(-arguments_of(config["algorithm"]).get("exponent", 0))
        model = versions[-1]
        if algorithm == "fedbuff":
            weighted = [s * update for s, update in zip(discount, updates, strict=True)]
            model = model + server_rate * sum(weighted) / dtype(len(trips))
        elif algorithm == "fedasync":
            share = server_rate * discount[0]
            model = (1 - share) * model + share * (starts[0] + updates[0])
        else:
            velocity = dtype(server["momentum"] or 0) * velocity + sum(updates) / dtype(len(trips))
            model = model + server_rate * velocity
        versions.append(model)
        yield Step(schedule["client"][trips], np.array([loss for loss, _ in work]), updates, model)


def name_of(call: str) -> str:
    """The name of the function that a call's text calls."""
    return call.partition("(")[0]


def arguments_of(call: str) -> dict[str, Any]:
    """{name: value} of the arguments that are literals, those of calls inside it included."""
    keywords = [each for each in ast.walk(ast.parse(call)) if isinstance(each, ast.keyword)]
    return {
        str(each.arg): ast.literal_eval(each.value)
        for each in keywords
        if not isinstance(each.value, (ast.Call, ast.Name))
    }


def _loss_and_slope(model: np.ndarray, examples: Split) -> tuple[float, np.ndarray]:
    """The mean loss of a softmax regression, and its gradient [65, 10]."""
    x, y = examples
    inputs = np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)
    log_probabilities = _log_softmax(inputs @ model)
    wrong = np.exp(log_probabilities)
    wrong[np.arange(len(y)), y] -= 1
    return float(np.mean(-log_probabilities[np.arange(len(y)), y])), inputs.T @ wrong / x.dtype.type(len(x))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - np.max(logits, axis=1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
