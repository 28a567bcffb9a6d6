"""What a report puts together and what it says of it: every sentence is true of any directory of runs."""

import dataclasses
import json
import math

import numpy as np
import pytest
from page import Page
from runs_by_hand import write_json, write_run

from jafl.base.errors import SettingError
from jafl.config import calls, grid
from jafl.config.settings import FORMAT
from jafl.runs.directory import reader
from jafl.sweeps import figures, seed_means
from jafl.sweeps.conditions import usual_values
from jafl.sweeps.report import write_report


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Nothing here is about pictures, which take most of a report's time."""
    monkeypatch.setattr("jafl.sweeps.report._curves", lambda *_: [])
    monkeypatch.setattr("jafl.sweeps.report._maps", lambda *_: [])
    monkeypatch.setattr("jafl.sweeps.report._schedule_pictures", lambda *_: [])


class Report:
    """The report on a directory: what it says, and its tables by their first cells."""

    def __init__(self, folder, **options):
        page, markdown = write_report(folder, **options)
        self.page, self.markdown = Page(page.read_text()), markdown.read_text()
        self.said = " ".join(self.page.text.split())

    def table(self, *heads):
        """{column: cell} of each row of the table that has these columns."""
        (found,) = [
            table for table in self.page.tables if table and set(heads) <= set(table[0]) and len(table) > 1
        ]
        return [dict(zip(found[0], line, strict=True)) for line in found[1:]]

    @property
    def means(self):
        """The rows of means."""
        return self.table("seeds", "test accuracy")

    @property
    def all_runs(self):
        """{path: status}."""
        return {row["run"]: row["status"] for row in self.table("run", "status")}

    @property
    def same_in_all(self):
        """{setting: value} of those that the report calls the same in all runs, or at their defaults."""
        lists = [
            table for table in self.page.tables if table and len(table[0]) == 2 and table[0][0] != "algorithm"
        ]
        return dict(line for table in lists for line in table)


# Means


def test_runs_on_the_source_files_of_two_pythons_are_not_averaged(tmp_path):
    for seed, digest in enumerate(("3.11.7-aa", "3.12.1-bb", "3.12.1-bb")):
        given = {"dataset": "python_source", "model": "character_lstm", "dataset.text_digest": digest}
        write_run(tmp_path / f"run{seed}" / f"fedbuff-seed{seed}", seed=str(seed), **given)
    means = {row["dataset.text_digest"]: row["seeds"] for row in Report(tmp_path).means}
    assert means == {"3.11.7-aa": "1", "3.12.1-bb": "2"}


def test_runs_of_other_settings_are_not_averaged_because_a_sweep_lies_beside_them(tmp_path):
    write_run(tmp_path / "001", [0.1, 0.97], learning_rate=0.3, seed="0")
    write_run(tmp_path / "002", [0.1, 0.43], learning_rate=0.001, seed="1")
    for alpha in (0.1, 1.0):
        write_run(
            tmp_path / "003" / f"partition.alpha={alpha:g}" / "fedbuff-seed0", **{"partition.alpha": alpha}
        )
    report = Report(tmp_path)
    assert "±" not in json.dumps(report.means, ensure_ascii=False)
    assert {row["seeds"] for row in report.means} == {"1"}
    there = {(row["learning_rate"], row["partition.alpha"]): row["test accuracy"] for row in report.means}
    assert there == {
        ("0.3", "0.3"): "0.9700",
        ("0.001", "0.3"): "0.4300",
        ("0.3", "0.1"): "0.9000",
        ("0.3", "1"): "0.9000",
    }


def test_two_sweeps_below_one_folder_are_told_apart(tmp_path):
    for number, batch_size in enumerate((8, 16)):
        for alpha in (0.1, 1.0):
            for seed in ("0", "1"):
                folder = tmp_path / f"{number}" / f"partition.alpha={alpha:g}" / f"fedbuff-seed{seed}"
                write_run(folder, **{"partition.alpha": alpha}, batch_size=batch_size, seed=seed)
    report = Report(tmp_path)
    conditions = {(row["partition.alpha"], row["batch_size"]): row["seeds"] for row in report.means}
    assert conditions == {(alpha, size): "2" for alpha in ("0.1", "1") for size in ("8", "16")}
    assert "under 4 conditions (partition.alpha, batch_size)" in report.said


