"""The flags beside the settings: which command reads which, and what a ``sweep.json`` in --config does."""

import json
import shlex

import pytest
from in_process import assert_refused, command

from jafl.base.errors import SettingError
from jafl.cli import command_help, command_line, given
from jafl.cli.commands import COMMANDS, FLAGS
from jafl.cli.given import swept_by
from jafl.config.calls import SHORT_NAMES
from jafl.config.settings import FORMAT, TYPES, config_content
from jafl.sweeps.sweep import SweepOutcome

SWEEP = {
    "format": FORMAT,
    "algorithm": "fedbuff",
    "model": "softmax",
    "client_trips": 50,
    "sweep": {"partition.alpha": [0.1, 1.0]},
}


def test_every_flag_is_read_by_a_command_and_every_command_reads_declared_flags():
    read = {name for command in COMMANDS.values() for name in command.flags}
    assert read == {*TYPES, *SHORT_NAMES, *FLAGS}
    for each in COMMANDS.values():
        assert len(set(each.flags)) == len(each.flags)
        assert each.word in ("", *each.flags) and bool(each.word) == bool(each.words)


def test_every_command_has_an_act_and_help_with_examples_that_are_read():
    assert set(command_line.ACTS) == set(COMMANDS)
    for name, each in COMMANDS.items():
        for words in each.examples:
            assert given.read("run.py", shlex.split(words)).command.name == name
            assert words in command_help.explain_command(each, "python run.py")


def test_the_mark_of_utf_8_is_no_part_of_flag_files_and_configs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flags.txt").write_bytes(b"\xef\xbb\xbf--seed=1\r\n--num_clients=7\r\n")
    asked = given.read("run.py", ["--flagfile=flags.txt"])
    assert asked.settings() == {"seed": "1", "num_clients": 7}
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps({"format": FORMAT}).encode())
    assert config_content("config.json") == {"format": FORMAT}


def test_a_flag_behind_a_flag_file_takes_the_place_of_that_in_the_file(tmp_path, monkeypatch):
    (tmp_path / "flags.txt").write_text("--seed=1\n--noevaluate_clients\n")
    monkeypatch.chdir(tmp_path)
    asked = given.read("run.py", ["--flagfile=flags.txt", "--seed=2", "--evaluate_clients"])
    assert asked.settings() == {"seed": "2", "evaluate_clients": True}
    for typed in ("--seed=2 --flagfile=flags.txt", "--evaluate_clients --flagfile flags.txt"):
        with pytest.raises(SettingError, match="stands before --flagfile, whose file has it, too"):
            given.read("run.py", typed.split())


def test_words_are_the_command_s_own_flag_and_may_stand_behind_others():
    for typed in (
        "report runs --baseline=ace",
        "report --baseline=ace runs",
        "report --report=runs --baseline ace",
    ):
        asked = given.read("run.py", shlex.split(typed))
        assert (asked.report, asked.baseline, asked.command.name) == ("runs", "ace", "report")
        assert asked.words == ["python", "run.py", *shlex.split(typed)]
    assert given.read("run.py", ["compare", "a", "b"]).compare == "a,b"


def test_of_a_flag_file_a_command_takes_what_it_reads(tmp_path):
    (tmp_path / "flags.txt").write_text("# both\n--seed=3\n--delay.mean=2\n--overwrite\n--baseline=ace\n")
    said = command(["report", "none", "--flagfile=flags.txt"], tmp_path)
    assert said.status == 2 and "'none' is not a directory" in said.text
    for flag in ("--seed=3", "--delay.mean=2", "--overwrite"):
        assert f"Warning: {flag} stands in the flag file, but report does not read it." in said.text
    assert "baseline" not in said.text


@pytest.mark.parametrize("typed", ["-h", "--help", "help", "--helpshort", "-?"])
def test_every_way_to_ask_for_help(typed, tmp_path):
    said = command([typed], tmp_path)
    assert said.status == 0 and 'sweep "partition.alpha=0.1,1"' in said.text
    assert said.text.count("\n") <= 50  # two screens
    told = (
        command(["sweep", typed], tmp_path).text
        if typed != "help"
        else command(["help", "sweep"], tmp_path).text
    )
    assert "four conditions" in told and "--runs_together" in told


