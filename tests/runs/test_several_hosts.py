"""One run in several processes, played in this one: what the first one orders, and what the others then do."""

import json
import socket
import types

import jax
import pytest

from jafl.base import processes
from jafl.base.errors import SettingError
from jafl.config.experiment import Experiment
from jafl.config.settings import Settings
from jafl.runs import runner
from jafl.runs.hosts import connection, several_hosts
from jafl.simulation import driver
from jafl.simulation.divergence import DivergenceError

SETTINGS = {
    "algorithm": "fedbuff",
    "model": "softmax",
    "num_clients": 10,
    "concurrency": 4,
    "buffer_size": 2,
    "client_trips": 40,
}
QUIETLY = {"pictures": "none", "progress": False, "show": lambda line: None}


@pytest.fixture
def orders(monkeypatch):
    """What the first process sends, as JSON brings it to the others."""
    sent = []

    def decided(value):
        if isinstance(value, dict) and value.keys() & {"run", "end"}:  # the engine decides other things
            sent.append(json.loads(json.dumps(value)))
        return value

    monkeypatch.setattr(processes, "decided", decided)
    return sent


def lead(settings, folder, **options):
    """Runs the command of the first process; returns how the runs ended."""
    leader = several_hosts.Leader()
    try:
        outcomes = runner.run(Settings(**settings), folder, hosts=leader, **{**QUIETLY, **options})
    finally:
        leader.end(0)
    return outcomes


def follow(settings, orders, monkeypatch):
    """Does what another process does; returns what it trained, by name."""
    trained, simulate = {}, Experiment.simulate

    def kept(self, **options):
        trained[self.name] = simulate(self, **options)
        return trained[self.name]

    with monkeypatch.context() as patch:
        waiting = iter(orders)
        patch.setattr(processes, "decided", lambda own: next(waiting) if own is None else own)
        patch.setattr(Experiment, "simulate", kept)
        status = several_hosts.Follower().follow(Settings(**settings))
    assert next(waiting, None) is None, "it did not wait for the last order"
    return status, trained


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.full
def test_the_others_train_what_the_first_one_orders_and_write_nothing(orders, tmp_path, monkeypatch, capsys):
    settings = {**SETTINGS, "algorithm": "fedbuff,fedavg"}
    outcomes = lead(settings, tmp_path / "run", checkpoint_every=0)
    assert [order.get("run", "end") for order in orders] == ["fedbuff-seed0", "fedavg-seed0", "end"]
    before = files(tmp_path)
    capsys.readouterr()
    status, trained = follow(settings, orders, monkeypatch)
    assert status == 0 and files(tmp_path) == before
    assert capsys.readouterr().out == ""
    for outcome in outcomes:
        history = trained[outcome.experiment.name]
        assert history.evaluations == outcome.evaluations


@pytest.mark.full
def test_a_run_with_a_larger_budget_is_ordered_from_its_start(orders, tmp_path, monkeypatch):
    lead(SETTINGS, tmp_path / "run", checkpoint_every=0)
    orders.clear()
    larger = SETTINGS | {"client_trips": 80}
    (outcome,) = lead(larger, tmp_path / "run", resume=True, checkpoint_every=0)
    status, trained = follow(larger, orders, monkeypatch)
    assert status == 0
    assert trained["fedbuff-seed0"].evaluations == outcome.evaluations


@pytest.mark.full
@pytest.mark.parametrize("before", [pytest.param("finished", marks=pytest.mark.full), "damaged"])
def test_a_run_that_is_trained_anew_is_ordered_from_its_start(before, orders, tmp_path, monkeypatch):
    """By --overwrite, whatever the earlier run was."""
    first = lead(SETTINGS, tmp_path / "run", checkpoint_every=5)
    if before == "damaged":
        (tmp_path / "run" / "params.npz").write_bytes(b"\xff")
    orders.clear()
    again = lead(SETTINGS, tmp_path / "run", overwrite=True, checkpoint_every=5)
    assert [order.get("run", "end") for order in orders] == ["fedbuff-seed0", "end"]
    status, trained = follow(SETTINGS, orders, monkeypatch)
    assert status == 0
    assert trained["fedbuff-seed0"].evaluations == again[0].evaluations == first[0].evaluations


@pytest.mark.full
def test_an_error_while_recording_is_raised_once_all_have_stopped(orders, tmp_path, monkeypatch):
    """As of a full disk: before that, the others would wait for the first one for ever."""
    ends = []
    simulate = Experiment.simulate

    def until_its_end(self, **options):
        history = simulate(self, **options)
        ends.append((history.server_steps, options["should_stop"]()))
        return history

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Experiment, "simulate", until_its_end)
    monkeypatch.setattr("jafl.runs.directory.files.RunDirectory.append_evaluation", full)
    with pytest.raises(OSError, match="No space left"):
        lead(SETTINGS, tmp_path / "run", checkpoint_every=0)
    ((steps, stopping),) = ends
    assert stopping and steps < 20
    assert orders[-1] == {"end": 0}