def test_a_run_in_a_sweep_that_has_other_settings_is_no_seed_of_it(tmp_path):
    folder = tmp_path / "partition.alpha=1"
    for seed in ("0", "1"):
        write_run(folder / f"fedbuff-seed{seed}", **{"partition.alpha": 1.0}, seed=seed)
    write_run(folder / "fedbuff-seed2", **{"partition.alpha": 1.0}, seed="2", learning_rate=0.001)
    report = Report(tmp_path)
    assert sorted(row["seeds"] for row in report.means) == ["1", "2"]
    assert "learning_rate" in report.means[0]
    assert "learning_rate" not in report.same_in_all


def test_a_folder_that_names_a_value_that_no_run_has_names_no_condition(tmp_path):
    write_run(tmp_path / "partition.alpha=0.1" / "fedbuff-seed0", **{"partition.alpha": 0.3})
    write_run(tmp_path / "partition.alpha=1" / "fedbuff-seed0", **{"partition.alpha": 1.0})
    assert [row["partition.alpha"] for row in Report(tmp_path).means] == ["0.3", "1"]


def test_an_arm_may_have_a_value_of_its_own_of_what_is_swept(tmp_path):
    for size in (5, 10):
        write_run(tmp_path / f"buffer_size={size}" / "fedbuff-seed0", buffer_size=size)
        write_run(tmp_path / f"buffer_size={size}" / "fedasync-seed0", algorithm="fedasync", buffer_size=1)
    assert [(row["buffer_size"], row["algorithm"]) for row in Report(tmp_path).means] == [
        ("5", "fedasync"),
        ("5", "fedbuff"),
        ("10", "fedasync"),
        ("10", "fedbuff"),
    ]


def test_arms_of_one_label_and_several_algorithms_are_told_apart(tmp_path):
    for number, algorithm in enumerate(("fedbuff", "fedasync")):
        write_run(tmp_path / str(number), algorithm=algorithm, seed=str(number), config={"label": "mine"})
    assert [row["algorithm"] for row in Report(tmp_path).means] == ["fedasync", "fedbuff"]


def test_equal_numbers_are_equal_settings_and_data_may_lie_elsewhere(tmp_path):
    write_run(tmp_path / "a", seed="0", learning_rate=1.0, evaluate_clients=False, data_dir="here")
    write_run(tmp_path / "b", seed="1", client_optimizer="sgd(1)", evaluate_clients=False, data_dir="there")
    report = Report(tmp_path)
    assert [row["seeds"] for row in report.means] == ["2"]
    assert "data_dir" not in report.same_in_all


# Several algorithms


ALGORITHMS_OF_THE_MAIN_JOB = ("fedbuff", "fedasync", "fedavgm", "fedavg")


@pytest.mark.parametrize(
    ("name", "values", "more"),
    [
        ("partition.alpha", (0.1, 1.0), ""),
        ("partition", ("iid", "dirichlet"), ", partition.alpha, partition.equal_sizes"),
        ("client_trips", (300, 600), ""),
        ("delay", ("uniform", "constant"), ", delay.low, delay.high, delay.duration"),
        ("delay.mean", (5.0, 30.0), ""),
        ("dataset", ("digits", "mnist"), ""),
        ("num_clients", (50, 100), ""),
        ("model", ("mlp", "softmax"), ", model.hidden_sizes"),
        ("batch_size", (8, 16), ""),
        ("protocol.failure_rate", (0.0, 0.1), ""),
    ],
)
def test_algorithms_that_ran_in_two_worlds_are_not_compared(name, values, more, tmp_path):
    for algorithm, value in zip(("fedbuff", "fedstaleweight"), values, strict=True):
        settings = {"algorithm": algorithm, "target_accuracy": 0.9, name: value}
        write_run(tmp_path / algorithm, **settings)
    report = Report(tmp_path, baseline="fedbuff")
    written = [grid.written(value) for value in values]
    assert {row["algorithm"]: row[name] for row in report.means} == dict(
        zip(("fedbuff", "fedstaleweight"), written, strict=True)
    )
    assert f"under 2 conditions ({name}{more})" in report.said
    assert all(
        row.get("speed-up over fedbuff", "-") == "-" for row in report.means if row[name] != written[0]
    )


