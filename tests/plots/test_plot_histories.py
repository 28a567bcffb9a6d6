"""Histories may stand where a picture wants evaluations or weights."""

import numpy as np
import pytest
from pictures import legend, lines

import jafl
from jafl import plots
from jafl.records import History

SCHEDULE = jafl.asynchronous(num_clients=3, concurrency=2, delay=jafl.delays.constant(1.0), server_steps=4)


def history(accuracy: float) -> History:
    rows = [
        {
            "server_step": t,
            "client_trips": t,
            "time": float(t),
            "test_accuracy": accuracy * t / 4,
            "noise": t / 2,
        }
        for t in range(5)
    ]
    reports = {"loss": np.zeros(4), "weight": np.array([0.5, 1.0, 0.25, 1.0])}
    return History(rows, {}, reports, {}, SCHEDULE, 4, 2, 1.0, 1.0)


def drawn(runs, **options):
    figure = plots.accuracy(runs, **options)
    return {label: line.get_ydata().tolist() for label, line in lines(figure.axes[0]).items()}, legend(figure)


ONE, TWO = history(0.8), history(0.4)


@pytest.mark.parametrize("runs", [ONE, [ONE], ONE.evaluations, {"run": ONE}, {"run": [ONE]}])
def test_accuracy_takes_a_history(runs):
    assert drawn(runs) == drawn({"run": [ONE.evaluations]})


@pytest.mark.parametrize("runs", [[ONE, TWO], {"run": [ONE, TWO]}, {"run": (ONE, TWO.evaluations)}])
def test_several_histories_are_seeds(runs):
    assert drawn(runs) == drawn({"run": [ONE.evaluations, TWO.evaluations]})
    assert "± 1 standard error of 2 seeds" in drawn(runs)[1]


def test_labels_stay():
    by_label = {"FedBuff": ONE, "FedAvg": [TWO]}
    expected = {"FedBuff": [ONE.evaluations], "FedAvg": [TWO.evaluations]}
    assert drawn(by_label) == drawn(expected)
    panels = plots.accuracy_panels(by_label).axes
    assert [list(lines(panel)) for panel in panels] == [["FedBuff", "FedAvg"]] * 3


@pytest.mark.parametrize("label", [0.5, None, ("a", 1)])
def test_labels_that_are_no_texts_are_written_as_python_does(label):
    assert drawn({label: ONE}) == drawn({str(label): ONE})


def test_reports_and_weights_take_a_history():
    assert plots.report_names(ONE) == ["noise"]
    assert plots.reports(ONE).axes[0].get_title(loc="left") == "noise"
    of_history, of_weights = plots.weights(ONE).axes[0], plots.weights(ONE.weights).axes[0]
    assert of_history.get_title(loc="left") == of_weights.get_title(loc="left")


@pytest.mark.parametrize("runs", [None, "runs/001", [], {}, {"a": "b"}, [3]])
def test_anything_else_is_refused(runs):
    with pytest.raises(jafl.SettingError, match="runs"):
        plots.accuracy(runs)
