"""Another data seed gives another training, validation and test split, of every data set that needs no files."""

import numpy as np
import pytest

from jafl.config.builders.data import make_source
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings

NEEDS_NO_FILES = ("digits", "synthetic", "mnist_5000", "mnist_1d", "python_source")
SPLITS = ("x", "test_x", "validation_x")


def split_of(dataset, data_seed):
    small = {"num_clients": 20} if dataset in ("synthetic", "python_source") else {}
    return make_source(
        Settings(
            dataset=dataset,
            split=f"split(seed={data_seed}, validation_fraction=0.1, test_fraction=0.2)",
            **small,
        )
    )


def shared(first, second):
    """The share of the second's examples that the first has, too."""
    known = {example.tobytes() for example in first}
    return np.mean([example.tobytes() in known for example in second])


@pytest.mark.parametrize("dataset", NEEDS_NO_FILES)
def test_another_data_seed_splits_anew(dataset):
    first, again, other = (split_of(dataset, seed) for seed in (3, 3, 4))
    for name in SPLITS:
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        # Two draws of a fifth of the same examples share a fifth of them; texts also repeat themselves.
        assert shared(getattr(first, name), getattr(other, name)) < (0.85 if name == "x" else 0.3), name


@pytest.mark.parametrize("dataset", ["digits", "mnist_5000"])
def test_over_many_seeds_each_example_is_tested(dataset):
    size = {"digits": 1797, "mnist_5000": 5000}[dataset]
    times = np.zeros(size, int)
    for seed in range(12):
        times[split_of(dataset, seed).test_indices] += 1
    never = np.mean(times == 0)
    assert never == pytest.approx(0.8**12, abs=0.03) and times.max() < 12


@pytest.mark.parametrize("dataset", NEEDS_NO_FILES)
def test_splits_of_one_seed_share_nothing(dataset):
    source = split_of(dataset, 3)
    if source.train_indices is not None:
        every = np.concatenate(
            [getattr(source, f"{split}_indices") for split in ("train", "test", "validation")]
        )
        assert len(np.unique(every)) == len(every)
    else:
        assert shared(source.x, source.test_x) == shared(source.x, source.validation_x) == 0


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize(
    ("dataset", "trips", "accuracy"), [("mnist_5000", 1000, 0.7), ("mnist_1d", 3000, 0.33)]
)
def test_fedbuff_learns_with_the_default_settings(dataset, trips, accuracy):
    """``run.py --dataset=NAME --algorithm=fedbuff``, of fewer trips."""
    (experiment,) = make_experiments(Settings(dataset=dataset, algorithm="fedbuff", client_trips=trips))
    first, *_, last = experiment.simulate().evaluations
    assert first["test_accuracy"] < 0.2 and last["test_accuracy"] > accuracy


@pytest.mark.gate
def test_fedbuff_learns_more_of_texts_than_how_frequent_characters_are():
    changes = {
        "client_trips": 400,
        "dataset.most_characters": 3000,
        "batch_size": 4,
        "model.hidden_sizes": [32],
    }
    (experiment,) = make_experiments(Settings(dataset="python_source", algorithm="fedbuff", **changes))
    y = experiment.federation.test_y
    counts = np.bincount(y[y >= 0])
    shares = counts[counts > 0] / counts.sum()
    first, *_, last = experiment.simulate().evaluations
    assert first["test_loss"] == pytest.approx(np.log(99), abs=0.1)
    assert last["test_loss"] < -np.sum(shares * np.log(shares)) - 0.08
    assert last["test_perplexity"] == pytest.approx(np.exp(last["test_loss"]), rel=0.2)
