"""Runs that are compared share their world; where they do not on purpose, everything says which lives where."""

import dataclasses
import json
import shutil

import pytest
from quick_compilation import quick_compilation  # noqa: F401
from run_again import quiet
from runs_by_hand import write_run

from experiments.harness.declare import discovery
from jafl import plots
from jafl.base.errors import SettingError
from jafl.cli.command_help import GROUPS
from jafl.config import grid, resolution
from jafl.config.data_cache import DataCache
from jafl.config.experiment import make_experiments
from jafl.config.resolution import resolve, resolve_run
from jafl.config.settings import FORMAT, GROUP, Settings
from jafl.config.world import OF_WORLD, WORLD, as_read, worlds
from jafl.runs import runner
from jafl.runs.directory.reader import find_runs, read_json
from jafl.sweeps import seed_means
from jafl.sweeps.report import write_report
from jafl.sweeps.sweep import run_sweep

SMALL = Settings(
    algorithm="fedbuff", model="softmax", num_clients=12, concurrency=6, buffer_size=4, client_trips=60
)
# Delays that count server steps: nobody goes away there, and nothing fails.
IN_STEPS = {"protocol": "drawn_staleness", "different_worlds": False}
ARMS = {"timed": {"algorithm": "fedbuff"}, "in steps": {"algorithm": "fedbuff", **IN_STEPS}}


def arms(**settings):
    common = SMALL.changed(settings)
    return {label: common.changed(own) for label, own in ARMS.items()}


def refusal(of_arms):
    with pytest.raises(SettingError) as refused:
        resolve(of_arms, DataCache())
    return refused.value


def test_the_world_is_said_once_and_holds_what_its_groups_hold():
    assert {*WORLD} < {*GROUPS}
    for name in (
        "dataset",
        "partition",
        "delay",
        "availability",
        "protocol.failure_rate",
        "dropout",
        "num_clients",
    ):
        assert name in OF_WORLD
    for name in (
        "learning_rate",
        "buffer_size",
        "protocol",
        "protocol.restart",
        "algorithm",
        "seed",
        "model",
        "data_dir",
    ):
        assert name not in OF_WORLD


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("protocol.failure_rate", 0.3, "0.3"),
        (
            "availability",
            "diurnal",
            "'diurnal(day_length=24.0, share=0.5, spread=1.0, loses_trips=False)'",
        ),
        (
            "dropout",
            "fraction(0.5, server_step=2)",
            "'fraction(fraction=0.5, server_step=2, time=None, trips=None)'",
        ),
    ],
)
def test_a_setting_of_the_world_that_one_of_several_cannot_read_is_refused_by_name(name, given, shown):
    error = refusal(arms(**{name: given}))
    assert error.setting == name
    for part in (
        f"{name} is {shown}",
        "in steps cannot",
        "protocol is drawn_staleness",
        "--different_worlds",
    ):
        assert part in str(error)


def test_queues_share_the_world_of_others_unless_clients_fail_or_leave():
    queues = {"algorithm": "generalized_async_sgd"}
    assert resolve({"a": SMALL, "b": SMALL.changed(queues)}, DataCache())
    failing = SMALL.changed({"protocol.failure_rate": 0.2})
    error = refusal({"a": failing, "b": SMALL.changed(queues)})
    assert error.setting == "protocol.failure_rate"
    assert "protocol is queued, " in str(error)


