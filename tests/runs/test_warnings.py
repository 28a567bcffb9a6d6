"""A run that did not learn says so on the command line: when it ends, in the table and in summary.json."""

import json
import warnings

import pytest
from command_line import flags, run_py
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.config.settings import Settings
from jafl.runs import runner
from jafl.sweeps.sweep import run_sweep

SMALL = {
    "num_clients": 10,
    "concurrency": 5,
    "buffer_size": 5,
    "client_trips": 400,
    "model": "softmax",
    "learning_rate": 0.1,
}
TOO_HIGH = {"server_learning_rate": 1000.0}


def compared(folder, **changes):
    """(what was said, the outcomes) of a comparison, which issues no Python warning."""
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", jafl.NotLearningWarning)
        outcomes = runner.run(
            Settings(**{**SMALL, **changes}), folder, show=said.append, pictures=False, progress=False
        )
    return said, outcomes


@pytest.mark.full
@pytest.mark.parametrize(
    "rate, advice, kind, words",
    [
        (
            1000.0,
            "Lower --server_learning_rate, which is 1000, to 1 for example",
            "loss rose",
            "ended with a warning",
        ),
        (
            1e-5,
            "raise --server_learning_rate, which is 1e-05, to 1 for example",
            "did not learn",
            "did not learn",
        ),
    ],
)
def test_a_run_with_a_warning_is_told_when_it_ends_in_the_table_and_in_its_summary(
    rate, advice, kind, words, tmp_path
):
    model = (
        "mlp" if kind == "did not learn" else "softmax"
    )  # without hidden units the least step tells labels apart
    said, (fedbuff, fedavg) = compared(
        tmp_path, algorithm="fedbuff,fedavg", server_learning_rate=rate, model=model
    )
    for outcome in (fedbuff, fedavg):
        assert outcome.status == "finished"
        warning = outcome.summary["warning"]
        assert advice in warning and outcome.summary["warning_kinds"] == [kind]
        assert f"{outcome.experiment.name}: {warning}" in said
        kept = json.loads((tmp_path / outcome.experiment.name / "summary.json").read_text())
        assert kept["warning"] == warning
    rows = [line for line in said if line.startswith(("fedbuff ", "fedavg "))]
    assert len(rows) == 2 and all(row.endswith(f"1 of 1 {words}") for row in rows)
    comparison = json.loads((tmp_path / "summary.json").read_text())
    assert [row["not_learned"] for row in comparison["table"]] == 2 * [int(kind == "did not learn")]


def test_a_run_that_learned_says_nothing(tmp_path):
    said, (outcome,) = compared(tmp_path, algorithm="fedbuff")
    assert outcome.summary["warning"] is None
    assert not any("did not learn" in line for line in said)


@pytest.mark.full
@pytest.mark.parametrize("runs_together", ["auto", "never"])
def test_a_sweep_tells_which_runs_did_not_learn(tmp_path, runs_together):
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", jafl.NotLearningWarning)
        run_sweep(
            Settings(**SMALL, algorithm="fedbuff", seed="0,1"),
            "server_learning_rate=1.0,1000.0",
            tmp_path,
            show=said.append,
            pictures=False,
            progress=False,
            runs_together=runs_together,
        )
    assert sum("(2 ended with a warning)" in line for line in said) == 1
    for rate in ("1.0", "1000.0"):
        for seed in (0, 1):
            (folder,) = tmp_path.glob(f"server_learning_rate={float(rate):g}/fedbuff-seed{seed}")
            summary = json.loads((folder / "summary.json").read_text())
            assert bool(summary["warning"]) == (rate == "1000.0")


# Worlds in which a server's rate of 3, good in the main job, leaves FedBuff at chance.
ELSEWHERE = {
    "constant delays": {"delay": "constant", "client_trips": 3000},
    "label groups": {
        "num_clients": 15,
        "concurrency": 15,
        "buffer_size": 5,
        "partition": "label_groups([(10, [4, 5, 6, 7, 8, 9]), (5, [0, 1, 2, 3])])",
        "delay": "groups([(10, uniform(1, 2)), (5, uniform(8, 12))])",
    },
}


@pytest.mark.full
@pytest.mark.compiled_as_for_users
@pytest.mark.parametrize("world", list(ELSEWHERE))
def test_the_preset_learns_where_clients_are_alike_or_grouped_and_a_rate_that_fails_is_told(world, tmp_path):
    warning = []
    for rates in ({"learning_rate": 0.3, "server_learning_rate": 3.0}, {}):
        settings = Settings(algorithm="fedbuff", **ELSEWHERE[world], **rates)
        folder = tmp_path / str(len(warning))
        (outcome,) = runner.run(settings, folder, show=lambda line: None, pictures=False, progress=False)
        warning.append(outcome.summary["warning"])
    assert "Lower --server_learning_rate, which is 3, to 1 for example" in warning[0]
    assert warning[1] is None and outcome.summary["final"]["test_accuracy"] > 0.85


@pytest.mark.full
def test_the_command_ends_with_status_0_and_a_visible_warning(tmp_path):
    ended = run_py(*flags({**SMALL, **TOO_HIGH, "algorithm": "fedbuff"}), "--pictures=none", folder=tmp_path)
    assert ended.returncode == 0
    assert "fedbuff-seed0: The run learned, but its predictions are surer" in ended.stdout
    assert "1 of 1 ended with a warning" in ended.stdout
    assert "Warning" not in ended.stderr
