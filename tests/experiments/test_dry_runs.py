"""Dry runs of experiments: what they say is what the runs then take, and says so where it cannot."""

import dataclasses
import json
import re

import numpy as np
import pytest
from command_line import run_py

from experiments.harness import Claim, Override, PaperExperiment, Published, Rate, Scale, Search
from experiments.harness.declare import discovery
from experiments.harness.declare.assumptions import AssumingCache
from experiments.harness.run import dry_runs, running, sweeps
from experiments.harness.run.multiply_adds import Compute
from jafl.base.errors import SettingError
from jafl.config import calls, grid
from jafl.config.resolution import resolve
from jafl.config.settings import Settings
from jafl.runs.directory.reader import find_runs

BUFFERED, PLAIN, ACE = "FedBuff, K = 4", "asynchronous SGD", "ACE"
SIZE = Scale(
    settings={
        "dataset": "digits",
        "model": "softmax",
        "num_clients": 8,
        "concurrency": 5,
        "client_trips": 50,
        "evaluate_every": 10,
        "delay": "exponential",
    },
    arms={
        BUFFERED: {"algorithm": "fedbuff", "buffer_size": 4},
        PLAIN: {"algorithm": "asgd", "buffer_size": 1},
        ACE: {"algorithm": "ace", "concurrency": 8},
    },
    conditions={"partition.alpha": [0.3, 10.0]},
    overrides=[Override({"partition.alpha": 10.0}, PLAIN, {"local_steps": 3, "batch_size": 4})],
    seeds=(2, 5),
    search=Search(space={"server_learning_rate": Rate(0.1, 0.625)}, searches=2, seeds=(7, 8, 9, 10)),
)
EXPERIMENT = PaperExperiment(
    paper="None",
    figure="figure 0",
    title="nothing",
    published=Published(note="none"),
    scales={"desk": SIZE},
    claims=[Claim(sentence="buffered is better", better=BUFFERED, worse=PLAIN)],
    name="nothing",
)


@pytest.fixture
def known(monkeypatch):
    """``know(...)`` makes ``load`` give the experiment with these fields of its scale."""

    def know(**fields):
        scale = dataclasses.replace(SIZE, **fields)
        monkeypatch.setattr(
            discovery, "load", lambda name: dataclasses.replace(EXPERIMENT, scales={"desk": scale})
        )

    know()
    return know


def planned(folder, **options):
    """(status, lines shown, content of plan.json)."""
    lines = []
    options = {"show": lines.append, "processes": 2, "progress": False, **options}
    status = running.run_paper_experiment("nothing", output_dir=folder, dry_run=True, **options)
    text = (folder / "plan.md").read_text()
    assert all(line in text for line in lines[1:-1]), "the file has what is shown"
    return status, "\n".join(lines), json.loads((folder / "plan.json").read_text())


@pytest.mark.full
def test_a_plan_counts_every_run_and_writes_two_files(tmp_path, known):
    known(
        arms={label: SIZE.arms[label] for label in (BUFFERED, PLAIN)}, conditions={"partition.alpha": [10.0]}
    )
    status, text, content = planned(tmp_path / "out", tune=True)
    assert status == 0
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"plan.md", "plan.json"}
    assert content["assumed"] == {}
    results, search = content["parts"]["results"], content["parts"]["search"]
    assert results["total"]["runs"] == 2 * 2
    # If no range grows: three coarse values, and two finer ones on each side of the best.
    assert search["total"]["runs"] == 2 * 2 * (3 + 4) * 2, "arms, searches, trials and seeds of a search"
    assert {row["runs"] for row in search["rows"]} == {2}
    assert "Results: 4 runs" in text
    assert "Search: 56 runs" in text
    assert "Nothing was trained" in text
    assert len(results["rows"]) == 2
    for part in (results, search):
        needs = [row["needs"] for row in part["rows"] for _ in range(row["runs"])]
        for name in ("training", "evaluation", "minibatches", "evaluations"):
            assert part["total"][name] == sum(each["counted"][name] for each in needs)
        assert part["total"]["trips"] == sum(each["trips"] for each in needs)
    assert [row["settings"] for row in results["rows"]] == [
        {"algorithm": "fedbuff", "buffer_size": 4},
        {"algorithm": "asgd", "buffer_size": 1, "local_steps": 3, "batch_size": 4},
    ]
    assert re.search(r"FedBuff, K = 4 .*  algorithm=fedbuff, buffer_size=4\n", text)
    assert "server_learning_rate=(14 values)\n" in text, "of the trials"
    assert re.search(
        r"Seeds: 2,5. Settings of all arms that are no defaults: .*model=softmax, .*evaluate_every=10\.", text
    )
    assert not re.search(r"minute|second|\d s\b", text), "no time, which would move with the machine"