def test_values_that_differ_are_refused_and_delays_that_are_no_times_too():
    error = refusal({"a": SMALL, "b": SMALL.changed({"partition.alpha": 5.0})})
    assert error.setting == "partition"
    values = "dirichlet(alpha=0.3, equal_sizes=False) for a; dirichlet(alpha=5.0, equal_sizes=False) for b"
    assert f"partition is {values}" in str(error)
    law = "once_per_client(law=log_normal(mean=1.0, sigma=1.0))"
    assert f"delay is {law} for timed; {law}, in server steps for in steps" in str(refusal(arms()))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"delay": "once_per_client(log_normal(1, sigma=1.0))"}),
        ({}, {"partition": "dirichlet"}),
        ({"partition": "dirichlet"}, {"partition": "dirichlet(0.3)"}),
        ({"availability": "diurnal"}, {"availability": "diurnal(24)"}),
        ({}, {"availability": "always()"}),
        ({"dropout": "fraction(0.5, time=10)"}, {"dropout": "fraction(fraction=0.5, time=10.0, trips=None)"}),
        ({}, {"dropout": "fraction(0, time=10)"}),
    ],
)
def test_two_spellings_of_one_call_are_one_world(first, second):
    assert len(resolve({"a": SMALL.changed(first), "b": SMALL.changed(second)}, DataCache())) == 2


def test_another_argument_of_a_delay_is_another_world():
    error = refusal({"a": SMALL, "b": SMALL.changed({"delay.sigma": 0.5})})
    assert error.setting == "delay"
    assert "sigma=1.0)) for a; once_per_client(law=log_normal(mean=1.0, sigma=0.5)) for b" in str(error)


def test_what_is_compared_may_differ_in_all_else():
    two = {"a": SMALL, "b": SMALL.changed({"algorithm": "fedavg", "buffer_size": None, "learning_rate": 0.5})}
    assert len(resolve(two, DataCache())) == 2


def test_it_is_allowed_on_purpose():
    assert len(resolve(arms(**{"protocol.failure_rate": 0.3}, different_worlds=True), DataCache())) == 2