def test_worlds_that_differ_in_several_settings_are_told_by_all_of_them(tmp_path):
    write_run(tmp_path / "a", algorithm="fedbuff", **{"partition.alpha": 0.1}, client_trips=300)
    write_run(tmp_path / "b", algorithm="fedstaleweight", **{"partition.alpha": 1.0}, client_trips=600)
    cells = [
        (row["client_trips"], row["partition.alpha"], row["algorithm"]) for row in Report(tmp_path).means
    ]
    assert cells == [("300", "0.1", "fedbuff"), ("600", "1", "fedstaleweight")]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("failure_rate", [0.0, 0.1])
def test_the_main_job_is_one_condition_in_one_world(failure_rate, listed, tmp_path):
    """Whether its runs lie in one comparison or were started one by one."""
    for algorithm in ALGORITHMS_OF_THE_MAIN_JOB:
        rate = 0.0 if algorithm.startswith("fedavg") else failure_rate
        given = {"algorithm": algorithm, "protocol.failure_rate": rate}
        write_run(tmp_path / f"{algorithm}-seed0", target_accuracy=0.9, **given)
    if listed:
        write_json(
            tmp_path / "comparison.json",
            {"format": FORMAT, "algorithm": ",".join(ALGORITHMS_OF_THE_MAIN_JOB)},
        )
    report = Report(tmp_path, baseline="fedavg")
    if not failure_rate:
        assert next(iter(report.means[0])) == "algorithm"
        assert all(row["speed-up over fedavg"] == "1" for row in report.means)
        assert "under" not in report.said.partition("Data:")[0]
        return
    # FedAvg's clients never fail here: another world, which each row tells, and no baseline of those that do.
    assert {(row["protocol.failure_rate"], row["speed-up over fedavg"]) for row in report.means} == {
        ("0", "1"),
        ("0.1", "-"),
    }
    assert "Runs live in different worlds: each row says which, by protocol.failure_rate" in report.said


def test_what_belongs_to_an_algorithm_is_no_condition(tmp_path):
    own = {"algorithm.staleness_weight": "hinge(threshold=3)", "algorithm.aggregate": "sum"}
    write_run(tmp_path / "a", protocol="asynchronous(restart='at_once')", learning_rate=0.3, **own)
    write_run(
        tmp_path / "b",
        algorithm="sasgd",
        protocol="asynchronous(restart='after_step', replace_lost='after_step')",
        server_optimizer="adam",
        local_steps=1,
        target_accuracy=0.5,
    )
    assert next(iter(Report(tmp_path).means[0])) == "algorithm"


def test_arms_that_set_the_world_themselves_say_so(tmp_path):
    arms = {"slow": 30.0, "fast": 3.0}
    for place in ("", "more"):
        for label, mean in arms.items():
            folder = tmp_path / place / "partition.alpha=0.3"
            seed = str(int(bool(place)))
            run = folder / f"{label}-seed{seed}"
            write_run(run, **{"delay.mean": mean}, seed=seed, config={"label": label})
        content = {"format": FORMAT, "arms": {label: {"algorithm": "fedbuff"} for label in arms}, "sweep": {}}
        write_json(tmp_path / place / "sweep.json", content)
    report = Report(tmp_path)
    rows = [(row["arm"], row["delay.mean"], row["seeds"]) for row in report.means]
    assert rows == [("fast", "3", "2"), ("slow", "30", "2")]
    write_run(tmp_path / "beside", algorithm="fedasync", **{"delay.mean": 10.0})
    assert {row["arm"]: row["delay.mean"] for row in Report(tmp_path).means} == {
        "slow": "30",
        "fast": "3",
        "fedasync": "10",
    }


