"""Factories in a file of the user's own: ``my_rules.py:fancy(beta=0.5)`` as a rule, a law, a model, a data set."""

import hashlib
import sys

import jax
import numpy as np
import pytest

from jafl.base.errors import SettingError
from jafl.config import reading
from jafl.config.calls import changed_inputs, files
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings

OWN = """
from __future__ import annotations

import flax.linen as nn
import jafl
import numpy as np
from jafl.rules import staleness


def shared_half(share: float = 0.5):
    return jafl.rules.fedbuff(staleness.polynomial(share))


@jafl.specification
def no_rule():
    return 3


def slower(factor: float = 3.0):
    return jafl.delays.gamma(mean=factor)


class Small(nn.Module):
    num_classes: int
    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(nn.relu(nn.Dense(self.width)(x)))


def small(num_classes, width: int = 4):
    return jafl.models.Model(Small(num_classes, width))


def writer(num_classes, width: int = 8):
    return jafl.models.causal_transformer(num_classes, layers=1, width=width, heads=2)


class TwoOfOneName(nn.Module):
    @nn.compact
    def __call__(self, x):
        kernel = self.param("dense/kernel", nn.initializers.zeros, (x.shape[-1], 2))
        return x @ kernel + nn.Dense(2, name="dense")(x)


def two_of_one_name(num_classes):
    return jafl.models.Model(TwoOfOneName())


def halves(examples: int = 60):
    x = np.arange(examples * 2, dtype=np.float32).reshape(examples, 2)
    y = np.arange(examples, dtype=np.int32) % 2
    return jafl.Source("halves", x, y, x[:10], y[:10], num_classes=2)


def number():
    return 3


not_callable = 5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with the file, in which commands run."""
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


def made(**changes):
    (experiment,) = make_experiments(
        Settings.from_mapping({"algorithm": "fedbuff", "client_trips": 100, "num_clients": 5, **changes})
    )
    return experiment


@pytest.mark.full
def test_a_rule_of_the_users_own_is_run_under_the_name_of_its_function(own):
    experiment = made(algorithm="mine.py:shared_half(share=0.25)")
    assert experiment.name == "shared_half-seed0"
    assert repr(experiment.rule) == repr(made(**{"algorithm.staleness_weight.exponent": 0.25}).rule)
    assert experiment.settings.algorithm == "mine.py:shared_half(share=0.25)"
    assert experiment.inputs["algorithm"] == hashlib.sha256(OWN.encode()).hexdigest()


@pytest.mark.full
def test_one_argument_of_it_is_a_dotted_name(own):
    experiment = made(algorithm="mine.py:shared_half", **{"algorithm.share": 0.75})
    assert experiment.settings.algorithm == "mine.py:shared_half(share=0.75)"


@pytest.mark.full
def test_laws_models_and_data_sets_may_be_the_users_own(own):
    experiment = made(
        delay="mine.py:slower(factor=2)",
        model="mine.py:small(width=3)",
        dataset="mine.py:halves(examples=80)",
    )
    theirs = made(delay="gamma(mean=2)", model="mlp(hidden_sizes=[3])", dataset="mine.py:halves(examples=80)")
    np.testing.assert_array_equal(experiment.schedule.client, theirs.schedule.client)
    assert experiment.model.module.width == 3
    shapes = [sorted(leaf.shape for leaf in jax.tree.leaves(each.params)) for each in (experiment, theirs)]
    assert shapes[0] == shapes[1]
    assert len(experiment.source.x) == 80
    assert set(experiment.inputs) == {"delay", "model", "dataset"}


@pytest.mark.full
def test_a_model_of_the_users_own_predicts_the_next_token(own):
    experiment = made(
        model="mine.py:writer(width=4)", dataset="python_source(tokens=20, most_characters=200)"
    )
    assert experiment.params["token_table"]["embedding"].shape == (99, 4)


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param(lambda text: b"\xef\xbb\xbf" + text.encode(), id="marked"),
        pytest.param(lambda text: f"# coding: latin-1\n{text}".encode("latin-1"), id="declared"),
    ],
)
def test_a_file_is_read_in_the_encoding_in_which_python_reads_it(own, encoded):
    text = OWN.replace("factor: float = 3.0", "factor: float = float(len('\xe9\xe9\xe9'))")
    theirs = made(delay="mine.py:slower").schedule.step_time
    own.write_bytes(encoded(text))
    np.testing.assert_array_equal(made(delay="mine.py:slower").schedule.step_time, theirs)