def test_a_sweep_is_refused_under_the_condition_where_worlds_differ(tmp_path):
    with pytest.raises(SettingError, match="With protocol.failure_rate=0.3.*protocol.failure_rate is 0.3"):
        common = SMALL.changed({"delay": "constant"})
        run_sweep(
            common, {"protocol.failure_rate": [0.3]}, tmp_path / "sweep", arms=ARMS, show=lambda _: None
        )
    assert not (tmp_path / "sweep").exists()


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep whose two arms live in different worlds; what it said."""
    folder, said = tmp_path_factory.mktemp("worlds") / "sweep", []
    settings = SMALL.changed({"protocol.failure_rate": 0.3, "different_worlds": True, "target_accuracy": 0.3})
    run_sweep(settings, {}, folder, arms=ARMS, baseline="timed", show=said.append, pictures="few")
    return folder, said


@pytest.mark.full
def test_a_sweep_of_different_worlds_says_which_arm_lives_where_and_compares_none(swept):
    folder, said = swept
    (head,) = [line for line in said if "protocol.failure_rate" in line]
    assert "arm" in head
    rows = read_json(folder / "summary.json")["table"]
    by_label = {row["label"]: row for row in rows}
    assert by_label["timed"]["condition"]["protocol.failure_rate"] == 0.3
    assert by_label["in steps"]["condition"]["protocol.failure_rate"] == 0.0
    assert by_label["timed"]["speed_up"] == 1.0
    assert by_label["in steps"]["speed_up"] is None
    assert (folder / "accuracy.png").is_file()


@pytest.mark.full
def test_a_report_says_which_run_lives_where(swept, tmp_path, monkeypatch):
    monkeypatch.setattr("jafl.sweeps.report._schedule_pictures", lambda *_: [])
    captions = []
    monkeypatch.setattr("jafl.sweeps.report._curves", lambda arm_runs, _: captions.append(arm_runs) or [])
    shutil.copytree(swept[0], tmp_path / "sweep")
    text = write_report(tmp_path / "sweep")[1].read_text()
    assert "Runs live in different worlds: each row says which, by protocol.failure_rate" in text
    assert len(seed_means.by_condition(captions[0])) == 2, "curves of each world by themselves"


def test_runs_of_separate_commands_in_different_worlds_share_no_row_and_no_ratio(tmp_path, monkeypatch):
    """FedAvg, always there, is no baseline of FedBuff, whose clients are away half of the day."""
    monkeypatch.setattr("jafl.sweeps.report._curves", lambda *_: [])
    monkeypatch.setattr("jafl.sweeps.report._schedule_pictures", lambda *_: [])
    write_run(tmp_path / "a", algorithm="fedbuff", availability="diurnal", target_accuracy=0.4)
    write_run(tmp_path / "b", algorithm="fedavg", protocol="synchronous", target_accuracy=0.4)
    (tmp_path / "comparison.json").write_text(json.dumps({"format": FORMAT, "algorithm": "fedbuff,fedavg"}))
    text = write_report(tmp_path, baseline="fedavg")[1].read_text()
    assert "| always | none | none | none | none | fedavg |" in text
    assert "| diurnal | 24 | 0.5 | 1 | false | fedbuff |" in text
    rows = seed_means.rows(seed_means.by_arm(find_runs(tmp_path)), "fedavg")
    assert [row["speed_up"] for row in rows if row["label"] == "fedbuff"] == [None]


@pytest.mark.full
def test_a_comparison_of_different_worlds_tells_them_in_table_summary_and_pictures(tmp_path, monkeypatch):
    """Where a list of algorithms cannot differ by itself, one is made to."""
    made, said, curves = make_experiments, [], []

    def differing(settings, **options):
        first, second = made(settings, **options)
        other = second.settings.changed({"protocol.failure_rate": 0.3})
        return [first, dataclasses.replace(second, settings=other)]

    monkeypatch.setattr(runner, "make_experiments", differing)
    monkeypatch.setattr(plots, "accuracy_panels", lambda of, **_: curves.append(list(of)) or 1 / 0)
    settings = SMALL.changed({"algorithm": "fedbuff,fedasync", "buffer_size": None})
    quiet(settings, tmp_path / "run", show=said.append, pictures="few")
    assert curves == [["fedbuff, world A", "fedasync, world B"]]
    assert {
        "world A (fedbuff): protocol.failure_rate=0",
        "world B (fedasync): protocol.failure_rate=0.3",
    } <= {*said}
    assert any(line.startswith("fedasync, world B  ") for line in said)
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["worlds"]["B"] == {"runs": ["fedasync"], "protocol.failure_rate": 0.3}
    assert [row["world"] for row in summary["table"]] == ["A", "B"]


@pytest.mark.full
@pytest.mark.parametrize("name", discovery.names())
def test_the_arms_of_an_experiment_share_a_world_or_its_file_says_why_not(name):
    for scale in discovery.load(name).scales.values():
        differ = False
        for condition in grid.product(scale.conditions):
            common = Settings.from_mapping({**scale.settings, "seed": "0"})
            under = grid.under(common, scale.arms, condition, scale.overrides)
            runs = [
                (label, vars(as_read(resolve_run(arm, arm.algorithm, 0, alone=len(under) == 1))))
                for label, arm in under.items()
            ]
            differ = differ or bool(worlds(runs))
        assert differ == bool(scale.different_worlds)


def test_no_result_depends_on_the_flag():
    assert GROUP["different_worlds"] == "run"


def test_an_arm_is_resolved_once_for_all_its_seeds(monkeypatch):
    resolved = []
    monkeypatch.setattr(
        resolution,
        "resolve_run",
        lambda settings, *rest, **alone: resolved.append(settings) or resolve_run(settings, *rest, **alone),
    )
    listed = SMALL.changed({"seed": "3,5,7"})
    compared, loaded = {"a": listed, "b": listed.changed({"learning_rate": 0.3})}, DataCache()
    runs = resolve(compared, loaded)
    assert [(label, run.seed) for label, run in runs] == [(label, seed) for label in "ab" for seed in "357"]
    assert len(resolved) == 4, "two arms, before and after the data set is read"
    assert resolve(compared, loaded) == runs and len(resolved) == 4
    for seed in "357":
        own = {label: arm.changed({"seed": seed}) for label, arm in compared.items()}
        assert resolve(own, DataCache()) == [each for each in runs if each[1].seed == seed]