@pytest.mark.parametrize(
    ("typed", "crossed"),
    [
        ([], {"partition.alpha": [0.1, 1.0]}),
        (["delay.mean=1,2"], "delay.mean=1,2"),
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
    said = command(["sweep", *typed, "--config=sweep.json"], tmp_path)
    assert said.status == 0, said.text
    assert asked == [(50, crossed)]


def test_a_forecast_is_of_the_arms_that_the_sweep_has_whatever_values_are_typed(tmp_path):
    arms = {"FedBuff, K = 5": {"algorithm": "fedbuff", "buffer_size": 5}}
    (tmp_path / "sweep.json").write_text(json.dumps({**SWEEP, "arms": arms}))
    typed = ["--sweep=delay.mean=1,2", f"--config={tmp_path / 'sweep.json'}"]
    crossed = {"sweep": "delay.mean=1,2", "arms": arms}
    assert swept_by(given.read("run.py", ["sweep", *typed])) == crossed
    assert swept_by(given.read("run.py", ["forecast", "h100", *typed])) == crossed


def test_what_a_config_file_holds_and_nothing_reads_is_told(tmp_path):
    content = {
        **SWEEP,
        "sweep": {"learning_rate": [0.1]},
        "split.server_classes": [1],
        "protocol.deadline": 2.0,
    }
    (tmp_path / "c.json").write_text(json.dumps(content))
    said = command(["--config=c.json", "--concurrency=500"], tmp_path)
    for warning in (
        "Warning: split.server_classes is [1] in c.json, but no run reads it. split.server_examples is left out.",
        "Warning: protocol.deadline is 2.0 in c.json, but no run reads it. protocol is asynchronous, without",
    ):
        assert warning in said.text
    assert "concurrency is 500" in said.text
    for typed in ("--split.server_classes=[2]", "--protocol.deadline=3", "--protocol=default(deadline=3)"):
        name, _, value = typed.lstrip("-").replace("=default(", ".").rstrip(")").partition("=")
        assert_refused(
            command(["--config=c.json", typed], tmp_path), f"{name} is {value} ... must be left out"
        )


@pytest.mark.full
def test_an_argument_of_a_flag_file_that_nothing_reads_is_told(tmp_path):
    lines = [f"--{name}={value}" for name, value in SWEEP.items() if name not in ("format", "sweep")]
    (tmp_path / "flags.txt").write_text("\n".join([*lines, "--protocol.deadline=2"]))
    said = command(["plan", "--flagfile=flags.txt"], tmp_path)
    assert said.status == 0, said.text
    assert "Warning: protocol.deadline is 2.0 in the flag file, but no run reads it" in said.text


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--restart=at_once", "flag 'restart'. Did you mean 'protocol.restart'?"),
        ("--delay_shape=2", "flag 'delay_shape'. Did you mean 'delay.shape'?"),
        ("--learning_rat=2", "flag 'learning_rat'. Did you mean 'learning_rate'?"),
        ("--qqqqqq=2", "flag 'qqqqqq' ... See --helpfull for all flags"),
    ],
)
def test_a_former_name_is_answered_with_the_argument_that_has_its_place(typed, words, tmp_path):
    assert_refused(command(typed.split(), tmp_path), words)


def test_an_argument_that_the_call_in_a_config_file_does_not_have_is_refused(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps({**SWEEP, "sweep": {}, "partition": "iid"}))
    assert_refused(
        command(["--config=c.json", "--partition.alpha=0.3"], tmp_path),
        "partition.alpha: iid has no argument 'alpha'; it has seed. It is an argument of dirichlet.",
    )


def test_a_comma_behind_a_number_is_no_list_to_sweep(tmp_path):
    said = command(["--num_clients=5,"], tmp_path)
    assert said.text == "Error: num_clients is '5,', but must be a whole number.\n"


@pytest.mark.parametrize(("name", "meant"), [("gama", "gamma"), ("polynomail", "polynomial")])
def test_help_on_a_name_like_that_of_a_value_asks_for_the_value(name, meant, tmp_path):
    said = command(["help", name], tmp_path)
    assert said.status == 2
    assert f"No command, setting or flag is called {name!r}. Did you mean {meant!r}?" in said.text


def test_help_shows_no_markup_of_docstrings():
    for setting in ("client_optimizer", "server_optimizer", "delay", "protocol", "model"):
        text = command_help.of(setting, "python run.py")
        assert "`" not in text and "optax.scale_by_learning_rate" in text + command_help.of("sgd", "")


def test_the_home_directory_is_found_behind_an_equals_sign_as_no_shell_does(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = given.read("run.py", ["--output_dir=~/runs/one", "--config=~/config.json"])
    assert (asked.output_dir, asked.config) == (f"{tmp_path}/runs/one", f"{tmp_path}/config.json")
    assert given.read("run.py", []).output_dir is None
