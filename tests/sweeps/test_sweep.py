"""Sweeps: what is run, that a stopped one equals one that was not, several processes, the table, what is refused."""

import itertools
import json
import shutil

import jax
import killed
import numpy as np
import pytest
from run_again import assert_same, at_step, ctrl_c
from waiting import until

from jafl.base.errors import SettingError
from jafl.config import calls, grid, presets
from jafl.config.grid import Override
from jafl.config.settings import Settings
from jafl.runs.directory import reader, tables
from jafl.runs.lock import directory_lock
from jafl.runs.runner import run
from jafl.sweeps import seed_means, workers
from jafl.sweeps.sweep import run_sweep

ALGORITHMS = ("fedbuff", "fedasync", "fedavg", "fedavgm", "exponential_weighting", "asgd")
SMALL = Settings(
    algorithm=",".join(ALGORITHMS),
    seed="0,1,2",
    model="softmax",
    num_clients=10,
    concurrency=5,
    client_trips=50,
    evaluate_every=10,
    target_accuracy=0.5,
)
SWEEP = "partition.alpha=0.1,10;delay.sigma=0.5,2"
FOLDERS = [
    f"partition.alpha={alpha},delay.sigma={sigma}" for alpha in ("0.1", "10") for sigma in ("0.5", "2")
]


def quiet(settings, sweep, folder, **options):
    """A sweep without a word and without pictures, each run for itself (``test_sweep_together`` has the others)."""
    how = {"show": lambda line: None, "pictures": False, "runs_together": "never", **options}
    return run_sweep(settings, sweep, folder, **how)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder, outcome) of the whole sweep, never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    return folder, quiet(SMALL, SWEEP, folder)


@pytest.mark.full
def test_every_run_is_there_and_is_that_of_its_condition(whole):
    folder, outcome = whole
    assert outcome.statuses == {"finished": 72}
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == FOLDERS
    for name in FOLDERS:
        for algorithm in ALGORITHMS:
            for seed in range(3):
                run_there = reader.read_run(folder / name / f"{algorithm}-seed{seed}")
                entries = grid.condition(name)
                config = calls.flattened(run_there.config)
                assert {key: config[key] for key in entries} == entries
                assert (run_there.algorithm, run_there.config["seed"]) == (algorithm, str(seed))


@pytest.mark.gate
def test_a_cell_is_what_a_run_with_its_settings_leaves(whole, tmp_path):
    settings = SMALL.changed(
        {"partition.alpha": 10.0, "delay.sigma": 2.0, "seed": "1", "algorithm": "fedavgm"}
    )
    run(settings, tmp_path / "run", show=lambda line: None, pictures=False)
    assert_same(tmp_path / "run", whole[0] / FOLDERS[3] / "fedavgm-seed1")


@pytest.mark.full
def test_a_sweep_that_is_stopped_equals_one_that_was_not(whole, tmp_path):
    folder, begun = tmp_path / "sweep", []

    class Count:
        def __init__(self, path, settings, server_step):
            begun.append((str(path), server_step))

        def write(self, evaluation):
            if len(begun) in stops and evaluation["server_step"] >= 2:
                ctrl_c(None)

        def close(self):
            pass

    for stops in ([1], [15], [40], []):
        last = len(begun)
        outcome = quiet(SMALL, SWEEP, folder, trackers=[Count])
        assert outcome.statuses.get("interrupted", 0) == (1 if stops else 0)
        if last:  # the one that was stopped, from where it was
            assert begun[last][0] == begun[last - 1][0]
            assert begun[last][1] >= 2
    assert len(begun) == 72 + 3, "a finished run was run twice"
    assert len({path for path, _ in begun}) == 72
    assert_same(folder, whole[0])


