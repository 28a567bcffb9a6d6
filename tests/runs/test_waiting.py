"""What is told while something without steps is made."""

import time

from waiting import until

from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings
from jafl.runs.recording.progress import Waiting


def test_what_takes_long_is_told_and_what_is_quick_is_not(capsys, monkeypatch):
    with Waiting() as waiting:
        waiting.tell("quick")
    monkeypatch.setattr(Waiting, "PATIENCE", 0.05)
    with Waiting() as waiting:
        waiting.tell("a schedule of 3 trips")
        said = []
        until(lambda: said.append(capsys.readouterr().err) or "a schedule of 3 trips [00:0" in said[-1])
    with Waiting(shown=False) as waiting:
        waiting.tell("hidden")
        time.sleep(0.2)
    said = "".join([*said, capsys.readouterr().err])
    assert "a schedule of 3 trips [00:0" in said
    assert "quick" not in said and "hidden" not in said


def test_the_making_of_experiments_tells_which_schedule_is_made():
    said = []
    make_experiments(
        Settings(algorithm="fedbuff", model="softmax", client_trips=50, seed="3,4"), tell=said.append
    )
    assert said == [
        "fedbuff-seed3: the data set digits",
        "fedbuff-seed3: planning 50 trips",
        "fedbuff-seed4: planning 50 trips",
    ]
