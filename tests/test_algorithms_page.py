"""docs/algorithms.md is what its command writes from the docstrings, and has every algorithm."""

import pathlib
import subprocess
import sys
import types

import pytest

from jafl import rules
from jafl.config.presets import ALGORITHMS
from jafl.records import Requirements

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import algorithms  # noqa: E402  (its folder is added above)

ROWS = [line for line in algorithms.PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]


def rows_of(name: str) -> list[list[str]]:
    """The cells of the page's rows on an algorithm."""
    first = [f"| [`{name}`](", f"| `{name}` "]
    return [[*map(str.strip, row.split(" | "))] for row in ROWS if row.startswith(tuple(first))]


def test_the_page_is_current():
    check = subprocess.run(
        [sys.executable, "docs/algorithms.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert check.returncode == 0, check.stderr


def test_every_algorithm_is_on_the_page():
    for name in ALGORITHMS:
        assert len(rows_of(name)) == (2 if name in rules.RULES else 1), name


def test_what_the_page_says_of_some_rules():
    what, keeps = rows_of("fedbuff")
    assert what[1:3] == ["2022", "Nguyen et al., AISTATS, algorithm 1"]
    assert what[3] == r"The direction is (1/K) sum\_i s(staleness\_i) update\_i"
    assert keeps[1:7] == ["nothing", "nothing", "yes", "yes", "yes", "yes"]
    assert keeps[7].startswith("[fedbuff](../conformance/vectors/fedbuff.json), ")
    what, keeps = rows_of("ace")
    assert what[4].startswith(
        "asynchronous, a step at each arrival, all clients train at the initial model first"
    )
    assert keeps[2] == "1 array of the model's size, a stored value for each client"
    assert keeps[3:7] == ["yes", "", "", ""]
    assert rows_of("fedfa")[1][2] == "5 arrays of the model's size, downloaded models"
    assert rows_of("fedavgm")[0][3] == "`server_optimizer.momentum=0.9` |"


@pytest.mark.parametrize("name", rules.RULES)
def test_every_rule_has_an_equation(name: str):
    sentence = algorithms.equation(name)
    assert 20 < len(sentence) < 600
    words = "steps along"  # WKAFL's is four sentences long
    assert algorithms.EQUATION.search(sentence) or (name == "wkafl" and words in sentence)


def test_a_rule_without_a_year_is_refused(monkeypatch):
    module = types.ModuleType("my_rule", "A rule without a source.")
    monkeypatch.setattr(algorithms.inspect, "getmodule", lambda function: module)
    with pytest.raises(ValueError, match=r"the first line of my_rule must end with its source and the year"):
        algorithms.citation("fedbuff")


def test_a_combination_without_a_paper_is_refused(monkeypatch):
    monkeypatch.delitem(algorithms.COMBINATIONS, "fedprox")
    with pytest.raises(ValueError, match="name the paper of fedprox in COMBINATIONS"):
        algorithms.combinations()


def test_a_requirement_that_the_page_does_not_know_is_named(monkeypatch):
    """A field of ``Requirements`` without words of its own stands in the column of protocols."""
    monkeypatch.setattr(algorithms, "KNOWN", tuple(set(algorithms.KNOWN) - {"needs_start", "buffer_size"}))
    assert algorithms.protocol("fedasync").endswith("needs start, buffer size: 1")
    assert set(algorithms.KNOWN) <= set(Requirements._fields)