@pytest.mark.full
def test_a_finished_sweep_runs_nothing_and_more_values_only_themselves(tmp_path):
    begun = []
    settings = Settings(**{**SMALL.__dict__, "algorithm": "fedbuff", "seed": "0"})

    def count(path, *_):
        begun.append(f"{path.parent.name}/{path.name}")
        return at_step(1000, ctrl_c)(path, None, 0)

    for sweep, changes, new in (
        ("delay.sigma=0.5", {}, ["delay.sigma=0.5/fedbuff-seed0"]),
        ("delay.sigma=0.5", {}, []),
        ("delay.sigma=2,0.5", {}, ["delay.sigma=2/fedbuff-seed0"]),
        ("delay.sigma=0.5", {"seed": "0,1"}, ["delay.sigma=0.5/fedbuff-seed1"]),
    ):
        begun.clear()
        changed, said = Settings(**{**settings.__dict__, **changes}), []
        outcome = quiet(changed, sweep, tmp_path / "sweep", trackers=[count], show=said.append)
        assert begun == new
        assert ("Nothing is left to train: all 1 runs are over." in said) == (not new)
    content = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert (content["sweep"], content["seed"]) == ({"delay.sigma": [0.5, 2.0]}, "0,1")
    assert [row["seeds"] for row in outcome.rows] == [2, 1]


@pytest.mark.full
def test_processes_share_a_sweep_and_take_over_from_one_that_was_killed(tmp_path):
    settings = {**SMALL.__dict__, "algorithm": "fedbuff", "seed": "0,1,2", "client_trips": 1500}
    folder, logs = tmp_path / "sweep", [tmp_path / "first.txt", tmp_path / "second.txt"]
    first, second = (
        killed.start_sweep(settings, "partition.alpha=0.1,10", folder, str(log), "never") for log in logs
    )
    until(lambda: all(log.exists() for log in logs))
    first.kill()
    first.join()
    second.join()
    assert second.exitcode == 0
    begun = [log.read_text().split() for log in logs]
    taken_over = set(begun[0]) & set(begun[1])
    assert len(taken_over) <= 1, "only the run of the killed process is begun again"
    assert all(len(set(paths)) == len(paths) for paths in begun)
    assert len(set(begun[0]) | set(begun[1])) == 6
    assert {one.status for one in reader.find_runs(folder)} == {"finished"}
    assert json.loads((folder / "summary.json").read_text())["runs"] == {"finished": 6}


@pytest.mark.full
def test_other_processes_draw_the_same_random_numbers(tmp_path, monkeypatch):
    settings = Settings(**{**SMALL.__dict__, "algorithm": "fedbuff", "seed": "0,1"})
    jax.config.update("jax_threefry_partitionable", False)
    try:
        quiet(settings, "delay.sigma=0.5,2", tmp_path / "one")
        both = workers._until_all_are_taken

        def after_the_other(*arguments):
            until(lambda: [*(tmp_path / "two").glob("*/*/summary.json")])
            both(*arguments)

        monkeypatch.setattr(workers, "_until_all_are_taken", after_the_other)
        quiet(settings, "delay.sigma=0.5,2", tmp_path / "two", processes=2)
    finally:
        jax.config.update("jax_threefry_partitionable", True)
    one, two = (
        {
            str(each.path.relative_to(tmp_path / name)): each.evaluations
            for each in reader.find_runs(tmp_path / name)
        }
        for name in ("one", "two")
    )
    assert len(one) == 4 and one == two


@pytest.mark.full
def test_a_locked_run_is_left_to_its_process(tmp_path):
    settings = Settings(**{**SMALL.__dict__, "algorithm": "fedbuff", "seed": "0"})
    cell, said = tmp_path / "sweep" / "delay.sigma=2" / "fedbuff-seed0", []
    cell.mkdir(parents=True)
    quiet(settings, "delay.sigma=0.5", tmp_path / "sweep")
    with directory_lock(cell) as acquired:
        assert acquired
        outcome = quiet(settings, "delay.sigma=0.5,2", tmp_path / "sweep", show=said.append)
    assert outcome.statuses == {"finished": 1}
    assert any("1 runs are not over" in line for line in said)
    assert quiet(settings, "delay.sigma=0.5,2", tmp_path / "sweep").statuses == {"finished": 2}


# Arms with labels of their own


ARMS = {
    "FedBuff, K = 5": {"algorithm": "fedbuff", "buffer_size": 5},
    "FedBuff/K=10 | wide": {"algorithm": "fedbuff"},
    "gradients": {"algorithm": "asgd", "server_steps": 20},
}
OVERRIDES = [
    Override({"delay.sigma": 2.0}, "gradients", {"server_learning_rate": 0.5}),
    Override({"delay.sigma": 2.0}, None, {"batch_size": 4}),
]


@pytest.fixture(scope="module")
def armed(tmp_path_factory):
    """(folder, outcome) of a sweep of these arms."""
    folder = tmp_path_factory.mktemp("armed") / "sweep"
    settings = Settings(**{**SMALL.__dict__, "seed": "0,1"})
    outcome = quiet(settings, "delay.sigma=0.5,2", folder, arms=ARMS, overrides=OVERRIDES, pictures=None)
    return folder, outcome


