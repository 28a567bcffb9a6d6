"""Metrics in TensorBoard's event files, and in a tracker of one's own."""

import math
import struct
import sys

import pytest
from run_again import SMALL, at_step, ctrl_c, quiet
from run_files import read_lines
from tensorboardX.proto.event_pb2 import Event, SessionLog

from jafl.base.errors import SettingError
from jafl.config.settings import Settings
from jafl.runs.recording import trackers


def events(folder):
    """Every event of the event files in a folder, in order: records of length, checksum, event, checksum."""
    found = []
    for file in sorted(folder.glob("events.out.tfevents.*")):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def scalars(folder):
    """{name: {server step: value}} as TensorBoard shows it: a restart at a step discards what lies beyond."""
    shown = {}
    for event in events(folder):
        if event.session_log.status == SessionLog.START:
            for values in shown.values():
                for step in [step for step in values if step >= event.step]:
                    del values[step]
        for value in event.summary.value:
            shown.setdefault(value.tag, {})[event.step] = value.simple_value
    return shown


def wanted(folder):
    """The same from ``metrics.jsonl``, in the 32 bits that event files have."""
    found = {}
    for line in read_lines(folder / "metrics.jsonl"):
        for name, value in line.items():
            if name != "server_step" and value is not None:
                found.setdefault(name, {})[line["server_step"]] = struct.unpack("f", struct.pack("f", value))[
                    0
                ]
    return found


def test_event_files_hold_what_metrics_do(tmp_path):
    quiet(SMALL, tmp_path / "run", trackers=trackers.named("tensorboard"))
    shown = scalars(tmp_path / "run" / "tensorboard")
    assert {"test_accuracy", "test_loss", "train_loss", "client_trips", "time"} <= set(shown)
    assert shown == wanted(tmp_path / "run")
    before = list((tmp_path / "run" / "tensorboard").iterdir())
    quiet(SMALL, tmp_path / "run", overwrite=True)
    assert before
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_run_that_goes_on_shows_what_one_that_was_not_stopped_does(tmp_path):
    (tensorboard,), folder = trackers.named("tensorboard"), tmp_path / "run"

    class Beyond:  # what a killed process had written after its last checkpoint
        def __init__(self, path, settings, server_step):
            self.writer = tensorboard(path, settings, server_step)

        def write(self, evaluation):
            self.writer.write(evaluation)
            if evaluation["server_step"] == 15:
                self.writer.write({**evaluation, "server_step": 17, "test_accuracy": -1.0})

        def close(self):
            self.writer.close()

    quiet(SMALL, folder, trackers=[Beyond, at_step(15, ctrl_c)])
    assert -1.0 in scalars(folder / "tensorboard")["test_accuracy"].values()
    quiet(SMALL, folder, resume=True, trackers=[tensorboard])
    assert len(list((folder / "tensorboard").iterdir())) == 2
    assert scalars(folder / "tensorboard") == wanted(folder)


def test_a_tracker_of_ones_own_gets_every_evaluation_and_is_closed(tmp_path):
    tracked = []

    class Mine:
        def __init__(self, path, settings, server_step):
            tracked.append((path, settings["learning_rate"], server_step))

        def write(self, evaluation):
            tracked.append(evaluation)

        def close(self):
            tracked.append("closed")

    quiet(SMALL, tmp_path / "run", trackers=[Mine])
    assert tracked[0] == (tmp_path / "run", 0.3, 0)
    assert tracked[1:-1] == read_lines(tmp_path / "run" / "metrics.jsonl")
    assert tracked[-1] == "closed"


@pytest.mark.full
def test_a_tracker_is_closed_when_training_diverges(tmp_path):
    closed = []

    class Mine:
        def __init__(self, *_):
            pass

        def write(self, evaluation):
            pass

        def close(self):
            closed.append(True)

    wild = Settings(**{**SMALL.__dict__, "learning_rate": 1e15, "client_work.l2": 1.0})
    (outcome,) = quiet(wild, tmp_path / "run", trackers=[Mine])
    assert outcome.status == "diverged"
    assert closed == [True]


def test_what_is_no_number_is_left_out(tmp_path):
    writer = trackers.TensorBoard(tmp_path, {}, 0)
    writer.write({"server_step": 3, "loss": math.nan, "top": math.inf, "none": None, "ok": 2})
    writer.close()
    assert scalars(tmp_path / "tensorboard") == {"ok": {3: 2.0}}


def test_without_tensorboardx_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(SettingError, match="pip install tensorboardX"):
        trackers.named("tensorboard")
