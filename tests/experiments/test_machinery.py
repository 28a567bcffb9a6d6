"""The machinery of experiments: measures, verdicts, equal searches, what is refused before anything is written."""

import dataclasses
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from in_process import assert_refused, command

from experiments import harness
from experiments.harness import Claim, LogUniform, Override, PaperExperiment, Published, Scale, Search
from experiments.harness.declare import discovery, search
from experiments.harness.judge import verdicts
from experiments.harness.report import report
from experiments.harness.results import Runs
from experiments.harness.run import running, sweeps
from experiments.harness.run.sweeps import Sweep
from jafl.base.errors import SettingError
from jafl.config import calls, presets
from jafl.config.settings import Settings
from jafl.runs.directory.reader import PastRun, find_runs
from jafl.sweeps import seed_means

ROOT = pathlib.Path(__file__).parent.parent.parent
SMALL = {
    "dataset": "digits",
    "model": "softmax",
    "num_clients": 6,
    "concurrency": 3,
    "client_trips": 60,
    "buffer_size": 3,
    "evaluate_every": 6,
}
BUFFERED, PLAIN = "FedBuff, K = 3", "asynchronous/SGD"
SIZE = Scale(
    settings=SMALL,
    arms={
        BUFFERED: {"algorithm": "fedbuff"},
        PLAIN: {"algorithm": "asgd", "buffer_size": 1},
    },
    conditions={"partition.alpha": [0.1, 10.0]},
    overrides=[Override({"partition.alpha": 10.0}, PLAIN, {"local_steps": 1, "batch_size": 4})],
    seeds=(0, 1),
    search=Search(space={"server_learning_rate": [0.01, 0.1, 1.0]}, seeds=(7,)),
)
EXPERIMENT = PaperExperiment(
    paper="None",
    figure="figure 0",
    title="nothing",
    published=Published(["arm", "accuracy"], [["FedBuff", ".9"]]),
    scales={"desk": SIZE},
    claims=[Claim(sentence="buffered is better", better=BUFFERED, worse=PLAIN)],
    beside={BUFFERED: ".9"},
    name="nothing",
)


@pytest.fixture
def known(monkeypatch):
    """``load`` gives the experiment above."""
    monkeypatch.setattr(discovery, "load", lambda name: EXPERIMENT)


def some_run(accuracies, seed=0, *, status="finished", trips=10, label="a", **config):
    evaluations = [
        {"server_step": n, "client_trips": trips * n, "time": 0.5 * n, "test_accuracy": accuracy}
        for n, accuracy in enumerate(accuracies)
    ]
    settings = calls.with_arguments(config, defaults=presets.COMMON)
    content = {"algorithm": "fedbuff", "label": label, "seed": str(seed), **settings}
    return PastRun(pathlib.Path(f"{label}-seed{seed}"), content, evaluations, {"status": status})


def some_runs(**arms):
    """{label: [accuracies of each seed]} as ``Runs``."""
    made = [
        some_run([accuracy, accuracy], seed, label=label)
        for label, several in arms.items()
        for seed, accuracy in enumerate(several)
    ]
    return Runs(seed_means.by_arm(made, list(arms)))


# Measures


def test_measures_of_a_run():
    run = some_run([0.0, *np.linspace(0.1, 1.2, 12)])
    assert harness.final_accuracy(run) == pytest.approx(np.mean(np.linspace(0.3, 1.2, 10)))
    assert harness.spread(run) == pytest.approx(np.std(np.linspace(0.3, 1.2, 10)))
    assert harness.logarithmic_spread(run) == pytest.approx(np.std(np.log(np.linspace(0.3, 1.2, 10))))
    assert harness.trips_to(0.45)(run) == 50
    assert harness.steps_to(0.45)(run) == 5
    assert harness.time_to(0.45)(run) == 2.5
    assert harness.trips_to(2.0)(run) == 120, "the whole budget"
    assert harness.accuracy_at(trips=25)(run) == pytest.approx(0.25)
    assert harness.accuracy_at(steps=2.5)(run) == pytest.approx(0.25)
    assert harness.accuracy_at(time=1.25)(run) == pytest.approx(0.25)
    assert math.isnan(harness.accuracy_at(trips=121)(run))