def arms_of_one_command(tmp_path, sweep=(), **worlds):
    """The runs of a sweep whose arms ``slow`` and ``fast`` have these values, each, of the settings ``worlds``."""
    folder = tmp_path / grid.folder(dict(sweep))
    for number, label in enumerate(("slow", "fast")):
        own = {name: values[number] for name, values in worlds.items()}
        for seed in ("0", "1"):
            run = folder / f"{label}-seed{seed}"
            write_run(run, **dict(sweep), **own, seed=seed, config={"label": label})
    arms = {label: {"algorithm": "fedbuff"} for label in ("slow", "fast")}
    write_json(
        tmp_path / "sweep.json",
        {"format": FORMAT, "arms": arms, "sweep": {name: [value] for name, value in dict(sweep).items()}},
    )


ARGUMENTS = {
    "delay.mean": (30.0, 3.0),
    "delay.sigma": (0.5, 2.0),
    "partition.alpha": (0.1, 1.0),
    "partition.seed": (3, 4),
}


@pytest.mark.parametrize(("name", "values"), ARGUMENTS.items())
def test_worlds_that_differ_in_one_argument_of_a_call_are_told_as_worlds(name, values, tmp_path):
    arms_of_one_command(tmp_path, **{name: values})
    report = Report(tmp_path)
    assert f"Runs live in different worlds: each row says which, by {name}. Runs of" in report.said
    rows = {(row["arm"], row[name], row["seeds"]) for row in report.means}
    assert rows == {("slow", grid.written(values[0]), "2"), ("fast", grid.written(values[1]), "2")}


def test_runs_that_differ_in_no_argument_live_in_one_world(tmp_path):
    arms_of_one_command(tmp_path, learning_rate=(0.1, 0.3))
    assert "different worlds" not in Report(tmp_path).said


@pytest.mark.full
@pytest.mark.parametrize(("name", "values"), ARGUMENTS.items())
def test_arms_that_differ_in_one_argument_of_a_call_have_their_accuracy_picture(
    name, values, tmp_path, monkeypatch
):
    arms_of_one_command(tmp_path, {"batch_size": 4}, **{name: values})
    drawn, labels = figures.curves, []

    def curves(arms, target):
        labels.extend(arm.label for arm in arms)
        return drawn(arms, target)

    monkeypatch.setattr(figures, "curves", curves)
    assert figures.draw_sweep(tmp_path, seed_means.by_arm(reader.find_runs(tmp_path)), 0.9) == []
    assert (tmp_path / "batch_size=4" / "accuracy.png").is_file()
    assert set(labels) == {
        f"{label}, {name} = {grid.written(value)}"
        for label, value in zip(("slow", "fast"), values, strict=True)
    }


def test_a_folder_whose_runs_differ_beside_the_world_has_no_accuracy_picture(tmp_path):
    for seed, rate in enumerate((0.1, 0.3)):
        folder = tmp_path / "batch_size=4" / f"fedbuff-seed{seed}"
        write_run(folder, batch_size=4, learning_rate=rate, seed=str(seed), **{"delay.mean": 3.0 + seed})
    figures.draw_sweep(tmp_path, seed_means.by_arm(reader.find_runs(tmp_path)), 0.9)
    assert not (tmp_path / "batch_size=4" / "accuracy.png").exists()


def test_a_swept_call_with_arguments_names_its_condition(tmp_path):
    """Its folder has the call as it was typed, its runs have it with every argument."""
    for delay in ("gamma(2,shape=3)", "exponential"):
        condition = {"delay": delay, "learning_rate": 1.0}
        for seed in ("0", "1"):
            write_run(tmp_path / grid.folder(condition) / f"fedbuff-seed{seed}", **condition, seed=seed)
    report = Report(tmp_path)
    rows = [(row["delay"], row["learning_rate"], row["seeds"]) for row in report.means]
    assert sorted(rows) == [("exponential", "1", "2"), ("gamma(2,shape=3)", "1", "2")]
    assert "under 2 conditions (delay, learning_rate)." in report.said