@pytest.mark.full
@pytest.mark.usefixtures("known")
def test_a_plan_says_what_the_runs_then_take(tmp_path):
    folder = tmp_path / "out"
    _, _, content = planned(folder)
    options = {"show": lambda line: None, "pictures": False, "checkpoint_every": 0, "processes": 1}
    assert running.run_paper_experiment("nothing", output_dir=folder, **options) == 0
    runs = find_runs(folder / "runs")
    rows = content["parts"]["results"]["rows"]
    assert sum(row["runs"] for row in rows) == len(runs)
    for row in rows:
        alike = [
            run
            for run in runs
            if run.label == row["label"]
            and f"partition.alpha={calls.flattened(run.config)['partition.alpha']:g}" == row["condition"]
        ]
        assert len(alike) == row["runs"] == 2
        first = next(run for run in alike if run.config["seed"] == "2")
        needs, summary = row["needs"], json.loads((first.path / "summary.json").read_text())
        assert needs["trips"] == summary["client_trips"]
        assert needs["steps"] == summary["server_steps"]
        assert needs["counted"]["evaluations"] == len(first.evaluations)
        assert needs["memory"] == pytest.approx(summary["memory"]["needed_bytes"], rel=0.5)
        minibatches = _minibatches(first)
        assert needs["counted"]["minibatches"] == minibatches
        assert needs["counted"]["training"] == minibatches * first.value("batch_size") * 2 * 640