@pytest.mark.full
def test_a_run_that_diverges_does_not_end_the_others(orders, tmp_path, monkeypatch):
    settings = {**SETTINGS, "learning_rate": 1e30, "client_work.l2": 1.0, "seed": "0,1"}
    outcomes = lead(settings, tmp_path / "run", checkpoint_every=0)
    assert [outcome.status for outcome in outcomes] == ["diverged", "diverged"]
    assert isinstance(outcomes[0].error, DivergenceError)
    assert follow(settings, orders, monkeypatch) == (0, {})


def test_ctrl_c_in_another_process_stops_the_comparison(orders, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "any_process", lambda flag: True)
    said = []
    outcomes = lead({**SETTINGS, "seed": "0,1"}, tmp_path / "run", checkpoint_every=0, show=said.append)
    assert len(outcomes) == 1
    assert any("Ctrl-C or SIGTERM in another process" in line for line in said)
    assert any("runs did not finish" in line for line in said)


def member(monkeypatch, *, others=lambda own: [], failures=lambda own: [None]):
    """A process whose others say these failures, and have made what ``others`` returns."""

    def gathered(own):
        said = json.loads(json.dumps(own))
        return [own, *(others(said) if isinstance(said, dict) else failures(said))]

    monkeypatch.setattr(processes, "gathered", gathered)
    return several_hosts.Leader()


def test_differences_are_named_with_the_processes_that_have_them(monkeypatch):
    def others(own):
        return [{**own, "buffer_size": 5, "version of JAX": "0.7.0"}, own]

    with pytest.raises(SettingError) as refused:
        member(monkeypatch, others=others).settings(lambda: Settings(**SETTINGS))
    said = str(refused.value)
    assert "buffer_size: 2 in processes 0, 2; 5 in process 1" in said
    assert "version of JAX" in said and "'0.7.0' in process 1" in said
    assert "seed" not in said and "same command" in said


def test_folders_may_differ(monkeypatch):
    def others(own):
        assert "data_dir" not in own
        return [own]

    assert member(monkeypatch, others=others).settings(lambda: Settings(**SETTINGS)).buffer_size == 2


def test_other_schedules_are_named(orders, monkeypatch, tmp_path):
    """Before training."""

    def others(own):
        return [{**own, "digest of schedule": "0123"} if "digest of schedule" in own else own]

    leader = member(monkeypatch, others=others, failures=lambda own: [own and "0"])  # or its part of a digest
    monkeypatch.setattr(driver, "processes", types.SimpleNamespace(**{**vars(processes), "count": lambda: 2}))
    with pytest.raises(
        SettingError, match="digest of schedule: '[0-9a-f]*' in process 0; '0123' in process 1"
    ):
        runner.run(Settings(**SETTINGS), tmp_path / "run", hosts=leader, **QUIETLY)
    leader.end(2)
    assert orders[-1] == {"end": 2}


def test_other_data_are_named_before_there_is_a_directory(orders, monkeypatch, tmp_path):
    def others(own):
        return [{**own, "digest of dataset": ["0123"]} if "digest of dataset" in own else own]

    leader = member(monkeypatch, others=others, failures=lambda own: [own])
    with pytest.raises(
        SettingError, match=r"digest of dataset: \['[0-9a-f]*'\] in process 0; \['0123'\] in process 1"
    ):
        runner.run(Settings(**SETTINGS), tmp_path / "run", hosts=leader, **QUIETLY)
    leader.end(2)
    assert not orders and not (tmp_path / "run").exists()


def test_what_one_process_lacks_is_said_by_all(monkeypatch):
    leader = member(monkeypatch, failures=lambda own: ["mnist is not prepared"])
    with pytest.raises(SettingError, match="process 1: mnist is not prepared"):
        leader.settings(lambda: Settings(**SETTINGS))


def test_what_all_processes_lack_is_said_as_in_one(monkeypatch):
    leader = member(monkeypatch, failures=lambda own: [own])

    def fail():
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="^no room$"):
        leader.settings(fail)
    assert leader.in_step


def test_examples_that_one_process_alone_refuses_end_all(monkeypatch):
    """Each reads its own part of a memory map, and would wait for the others for ever without their word."""
    failures = iter([["x is not finite in row 7"]])
    monkeypatch.setattr(processes, "gathered", lambda own: [own, *next(failures)])
    (experiment,) = several_hosts.make_experiments(Settings(**SETTINGS))
    with pytest.raises(SettingError, match="process 1: x is not finite in row 7"):
        experiment.simulate()


def test_a_port_in_use_is_named():
    """Before JAX is asked, which may end in a segmentation fault."""
    with socket.create_server(("", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(
            SettingError, match=f"coordinator is '{where}', but must be at a port that is free"
        ):
            connection.connect(connection.Address(where, 2, 0))


@pytest.mark.parametrize("kind", [ValueError, jax.errors.JaxRuntimeError])
def test_a_lost_process_is_told_from_other_errors(kind):
    assert connection.has_lost(kind("UNKNOWN: Gloo AllGather failed: Connection reset by peer"))
    assert not connection.has_lost(kind("RESOURCE_EXHAUSTED: Out of memory"))