def test_a_file_that_has_changed_is_read_again(own):
    assert made(delay="mine.py:slower").schedule.step_time[-1] > 0
    before = made(delay="mine.py:slower").schedule.step_time[-1]
    own.write_text(OWN.replace("factor: float = 3.0", "factor: float = 6.0"))
    assert made(delay="mine.py:slower").schedule.step_time[-1] == pytest.approx(2 * before)


def test_a_file_imports_what_lies_beside_it_and_no_other_folder_s(own):
    for folder, factor in (("one", 3.0), ("two", 6.0)):
        (own.parent / folder / "parts").mkdir(parents=True)
        (own.parent / folder / "parts" / "__init__.py").write_text("")
        (own.parent / folder / "parts" / "numbers.py").write_text(f"FACTOR = {factor}")
        (own.parent / folder / "mine.py").write_text(
            OWN.replace("factor: float = 3.0", "factor: float = numbers.FACTOR").replace(
                "import numpy", "from parts import numbers\nimport numpy"
            )
        )
    one, two = (made(delay=f"{folder}/mine.py:slower") for folder in ("one", "two"))
    assert two.schedule.step_time[-1] == pytest.approx(2 * one.schedule.step_time[-1])
    assert set(one.inputs) == {"dataset", "delay", "delay/parts/__init__.py", "delay/parts/numbers.py"}
    assert one.inputs["delay/parts/numbers.py"] == hashlib.sha256(b"FACTOR = 3.0").hexdigest()
    (own.parent / "one" / "parts" / "numbers.py").write_text("FACTOR = 12.00")
    changed = made(delay="one/mine.py:slower")
    assert changed.schedule.step_time[-1] == pytest.approx(4 * one.schedule.step_time[-1])
    (line,) = changed_inputs(vars(one.settings), one.inputs, changed.inputs)
    assert line.startswith(f"delay/parts/numbers.py: the file '{own.parent}/one/parts/numbers.py' held ")
    assert str(own.parent / "one") not in sys.path
    (own.parent / "link.py").symlink_to(
        own.parent / "one" / "mine.py"
    )  # its folder is that of the file itself
    assert made(delay="link.py:slower").inputs == changed.inputs
    reading._RUN.clear()  # as in another process
    assert {each for each in files(vars(one.settings)) if "/" in each} == {
        each for each in one.inputs if "/" in each
    }


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        ("algorithm", "mine.py:shared_hal", "Did you mean 'shared_half'?"),
        ("algorithm", "mine.py:not_callable", "'mine.py' has no function 'not_callable'"),
        ("algorithm", "yours.py:rule", "'yours.py' cannot be read: No such file or directory."),
        ("algorithm", "broken.py:rule", "'broken.py' fails when it is run: NameError: name 'nothing'"),
        (
            "algorithm",
            "exits.py:rule",
            "'exits.py' fails when it is run: SystemExit: 0. What follows if __name__",
        ),
        ("algorithm", "mine.py:shared_half(0.1, 0.2)", "has 1 arguments (share), not 2"),
        ("algorithm", "mine.py:shared_half(share='a')", "algorithm.share is 'a', but must be a number"),
        ("algorithm", "mine.py:number", "a factory of a rule"),
        ("algorithm", "mine.py:no_rule", "a function with @jafl.specification that returns a jafl.Rule"),
        ("model", "mine.py:slower", "a factory of a jafl.Model"),
        (
            "dataset",
            "mine.py:number",
            "dataset is 'mine.py:number', but must be a function that returns a jafl.Source",
        ),
        ("model", "mine.py:two_of_one_name", "the path of a parameter is 'dense/kernel'"),
        ("delay", "mine.py:number", "delay is 3, but must be"),
        ("dropout", "mine.py:number", "dropout is 3, but must be a jafl.Dropout"),
        ("delay", "once_per_client(mine.py:slower)", "Python's parser says"),
    ],
)
def test_what_a_file_does_not_have_is_refused(own, setting, text, message):
    (own.parent / "broken.py").write_text("nothing + 1")
    (own.parent / "exits.py").write_text("import sys\nsys.exit(0)")
    with pytest.raises(SettingError) as refused:
        made(**{setting: text})
    assert message in str(refused.value)