@pytest.mark.parametrize("other", ["gamma(2,shape=3)", "fast", "gamma("])
def test_a_folder_whose_call_no_run_has_names_no_condition(other, tmp_path):
    for there, delay in ((other, "gamma(2,shape=4)"), ("exponential", "exponential")):
        folder = tmp_path / grid.folder({"delay": there, "learning_rate": 1.0}) / "fedbuff-seed0"
        write_run(folder, delay=delay, learning_rate=1.0)
    rows = [row.get("delay.shape") for row in Report(tmp_path).means]
    assert set(rows) == {"4", "none"}


# The same in all runs


def test_what_is_the_same_in_all_runs_is(tmp_path):
    """Derived settings of a sweep, which its conditions do not name, differ; so may what one file leaves out."""
    for clients, concurrency in ((10, 10), (100, 20)):
        folder = tmp_path / f"num_clients={clients}" / "fedbuff-seed0"
        write_run(folder, num_clients=clients, concurrency=concurrency)
    config = tmp_path / "num_clients=100" / "fedbuff-seed0" / "config.json"
    content = json.loads(config.read_text())
    content.pop("client_work")
    write_json(config, content)
    report = Report(tmp_path)
    assert not {"num_clients", "concurrency", "batch_size"} & set(report.same_in_all)
    (differing,) = report.table("algorithm", "concurrency")
    assert differing["concurrency"] == "10 or 20"
    assert differing["batch_size"] == "8 or not recorded"


def test_every_value_that_is_told_to_be_common_is_in_every_file(tmp_path):
    write_run(tmp_path / "a", seed="0", model="softmax", **{"delay.mean": 2.0})
    write_run(tmp_path / "b", seed="1", model="softmax", **{"delay.mean": 2.0})
    write_run(tmp_path / "c", seed="0", algorithm="fedasync", model="softmax", **{"delay.mean": 3.0})
    report = Report(tmp_path)
    cells = report.same_in_all
    assert cells["model"] == "softmax"
    assert "delay.mean" not in cells
    for name in "abc":
        config = json.loads((tmp_path / name / "config.json").read_text())
        there = [config, calls.flattened(config)]
        for setting, value in cells.items():
            if setting in there[1]:  # else it is an argument that only the other algorithm has
                assert value in [grid.written(each.get(setting)) for each in there]


# The same settings and seed


@pytest.mark.parametrize("worse", ["dry run", "unfinished", "interrupted", "diverged"])
@pytest.mark.parametrize("first", ["a", "c"])
def test_a_finished_run_is_never_hidden(first, worse, tmp_path):
    write_run(tmp_path / "b", [0.1, 0.8])
    write_run(tmp_path / first, [0.1, 0.2], status=worse)
    report = Report(tmp_path)
    (row,) = report.means
    assert (row["test accuracy"], row["seeds"]) == ("0.8000", "1")
    assert "1 run left out of means and curves: another run has the same settings and seed." in report.said
    assert report.all_runs == {"b": "finished", first: worse}


def test_the_run_that_was_stopped_later_counts(tmp_path):
    write_run(tmp_path / "a", [0.1, 0.2], status="interrupted")
    write_run(tmp_path / "b", [0.1, 0.2, 0.3], status="interrupted")
    assert Report(tmp_path).means[0]["test accuracy"] == "0.3000"


def test_another_run_has_the_same_settings_and_seed_only_if_it_has(tmp_path):
    write_run(tmp_path / "1" / "partition.alpha=0.3" / "fedbuff-seed0", batch_size=8)
    write_run(tmp_path / "2" / "partition.alpha=0.3" / "fedbuff-seed0", batch_size=16)
    report = Report(tmp_path)
    assert "another run has the same" not in report.said
    assert len(report.means) == 2


def test_dry_runs_are_called_so_and_count_nowhere(tmp_path):
    write_run(tmp_path / "a", [0.1, 0.7])
    write_run(tmp_path / "b", seed="1", status="dry run")
    write_run(tmp_path / "c", seed="2", status="unfinished")
    report = Report(tmp_path)
    assert report.all_runs == {"a": "finished", "b": "dry run", "c": "unfinished"}
    assert "1 run: a dry run, which has a schedule and trained nothing (run.py plan)." in report.said
    assert "1 run: under way, or killed; run.py resume goes on." in report.said
    assert report.means[0]["seeds"] == "1 (1 not finished)"


