"""How objects show themselves: one line of text, and a small table with a picture in a notebook."""

import dataclasses
import math
import re
import subprocess
import sys
import xml.etree.ElementTree

import flax.linen as nn
import numpy as np
import pytest

import jafl
from jafl.base import display
from jafl.records import History

SOURCE = jafl.data.synthetic(num_clients=7, alpha=1.0, beta=1.0, mean_examples=30, num_features=5)
SCHEDULE = jafl.asynchronous(
    num_clients=100, concurrency=20, buffer_size=4, delay=jafl.delays.pareto(1.0, 1.2), client_trips=2000
)


def history(**changes) -> History:
    steps = range(0, 501, 5)
    evaluations = [
        {
            "server_step": t,
            "client_trips": 4 * t,
            "time": t / 7,
            "test_accuracy": 1 - 1 / (1 + t),
            "test_loss": 1 / (1 + t),
        }
        for t in steps
    ]
    fields = dict(
        evaluations=evaluations,
        params={"kernel": np.zeros((1000, 100))},
        trip_reports={"loss": np.zeros(2000)},
        step_reports={},
        schedule=SCHEDULE,
        server_steps=500,
        num_slots=3,
        compile_seconds=1.0,
        run_seconds=2.0,
    )
    return History(**{**fields, **changes})


def many_clients() -> jafl.Federation:
    x, y = np.zeros((20_000, 3), np.float32), np.arange(20_000) % 100
    clients = jafl.Partition.from_lists(np.arange(20_000).reshape(10_000, 2))
    return jafl.Federation.from_arrays(x, y, clients, test_x=x[:9], test_y=y[:9], name="<many> & more")


def with_labels(labels) -> jafl.Federation:
    x, clients = np.zeros((20, 3), np.float32), jafl.Partition.from_lists([range(5), range(5, 20)])
    return jafl.Federation.from_arrays(x, labels, clients, test_x=x[:5], test_y=labels[:5])


def stopped_at_once() -> History:
    none = {"loss": np.zeros(0)}
    return history(evaluations=history().evaluations[:1], server_steps=0, trip_reports=none)


SHOWN = {
    "history": history(),
    "history without evaluations": history(evaluations=[]),
    "history that has just begun": stopped_at_once(),
    "history of losses": history(evaluations=[{"client_trips": t, "test_loss": 0.5} for t in range(9)]),
    "history with NaN": history(evaluations=[{"client_trips": t, "test_loss": math.nan} for t in range(9)]),
    "schedule": SCHEDULE,
    "plan": jafl.trip_by_trip(SCHEDULE),
    "federation": jafl.federate(SOURCE, SOURCE.natural_partition),
    "federation of 10,000": many_clients(),
    "federation of numbers": with_labels(np.linspace(0, 1, 20)),
    "federation of several labels": with_labels(np.eye(20, 4, dtype=int)),
    "source": SOURCE,
    "partition": SOURCE.natural_partition,
    "model": jafl.models.mlp(10, hidden_sizes=[64]),
    "deep model": jafl.models.resnet18(10),
    "mixed model": dataclasses.replace(jafl.models.cnn(10, (8,)), compute_dtype="bfloat16"),
    "own model": jafl.Model(
        nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)]), lambda outputs, labels: outputs[:, 0]
    ),
    "frozen model": dataclasses.replace(jafl.models.softmax(3), frozen={"words": np.zeros((10_000, 50))}),
    "model of functions": jafl.Model((lambda key: np.ones(3), lambda params, x: x), task="regression"),
    "rule": jafl.rules.fedbuff().build(),
    "rule with memory": jafl.rules.ace().build(),
}


@pytest.mark.parametrize("name", SHOWN)
def test_repr_is_one_short_line(name):
    text = repr(SHOWN[name])
    assert "\n" not in text and len(text) < 200 and "object at 0x" not in text


@pytest.mark.parametrize("name", [name for name in SHOWN if name != "plan"])
def test_html_is_small_and_well_formed(name):
    page = SHOWN[name]._repr_html_()
    assert len(page) < 12_000
    xml.etree.ElementTree.fromstring(page)  # every mark is closed, every text escaped
    assert "<table" in page and not re.search(r"\b(nan|inf)\b", "".join(re.findall(r"<svg.*?</svg>", page)))


