"""Runs, sweeps and reports of a model that measures no accuracy, here of regression on data of the user's own."""

import json

import pytest
from in_process import assert_refused, command
from quick_compilation import quick_compilation  # noqa: F401

OWN = """
import flax.linen as nn
import numpy as np

import jafl


def data():
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    return jafl.Source("sums", x[:40], y[:40], x[40:], y[40:], num_classes=0)


def model():
    return jafl.Model(nn.Dense(1), task="regression")
"""
SETTINGS = [
    *("--algorithm=fedbuff", "--dataset=own.py:data", "--model=own.py:model", "--partition=iid"),
    *("--num_clients=4", "--concurrency=2", "--buffer_size=1", "--local_steps=1", "--client_trips=8"),
]


@pytest.fixture
def folder(tmp_path):
    """A folder with the file, in which commands run."""
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def test_a_run_is_recorded_to_its_end(folder):
    said = command([*SETTINGS, "--pictures=all", "--output_dir=one"], folder)
    assert said.status == 0, said.text
    content = {
        name: json.loads((folder / "one" / name).read_text()) for name in ("summary.json", "config.json")
    }
    assert content["summary.json"]["status"] == "finished"
    assert content["summary.json"]["final"]["test_loss"] < 1
    assert "label_distance" not in (folder / "one" / "diagnostics.json").read_text()
    pictures = {path.stem for path in (folder / "one").glob("*.png")}
    assert {"accuracy", "timeline"} <= pictures and not {"label_split", "labels_seen"} & pictures


@pytest.mark.full
def test_runs_are_planned_gone_on_with_swept_and_reported_on(folder):
    for words in (
        ["plan", *SETTINGS, "--output_dir=planned"],
        [*SETTINGS, "--seed=0,1", "--output_dir=compared"],
        ["resume", "compared", "--client_trips=10"],
        ["sweep", "learning_rate=0.01,0.1", *SETTINGS, "--output_dir=swept"],
        ["report", "swept"],
    ):
        said = command(words, folder)
        assert said.status == 0, said.text
    assert (folder / "swept" / "learning_rate=0.1" / "accuracy.png").is_file()
    assert not (folder / "swept" / "heat_map.png").exists()  # of accuracies


@pytest.mark.full
def test_tables_show_the_loss_in_the_place_of_accuracy_and_target(folder):
    compared = command([*SETTINGS, "--seed=0,1", "--pictures=none", "--output_dir=compared"], folder)
    words = ["sweep", "learning_rate=0.01,0.1", *SETTINGS, "--pictures=none", "--output_dir=swept"]
    swept = command(words, folder)
    report = command(["report", "swept"], folder)
    assert compared.status == swept.status == report.status == 0
    written = (folder / "swept" / "report.md").read_text()
    for text in (compared.text, swept.text, written):
        assert "test loss" in text and not any(word in text for word in ("accuracy", "never", "time to"))
    one = json.loads((folder / "swept" / "learning_rate=0.1" / "fedbuff-seed0" / "summary.json").read_text())
    loss = f"{one['final']['test_loss']:.4g}"
    assert loss in swept.text and loss in written
    page = (folder / "swept" / "report.html").read_text()
    assert "final test loss" in page and page.count(f">{loss}<") == 2  # of its arm, and of its run


@pytest.mark.full
def test_the_target_is_not_marked_among_losses(folder, monkeypatch):
    marked = []
    monkeypatch.setattr("jafl.plots.accuracy_panels", lambda runs, *, target: marked.append(target))
    command([*SETTINGS, "--output_dir=one"], folder)
    assert marked == [None]


@pytest.mark.parametrize("asked", ["train_accuracy", "split.client_test_fraction=0.5"])
def test_refuses_what_asks_for_an_accuracy(folder, asked):
    said = command([*SETTINGS, f"--{asked}", "--output_dir=one"], folder)
    name = asked.partition("=")[0]
    assert_refused(
        said, f"{name} is ... left out for a model whose task measures no accuracy ... evaluate_clients"
    )
    assert not (folder / "one").exists()


def test_clients_held_out_examples_are_measured_by_what_the_task_measures(folder):
    words = ["--split.client_test_fraction=0.5", "--evaluate_clients", "--pictures=none", "--output_dir=one"]
    said = command([*SETTINGS, *words], folder)
    assert said.status == 0, said.text
    assert "client_mean_absolute_error_mean" in (folder / "one" / "metrics.jsonl").read_text()