def test_a_run_that_diverged_has_accuracy_0_and_reaches_nothing():
    run = some_run([0.1, 0.8], status="diverged", client_trips=500)
    assert harness.final_accuracy(run) == 0
    assert math.isnan(harness.spread(run))
    assert harness.trips_to(0.9)(run) == 500


# Verdicts


@pytest.mark.parametrize(
    "better, worse, verdict",
    [
        ([0.9, 0.91, 0.92], [0.8, 0.82, 0.81], "seen"),
        ([0.8, 0.82, 0.81], [0.9, 0.91, 0.92], "reversed"),
        ([0.8, 0.9, 0.7], [0.9, 0.7, 0.8], "a tie"),
        ([0.9], [0.1], verdicts.TOO_FEW),
    ],
)
def test_verdicts_are_of_paired_differences(better, worse, verdict):
    runs = some_runs(a=better, b=worse)
    (row,) = verdicts.judge([Claim(sentence="a above b", better="a", worse="b")], "desk", runs)
    assert row["verdict"] == verdict
    assert row["differences"] == pytest.approx(np.subtract(better, worse))
    (turned,) = verdicts.judge(
        [Claim(sentence="a below b", better="a", worse="b", lower_is_better=True)], "desk", runs
    )
    assert turned["difference"] == pytest.approx(-row["difference"])


def test_the_interval_is_students():
    mean, low, high = verdicts.interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))


def test_claims_of_another_scale_and_of_ones_own():
    own = Claim(sentence="own", differences=lambda runs: [1.0, 1.1, 1.05], expected="equivalent")
    on_paper = Claim(sentence="other", better="a", worse="b", scales=("paper",))
    (row,) = verdicts.judge([own, on_paper], "desk", some_runs(a=[0.1]))
    assert (row["verdict"], row["agrees"]) == ("seen", False)


@pytest.mark.parametrize(
    "differences, expected, agrees",
    [
        ([1.0, 1.1, 1.05], "better", True),
        ([1.0, 1.1, 1.05], "worse", False),
        ([-1.0, -1.1, -1.05], "worse", True),
        ([-1.0, -1.1, -1.05], "equivalent", False),
        ([-1.0, 1.1, 0.05], "equivalent", None),
        ([-1.0, 1.1, 0.05], "better", None),
    ],
)
def test_before_the_protocol_a_tie_agrees_with_nothing(differences, expected, agrees):
    claim = Claim(sentence="own", differences=lambda runs: differences, expected=expected)
    (row,) = verdicts.judge([claim], "desk", some_runs(a=[0.1]))
    assert row["agrees"] is agrees


def test_comparisons_are_a_claim_for_each_pair():
    made = harness.compare("{better} above {worse}", ("a", "b"), "c", expected="equivalent")
    assert [(claim.sentence, claim.better, claim.worse) for claim in made] == [
        ("a above c", "a", "c"),
        ("b above c", "b", "c"),
    ]
    assert {claim.expected for claim in made} == {"equivalent"}


def test_changes_between_conditions_are_paired_and_empty_where_one_was_not_run():
    made = [
        some_run([accuracy], seed, label=label, partition=f"dirichlet(alpha={alpha}, equal_sizes=False)")
        for label, alpha, accuracies in (
            ("a", 0.1, (0.5, 0.6)),
            ("a", 10.0, (0.8, 0.7)),
            ("b", 0.1, (0.2, 0.2)),
            ("b", 10.0, (0.9, 0.8)),
        )
        for seed, accuracy in enumerate(accuracies)
    ]
    runs = Runs(seed_means.by_arm(made))
    low, high = {"partition.alpha": 0.1}, {"partition.alpha": 10.0}
    assert harness.change("a", harness.final_accuracy, high, low)(runs) == pytest.approx([-0.3, -0.1])
    assert harness.loses_less("a", "b", high, low)(runs) == pytest.approx([0.4, 0.5])
    assert harness.loses_less("a", "b", {"partition.alpha": 1.0}, low)(runs) == []
    assert harness.change("a", harness.final_accuracy, {"partition.alpha": 1.0}, low)(runs) == []


