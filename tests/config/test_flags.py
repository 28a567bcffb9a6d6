"""The flags beside the settings: which command reads which, and what a ``sweep.json`` in --config does."""

import json

import pytest
from absl import flags
from in_process import assert_refused, command

from jafl.cli import command_line
from jafl.config.calls import SHORT_NAMES
from jafl.config.settings import FORMAT, TYPES
from jafl.sweeps.sweep import SweepOutcome

# Read by every command, or commands themselves.
EVERYWHERE = {"compare", "compilation_cache", "pictures", "version"}
SWEEP = {
    "format": FORMAT,
    "algorithm": "fedbuff",
    "model": "softmax",
    "client_trips": 50,
    "sweep": {"partition.alpha": [0.1, 1.0]},
}


def test_every_flag_says_which_commands_read_it(tmp_path):
    command(["--version"], tmp_path)  # defines the settings' flags
    own = {flag.name for flag in flags.FLAGS.flags_by_module_dict()[command_line.__name__]}
    settings = {*TYPES, *SHORT_NAMES}
    assert own - settings - EVERYWHERE == set(command_line._READ_BY) - settings
    assert settings <= set(command_line._READ_BY)
    for commands in command_line._READ_BY.values():
        assert set(commands) <= {*command_line._DOES, "config", "resume", "overwrite"}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--scale=desk", "scale is 'desk', but must be left out without --experiment."),
        ("--manual_dir=x", "manual_dir is 'x', but must be left out without --prepare."),
        ("--baseline=fedavg", "baseline is 'fedavg', but must be left out without --sweep or --report."),
        ("--report=. --seed=3", "seed is '3', but must be left out with --report."),
        ("--prepare=mnist --num_clients=3", "num_clients is 3, but must be left out with --prepare."),
        (
            "--benchmark=list --experiment=list",
            "experiment is 'list', but must be left out with --benchmark.",
        ),
        ("--dry_run --tensorboard", "tensorboard is True, but must be left out with --dry_run."),
    ],
)
def test_a_flag_that_nothing_reads_is_refused(typed, words, tmp_path):
    assert_refused(command(typed.split(), tmp_path), words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "crossed"),
    [
        ([], {"partition.alpha": [0.1, 1.0]}),
        (["--sweep=delay.mean=1,2"], "delay.mean=1,2"),
    ],
)
def test_a_sweep_in_config_is_run_again(typed, crossed, tmp_path, monkeypatch):
    """A sweep that is typed takes its place."""
    asked = []

    def run_sweep(settings, sweep, output, **options):
        asked.append((settings.client_trips, sweep))
        return SweepOutcome([], {"finished": 2})

    monkeypatch.setattr("jafl.sweeps.sweep.run_sweep", run_sweep)
    (tmp_path / "sweep.json").write_text(json.dumps(SWEEP))
    said = command(["--config=sweep.json", *typed], tmp_path)
    assert said.status == 0, said.text
    assert asked == [(50, crossed)]


def test_what_a_config_file_holds_and_nothing_reads_is_told(tmp_path):
    content = {**SWEEP, "sweep": {"learning_rate": [0.1]}, "server_classes": "1", "protocol.deadline": 2.0}
    (tmp_path / "c.json").write_text(json.dumps(content))
    said = command(["--config=c.json", "--concurrency=500"], tmp_path)
    for warning in (
        "Warning: server_classes is '1' in c.json, but no run reads it: only where server_examples is given; ",
        "Warning: protocol.deadline is 2.0 in c.json, but no run reads it: only where protocol is synchronous; ",
    ):
        assert warning in said.text
    assert "concurrency is 500" in said.text
    for typed in ("--server_classes=2", "--protocol.deadline=3", "--protocol=default(deadline=3)"):
        name, _, value = typed.lstrip("-").replace("=default(", ".").rstrip(")").partition("=")
        value = repr(value) if name == "server_classes" else value  # a text
        assert_refused(
            command(["--config=c.json", typed], tmp_path), f"{name} is {value} ... must be left out"
        )


def test_an_argument_of_a_flag_file_that_nothing_reads_is_told(tmp_path):
    lines = [f"--{name}={value}" for name, value in SWEEP.items() if name not in ("format", "sweep")]
    (tmp_path / "flags.txt").write_text("\n".join([*lines, "--protocol.deadline=2"]))
    said = command(["--flagfile=flags.txt", "--dry_run"], tmp_path)
    assert said.status == 0, said.text
    assert "Warning: protocol.deadline is 2.0 in the flag file, but no run reads it" in said.text


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--restart=at_once", "flag 'restart'. Did you mean 'protocol.restart'?"),
        ("--delay_shape=2", "flag 'delay_shape'. Did you mean 'delay.shape'?"),
        ("--learning_rat=2", "flag 'learning_rat'. Did you mean: learning_rate"),
        ("--qqqqqq=2", "flag 'qqqqqq' ... See --help for all flags"),
    ],
)
def test_a_former_name_is_answered_with_the_argument_that_has_its_place(typed, words, tmp_path):
    assert_refused(command(typed.split(), tmp_path), words)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (
            "--protocol=asynchronous(buffer_size=5) --buffer_size=4",
            "buffer_size is '4' ... where protocol says it",
        ),
        ("--algorithm=fedbuff,wkafl(momentum=0.5) --algorithm.momentum=1", "where algorithm says it, too"),
        (
            "--buffer_size=4 --protocol.buffer_size=4",
            "left out where buffer_size, the same setting, is given",
        ),
    ],
)
def test_an_argument_that_is_said_twice_is_refused(typed, words, tmp_path):
    assert_refused(command(typed.split(), tmp_path), words)


def test_an_argument_that_the_call_in_a_config_file_does_not_have_is_refused(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps({**SWEEP, "sweep": {}, "partition": "iid"}))
    assert_refused(
        command(["--config=c.json", "--partition.alpha=0.3"], tmp_path),
        "partition.alpha: iid has no argument 'alpha'; it has seed. It is an argument of dirichlet.",
    )
