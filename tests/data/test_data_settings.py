"""Every data set from settings alone: three server steps of a simulation, clients of its own, and what is refused."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from refusals import refuses
from tiers import in_tiers
from waiting import LIMIT
from writer_files import WRITE

from jafl.cli import command_help
from jafl.cli.command_help import explained
from jafl.config.builders.data import filled_in, make_partition, make_source
from jafl.config.calls import grammar
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings
from jafl.data import NORMALIZATIONS, SOURCES
from jafl.engine.evaluation import per_client_accuracy

SMALL = {"algorithm": "fedbuff", "model": "softmax", "concurrency": 3, "buffer_size": 2, "server_steps": 3}
ROOT = pathlib.Path(__file__).parent.parent.parent


def run(**settings):
    (experiment,) = make_experiments(Settings(**{**SMALL, **settings}))
    history = experiment.simulate()
    assert history.server_steps == 3
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(history.params))
    assert all(np.isfinite(record["test_loss"]) for record in history.evaluations)
    before, after = jax.tree.leaves(experiment.params), jax.tree.leaves(history.params)
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    return experiment, history


@pytest.fixture(scope="module")
def prepared_dir(tmp_path_factory):
    pytest.importorskip("tensorflow_datasets")
    import archives

    folder = tmp_path_factory.mktemp("prepared")
    for name in archives.ARCHIVES:
        archives.prepare_tiny(name, folder)
    return folder


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    in_tiers(
        ["cifar10", "cifar100", "mnist", "fashion_mnist", "emnist/byclass", "emnist/mnist"],
        ["cifar10", "mnist", "emnist/byclass"],
    ),
)
def test_three_steps_on_images(name, prepared_dir):
    experiment, _ = run(dataset=name, data_dir=str(prepared_dir), num_clients=5, partition="iid")
    assert experiment.federation.x.dtype == np.uint8
    assert experiment.model.inputs.normalization == experiment.source.normalization


@pytest.mark.full
@pytest.mark.parametrize("name", ["celeb_a", "sentiment140"])
def test_three_steps_on_the_clients_that_a_data_set_comes_with(name, prepared_dir):
    experiment, _ = run(dataset=name, data_dir=str(prepared_dir))
    assert experiment.settings.partition == "natural"
    assert experiment.settings.num_clients == experiment.federation.num_clients != 100
    assert experiment.settings.value("split.seed") == (1549775860 if name == "sentiment140" else 0)


@pytest.mark.full
@pytest.mark.parametrize("form", WRITE)
def test_three_steps_on_writers(form, tmp_path):
    folder = WRITE[form](tmp_path / "files")
    experiment, _ = run(dataset=f"femnist/{form}", data_dir=str(folder))
    assert experiment.federation.num_clients == 4


@pytest.mark.full
def test_three_steps_on_newsgroups(folders):
    experiment, _ = run(
        dataset="newsgroups(tokens=12)", data_dir=str(folders), num_clients=4, partition="iid"
    )
    assert experiment.federation.x.shape == (12, 12)


@pytest.mark.full
def test_another_partition_of_a_data_set_with_clients(prepared_dir):
    experiment, _ = run(dataset="celeb_a", data_dir=str(prepared_dir), partition="iid", num_clients=7)
    assert experiment.federation.num_clients == 7


@pytest.mark.full
def test_crops_and_flips_change_training_but_not_evaluation(prepared_dir):
    here = {"dataset": "cifar10", "data_dir": str(prepared_dir), "num_clients": 5, "partition": "iid"}
    plain, first = run(**here)
    augmented, second = run(**here, augmentation="augmentation(random_crop=4, random_flip=True)")
    assert first.evaluations[0]["test_loss"] == second.evaluations[0]["test_loss"]
    assert first.evaluations[-1]["test_loss"] != second.evaluations[-1]["test_loss"]
    again = augmented.simulate()
    assert again.evaluations == second.evaluations
    assert plain.model.inputs.random_crop == 0


@pytest.mark.full
def test_float64_normalizes_in_float64(prepared_dir):
    settings = Settings(**SMALL, dataset="mnist", data_dir=str(prepared_dir), num_clients=5, partition="iid")
    with jax.enable_x64(True):
        (experiment,) = make_experiments(dataclasses.replace(settings, precision="float64"))
        assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(experiment.params))
        history = experiment.simulate()
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(history.params))


def test_clients_are_measured_on_what_they_hold_out():
    (experiment,) = make_experiments(
        Settings(**SMALL, num_clients=20, split="split(client_test_fraction=0.2)")
    )
    federation, model = experiment.federation, experiment.model
    rng = np.random.default_rng(0)
    params = {"dense": {"kernel": rng.normal(size=(64, 10)), "bias": rng.normal(size=10)}}
    found = per_client_accuracy(model, params, federation)
    held = federation.held_out
    for client in range(20):
        rows = held.indices[held.offsets[client] : held.offsets[client + 1]]
        logits = (
            federation.x[rows].reshape(len(rows), -1) @ params["dense"]["kernel"] + params["dense"]["bias"]
        )
        expected = np.mean(np.argmax(logits, axis=1) == federation.y[rows]) if len(rows) else np.nan
        assert found[client] == pytest.approx(expected, nan_ok=True)
    with refuses("federation.held_out is None", "client_test_fraction"):
        per_client_accuracy(model, params, dataclasses.replace(federation, held_out=None))


@pytest.mark.full
def test_a_partitions_own_seed_keeps_the_clients_and_what_they_hold_out_over_seeds():
    def over_seeds(**partition):
        several = {**SMALL, "seed": "1,2", "split.client_test_fraction": 0.1, **partition}
        found = [one.federation for one in make_experiments(Settings.from_mapping(several))]
        return zip(*((one.partition.indices, one.held_out.indices) for one in found), strict=True)

    for arrays in over_seeds(**{"partition.seed": 0}):
        np.testing.assert_array_equal(*arrays)
    for arrays in over_seeds():
        assert not np.array_equal(*arrays)


def test_refuses_another_number_of_clients_than_a_data_set_has(prepared_dir):
    settings = Settings(**SMALL, dataset="celeb_a", data_dir=str(prepared_dir), num_clients=33)
    with refuses("num_clients is 33", "left out, or 9", "clients of celeb_a", "iid"):
        filled_in(settings, make_source(settings))


def test_the_clients_richest_in_some_labels_are_numbered_last():
    settings = Settings(**SMALL, num_clients=20, partition="dirichlet(alpha=0.1)")
    ordered = dataclasses.replace(settings, richest_last="0,2-3")
    source = make_source(settings)

    def held(settings):
        partition = make_partition(settings, source, 7)
        return np.split(partition.indices, partition.offsets[1:-1])

    shares = [np.isin(source.y[indices], [0, 2, 3]).mean() for indices in held(ordered)]
    assert shares == sorted(shares) and shares[0] < 0.05 and shares[-1] > 0.9
    assert sorted(map(tuple, held(ordered))) == sorted(map(tuple, held(settings)))
    with refuses("richest_last is '0,10'", "occur in the data set"):
        make_partition(dataclasses.replace(settings, richest_last="0,10"), source, 7)


def test_every_normalization_and_data_set_is_in_the_help():
    text = command_help.by_group()["Data set"]["dataset"].help
    assert all(name in text for name in SOURCES)
    shown = {each.call.partition("(")[0]: each for each in explained(grammar("dataset"))}
    assert all(name in shown["cifar10"].arguments["normalization"] for name in NORMALIZATIONS)


@pytest.mark.full
def test_run_py_prepares_and_says_where_it_is_or_what_is_missing(prepared_dir, tmp_path):
    def run_py(*arguments):
        return subprocess.run(
            [sys.executable, "run.py", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT
        )

    done = run_py("prepare", "mnist", f"--data_dir={prepared_dir}")
    assert done.returncode == 0 and "already prepared" in done.stdout
    refused = run_py("prepare", "mnst", f"--data_dir={tmp_path}")
    assert refused.returncode == 2
    assert "prepare is 'mnst'" in refused.stderr and "Did you mean 'mnist'?" in refused.stderr


@pytest.mark.full
def test_a_run_on_images_is_repeated_from_its_config(prepared_dir, tmp_path):
    from jafl.runs import runner

    settings = Settings(
        **SMALL,
        dataset="cifar10",
        data_dir=str(prepared_dir),
        num_clients=5,
        partition="iid",
        split="split(client_test_fraction=0.2)",
        client_work="client_work(personal=ditto(0.5, 0.1))",
        evaluate_clients=True,
        stop_when="client_personal_loss_mean<=-1",
    )
    runner.run(settings, tmp_path / "one", show=lambda _: None)
    (again,) = make_experiments(Settings.from_file(str(tmp_path / "one" / "config.json")))
    lines = (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()
    assert again.simulate().evaluations == [json.loads(line) for line in lines]
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert config["partition"] == "iid"
    with np.load(tmp_path / "one" / "partition.npz") as arrays:
        np.testing.assert_array_equal(arrays["indices"], again.federation.partition.indices)
        np.testing.assert_array_equal(arrays["held_out_indices"], again.federation.held_out.indices)
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    for name in ("accuracy", "personal_accuracy"):
        assert len(summary[f"client_{name}"]) == 5
        assert all(0 <= accuracy <= 1 for accuracy in summary[f"client_{name}"])
        assert np.mean(summary[f"client_{name}"]) == pytest.approx(
            json.loads(lines[-1])[f"client_{name}_mean"]
        )


@pytest.mark.parametrize("partition", [None, "natural", "natural(seed=3)"])
def test_a_run_over_given_clients_has_as_many_as_there_are(partition):
    """Also where their partition has a seed, which decides what each holds out."""
    source = SOURCES["synthetic"](num_clients=7, alpha=1.0, beta=1.0)
    filled = filled_in(Settings(dataset="synthetic", partition=partition), source)
    assert (filled.num_clients, filled.partition) == (7, partition or "natural")