# The search


def test_every_arm_gets_as_many_trials():
    same = Search(space={"learning_rate": [0.1, 1.0]}, spaces={"b": {"learning_rate": [1, 2]}, "c": {}})
    assert {k: len(v) for k, v in search.check_equal(same, ["a", "b", "c"]).items()} == {
        "a": 2,
        "b": 2,
        "c": 0,
    }
    unequal = Search(space={"learning_rate": [0.1, 1.0]}, spaces={"b": {"learning_rate": [1, 2, 3]}})
    with pytest.raises(SettingError, match="not equal"):
        search.check_equal(unequal, ["a", "b"])


def test_random_trials_are_log_uniform_and_the_same_shares_for_each_arm():
    wide, low = LogUniform(1e-3, 10.0), LogUniform(1e-5, 0.1)
    both = Search(space={"learning_rate": wide}, spaces={"b": {"learning_rate": low}}, trials=400)
    a, b = ([trial["learning_rate"] for trial in search.trials(both, label)] for label in "ab")
    assert min(a) >= 1e-3
    assert max(a) <= 10.0
    assert np.allclose(np.log10(a) - np.log10(b), 2, atol=0.01)
    assert np.quantile(np.log10(a), [0.25, 0.5, 0.75]) == pytest.approx([-2, -1, 0], abs=0.25)
    with pytest.raises(SettingError, match="trials"):
        search.trials(Search(space={"learning_rate": wide}), "a")


def test_seeds_of_search_and_results_differ():
    with pytest.raises(SettingError, match="seeds"):
        Scale(settings={}, seeds=(0, 7), search=Search(space={}, seeds=(7,)))


@pytest.mark.full
@pytest.mark.usefixtures("known")
def test_the_search_is_run_scored_on_validation_examples_and_used(tmp_path):
    lines = []
    options = {"output_dir": tmp_path / "out", "processes": 1, "checkpoint_every": 0}
    assert running.run_paper_experiment("nothing", tune=True, show=lines.append, **options) == 0
    content = json.loads((tmp_path / "out" / "tuned.json").read_text())
    assert {label: own["runs"] for label, own in content["budget"].items()} == {BUFFERED: 6, PLAIN: 6}
    assert content["trials_of_each_arm"] == 3
    trials = find_runs(tmp_path / "out" / "search")
    assert {run.value("split.validation_fraction") for run in trials} == {0.16}
    for row in content["trials"]:
        (run,) = [
            run
            for run in trials
            if run.label.startswith(row["label"] + search.BETWEEN)
            and run.value("server_learning_rate") == row["settings"]["server_learning_rate"]
            and run.path.parent.name == row["condition"]
        ]
        assert row["score"] == pytest.approx(
            np.mean([e["validation_accuracy"] for e in run.evaluations[-10:]])
        )
    for where, arms in content["tuned"].items():
        for label, own in arms.items():
            scores = {
                row["settings"]["server_learning_rate"]: row["score"]
                for row in content["trials"]
                if (row["condition"], row["label"]) == (where, label)
            }
            assert own == {"server_learning_rate": max(scores, key=scores.get)}
            for run in find_runs(tmp_path / "out" / "runs" / where):
                if run.label == label:
                    assert run.value("server_learning_rate") == own["server_learning_rate"]
    assert lines[lines.index("The winners:") + 1].startswith("{")
    for row in content["at_the_edge"]:
        assert f"At the edge of what was tried: {row}." in lines
    batches = {(r.label, r.path.parent.name): r.value("batch_size") for r in trials}
    assert {
        size for (label, where), size in batches.items() if label.startswith(PLAIN) and "=10" in where
    } == {4}

    count = len(trials)
    again = []
    assert running.run_paper_experiment("nothing", tune=True, show=again.append, **options) == 0
    assert len(find_runs(tmp_path / "out" / "search")) == count
    assert json.loads((tmp_path / "out" / "tuned.json").read_text()) == content
    text = (tmp_path / "out" / "table.md").read_text()
    assert f"| 0.1 | {BUFFERED} | 2 |" in text
    assert "| .9 |" in text