@pytest.mark.parametrize(
    "name, shown",
    [
        ("history", ["500 of 500", "test accuracy", "0.998", "client trips", "<polyline"]),
        ("schedule", ["mean staleness", "applied trips", "2,000", "<path"]),
        ("federation", ["clients", "7", "a color for each label"]),
        ("federation of 10,000", ["10,000", "&lt;many&gt; &amp; more", "client (40 of 10,000)"]),
        ("model", ["MLP", "[64]", "softmax_cross_entropy"]),
        ("model", ["classification", "accuracy"]),
        ("model of functions", ["regression"]),
        ("frozen model", ["parameters that are not trained", "500,000"]),
        ("rule with memory", ["client memory", "server optimizer"]),
    ],
)
def test_html_says_what_matters(name, shown):
    page = SHOWN[name]._repr_html_()
    for text in shown:
        assert text in page


def test_repr_says_what_matters():
    assert "500 of 500 server steps, 2,000 client trips" in repr(SHOWN["history"])
    assert "test_accuracy 0.998" in repr(SHOWN["history"])
    assert "labels () float" in repr(SHOWN["federation of numbers"]) and "10 classes" in repr(SHOWN["source"])
    assert "labels (4,)" in repr(SHOWN["federation of several labels"])
    assert "MLP(num_classes=10, hidden_sizes=[64])" in repr(SHOWN["model"])
    assert "compute_dtype=bfloat16" in repr(SHOWN["mixed model"])
    assert "ace, any buffer size, client memory in full" in repr(SHOWN["rule with memory"])


def test_a_specification_of_a_rule_shows_the_rule():
    page = jafl.rules.fedbuff()._repr_html_()
    assert "fedbuff(staleness_weight=polynomial(exponent=0.5)" in page and "server optimizer" in page
    assert jafl.client_work(jafl.models.softmax(3), learning_rate=0.1)._repr_html_() is None
    assert jafl.rules.ace(memory_precision="int5")._repr_html_() is not None
    assert jafl.specify(np.full, "no shape", 1.0)._repr_html_() is None


def test_a_line_runs_through_its_points():
    svg = display.line_chart([0, 1, 2, 4], [0.0, 1.0, math.nan, 0.5], "trips", "accuracy")
    places = re.search(r'points="([^"]+)"', svg)[1].split()
    x, y = np.array([place.split(",") for place in places], float).T
    assert len(x) == 3 and x[0] == display.LEFT and x[-1] == display.RIGHT
    np.testing.assert_allclose(y, [display.BOTTOM, display.TOP, (display.BOTTOM + display.TOP) / 2])
    assert display.line_chart([0], [math.nan], "trips", "accuracy") == ""
    assert "<polyline" in display.line_chart([3], [0.5], "trips", "accuracy")


def test_bars_are_as_high_as_their_numbers():
    svg = display.bars([np.array([1, 0, 2]), np.array([1, 4, 0])], "client", "examples", (0, 2))
    heights = [
        [float(h) for h in re.findall(r"v([\d.]+)h", path)]
        for path in re.findall(r'<path d="(M[^"]*z)"', svg)
    ]
    full = display.BOTTOM - display.TOP
    assert heights == [pytest.approx([full / 4, full / 2], abs=0.1), pytest.approx([full / 4, full], abs=0.1)]


def test_a_histogram_counts_every_value():
    staleness = np.repeat(np.arange(100), np.arange(100))
    svg = display.histogram(staleness, "staleness", "trips")
    assert len(re.findall(r"M[\d.]+ [\d.]+h", svg)) == 33  # the values 1 to 99 in bars of three
    assert "tallest bar: 294" in svg  # 97 + 98 + 99


def test_pictures_need_no_library():
    program = (
        "import sys, jafl; s = jafl.asynchronous(num_clients=3, concurrency=2, delay=jafl.delays.constant(1.0), "
        "server_steps=3); print(s); s._repr_html_(); assert not {'jax', 'matplotlib', 'pandas'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("<EventSchedule: 3 clients")