@pytest.mark.full
def test_arms_are_crossed_with_conditions_and_seeds(armed):
    folder, outcome = armed
    assert outcome.statuses == {"finished": 12}
    assert [row["label"] for row in outcome.rows] == list(ARMS) * 2
    names = {path.name for path in (folder / "delay.sigma=2").iterdir() if path.is_dir()}
    assert names == {
        f"{label}-seed{seed}"
        for label in ("FedBuff, K = 5", "FedBuff%2FK=10 %7C wide", "gradients")
        for seed in range(2)
    }
    found = {(one.label, one.path.parent.name): one for one in reader.find_runs(folder)}
    settled = {
        key: (one.algorithm, one.value("buffer_size"), one.value("batch_size")) for key, one in found.items()
    }
    assert settled["FedBuff, K = 5", "delay.sigma=2"] == ("fedbuff", 5, 4)
    assert settled["FedBuff/K=10 | wide", "delay.sigma=0.5"] == ("fedbuff", 10, 8)
    gradients = found["gradients", "delay.sigma=2"]
    assert (gradients.value("server_learning_rate"), gradients.value("server_steps")) == (0.5, 20)
    assert gradients.value("client_trips") is None, "the other budget has gone"
    assert (
        found["gradients", "delay.sigma=0.5"].value("server_learning_rate")
        == (presets.PRESETS["asgd"]["server_learning_rate"])
    )
    assert (folder / "delay.sigma=2" / "accuracy.png").is_file()