@pytest.mark.full
@pytest.mark.usefixtures("known")
def test_two_processes_leave_what_one_leaves(tmp_path):
    for number in (1, 2):
        running.run_paper_experiment(
            "nothing",
            output_dir=tmp_path / str(number),
            processes=number,
            show=lambda line: None,
            pictures=False,
        )
    alone, shared = (find_runs(tmp_path / str(number) / "runs") for number in (1, 2))
    assert [run.evaluations for run in alone] == [run.evaluations for run in shared]
    assert len(alone) == 8
    assert not list(tmp_path.rglob(".claim"))


@pytest.mark.full
@pytest.mark.usefixtures("known")
def test_parts_leave_what_one_process_leaves(tmp_path):
    """The first part ends before the search is over; the last one goes on to the results, and leaves them to it."""
    options = {"tune": True, "processes": 1, "pictures": False, "runs_together": "never"}
    said = []
    for part in ("1/2", "2/2", "1/2"):
        assert not (tmp_path / "parts" / "table.md").exists()
        how = {**options, "part": part, "show": said.append}
        assert running.run_paper_experiment("nothing", output_dir=tmp_path / "parts", **how) == 0
    left = [line for line in said if "of other parts are not" in line]
    assert ["trials" in line for line in left] == [True, False]
    running.run_paper_experiment("nothing", output_dir=tmp_path / "one", show=lambda line: None, **options)
    parts, one = (find_runs(tmp_path / name) for name in ("parts", "one"))
    assert [run.evaluations for run in parts] == [run.evaluations for run in one]
    tables = [(tmp_path / name / "table.md").read_text().split("## ")[1:2] for name in ("parts", "one")]
    assert tables[0] == tables[1]


def test_an_experiment_without_training(tmp_path, monkeypatch):
    def measure(context):
        context.show("measuring")
        return [{"law": "uniform", "mean": [1.0, 1.2, 1.1], "count": 1200}]

    experiment = PaperExperiment(
        paper="None",
        figure="figure 1",
        title="laws",
        published=Published(note="none"),
        scales={"desk": Scale(settings={})},
        measure=measure,
        claims=[Claim(sentence="above 1", differences=lambda rows: np.array(rows[0]["mean"]) - 0.5)],
        name="laws",
    )
    monkeypatch.setattr(discovery, "load", lambda name: experiment)
    assert running.run_paper_experiment("laws", output_dir=tmp_path / "out", show=lambda line: None) == 0
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| uniform | 1.100 ± 0.058 | 1,200 |" in text
    verdicts = json.loads((tmp_path / "out" / "verdicts.json").read_text())["verdicts"]
    assert verdicts[0]["verdict"] == "seen"
    clock = json.loads((tmp_path / "out" / "clock.json").read_text())
    assert clock["seconds"].keys() == {"results"}
    assert clock["processes"] == 1