def test_a_directory_of_dry_runs_alone_says_so(tmp_path):
    write_run(tmp_path / "a", status="dry run")
    report = Report(tmp_path)
    assert "Nothing has been measured yet." in report.said
    assert "Nothing has been measured yet." in report.markdown


# Targets


def test_each_target_has_columns_of_its_own(tmp_path):
    write_run(tmp_path / "a", [0.1, 0.6, 0.9, 0.95], target_accuracy=0.9)
    write_run(tmp_path / "b", [0.1, 0.3, 0.6, 0.7], algorithm="fedasync", target_accuracy=0.5)
    report = Report(tmp_path, baseline="fedasync")
    fedasync, fedbuff = report.means
    columns = ("trips to 0.5", "steps to 0.5", "time to 0.5", "trips to 0.9", "steps to 0.9", "time to 0.9")
    assert [fedbuff[name] for name in columns] == ["10", "1", "0.5", "20", "2", "1"]
    assert [fedasync[name] for name in columns] == ["20", "2", "1", "never", "never", "never"]
    assert "trips" not in fedbuff
    assert fedbuff["speed-up to 0.5 over fedasync"] == "2"
    assert fedbuff["speed-up to 0.9 over fedasync"] == "> 1.5"


def test_runs_of_one_arm_with_two_targets_are_two_rows(tmp_path):
    write_run(tmp_path / "a", [0.1, 0.6, 0.9], target_accuracy=0.9, seed="0")
    write_run(tmp_path / "b", [0.1, 0.6, 0.9], target_accuracy=0.5, seed="1")
    rows = Report(tmp_path).means
    assert [(row["target_accuracy"], row["seeds"]) for row in rows] == [("0.5", "1"), ("0.9", "1")]
    assert [row["trips to 0.5"] for row in rows] == ["10", "10"]


# Means, by hand


@pytest.mark.full
def test_pooled_runs_never_differ_in_anything_but_the_seed(tmp_path):
    """All subsets of a small world of runs: whatever is there, each mean is over one set of settings."""
    choices = [
        {"learning_rate": rate, "batch_size": size, "seed": seed, "algorithm": algorithm}
        for rate in (0.1, 0.3)
        for size in (8, 16)
        for seed in ("0", "1")
        for algorithm in ("fedbuff", "fedasync")
    ]
    for number, settings in enumerate(choices):
        parent = tmp_path / (f"batch_size={settings['batch_size']}" if number % 3 else "beside")
        write_run(parent / f"run{number}", **settings)
    runs = reader.find_runs(tmp_path)
    for length in range(1, len(runs) + 1):
        for first in range(len(runs) - length + 1):
            for arm in seed_means.by_arm(runs[first : first + length]):
                kinds = {
                    tuple(sorted((k, repr(v)) for k, v in run.settings.items() if k != "seed"))
                    for run in arm.runs
                }
                assert len(kinds) == 1
                assert len({run.config["seed"] for run in arm.runs}) == len(arm.runs)


@pytest.mark.full
def test_of_many_differences_a_row_names_the_unusual_ones(tmp_path):
    """As with the README's examples, whose settings differ in twenty names."""
    names = {
        "num_clients": (100, 10),
        "batch_size": (8, 16),
        "delay": ("log_normal", "pareto"),
        "protocol.failure_rate": (0.0, 0.1),
        "model": ("mlp", "softmax"),
        "partition.alpha": (0.3, 0.1),
    }
    random = np.random.default_rng(0)
    for number in range(40):
        unusual = {name: values[int(random.random() < 0.25)] for name, values in names.items()}
        algorithm = ("fedbuff", "fedasync")[number % 2]
        sizes = {"buffer_size": 10 if algorithm == "fedbuff" else 1}
        write_run(tmp_path / f"{number:02d}", algorithm=algorithm, seed=str(number % 3), **sizes, **unusual)
    runs = reader.find_runs(tmp_path)
    flattened = [dataclasses.replace(run, config=calls.flattened(run.config)) for run in runs]
    names |= {"delay.sigma": (1.0, None), "delay.shape": (None, 2.5)}
    usual = usual_values(flattened, [*names, "buffer_size"])
    for arm in seed_means.by_arm(runs):
        for run in arm.runs:
            config = calls.flattened(run.config)
            for name in (*names, "buffer_size"):
                assert arm.condition.get(name, usual[run.label, name]) == config.get(name)
            assert "buffer_size" not in arm.condition, "what follows from the algorithm is usual for it"
    report = Report(tmp_path)
    cells = {row["settings"] for row in report.means}
    assert "the usual ones" in cells
    assert any(text.count(" = ") == 2 for text in cells)
    assert "Of several values the first is the usual one" in report.said
    (fedbuff,) = [row for row in report.table("algorithm", "model", "delay") if row["algorithm"] == "fedbuff"]
    assert fedbuff["delay"] == "log_normal(mean=1.0, sigma=1.0) or pareto(mean=1.0, shape=2.5)"
    assert fedbuff["model"] == "mlp or softmax"