@pytest.mark.full
def test_an_arm_is_what_a_run_with_its_settings_leaves(armed, tmp_path):
    cell = armed[0] / "delay.sigma=2" / "FedBuff, K = 5-seed1"
    settings = Settings.from_file(str(cell / "config.json"))
    run(settings, tmp_path / "run", show=lambda line: None, pictures=False)
    config = json.loads((cell / "config.json").read_text())
    assert config.pop("label") == "FedBuff, K = 5"
    again = json.loads((tmp_path / "run" / "config.json").read_text())
    assert {**config, "command": None} == {**again, "command": None}
    for name in ("metrics.jsonl", "schedule.npz", "params.npz"):
        assert (cell / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


@pytest.mark.full
def test_a_sweep_of_arms_goes_on_with_the_same_ones_only(armed, tmp_path):
    settings, more = Settings(**{**SMALL.__dict__, "seed": "0,1"}), {"fourth": {"algorithm": "fedasync"}}
    same = {"arms": ARMS, "overrides": OVERRIDES}
    other = {**ARMS, "FedBuff, K = 5": {"algorithm": "fedbuff", "buffer_size": 6}}
    sweep = "delay.sigma=0.5,2"
    for changes, message in (
        ({**same, "arms": other}, "the arm 'FedBuff, K = 5': buffer_size: was 5, is 6"),
        ({**same, "overrides": []}, "overrides of gradients: was .*, is None"),
        (
            {**same, "overrides": OVERRIDES[:1]},
            "another sweep:\n  overrides of all arms: was .*, is None\nName",
        ),
        ({}, "arms with labels on the one side"),
    ):
        with pytest.raises(SettingError, match=message):
            quiet(settings, sweep, armed[0], **changes)
    shutil.copytree(armed[0], tmp_path / "sweep")
    outcome = quiet(settings, sweep, tmp_path / "sweep", arms={**ARMS, **more}, overrides=OVERRIDES)
    assert outcome.statuses == {"finished": 16}
    content = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert content["arms"] == {**ARMS, **more}
    assert reader.swept(tmp_path / "sweep")["overrides"] == content["overrides"]


@pytest.mark.parametrize(
    "arms, overrides, message",
    [
        ({}, [], "at least one"),
        ({"a": {"algorithm": "fedbuff", "seed": "1"}}, [], "the same for all arms"),
        ({"a": {"buffer_size": 3}}, [], "one algorithm"),
        ({"a": {"algorithm": "fedbuf"}}, [], "Did you mean 'fedbuff'?"),
        ({"a": {"algorithm": "fedbuff", "bufer_size": 3}}, [], "Did you mean 'buffer_size'?"),
        ({"a": {"algorithm": "fedbuff"}}, [Override({}, "b", {})], "an arm of overrides is 'b'"),
        ({"a" * 300: {"algorithm": "fedbuff"}}, [], "at most 255 bytes"),
    ],
)
def test_arms_that_cannot_work_are_refused_before_anything_is_written(arms, overrides, message, tmp_path):
    with pytest.raises(SettingError) as refused:
        quiet(SMALL, {}, tmp_path / "sweep", arms=arms, overrides=overrides)
    assert message in str(refused.value)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.full
def test_a_sweep_without_conditions_has_its_runs_directly_in_it(tmp_path):
    settings = Settings(**{**SMALL.__dict__, "seed": "0"})
    outcome = quiet(settings, {}, tmp_path / "sweep", arms=ARMS, pictures=None)
    assert outcome.statuses == {"finished": 3}
    assert [(row["label"], row["condition"]) for row in outcome.rows] == [(label, {}) for label in ARMS]
    assert (tmp_path / "sweep" / "gradients-seed0" / "metrics.jsonl").is_file()
    assert (tmp_path / "sweep" / "accuracy.png").is_file()
    assert quiet(settings, {}, tmp_path / "sweep", arms=ARMS).rows == outcome.rows


# The table


@pytest.mark.full
def test_the_table_is_made_of_the_runs_summaries(whole):
    folder, outcome = whole
    assert json.loads((folder / "summary.json").read_text())["table"] == outcome.rows
    assert len(outcome.rows) == 4 * 6
    assert [row["algorithm"] for row in outcome.rows[:6]] == list(ALGORITHMS)
    for row in outcome.rows:
        name = grid.folder(row["condition"])
        entries = [
            json.loads((folder / name / f"{row['algorithm']}-seed{seed}" / "summary.json").read_text())
            for seed in range(3)
        ]
        final = [one["final"]["test_accuracy"] for one in entries]
        assert row["final_test_accuracy"] == pytest.approx(np.mean(final))
        assert row["standard_error"] == pytest.approx(np.std(final, ddof=1) / np.sqrt(3))
        trips = [one["trips_to_target"] for one in entries]
        if None in trips:
            assert row["trips_to_target"] is None
        else:
            assert row["trips_to_target"] == pytest.approx(np.mean(trips))
            error = np.std(trips, ddof=1) / np.sqrt(3)
            assert row["trips_to_target_standard_error"] == pytest.approx(error)
    assert {row["trips_to_target"] is None for row in outcome.rows} == {True, False}, "both cases are seen"


def summary(trips, budget=1000):
    """What the table reads of a ``summary.json``."""
    return {
        "status": "finished",
        "final": {"test_accuracy": 0.9},
        "client_trips": budget,
        "trips_to_target": trips,
        "steps_to_target": trips,
        "time_to_target": trips,
        "trips_thrown_away": 0,
        "staleness": {"mean": 1.0},
        "wall_clock": {"run_seconds": 1.0, "compile_seconds": 1.0},
    }


def some_run(path, algorithm, trips, seed="0", **settings):
    config = {"algorithm": algorithm, "seed": seed, **settings}
    return reader.PastRun(path, config, [], summary(trips))


@pytest.mark.parametrize(
    "own, its, speed_up, exact, text",
    [
        (100, 850, 8.5, "exactly", "8.5"),
        (100, None, 10, "more than", "> 10"),
        (None, 100, 0.1, "less than", "< 0.1"),
        (None, None, None, None, None),
    ],
)
def test_speed_ups_are_in_trips_and_bounds_where_the_target_was_missed(
    own, its, speed_up, exact, text, tmp_path
):
    runs = [some_run(tmp_path, "fedbuff", own), some_run(tmp_path, "fedavg", its)]
    rows = seed_means.rows(seed_means.by_arm(runs, ["fedbuff", "fedavg"]), "fedavg")
    assert (rows[0]["speed_up"], rows[0]["speed_up_is"]) == (speed_up, exact)
    head, first, _ = seed_means.text_table(rows, "fedavg")
    if text:
        assert first[head.index("speed-up over fedavg")] == text
    else:
        assert "speed-up over fedavg" not in head


def test_seeds_that_missed_the_target_count_with_all_their_trips(tmp_path):
    """760, none and none of 1,200 trips are at least 1,053 on average; 470, 530 and 770 are 590."""
    trips = {"fedasync": (760, None, None), "fedbuff": (470, 530, 770), "fedavg": (None, 900, 1000)}
    runs = [
        reader.PastRun(tmp_path, {"algorithm": name, "seed": str(seed)}, [], summary(one, 1200))
        for name, seeds in trips.items()
        for seed, one in enumerate(seeds)
    ]
    rows = seed_means.rows(seed_means.by_arm(runs, list(trips)), "fedbuff")
    assert [row["reached_target"] for row in rows] == [1, 3, 2]
    assert rows[0]["speed_up"] == pytest.approx(590 / ((760 + 1200 + 1200) / 3))
    head, fedasync, _, fedavg = seed_means.text_table(rows, "fedbuff")
    place = head.index("speed-up over fedbuff")
    assert (fedasync[place], fedavg[place]) == ("< 0.56", "< 0.571")
    assert fedasync[head.index("trips")] == "1 of 3 seeds" and fedavg[head.index("time")] == "2 of 3 seeds"
    # The other way round it is a bound from the other side; where both missed it, nothing is known.
    rows = seed_means.rows(seed_means.by_arm(runs, list(trips)), "fedasync")
    _, fedasync, fedbuff, fedavg = seed_means.text_table(rows, "fedasync")
    assert (fedbuff[place], fedavg[place]) == ("> 1.79", "-")
    lines = tables.text(rows, 0.95)
    assert "1 of 3 seeds" in lines[3] and "2 of 3 seeds" in lines[5]


def test_an_arm_that_diverged_at_once_has_no_speed_up(tmp_path):
    runs = [some_run(tmp_path, "fedbuff", None), some_run(tmp_path, "fedavg", 100)]
    runs[0].summary["client_trips"] = 0
    rows = seed_means.rows(seed_means.by_arm(runs, ["fedbuff", "fedavg"]), "fedavg")
    assert (rows[0]["speed_up"], rows[0]["speed_up_is"]) == (None, None)


def test_runs_of_any_directory_are_grouped_by_what_differs(tmp_path):
    runs = [
        some_run(tmp_path / str(number), algorithm, 100, seed, buffer_size=size, learning_rate=rate)
        for number, (algorithm, seed, size, rate) in enumerate(
            [
                ("fedbuff", "0", 10, 0.3),
                ("fedbuff", "1", 10, 0.3),
                ("fedbuff", "1", 10, 0.3),
                ("fedbuff", "0", 9, 0.3),
                ("fedasync", "0", 9, 1.0),
            ]
        )
    ]
    found = seed_means.by_arm(runs)
    assert [(g.condition, g.algorithm, len(g.runs), g.repeated) for g in found] == [
        ({"buffer_size": 9}, "fedasync", 1, 0),
        ({"buffer_size": 9}, "fedbuff", 1, 0),
        ({"buffer_size": 10}, "fedbuff", 2, 1),
    ]


# Conditions as text


@pytest.mark.parametrize(
    "text, values",
    [
        ("partition.alpha=0.1,1", {"partition.alpha": [0.1, 1]}),
        (" buffer_size = 5 , none ; ", {"buffer_size": [5, None]}),
        (
            "protocol.cancel_at_step=true,False;delay=pareto",
            {"protocol.cancel_at_step": [True, False], "delay": ["pareto"]},
        ),
        ("model.hidden_sizes=[64,32],[8]", {"model.hidden_sizes": [[64, 32], [8]]}),
        ("protocol.participation=0.1,[0.1, 0.5]", {"protocol.participation": [0.1, [0.1, 0.5]]}),
        (
            "protocol=synchronous(cohort_size=5),default",
            {"protocol": ["synchronous(cohort_size=5)", "default"]},
        ),
        (
            "algorithm.staleness_weight=hinge(threshold=8),constant",
            {"algorithm.staleness_weight": ["hinge(threshold=8)", "constant"]},
        ),
        ("richest_last='0-2;7'", {"richest_last": ["0-2;7"]}),
        (
            "partition=label_groups([(10, [4, 9]), (5, [0])]),iid",
            {"partition": ["label_groups([(10, [4, 9]), (5, [0])])", "iid"]},
        ),
        ("dropout=clients([3, 7], time=5),nobody", {"dropout": ["clients([3, 7], time=5)", "nobody"]}),
        (
            "availability=diurnal(24, share=0.5),read_availability('a,b;c.csv', 9)",
            {"availability": ["diurnal(24, share=0.5)", "read_availability('a,b;c.csv', 9)"]},
        ),
        ("algorithm.active_steps=10", {"algorithm.active_steps": [10]}),
        ("delay.mean=1,2.5", {"delay.mean": [1, 2.5]}),
        (
            "delay=gamma(2, shape=3),groups([(4, exponential(5)), (6, constant)]);delay.mean=1",
            {
                "delay": ["gamma(2, shape=3)", "groups([(4, exponential(5)), (6, constant)])"],
                "delay.mean": [1],
            },
        ),
        (
            "delay=duration_trace('a;b,c.csv'),exponential;buffer_size=2",
            {"delay": ["duration_trace('a;b,c.csv')", "exponential"], "buffer_size": [2]},
        ),
    ],
)
def test_sweeps_as_text_and_as_folders(text, values):
    assert grid.parse(text) == values
    for condition in grid.product(values):
        name = grid.folder(condition)
        assert "/" not in name
        assert grid.condition(name) == condition
        assert [type(value) for value in grid.condition(name).values()] == [
            type(value) for value in condition.values()
        ]


ONCE = "once_per_client(log_normal)"  # the default


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"delay.law": "exponential", "delay.law.mean": 3, "delay.mean": 4},
            "write the whole value of delay.",
        ),
        (
            {"delay.sigma": 0.5, "delay.law": "gamma"},
            "delay.sigma: once_per_client(law=gamma)",
        ),
    ],
)
def test_an_argument_is_never_lost_because_another_takes_its_calls_place(values, message):
    """In whichever order they come: a run without a word about the mean that was asked for is another run."""
    for names in itertools.permutations(values):
        with pytest.raises(SettingError) as refused:
            Settings.from_mapping({name: values[name] for name in names})
        assert message in str(refused.value)
        with pytest.raises(SettingError, match="^(With .*: )?delay[.]"):
            Settings().changed({name: values[name] for name in names})