# What is refused


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, known, monkeypatch):
    for typed, message in (
        ({"algorithm": "fedbuff"}, "arms of its own"),
        ({"dataset": "cifar10", "data_dir": str(tmp_path)}, r"run.py prepare cifar10 --data_dir="),
        ({"model": "no"}, "model is 'no'"),
    ):
        with pytest.raises(SettingError, match=message):
            running.run_paper_experiment("nothing", typed=typed, output_dir=tmp_path / "out", processes=1)
    with pytest.raises(SettingError, match="paper"):
        running.run_paper_experiment("nothing", "paper", output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        (["experiment", "fedstaleweight_fig"], "Did you mean 'fedstaleweight_fig2'?"),
        (["experiment", "fedstaleweight_fig2", "--scale=des"], "Did you mean 'desk'?"),
        (["experiment", "fedstaleweight_fig2", "--sweep=delay.mean=1"], "sweep is a command"),
        (["--tune"], "only experiment, plan and forecast read it"),
        (["plan", "--experiment=fedstaleweight_fig2", "--pictures=few"], "left out with --experiment"),
        (["--processes=2"], "only sweep, experiment and resume read it"),
    ],
)
def test_flags_that_do_not_go_together(flags, message, tmp_path):
    assert_refused(command([*flags, "--output_dir=out"], tmp_path), message)
    assert not list(tmp_path.iterdir())


def test_the_list_is_quick_to_make_and_has_a_line_each():
    program = (
        "import sys; from experiments.harness.declare.discovery import listed; rows = listed(); "
        "assert 'jax' not in sys.modules; print(len(rows))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) == len(discovery.names()) + 1


def test_numbers_are_written_with_their_errors():
    assert report.number([0.5, 0.7]) == "0.600 ± 0.100"
    assert report.number([12000, 13000]) == "12,500 ± 500"
    assert report.number([math.nan, 1.0]) == "-"


@pytest.mark.parametrize("tune", [False, True])
def test_a_typed_setting_that_all_arms_replace_is_refused(tune, tmp_path):
    with pytest.raises(
        SettingError, match=r"server_learning_rate is 0.02, .* each arm has its own \(.*0.0447.*\)"
    ):
        running.run_paper_experiment(
            "ace_tablea2", typed={"server_learning_rate": 0.02}, tune=tune, output_dir=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


def test_arms_that_replace_a_typed_setting_are_named():
    arms = {"a": {"algorithm": "fedbuff"}, "b": {"algorithm": "fedbuff", "client_work.local_epochs": 2}}
    sweep = Sweep(
        "results",
        Settings(client_work="client_work(local_epochs=3)"),
        {"partition.alpha": [0.1, 1.0]},
        arms,
        [],
    )
    assert sweeps.refuse_replaced(
        sweep, {"client_work.local_epochs": 3, "partition.alpha": 0.1, "seed": "1"}
    ) == ["client_work.local_epochs=3 does not hold for b: their own takes its place."]
    assert sweeps.refuse_replaced(sweep, {"batch_size": 4}) == []
    under_one = Override({"partition.alpha": 0.1}, "b", {"client_work.local_epochs": 3})
    assert (
        sweeps.refuse_replaced(
            dataclasses.replace(sweep, overrides=[under_one]), {"client_work.local_epochs": 3}
        )
        == []
    )


@pytest.mark.parametrize("name", ["wkafl_appendixD", "privacy_of_schedules"])
def test_what_an_experiment_without_training_does_not_read_is_refused(name, tmp_path):
    refusal = rf"learning_rate is 0.1, .*: {name} trains nothing, .* server_steps\)"
    with pytest.raises(SettingError, match=refusal):
        running.run_paper_experiment(name, typed={"learning_rate": 0.1}, output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_conditions_under_which_nothing_was_searched_for_are_known():
    scale = discovery.load("fedbuff_table5").scales["desk"]
    assert sweeps.not_searched_for(scale) == []
    other = dataclasses.replace(scale, conditions={"delay": ["uniform", "log_normal"]})
    assert sweeps.not_searched_for(other) == ["delay=log_normal"]
    assert sweeps.not_searched_for(dataclasses.replace(other, tuned={})) == []