def _minibatches(run):
    """Of all trips, from the files of a run alone."""
    clients = np.load(run.path / "schedule.npz")["client"]
    sizes = np.diff(np.load(run.path / "partition.npz")["offsets"])
    if run.value("local_steps") is not None:
        return len(clients) * run.value("local_steps")
    epochs = run.value("client_work.local_epochs")
    return int(np.sum(epochs * -(-sizes[clients] // run.value("batch_size"))))


@pytest.mark.full
def test_missing_data_is_assumed_and_named(tmp_path, known):
    known(
        settings=SIZE.settings
        | {"dataset": "mnist", "data_dir": str(tmp_path / "nowhere"), "num_clients": 8},
        seeds=(0,),
        search=None,
        conditions={},
        overrides=[],
    )
    status, text, content = planned(tmp_path / "out")
    assert status == 0
    assert list(content["assumed"]) == ["mnist"]
    assert "Assumed: mnist is planned by its published shapes, for it is not here (dataset is 'mnist'" in text
    plain = next(row for row in content["parts"]["results"]["rows"] if row["label"] == BUFFERED)
    padded = -(-10_000 // 512) * 512
    assert plain["needs"]["counted"]["evaluation"] == plain["needs"]["counted"]["evaluations"] * padded * 7840
    assert plain["needs"]["memory"] > 60_000 * 784, "with the images that are not here"
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(SettingError, match="mnist"):
        running.run_paper_experiment("nothing", output_dir=tmp_path / "run", processes=1)


@pytest.mark.full
def test_an_arm_that_is_refused_stands_beside_the_others(tmp_path, known):
    known(
        arms={**SIZE.arms, "too many": {"algorithm": "fedbuff", "buffer_size": 4, "concurrency": 9}},
        search=None,
    )
    status, text, content = planned(tmp_path / "out")
    assert status == 2
    assert "Refused, 4 runs, such as 'too many' under partition.alpha=0.3: concurrency is 9" in text
    sums = content["parts"]["results"]["total"]
    assert (sums["runs"], sums["refused"]) == (16, 4)
    assert sums["trips"] > 0
    refused = [row for row in content["parts"]["results"]["rows"] if row["refused"]]
    assert {row["label"] for row in refused} == {"too many"}
    assert all(row["needs"] is None for row in refused)


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, known):
    options = {"output_dir": tmp_path / "out", "dry_run": True, "show": lambda line: None}
    for typed, message in (
        ({"algorithm": "fedbuff"}, "arms of its own"),
        (
            {"protocol.deadline": 2.0},
            "protocol.deadline is 2.0, but must be left out: no run reads it",
        ),
    ):
        with pytest.raises(SettingError, match=message):
            running.run_paper_experiment("nothing", typed=typed, **options)
    with pytest.raises(SettingError, match="dry_run is True, but must be left out with forecast"):
        running.run_paper_experiment("nothing", forecast="v5e:1x1", **options)
    known(search=None)
    with pytest.raises(
        SettingError, match="tune is True, but must be left out: the experiment's file states no"
    ):
        running.run_paper_experiment("nothing", tune=True, **options)
    assert not (tmp_path / "out").exists()


def test_an_experiment_without_training_says_so(tmp_path, monkeypatch):
    experiment = dataclasses.replace(
        EXPERIMENT,
        scales={"desk": Scale(settings={})},
        measure=lambda context: pytest.fail("measured"),
    )
    monkeypatch.setattr(discovery, "load", lambda name: experiment)
    clocks = {"nothing": {"seconds": {"results": 180.0}, "processes": 2, "cores": 2}}
    monkeypatch.setattr("experiments.harness.times.read", lambda: clocks)
    status, text, content = planned(tmp_path / "out")
    assert status == 0
    assert "It trains nothing" in text
    assert "It took 3.0 minutes" in text
    assert content["parts"] == {}
    with pytest.raises(SettingError, match="tune is True, but must be left out: this experiment searches"):
        planned(tmp_path / "out", tune=True)


@pytest.mark.full
def test_several_experiments_are_planned_one_after_the_other_and_summed(tmp_path, monkeypatch):
    few = dataclasses.replace(SIZE, conditions={}, overrides=[], arms={PLAIN: SIZE.arms[PLAIN]}, search=None)
    many = dataclasses.replace(few, settings=SIZE.settings | {"evaluate_every": 1})
    none = dataclasses.replace(few, settings=SIZE.settings | {"concurrency": 9})
    scales = {"few": few, "many": many, "none": none}
    monkeypatch.setattr(
        discovery,
        "load",
        lambda name: dataclasses.replace(EXPERIMENT, scales={"desk": scales[name]}, name=name),
    )
    lines = []
    options = {
        "output_dir": tmp_path,
        "dry_run": True,
        "show": lines.append,
        "processes": 1,
        "progress": False,
    }
    assert running.run_paper_experiments(list(scales), **options) == 2, (
        "one of them has a run that is refused"
    )
    text = "\n".join(lines)
    assert "All 3 together: 6 runs, 200 client trips" in text
    assert re.search(r"more than 0.2 of the compute of training in [12] of them: .*many: \d", text)
    assert "1 of 3 experiments could not run: none" in text
    assert {folder.name for folder in tmp_path.iterdir()} == {"few-desk", "many-desk", "none-desk"}


@pytest.mark.full
def test_the_command_plans(tmp_path):
    result = run_py("plan", "--experiment=fedbuff_fig7", "--scale=paper", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "It trains nothing" in result.stdout
    assert (tmp_path / "runs" / "fedbuff_fig7-paper" / "plan.json").is_file()
    result = run_py("plan", "--experiment=fedstaleweight_fig2", "--num_clients=0", folder=tmp_path)
    assert result.returncode == 2
    assert "num_clients is 0" in result.stdout + result.stderr


def test_a_panel_of_fedstaleweight_fig2_runs_alone_as_published():
    scale = discovery.load("fedstaleweight_fig2").scales["paper"]
    sweep = sweeps.results_sweep(*sweeps.adapted(scale, {"dataset": "fashion_mnist"}))
    assert sweep.conditions == {"dataset": ["fashion_mnist"]}
    arms = grid.under(sweep.settings, sweep.arms, {"dataset": "fashion_mnist"}, sweep.overrides)
    assert len(arms) == 5
    published = {
        "dataset": "fashion_mnist",
        "model": "fedstaleweight_fashion_cnn",
        "num_clients": 15,
        "buffer_size": 5,
        "server_steps": 4000,
        "local_steps": 1,
        "batch_size": 32,
        "learning_rate": 0.01,
        "server_learning_rate": 1.0,
        "split.test_fraction": 0.2,
    }
    for settings in arms.values():
        assert {name: settings.argument(name) for name in published} == published


def test_a_search_s_own_budget_takes_the_place_of_the_results():
    scale = discovery.load("fedstaleweight_fig2").scales["paper"]
    sweep = sweeps.planned_search(*sweeps.adapted(scale, {"dataset": "fashion_mnist"}))
    trials = grid.under(sweep.settings, sweep.arms, {}, sweep.overrides)
    assert trials and {each.argument("server_steps") for each in trials.values()} == {400}
    assert {each.argument("model") for each in trials.values()} == {"fedstaleweight_fashion_cnn"}


def planned_row(label, runs, *, evaluation=10, memory=100, made=True):
    counted = Compute(training=100, server=0, evaluation=evaluation, minibatches=50, evaluations=5)
    needs = dry_runs.Needs(trips=50, steps=10, memory=memory, available=1000, counted=counted)
    return dry_runs.Planned("", label, {}, runs, needs if made else None)


PART = sweeps.Sweep("results", Settings(), {}, {}, [])


def test_sums_over_runs():
    rows = [planned_row("a", 3), planned_row("b", 2, memory=2000), planned_row("c", 4, made=False)]
    found = dry_runs.total(rows)
    assert (found["runs"], found["refused"], found["unfit"]) == (9, 4, 2)
    assert (found["trips"], found["evaluations"], found["memory"]) == (250, 25, 2000)
    assert "2 runs do not fit here" in "\n".join(dry_runs.totals(PART, rows))


def test_evaluation_that_costs_more_than_a_fifth_is_named():
    few, many = ([planned_row("a", 2, evaluation=number)] for number in (20, 60))
    assert dry_runs.MOST_EVALUATION == 0.2
    assert "Evaluation takes 0.20 of the compute of training." in dry_runs.totals(PART, few)
    assert any(
        "0.60 of the compute of training, more than 0.2: evaluate 3.0 times more rarely" in line
        for line in dry_runs.totals(PART, many)
    )


@pytest.mark.full
@pytest.mark.usefixtures("known")
def test_runs_that_differ_in_rates_share_what_is_made():
    size, settings = sweeps.adapted(SIZE, {"client_trips": 30})
    arms = {BUFFERED: SIZE.arms[BUFFERED], "faster": SIZE.arms[BUFFERED] | {"server_learning_rate": 3.0}}
    rows = dry_runs.Planner().planned(
        sweeps.Sweep("results", settings, {"partition.alpha": [10.0]}, arms, [])
    )
    assert rows[0].needs is rows[1].needs


FORWARD, GRADIENT = 1, 3  # passes over an example, in units of one forwards


@pytest.mark.full
def test_no_paper_size_evaluates_for_much_more_than_a_fifth_of_its_training():
    loaded, shares = AssumingCache(), {}
    for name in discovery.names():
        experiment = discovery.load(name)
        if experiment.measure is None and "paper" in experiment.scales:
            scale, settings = sweeps.adapted(experiment.scales["paper"], {"seed": "0"})
            sweep = sweeps.results_sweep(scale, settings)
            for condition in grid.product(scale.conditions):
                arms = grid.under(settings, sweep.arms, condition, sweep.overrides)
                passes = [_passes(run, loaded) for _, run in resolve(arms, loaded)]
                trained, evaluated = map(sum, zip(*passes, strict=True))
                shares[name, grid.folder(condition)] = evaluated / trained
    assert len({name for name, _ in shares}) > 20
    too_much = {where: share for where, share in shares.items() if share > 0.22}
    assert not too_much, "set evaluate_every or evaluation_examples of the paper size"


def _passes(run, loaded):
    """Passes over examples of training and of evaluation, as the settings have them."""
    source = loaded.source(run)
    validated = 0 if source.validation_y is None else len(source.validation_y)
    examples = len(source.test_y) + validated + (len(source.y) if run.train_accuracy else 0)
    # Where a step has all reports that are due, the mean delay is 30 steps at most: so many clients a step at least.
    size = run.argument("protocol.cohort_size") or run.buffer_size or -(-run.num_clients // 30)
    trips = run.client_trips or run.server_steps * size
    batches = run.local_steps or run.value("client_work.local_epochs") * -(
        -len(source.y) // (run.num_clients * run.batch_size)
    )
    servers = 0
    if run.algorithm_name == "zeno_plus_plus":
        servers = run.value("split.server_examples") * trips / run.value("algorithm.refresh_every")
    evaluations = 1 + (trips // run.evaluate_every if run.evaluate_every else 100)
    return GRADIENT * (trips * batches * run.batch_size + servers), FORWARD * evaluations * examples