def test_arguments_of_calls_that_leave_each_other_alone_are_both_kept():
    values = {"delay": "once_per_client(gamma)", "delay.shape": 4, "delay.mean": 3}
    whole = "once_per_client(law=gamma(mean=3.0, shape=4.0))"
    for names in itertools.permutations(other := {"delay.mean": 3, "delay.law": "exponential"}):
        settings = Settings.from_mapping({name: other[name] for name in names})
        assert (
            calls.grammar("delay").completed(settings.delay) == "once_per_client(law=exponential(mean=3.0))"
        )
    for names in itertools.permutations(values):
        settings = Settings.from_mapping({name: values[name] for name in names})
        assert calls.grammar("delay").completed(settings.delay) == whole


def test_conditions_whose_arguments_exclude_each_other_are_refused(tmp_path):
    for sweep in ("delay.mean=3;delay.law.mean=4", "delay.law.mean=4;delay.mean=3"):
        with pytest.raises(SettingError, match="write the whole value of delay"):
            quiet(SMALL, sweep, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_a_folder_in_words_for_readers():
    condition = {
        "richest_last": "",
        "delay": "groups([(4, exponential(0.5)), (1, exponential(5))])",
        "partition.alpha": 0.1,
    }
    name = grid.folder(condition)
    assert "%28" in name
    assert grid.readable(name) == (
        "richest_last=(empty), delay=groups([(4, exponential(0.5)), (1, exponential(5))]), partition.alpha=0.1"
    )
    assert grid.readable("") == ""


@pytest.mark.full
def test_another_sweep_in_the_directory_is_refused_with_the_differences(whole):
    others = Settings(**{**SMALL.__dict__, "learning_rate": 0.5})
    with pytest.raises(SettingError, match="learning_rate: was None, is 0.5"):
        quiet(others, SWEEP, whole[0])
    with pytest.raises(SettingError, match="swept: were partition.alpha, delay.sigma, are delay.sigma"):
        quiet(SMALL, "delay.sigma=0.5,2", whole[0])
    with pytest.raises(SettingError, match="holds a sweep"):
        run(SMALL, whole[0], overwrite=True)


@pytest.mark.full
def test_a_directory_of_something_else_is_refused(whole, tmp_path):
    cell = whole[0] / FOLDERS[0] / "fedavg-seed0"
    with pytest.raises(SettingError, match="already holds a run"):
        quiet(SMALL, SWEEP, cell)