# Markdown


def test_markdown_shows_every_text_as_it_is(tmp_path):
    folder = tmp_path / "<script>alert(1) *a* [b](c) & `d`|e"
    odd = ["run.py", "--label=x\n\n<img src=x onerror=alert(1)>"]
    write_run(folder / "run", config={"label": "<b>*arm*|_x_</b>", "command": odd, "device": "<i>chip</i>"})
    markdown = Report(folder).markdown
    assert "# Runs in &lt;script&gt;alert(1) \\*a\\* \\[b\\](c) &amp; \\`d\\`\\|e\n" in markdown
    assert "| &lt;b&gt;\\*arm\\*\\|\\_x\\_&lt;/b&gt; |" in markdown
    assert "on &lt;i&gt;chip&lt;/i&gt;" in markdown
    for line in markdown.splitlines():
        assert "<" not in line or line.startswith("    "), "only a block of code may hold a tag"


def test_no_character_that_cannot_be_seen_reaches_a_report(tmp_path):
    """A terminal would obey an escape, a browser a change of direction."""
    odd = "a\x1b[31mb\u202ec\x9b"
    write_run(
        tmp_path / odd / "run", config={"label": odd, "command": ["run.py", f"--label={odd}"], "device": odd}
    )
    report = Report(tmp_path / odd)
    page = (tmp_path / odd / "report.html").read_text()
    for text in (report.markdown, page):
        assert all(character.isprintable() or character == "\n" for character in text)
        assert "[31mb" in text
    assert r"$'--label=a\x1b[31mb\u202ec\x9b'" in report.markdown


def test_what_is_printed_to_repeat_it_writes_into_a_new_directory(tmp_path):
    typed = [
        "python",
        "run.py",
        "--seed=0,1",
        "--output_dir",
        "x y",
        "--nooverwrite",
        "--label=a=1; b=2",
    ]
    write_run(tmp_path / "a", config={"command": typed})
    write_run(
        tmp_path / "b",
        config={"command": ["jafl", "--output_dir=runs/1", "--overwrite"]},
        algorithm="fedasync",
    )
    assert (
        "    python run.py --seed=0,1 '--label=a=1; b=2' --output_dir=again-1\n" in Report(tmp_path).markdown
    )
    assert "    jafl --output_dir=again-2\n" in Report(tmp_path).markdown


# Refused


def test_a_report_needs_a_run_that_can_be_read(tmp_path):
    with pytest.raises(SettingError, match="There is no run in"):
        write_report(tmp_path)
    write_run(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text("5")
    with pytest.raises(SettingError, match=r"(?s)no run in .* that can be read:.*a: config.json.* holds 5"):
        write_report(tmp_path)


def test_a_target_that_is_reached_at_once_is_no_division_by_zero(tmp_path):
    write_run(tmp_path / "a", [0.6, 0.7], target_accuracy=0.5)
    write_run(tmp_path / "b", [0.1, 0.7], target_accuracy=0.5, algorithm="fedasync")
    rows = Report(tmp_path, baseline="fedasync").means
    assert [float(row["speed-up over fedasync"]) for row in rows] == [1.0, 10.0]
    assert all(math.isfinite(float(row["speed-up over fedasync"])) for row in rows)
