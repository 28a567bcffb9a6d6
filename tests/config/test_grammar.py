"""A setting as the call of a factory: what texts mean, what is refused and how, and that nothing in a text is run."""

import ast
import dataclasses
import functools
import inspect
import math
import os
import pathlib
import re
import typing
from collections.abc import Sequence
from typing import Any

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jafl
from jafl.base.errors import SettingError, refusal, require
from jafl.cli.command_help import explained
from jafl.config import calls
from jafl.config.grammar import Grammar
from jafl.config.layers import _LEFT_OUT, says, with_arguments
from jafl.config.settings import Settings, without_varying
from jafl.config.values import Call, all_calls, written

DELAY = calls.grammar("delay")
NUM_CLIENTS, TRIPS = 6, 3
SUPPLIED = {"num_examples": np.arange(1, NUM_CLIENTS + 1), "model_bytes": 100.0, "upload_bytes": None}
EVERY = (
    "constant, uniform, half_normal, exponential, log_normal, gamma, pareto, proportional_to_examples, groups, "
    "slow_fraction, once_per_client, per_step, with_network, throttled, duration_trace"
)
FILES = ("trace.csv", "it's another, (odd) trace.csv")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The tests run in a folder with two files of durations."""
    folder = tmp_path_factory.mktemp("grammar")
    for shift, name in enumerate(FILES):
        rows = [
            f"{client},{1 + shift + client + 10 * trip}"
            for client in range(NUM_CLIENTS)
            for trip in range(TRIPS)
        ]
        (folder / name).write_text("\n".join(["client,duration", *rows, ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def refused(function, *arguments, **named) -> SettingError:
    with pytest.raises(SettingError) as error:
        function(*arguments, **named)
    return error.value


# A grammar of other factories: whatever an argument may be.


class Shape:
    """What a label may be of."""


def line(
    width: float,
    title: str = "",
    dashed: bool = False,
    times: int = 2,
    turn: int | float = 0,
    colour: str | None = None,
):
    """A line, which is
    drawn. It may be dashed.

    What follows is no part of the summary.
    """
    require(width > 0, "the line's width", width, "above 0")
    require(times != 7, "the number of times", times, "another one")
    return ("line", width, title, dashed, times, turn, colour)


def label(of: str | Shape):
    """A text or a shape."""
    return ("label", of)


def stack(parts: Sequence[Any], gaps: Sequence[float] = (), anything: Any = None, size: int = 0):
    """Several of them."""
    return ("stack", parts, gaps, anything, size)


def unknown(of: "NotThere", other=1):  # noqa: F821
    """One whose types are not known."""
    return ("unknown", of, other)


def empty():
    """One without arguments."""
    return ("empty",)


DRAWN = Grammar(
    "drawn",
    {"empty": empty, "line": line, "label": label, "stack": stack, "un/known/x": unknown},
    supplied=("size",),
)

# What texts say.


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("gamma", "gamma", {}),
        ("gamma()", "gamma", {}),
        (" gamma ( ) ", "gamma", {}),
        ("(gamma)", "gamma", {}),
        ("gamma(2.5)", "gamma", {"mean": 2.5}),
        ("gamma(2, 3)", "gamma", {"mean": 2.0, "shape": 3.0}),
        ("gamma(2, shape=3)", "gamma", {"mean": 2.0, "shape": 3.0}),
        ("gamma(shape=3, mean=2)", "gamma", {"mean": 2.0, "shape": 3.0}),
        ("gamma(shape=3)", "gamma", {"shape": 3.0}),
        ("gamma(\n  mean=2,\n)  # as in the paper", "gamma", {"mean": 2.0}),
        ("gamma(-1)", "gamma", {"mean": -1.0}),
        ("gamma(1e3, 1_000)", "gamma", {"mean": 1000.0, "shape": 1000.0}),
        ("gamma(inf, -inf)", "gamma", {"mean": math.inf, "shape": -math.inf}),
        (f"gamma(1{'0' * 400}, -1{'0' * 400})", "gamma", {"mean": math.inf, "shape": -math.inf}),
        ("proportional_to_examples(None, 2)", "proportional_to_examples", {"mean_per_example": None, "mean": 2.0}),
        ("once_per_client(gamma)", "once_per_client", {"law": Call("gamma", {})}),
        (
            "throttled(once_per_client(law=gamma(2)), 0.5, [0, 3])",
            "throttled",
            {
                "law": Call("once_per_client", {"law": Call("gamma", {"mean": 2.0})}),
                "share": 0.5,
                "clients": [0, 3],
            },
        ),
        (
            "groups([(10, uniform(1, 2)), [5, exponential]])",
            "groups",
            {"members": [(10, Call("uniform", {"low": 1.0, "high": 2.0})), [5, Call("exponential", {})]]},
        ),
        # By place as in Python.
        ("with_network(gamma, 9)", "with_network", {"compute": Call("gamma", {}), "model_bytes": 9.0}),
        (
            "with_network(gamma, model_bytes=4, upload_bandwidth=log_normal)",
            "with_network",
            {"compute": Call("gamma", {}), "model_bytes": 4.0, "upload_bandwidth": Call("log_normal", {})},
        ),
        ("duration_trace('a b.csv')", "duration_trace", {"path": "a b.csv"}),
        ('duration_trace("it\'s.csv", cycled=False)', "duration_trace", {"path": "it's.csv", "cycled": False}),
    ],
)  # fmt: skip
def test_a_text_says_a_call(text, name, arguments):
    call = DELAY.read(text)
    # Their reprs tell 2 from 2.0, and in which order the arguments are.
    assert repr(call) == repr(Call(name, arguments))
    assert repr(DELAY.read(str(call))) == repr(call)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("line(1, 'a', True, 3)", {"width": 1.0, "title": "a", "dashed": True, "times": 3}),
        ("line(1, turn=2)", {"width": 1.0, "turn": 2}),
        ("line(1, turn=2.0)", {"width": 1.0, "turn": 2.0}),
        ("label('line')", {"of": "line"}),
        ("label(line(1))", {"of": Call("line", {"width": 1.0})}),
        ("line(1, dashed=True, colour=None)", {"width": 1.0, "dashed": True, "colour": None}),
        ("line(1, title='a' 'b', colour=\"'\")", {"width": 1.0, "title": "ab", "colour": "'"}),
        ("stack([], ())", {"parts": [], "gaps": ()}),
        ("stack((1,), [2, 'x', None, [True]])", {"parts": (1,), "gaps": [2, "x", None, [True]]}),
        ("stack([line(1), empty])", {"parts": [Call("line", {"width": 1.0}), Call("empty", {})]}),
        ("stack([], anything=line(2), size=3)", {"parts": [], "anything": Call("line", {"width": 2.0}), "size": 3}),
        ("stack([], anything=-2)", {"parts": [], "anything": -2}),
        ("un/known/x(1, 2)", {"of": 1, "other": 2}),
        ("un / known/x(['a'])", {"of": ["a"]}),
        ("un/known/x", {}),
        ("stack(parts=[un/known/x])", {"parts": [Call("un/known/x", {})]}),
    ],
)  # fmt: skip
def test_values_of_every_type_are_read(text, arguments):
    call = DRAWN.read(text)
    assert repr(call.arguments) == repr(arguments)
    assert repr(DRAWN.read(str(call))) == repr(call)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Call("empty", {}), "empty"),
        (Call("line", {"width": 1.0, "colour": None}), "line(width=1.0, colour=None)"),
        ([1, (2.5, "it's"), ()], '[1, (2.5, "it\'s"), ()]'),
        ((1,), "(1,)"),
        ([[]], "[[]]"),
        ((-math.inf, True), "(-inf, True)"),
        ([Call("stack", {"parts": [Call("empty", {})]})], "[stack(parts=[empty])]"),
    ],
)
def test_a_value_is_written_as_it_is_read(value, text):
    assert written(value) == text
    assert repr(DRAWN.read(f"stack([{text}])").arguments["parts"]) == repr([value])


# Every factory: a call with what it needs, and the same with all that it has.
SMALLEST = {
    "constant": "constant(duration=1.0)",
    "uniform": "uniform(low=0.0, high=2.0)",
    "half_normal": "half_normal(sigma=1.2533141373155001)",
    "exponential": "exponential(mean=1.0)",
    "log_normal": "log_normal(mean=1.0, sigma=1.0)",
    "gamma": "gamma(mean=1.0, shape=2.5)",
    "pareto": "pareto(mean=1.0, shape=2.5)",
    "proportional_to_examples": "proportional_to_examples(mean_per_example=None, mean=None)",
    "groups([(6, gamma)])": "groups(members=[(6, gamma(mean=1.0, shape=2.5))])",
    "slow_fraction(gamma(3), constant, 0)": (
        "slow_fraction(law=gamma(mean=3.0, shape=2.5), slow_law=constant(duration=1.0), fraction=0.0)"
    ),
    "once_per_client(once_per_client(constant))": "once_per_client(law=once_per_client(law=constant(duration=1.0)))",
    "with_network(constant)": (
        "with_network(compute=constant(duration=1.0), download_bandwidth=inf, upload_bandwidth=inf, "
        "draw_each_trip=False)"
    ),
    "per_step(constant)": "per_step(law=constant(duration=1.0))",
    "throttled(constant, 1, (3,))": "throttled(law=constant(duration=1.0), share=1.0, clients=(3,))",
    "duration_trace('trace.csv')": "duration_trace(path='trace.csv', cycled=True)",
}  # fmt: skip


def test_the_table_has_every_factory_and_a_refusal_lists_them():
    assert {text.partition("(")[0] for text in SMALLEST} == {*DELAY.factories} == {*EVERY.split(", ")}


@pytest.mark.parametrize("text", SMALLEST)
def test_a_completed_call_has_every_default_and_is_completed_already(text):
    assert DELAY.completed(text) == SMALLEST[text]
    assert DELAY.completed(SMALLEST[text]) == SMALLEST[text]


@pytest.mark.parametrize(
    "text", ["gamma(2)", "gamma(2.0, 2.5)", "gamma(shape=2.5, mean=2)", "gamma (2 , shape = 25e-1)"]
)
def test_all_spellings_of_a_call_are_completed_to_one(text):
    assert DELAY.completed(text) == "gamma(mean=2.0, shape=2.5)"


def test_the_settings_of_a_run_have_the_completed_call():
    default = "once_per_client(law=log_normal(mean=1.0, sigma=1.0))"
    assert DELAY.completed(Settings().delay) == default
    given = "with_network(gamma, model_bytes=4)"
    whole = "gamma(mean=1.0, shape=2.5), model_bytes=4.0, download_bandwidth=inf, upload_bandwidth=inf"
    assert DELAY.completed(given) == f"with_network(compute={whole}, draw_each_trip=False)"


# One argument by its dotted name.

THROTTLED = "throttled(once_per_client(gamma), 0.5, [1])"
TWO = "slow_fraction(gamma, exponential, 0.1)"


@pytest.mark.parametrize(
    ("text", "path", "value", "changed"),
    [
        ("gamma", "mean", 2, "gamma(mean=2.0)"),
        ("gamma(mean=2)", "mean", 3.5, "gamma(mean=3.5)"),
        ("gamma(3, 4)", "shape", "2", "gamma(mean=3.0, shape=2.0)"),
        ("gamma", "mean", " 1e3 ", "gamma(mean=1000.0)"),
        ("gamma", "mean", "inf", "gamma(mean=inf)"),
        ("gamma", "mean", 10**400, "gamma(mean=inf)"),
        ("gamma", "mean", np.float64(0.1), "gamma(mean=0.1)"),
        ("proportional_to_examples(mean=2)", "mean", "None", "proportional_to_examples(mean=None)"),
        # Through wrappers, of which the defaults are written out on the way.
        ("once_per_client(log_normal)", "sigma", 0.5, "once_per_client(law=log_normal(sigma=0.5))"),
        (THROTTLED, "mean", 2, "throttled(law=once_per_client(law=gamma(mean=2.0)), share=0.5, clients=[1])"),
        (THROTTLED, "law.mean", 2, "throttled(law=once_per_client(law=gamma(mean=2.0)), share=0.5, clients=[1])"),
        (THROTTLED, "law.law.mean", 2, "throttled(law=once_per_client(law=gamma(mean=2.0)), share=0.5, clients=[1])"),
        (THROTTLED, "law", "constant", "throttled(law=constant, share=0.5, clients=[1])"),
        (
            THROTTLED, "law.law", "constant(2)",
            "throttled(law=once_per_client(law=constant(duration=2.0)), share=0.5, clients=[1])",
        ),
        (THROTTLED, "clients", "[2, 3]", "throttled(law=once_per_client(law=gamma), share=0.5, clients=[2, 3])"),
        (THROTTLED, "clients", [2], "throttled(law=once_per_client(law=gamma), share=0.5, clients=[2])"),
        # Of two calls with the argument, the one to which the way leads; the only one that has it.
        (TWO, "slow_law.mean", 2, "slow_fraction(law=gamma, slow_law=exponential(mean=2.0), fraction=0.1)"),
        (TWO, "shape", 2, "slow_fraction(law=gamma(shape=2.0), slow_law=exponential(mean=1.0), fraction=0.1)"),
        (
            "groups([(1, gamma), (2, constant)])", "shape", 3,
            "groups(members=[(1, gamma(shape=3.0)), (2, constant(duration=1.0))])",
        ),
        ("groups([(1, gamma)])", "members", "[(2, pareto(3))]", "groups(members=[(2, pareto(mean=3.0))])"),
        ("groups", "members", "[(2, gamma)]", "groups(members=[(2, gamma)])"),
        # A number or a call.
        (
            "with_network(gamma)", "upload_bandwidth", "log_normal(9, 1)",
            "with_network(compute=gamma, upload_bandwidth=log_normal(mean=9.0, sigma=1.0))",
        ),
        ("with_network(gamma)", "download_bandwidth", "inf", "with_network(compute=gamma, download_bandwidth=inf)"),
        ("with_network(gamma)", "model_bytes", 7, "with_network(compute=gamma, model_bytes=7.0)"),
        # Texts need no quotes where they are wanted, whatever they look like.
        ("duration_trace('a.csv')", "path", "b.csv", "duration_trace(path='b.csv')"),
        ("duration_trace('a.csv')", "path", "'b.csv'", "duration_trace(path='b.csv')"),
        ("duration_trace", "path", "/a b/it's (1).csv", "duration_trace(path=\"/a b/it's (1).csv\")"),
        ("duration_trace('a.csv')", "path", "gamma", "duration_trace(path='gamma')"),
        ("duration_trace('a.csv')", "path", "a/b", "duration_trace(path='a/b')"),
        ("duration_trace('a.csv')", "cycled", "False", "duration_trace(path='a.csv', cycled=False)"),
    ],
)  # fmt: skip
def test_one_argument_is_changed_by_its_name(text, path, value, changed):
    assert DELAY.changed(text, path, value) == changed


@pytest.mark.parametrize(
    ("text", "path", "value", "changed"),
    [
        ("line(1)", "times", "3", "line(width=1.0, times=3)"),
        ("line(1)", "title", "3 (x", "line(width=1.0, title='3 (x')"),
        ("line(1)", "title", "line(1)", "line(width=1.0, title='line(1)')"),
        ("line(1, colour='red')", "colour", "None", "line(width=1.0, colour=None)"),
        ("label('a')", "of", "line(1)", "label(of=line(width=1.0))"),
        ("label('a')", "of", "b c", "label(of='b c')"),
        ("label('a')", "of", "lines", "label(of='lines')"),
        ("line(1, colour='red')", "colour", "blue", "line(width=1.0, colour='blue')"),
        ("stack([])", "anything", "line(2)", "stack(parts=[], anything=line(width=2.0))"),
        ("stack([])", "gaps", (1, 2.5), "stack(parts=[], gaps=(1, 2.5))"),
        ("stack([])", "size", 3, "stack(parts=[], size=3)"),
        ("stack([line(1)])", "width", 3, "stack(parts=[line(width=3.0)], gaps=[], anything=None)"),
    ],
)
def test_an_argument_of_every_type_is_changed(text, path, value, changed):
    assert DRAWN.changed(text, path, value) == changed


def without(call, argument, names, hint=""):
    return f": {call} has no argument {argument!r}; it has {names}.{hint}"


SHAPE = " Did you mean 'shape'?"
SIGMA = " It is an argument of half_normal or log_normal."
SEVERAL = "Write the whole value."


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("gamma", "mean", "1.0"),
        (THROTTLED, "law.law.mean", "1.0"),
        ("groups([(1, gamma)])", "members", "'[(1, gamma)]'"),
    ],
)
def test_an_argument_of_what_is_no_call_is_refused(text, path, value):
    error = refused(DELAY.changed, text, f"{path}.x", 1)
    assert str(error) == f"delay.{path} is {value}, but must be a call, of which x can be set."


@pytest.mark.parametrize(
    ("text", "path", "value", "message"),
    [
        ("gamma", "sigma", 1, without("gamma", "sigma", "mean, shape")),
        ("gamma", "shap", 1, without("gamma", "shap", "mean, shape", SHAPE)),
        ("gamma", "", 1, without("gamma", "", "mean, shape")),
        ("once_per_client(gamma)", "sigma", 1, without("once_per_client(law=gamma)", "sigma", "law, mean, shape")),
        (THROTTLED, "law.law.shap", 1, without("gamma", "shap", "mean, shape", SHAPE)),
        (
            TWO, "mean", 1,
            ": slow_fraction(law=gamma, slow_law=exponential, fraction=0.1) "
            f"has several calls with an argument 'mean'. {SEVERAL}",
        ),
        (
            "groups([(1, gamma), (2, gamma)])", "shape", 1,
            f": groups(members=[(1, gamma), (2, gamma)]) has several calls with an argument 'shape'. {SEVERAL}",
        ),
        ("gamma", "mean", "x", " is 'x', but must be a number."),
        ("gamma", "mean", "", " is '', but must be a number."),
        ("gamma", "mean", "gamma", " is 'gamma', but must be a number."),
        ("gamma", "mean", "'2'", " is '2', but must be a number."),
        ("gamma", "mean", "2 3", " is '2 3', but must be a number."),
        ("gamma", "mean", "True", " is True, but must be a number."),
        ("gamma", "mean", True, " is True, but must be a number."),
        ("gamma", "mean", None, " is None, but must be a number."),
        ("gamma", "mean", math.nan, " is nan, but must be a number."),
        ("gamma", "mean", "nan", " is 'nan', but must be a number."),
        ("gamma", "mean", [1], " is [1], but must be a number."),
        ("gamma", "mean", {}, " is {}, but must be a number."),
        ("proportional_to_examples", "mean", "x", " is 'x', but must be a number or None."),
        ("duration_trace('a.csv')", "cycled", 1, " is 1, but must be True or False."),
        ("duration_trace('a.csv')", "cycled", "no", " is 'no', but must be True or False."),
        ("duration_trace('a.csv')", "path", 1, " is 1, but must be a text in quotes."),
        (THROTTLED, "clients", 3, " is 3, but must be a list."),
        (THROTTLED, "clients", "0-4", " is '0-4', but must be a list."),
        (THROTTLED, "law", 3, " is 3, but must be a call."),
        (THROTTLED, "law", "3", " is 3, but must be a call."),
        ("with_network(gamma)", "upload_bandwidth", [1], " is [1], but must be a number or a call."),
        (THROTTLED, "law", "gama", f" is 'gama', but there is no 'gama'; there is {EVERY}. Did you mean 'gamma'?"),
        (
            THROTTLED, "law", "gamma(",
            " is 'gamma(', but must be a name, or a call such as gamma(mean=1.0). "
            "Python's parser says: '(' was never closed.",
        ),
    ],
)  # fmt: skip
def test_an_argument_that_cannot_be_changed_is_refused(text, path, value, message):
    error = refused(DELAY.changed, text, path, value)
    assert str(error) == f"delay.{path}{message}{SIGMA if path == 'sigma' else ''}"
    assert error.setting == f"delay.{path}"


def test_an_argument_of_a_call_that_lacks_others_is_refused():
    error = refused(DELAY.changed, "once_per_client", "mean", 1)
    message = "delay is 'once_per_client', but once_per_client lacks its argument law, which has no default."
    assert (str(error), error.setting) == (message, "delay")


@pytest.mark.parametrize("text", SMALLEST)
def test_every_argument_has_a_type_that_is_checked(text):
    for name in DELAY.arguments()[text.partition("(")[0]]:
        error = refused(DELAY.changed, text, name, {"a": 1})
        assert str(error).startswith(f"delay.{name} is {{'a': 1}}, but must be ")


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("gamma(3)", "mean", 3.0),
        ("gamma(3)", "shape", 2.5),
        (THROTTLED, "shape", 2.5),
        (THROTTLED, "law.law.mean", 1.0),
        (THROTTLED, "clients", [1]),
        (THROTTLED, "law.law", Call("gamma", {})),
        (TWO, "slow_law.mean", 1.0),
        ("with_network(gamma)", "upload_bandwidth", math.inf),
        ("with_network(gamma)", "model_bytes", None),  # the experiment fills it in
        ("with_network(gamma, model_bytes=3)", "model_bytes", 3.0),
        ("groups([(1, gamma), (2, constant(4))])", "duration", 4.0),
    ],
)
def test_the_value_of_an_argument(text, path, value):
    assert DELAY.value(text, path) == value


def test_a_value_that_is_not_there_is_refused():
    assert (
        str(refused(DELAY.value, "gamma", "sigma"))
        == f"delay.sigma{without('gamma', 'sigma', 'mean, shape')}{SIGMA}"
    )
    assert "several calls with an argument 'mean'" in str(refused(DELAY.value, TWO, "mean"))


# What else is asked of a call.


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gamma", ["gamma"]),
        (THROTTLED, ["throttled", "once_per_client", "gamma"]),
        (TWO, ["slow_fraction", "gamma", "exponential"]),
        ("groups([(1, once_per_client(gamma)), [2, constant]])", ["groups", "once_per_client", "gamma", "constant"]),
        ("with_network(gamma, upload_bandwidth=pareto)", ["with_network", "gamma", "pareto"]),
        ("duration_trace('gamma')", ["duration_trace"]),
    ],
)  # fmt: skip
def test_the_names_in_a_call_the_outermost_first(text, names):
    assert list([each.name for each in all_calls(DELAY.read(text))]) == names


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("gamma", {}),
        ("duration_trace('a.csv')", {"path": "a.csv"}),
        ("throttled(once_per_client(duration_trace('~/a b.csv')), 0.5, [1])", {"path": "~/a b.csv"}),
        ("groups([(1, gamma), (2, duration_trace('a.csv', False))])", {"path": "a.csv"}),
    ],
)
def test_the_files_that_a_call_reads(text, paths):
    there = {f"delay.{argument}": pathlib.Path(path).expanduser() for argument, path in paths.items()}
    assert calls.files({"delay": text}) == there


def test_all_files_that_a_call_reads_are_told():
    text = "slow_fraction(duration_trace('a.csv'), duration_trace('b.csv'), 0.5)"
    there = {"delay.path": pathlib.Path("a.csv"), "delay.path[1]": pathlib.Path("b.csv")}
    assert calls.files({"delay": text}) == there


@pytest.mark.parametrize(
    ("text", "rest", "arguments"),
    [
        ("gamma(2)", "gamma", {"mean": 2.0, "shape": 2.5}),
        ("once_per_client(gamma(2))", "once_per_client(law=gamma)", {"mean": 2.0, "shape": 2.5}),
        (
            THROTTLED,
            "throttled(law=once_per_client(law=gamma))",
            {"mean": 1.0, "shape": 2.5, "share": 0.5, "clients": [1]},
        ),
        # A name alone does not tell which mean.
        (TWO, "slow_fraction(law=gamma(mean=1.0), slow_law=exponential(mean=1.0))", {"shape": 2.5, "fraction": 0.1}),
        (
            "groups([(1, gamma), (2, constant)])",
            "groups(members=[(1, gamma(mean=1.0, shape=2.5)), (2, constant(duration=1.0))])",
            {},
        ),
        ("duration_trace('a.csv')", "duration_trace", {"path": "a.csv", "cycled": True}),
    ],
)  # fmt: skip
def test_a_call_is_flattened_for_tables(text, rest, arguments):
    assert DELAY.flattened(text) == (rest, arguments)
    flat = {"delay": rest, **{f"delay.{name}": value for name, value in arguments.items()}}
    assert calls.flattened({"seed": "1", "delay": text}) == {"seed": "1", **flat}


def test_what_is_no_call_is_flattened_to_itself():
    for config in ({}, {"seed": "1"}, {"delay": None}, {"delay": 3}):
        assert calls.flattened(config) == config


def test_what_is_flattened_is_what_a_dotted_name_reaches():
    for text in (*SMALLEST, THROTTLED, TWO):
        for name, value in DELAY.flattened(text)[1].items():
            assert DELAY.value(text, name) == value


def test_all_factories_are_explained_with_their_arguments():
    shown = explained(DRAWN)
    assert [each.call for each in shown[:2]] == [
        "empty()",
        "line(width, title='', dashed=False, times=2, turn=0, colour=None)",
    ]
    assert [each.text for each in shown[:2]] == [
        "One without arguments.",
        "A line, which is drawn. It may be dashed.",
    ]
    assert len(explained(DELAY)) == len(DELAY.factories)


@pytest.mark.parametrize("setting", calls.CALLS)
def test_every_example_of_the_help_is_a_call_and_arguments_have_texts(setting):
    grammar = calls.grammar(setting)
    for each in explained(grammar):
        name = each.call.partition("(")[0]
        assert each.text and set(each.arguments) <= set(grammar.parameters(name))
        if each.example and name not in grammar.inner:
            assert grammar.read(each.example).name == name
    assert any(each.example for each in explained(grammar))


# Refusals.


def no_such(name, hint):
    return f"there is no {name!r}; there is {EVERY}. {hint}"


QUOTES = "A text stands in quotes."
SUCH_AS_NAME = "must be a name, or a call such as constant(duration=1.0)."
PARSER = f"{SUCH_AS_NAME} Python's parser says:"
SWEPT = "Several values are tried by run.py sweep"
SLASHES = "The path of a file stands in quotes, with / in the place of \\."


SUCH_AS = "must be a call such as constant(duration=1.0)."
OF_NETWORK = "compute, model_bytes, download_bandwidth, upload_bandwidth, upload_bytes, draw_each_trip"


def with_first_example(error, text):
    """The message, the grammar's first example in the place of one of the factory that the text begins with."""
    return str(error).replace(DELAY.example(text), DELAY.example())


def code(part):
    return f"{SUCH_AS} Only numbers, texts, lists, names and calls are read; {part!r} is none of these."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be a name, or a call such as constant(duration=1.0)."),
        (" ", "must be a name, or a call such as constant(duration=1.0)."),
        ("gamma(", f"{PARSER} '(' was never closed."),
        ("gamma(2))", f"{PARSER} unmatched ')'."),
        ("groups([(1, gamma)", f"{PARSER} '[' was never closed."),
        ("groups([(1, gamma])", f"{PARSER} closing parenthesis ']' does not match opening parenthesis '('."),
        ("gamma(shape=1, 2)", f"{PARSER} positional argument follows keyword argument."),
        ("gamma; gamma", f"{PARSER} invalid syntax."),
        ("gamma\ngamma", f"{PARSER} invalid syntax."),
        ("\0", f"{PARSER} source code string cannot contain null bytes."),
        ("gamma(\0)", f"{PARSER} source code string cannot contain null bytes."),
        ("3", "must be a call, such as constant(duration=1.0)."),
        ("inf", "must be a call, such as constant(duration=1.0)."),
        ("None", "must be a call, such as constant(duration=1.0)."),
        ("'gamma'", "must be a call, such as constant(duration=1.0). Leave out the quotes around it."),
        ("[gamma]", "must be a call, such as constant(duration=1.0)."),
        ("gamma, pareto", f'must be a call, such as constant(duration=1.0). {SWEPT} "delay=gamma,pareto".'),
        ("async", no_such("async", QUOTES)),
        ("jafl.delays.gamma(shape=2)", f"{SUCH_AS} Names stand without their module: gamma."),
        ("gamma{shape=2}", f"{PARSER} invalid syntax."),
        ("mine.py", f"{SUCH_AS} Of a file of your own, name the function, too: mine.py:NAME."),
        (r"duration_trace('C:\Users\a.csv')", f"{SUCH_AS_NAME} {SLASHES}"),
        (r"duration_trace(C:\a.csv)", f"{SUCH_AS_NAME} {SLASHES}"),
        ("lognormal", no_such("lognormal", "Did you mean 'log_normal'?")),
        ("Gamma(2)", no_such("Gamma", "Did you mean 'gamma'?")),
        ("fast", no_such("fast", QUOTES)),
        ("once_per_client(fast)", no_such("fast", QUOTES)),
        ("groups([(1, unifrm(1))])", no_such("unifrm", "Did you mean 'uniform'?")),
        ("emnist/byclass", no_such("emnist/byclass", QUOTES)),
        ("print(1)", no_such("print", "Did you mean 'pareto'?")),
        ("inf()", no_such("inf", QUOTES)),
        ("from_function", no_such("from_function", "Did you mean 'slow_fraction'?")),
        ("gamma(sigma=2)", f"gamma has no argument 'sigma'; it has mean, shape.{SIGMA}"),
        ("gamma(shap=2)", "gamma has no argument 'shap'; it has mean, shape. Did you mean 'shape'?"),
        (
            "with_network(gamma, upload=2)",
            f"with_network has no argument 'upload'; it has {OF_NETWORK}. Did you mean 'upload_bytes'?",
        ),
        ("gamma(1, 2, 3)", "gamma has 2 arguments (mean, shape), not 3."),
        ("with_network(gamma, 1, 2, 3, 4, true, 6)", f"with_network has 6 arguments ({OF_NETWORK}), not 7."),
        ("gamma(1, mean=2)", "gamma gets mean twice."),
        ("gamma(mean=1, mean=2)", "gamma gets mean twice."),
        ("gamma(**x)", "** is not read."),
        ("gamma(**{'mean': 1})", "** is not read."),
        ("gamma(*x)", code("*x")),
        ("__import__('os').system('x')", code("__import__('os').system")),
        ("gamma(__import__('os').system('x'))", code("__import__('os').system")),
        ("gamma(mean=open('x'))", no_such("open", QUOTES)),
        ("gamma.mean", code("gamma.mean")),
        ("gamma().__class__", code("gamma().__class__")),
        ("gamma()()", code("gamma()")),
        ("gamma[0]", code("gamma[0]")),
        ("lambda: gamma", code("lambda: gamma")),
        ("(lambda: gamma)()", code("lambda: gamma")),
        ("[gamma for x in [1]]", code("[gamma for x in [1]]")),
        ("groups([(n, gamma) for n in [1, 2]])", code("[(n, gamma) for n in [1, 2]]")),
        ("throttled(gamma, 0.5, {1, 2})", code("{1, 2}")),
        ("throttled(gamma, 0.5, {1: 2})", code("{1: 2}")),
        ("throttled(gamma, 0.5, [0] * 9)", code("[0] * 9")),
        ("throttled(gamma, 0.5, [*x])", code("*x")),
        ("f'{gamma}'", code("f'{gamma}'")),
        ("duration_trace(f'{1}.csv')", code("f'{1}.csv'")),
        ("duration_trace('a' + '.csv')", code("'a' + '.csv'")),
        ("gamma if 1 else pareto", code("gamma if 1 else pareto")),
        ("gamma or pareto", code("gamma or pareto")),
        ("(x := gamma)", code("(x := gamma)")),
        ("await gamma", code("await gamma")),
        ("gamma(2 ** 9)", code("2 ** 9")),
        ("gamma(1 < 2)", code("1 < 2")),
        ("gamma(-True)", code("-True")),
        ("gamma(-gamma)", code("-gamma")),
        ("gamma(1j)", code("1j")),
        ("gamma(b'1')", code("b'1'")),
        ("gamma(...)", code("...")),
        ("gamma / 2", code("gamma / 2")),
        ("gamma(nan)", no_such("nan", "Did you mean 'constant'?")),
        ("trace.csv", f"{SUCH_AS} A file is read by duration_trace('trace.csv')."),
        ("a/b-c.npz", f"{SUCH_AS} A file is read by duration_trace('a/b-c.npz')."),
        ("duration_trace(trace.csv)", f"{SUCH_AS} A text stands in quotes: 'trace.csv'."),
    ],
)  # fmt: skip
def test_a_text_that_is_no_call_is_refused(text, reason):
    error = refused(DELAY.read, text)
    assert with_first_example(error, text) == f"delay is {text!r}, but {reason}"
    assert (error.setting, error.value) == ("delay", text)


@pytest.mark.parametrize(
    "text", ["import os", "mean = 2", "gamma(mean=*x)", "gamma(2 3)", "\ud800", "del gamma"]
)
def test_what_python_cannot_read_is_refused_with_what_its_parser_says(text):
    """The words are those of this version of Python."""
    error = refused(DELAY.read, text)
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError) as says:
        said = says.msg if isinstance(says, SyntaxError) else says
    assert with_first_example(error, text) == f"delay is {text!r}, but {PARSER} {said}."


@pytest.mark.parametrize(
    ("text", "argument", "message"),
    [
        ("gamma('a')", "mean", "is 'a', but must be a number."),
        ("gamma(True)", "mean", "is True, but must be a number."),
        ("gamma(None)", "mean", "is None, but must be a number."),
        ("gamma([1])", "mean", "is [1], but must be a number."),
        ("gamma(mean=uniform(1, 2))", "mean", "is 'uniform(low=1.0, high=2.0)', but must be a number."),
        ("once_per_client(3)", "law", "is 3, but must be a call."),
        ("once_per_client('gamma')", "law", "is 'gamma', but must be a call."),
        ("once_per_client([gamma])", "law", "is '[gamma]', but must be a call."),
        (
            "with_network(gamma, 1, 'fast')",
            "download_bandwidth",
            "is 'fast', but must be a number or a call.",
        ),
        ("throttled(gamma, 0.5, 3)", "clients", "is 3, but must be a list."),
        ("throttled(gamma, 0.5, '012')", "clients", "is '012', but must be a list."),
        ("groups(gamma)", "members", "is 'gamma', but must be a list."),
        ("proportional_to_examples('a')", "mean_per_example", "is 'a', but must be a number or None."),
        ("duration_trace(1)", "path", "is 1, but must be a text in quotes."),
        ("duration_trace(gamma)", "path", "is 'gamma', but must be a text in quotes."),
        ("duration_trace('a.csv', 1)", "cycled", "is 1, but must be True or False."),
        ("once_per_client(throttled(gamma('a'), 1, []))", "mean", "is 'a', but must be a number."),
    ],
)
def test_a_value_of_another_type_is_refused(text, argument, message):
    error = refused(DELAY.read, text)
    assert (str(error), error.setting) == (f"delay.{argument} {message}", f"delay.{argument}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("line(1, times=2.5)", "drawn.times is 2.5, but must be a whole number."),
        ("line(1, times=True)", "drawn.times is True, but must be a whole number."),
        ("line(1, turn=True)", "drawn.turn is True, but must be a whole number or a number."),
        ("line(1, dashed=0)", "drawn.dashed is 0, but must be True or False."),
        ("line(1, dashed=None)", "drawn.dashed is None, but must be True or False."),
        ("line(1, title=1)", "drawn.title is 1, but must be a text in quotes."),
        ("line(1, colour=1)", "drawn.colour is 1, but must be a text in quotes or None."),
        ("stack(1)", "drawn.parts is 1, but must be a list."),
        ("stack('abc')", "drawn.parts is 'abc', but must be a list."),
        ("label(1)", "drawn.of is 1, but must be a text in quotes or a call."),
    ],
)
def test_a_value_is_of_the_type_that_its_function_says(text, message):
    assert str(refused(DRAWN.read, text)) == message


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("groups", "groups lacks its argument members, which has no default."),
        ("once_per_client()", "once_per_client lacks its argument law, which has no default."),
        ("slow_fraction(gamma, pareto)", "slow_fraction lacks its argument fraction, which has no default."),
        ("throttled(share=1, clients=[])", "throttled lacks its argument law, which has no default."),
        ("with_network", "with_network lacks its argument compute, which has no default."),
        ("duration_trace(cycled=True)", "duration_trace lacks its argument path, which has no default."),
        ("groups([(1, once_per_client)])", "once_per_client lacks its argument law, which has no default."),
    ],
)
@pytest.mark.parametrize("use", [DELAY.completed, DELAY.flattened, lambda text: DELAY.make(text, **SUPPLIED)])
def test_a_call_without_an_argument_that_it_needs_is_refused(use, text, call):
    error = refused(use, text)
    assert str(error).endswith(f", but {call}")
    assert error.setting == "delay"


def test_a_setting_that_is_no_text_is_refused():
    for value in (None, 3, {"law": "gamma"}, Call("gamma", {})):
        error = refused(DELAY.read, value)
        assert (error.setting, error.value, error.allowed) == ("delay", value, "text")


def test_a_refusal_gives_an_example_of_this_grammar():
    assert str(refused(DRAWN.read, "3")) == "drawn is '3', but must be a call, such as line(width=...)."
    assert DRAWN.example("empty(3") == "empty"
    bare = Grammar("drawn", {"empty": empty})
    assert str(refused(bare.read, "3")) == "drawn is '3', but must be a call, such as empty."
    for text, reason in (
        ("empty(1)", "empty has 0 arguments (none), not 1."),
        ("empty(x=1)", "empty has no argument 'x'; it has none."),
    ):
        assert str(refused(DRAWN.read, text)) == f"drawn is {text!r}, but {reason}"
    error = refused(DRAWN.changed, "empty", "x", 1)
    assert str(error).startswith("drawn.x: empty has no arguments.")
    # No factory of it reads files.
    assert str(refused(DRAWN.read, "a.csv")).endswith("A text stands in quotes: 'a.csv'.")


DEEP = 5000


@pytest.mark.parametrize(
    "text",
    [
        "(" * DEEP + "gamma" + ")" * DEEP,
        "once_per_client(" * DEEP + "gamma" + ")" * DEEP,
        f"groups({'[' * DEEP}{']' * DEEP})",
        f"gamma({'-' * 100 * DEEP}1)",
        "gamma" + "/gamma" * 2000,
        "gamma" + "/gamma" * 100 * DEEP,
        "1" + "+1" * 2000,
        "gamma" + ".mean" * 2000,
        "gamma" + "()" * 2000,
        f"gamma({'9' * DEEP})",
        "throttled(gamma, 0.5, [" + "not " * 2000 + "1])",
    ],
    ids=lambda text: text[:20],
)
def test_a_text_that_is_too_deep_or_too_long_is_refused_in_a_short_message(text):
    error = refused(DELAY.read, text)
    assert error.setting == "delay" and len(str(error)) < 1500
    assert str(error).startswith(f"delay is '{text[:100]}")
    assert not str(error).endswith("says: .")


def test_what_python_reads_and_is_too_deep_for_a_call_is_refused():
    assert str(refused(DELAY.read, "1" + "+1" * 2000)).endswith(", but must be nested less deeply.")


def test_what_is_deep_but_not_too_deep_is_read_and_made():
    text = "once_per_client(" * 60 + "gamma" + ")" * 60
    assert DELAY.completed(text).count("law=") == 60
    law = DELAY.make(text, **SUPPLIED)
    gamma = jafl.delays.once_per_client(jafl.delays.gamma())
    np.testing.assert_array_equal(durations(law, 0), durations(gamma, 0))


@pytest.mark.parametrize(
    "action",
    [
        "__import__('pathlib').Path('ran').touch()",
        "open('ran', 'w')",
        'exec(\'open("ran", "w")\')',
        "(lambda: open('ran', 'w'))()",
        "[open('ran', 'w') for x in [1]]",
        'f\'{open("ran", "w")}\'',
        "(x := open('ran', 'w'))",
        "gamma(*[open('ran', 'w')])",
        "gamma(**{'mean': open('ran', 'w')})",
        "().__class__.__base__.__subclasses__()",
    ],
)
@pytest.mark.parametrize("place", ["{}", "gamma({})", "throttled(gamma, 0.5, [{}])", "groups([(1, {})])"])
def test_nothing_in_a_text_is_run(action, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = place.format(action)
    ast.parse(text, mode="eval")  # Python would take it
    refused(DELAY.read, text)
    refused(DELAY.changed, "gamma", "mean", text)
    refused(DELAY.changed, "once_per_client(gamma)", "law", text)
    assert DELAY.value(DELAY.changed("duration_trace", "path", action), "path") == action
    assert list(tmp_path.iterdir()) == []


# Making.


def durations(law, seed):
    """[NUM_CLIENTS * TRIPS] of the first trips of each client, of 3 local steps each."""
    client = np.repeat(np.arange(NUM_CLIENTS), TRIPS)
    parts = law.parts(seed, client, np.tile(np.arange(TRIPS), NUM_CLIENTS))
    return np.broadcast_to(parts.of_steps(3), client.shape)


def same(one, other):
    """Whether two laws, or parts of laws, are equal, also where they hold arrays."""
    if type(one) is not type(other):
        return False
    if isinstance(one, jafl.Delay):
        return all(same(value, getattr(other, name)) for name, value in vars(one).items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def test_what_the_experiment_knows_is_filled_in_where_it_is_left_out():
    assert DELAY.make("with_network(constant)", **SUPPLIED) == jafl.delays.with_network(
        jafl.delays.constant(1.0), 100.0
    )
    given = DELAY.make("once_per_client(with_network(constant, model_bytes=4))", **SUPPLIED)
    assert given.law.model_bytes == 4.0
    law = DELAY.make("throttled(proportional_to_examples(mean=7), 1, [])", **SUPPLIED).law
    assert law.num_examples is SUPPLIED["num_examples"]
    assert law.mean_per_example == 7 / np.mean(SUPPLIED["num_examples"])
    assert DRAWN.make("stack([empty, stack([], size=3)])", size=9) == (
        "stack", [("empty",), ("stack", [], [], None, 3)], [], None, 9,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "argument", "message"),
    [
        ("gamma(shape=0)", "shape", "is 0.0, but must be a finite number above 0."),
        ("gamma(inf)", "mean", "is inf, but must be a finite number above 0."),
        ("pareto(shape=1)", "shape", "is 1.0, but must be a finite number above 1, or there is no mean."),
        ("uniform(2, 1)", "high", "is 1.0, but must be a finite number, at least low (2.0)."),
        ("uniform(3)", "high", "is 2.0, but must be a finite number, at least low (3.0)."),
        ("groups([(6, uniform(-1))])", "low", "is -1.0, but must be a finite number, at least 0."),
        ("slow_fraction(gamma, gamma, 2)", "fraction", "is 2.0, but must be at least 0 and at most 1."),
        ("throttled(gamma, 0, [])", "share", "is 0.0, but must be above 0 and at most 1."),
        (
            "with_network(gamma, model_bytes=-1)",
            "model_bytes",
            "is -1.0, but must be a finite number, at least 0.",
        ),
        (
            "with_network(gamma, 1, 0)",
            "download_bandwidth",
            "is 0.0, but must be above 0 (bytes per unit of time), or a delay.",
        ),
        (
            "proportional_to_examples(2, 3)",
            "mean",
            "is 3.0, but must be left out where mean_per_example is given.",
        ),
        ("groups([(1, 2)])", "members", "is (1, 2), but must be (clients >= 1, a delay)."),
        (
            "groups([])",
            "members",
            "is [], but must be a list of at least one pair (number of clients, law). "
            "Two groups are [(10, uniform(1, 2)), (5, uniform(8, 12))].",
        ),
    ],
)
def test_what_a_factory_refuses_is_refused_as_the_argument_of_the_setting(text, argument, message):
    error = refused(DELAY.make, text, **SUPPLIED)
    assert (str(error), error.setting) == (f"delay.{argument} {message}", f"delay.{argument}")


def test_what_a_factory_refuses_of_something_else_stands_behind_the_setting():
    error = refused(DRAWN.make, "stack([line(-1)])", size=1)
    assert (str(error), error.setting) == ("drawn.width is -1.0, but must be above 0.", "drawn.width")
    error = refused(DRAWN.make, "line(1, times=7)", size=1)
    assert str(error) == f"drawn: {refusal('the number of times', 7, 'another one')}"
    assert error.setting == "drawn"


# Any call of any factory. What a number may be where it may not be all that a type says:
NUMBERS = {
    ("pareto", "shape"): (1.01, 50.0),
    ("log_normal", "sigma"): (0.0, 3.0),
    ("uniform", "low"): (0.0, 1.0),  # the default of high is above it
    ("uniform", "high"): (1.0, 99.0),
    ("slow_fraction", "fraction"): (0.0, 1.0),
    ("throttled", "share"): (0.01, 1.0),
}


def of_type(kind, name, argument, laws):
    """Values of an argument of the factory ``name``, as a text may say them."""
    if typing.get_origin(kind) in (typing.Union, type(int | str)):
        return st.one_of(*(of_type(each, name, argument, laws) for each in typing.get_args(kind)))
    known = {
        float: st.floats(*NUMBERS.get((name, argument), (0.01, 99.0))),
        bool: st.booleans(),
        str: st.sampled_from(FILES),
        os.PathLike[str]: st.sampled_from(FILES),
        type(None): st.none(),
        jafl.Delay: laws,
        Sequence[int]: st.lists(st.integers(0, 9), max_size=3),
        # The last group has all further clients.
        Sequence[tuple[int, jafl.Delay]]: st.builds(
            lambda groups, last: [*groups, (NUM_CLIENTS, last)],
            st.lists(st.tuples(st.integers(1, 3), laws), max_size=2),
            laws,
        ),
    }
    return known[kind]


def calls_of(name, laws):
    """Calls of the factory ``name`` with all arguments that it needs, and some of the others."""
    factory = DELAY.factories[name]
    hints = typing.get_type_hints(factory.__init__ if isinstance(factory, type) else factory)
    needed, others = {}, {}
    for argument, parameter in inspect.signature(factory).parameters.items():
        if argument == "num_examples":
            continue
        values = of_type(hints[argument], name, argument, laws)
        is_needed = parameter.default is parameter.empty and argument not in SUPPLIED
        (needed if is_needed else others)[argument] = values
    order = list(inspect.signature(factory).parameters)
    arguments = st.fixed_dictionaries(needed, optional=others).filter(
        lambda chosen: None in (chosen.get("mean_per_example"), chosen.get("mean"))
    )
    return arguments.map(
        lambda chosen: Call(name, dict(sorted(chosen.items(), key=lambda each: order.index(each[0]))))
    )


SIMPLE = (
    "constant",
    "exponential",
    "gamma",
    "log_normal",
    "pareto",
    "half_normal",
    "uniform",
    "duration_trace",
)
LAWS = st.recursive(
    st.sampled_from(SIMPLE).flatmap(lambda name: calls_of(name, st.nothing())),
    lambda laws: st.sampled_from([*DELAY.factories]).flatmap(lambda name: calls_of(name, laws)),
    max_leaves=5,
)


@st.composite
def spelled(draw, value):
    """A text for a value, in one of its spellings."""
    if isinstance(value, float) and value == int(value) and draw(st.booleans()):
        return str(int(value))
    space = draw(st.sampled_from(["", " ", "\n  "]))
    if isinstance(value, (list, tuple)):
        inside = f",{space}".join(draw(spelled(each)) for each in value)
        one = "," * (len(value) == 1)
        return f"({inside}{one})" if isinstance(value, tuple) else f"[{space}{inside}]"
    if not isinstance(value, Call):
        return repr(value)
    names = DELAY.arguments()[value.name]
    there = [name in value.arguments for name in names]
    by_place = names[: draw(st.integers(0, [*there, False].index(False)))]
    by_name = draw(st.permutations([name for name in value.arguments if name not in by_place]))
    texts = [draw(spelled(value.arguments[name])) for name in by_place]
    texts += [f"{name}{space}={space}{draw(spelled(value.arguments[name]))}" for name in by_name]
    return f"{value.name}({space}{f',{space}'.join(texts)})" if texts or space else value.name


@pytest.mark.few_in_full(11)
@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("name", DELAY.factories)
@settings(max_examples=40)
@given(data=st.data())
def test_a_call_that_is_written_is_read_as_itself_and_makes_what_python_would(name, data):
    call = data.draw(calls_of(name, LAWS))
    text = data.draw(spelled(call))
    assert repr(DELAY.read(text)) == repr(call)
    assert DELAY.read(str(call)) == call
    completed = DELAY.completed(text)
    assert DELAY.completed(completed) == DELAY.completed(str(call)) == completed

    law = DELAY.make(text, **SUPPLIED)
    again = DELAY.make(completed, **SUPPLIED)
    assert same(law, again)
    # What a completed call says, it says to Python, too.
    parameters = {each: inspect.signature(factory).parameters for each, factory in DELAY.factories.items()}
    filled = {
        each: functools.partial(
            factory, **{known: value for known, value in SUPPLIED.items() if known in parameters[each]}
        )
        for each, factory in DELAY.factories.items()
    }
    evaluated = eval(completed, {**filled, "inf": math.inf})
    assert same(law, evaluated)
    if not re.search(r"_bandwidth=.*per_step", completed):  # which no speed of a network can be
        for seed in (0, 3):
            np.testing.assert_array_equal(durations(law, seed), durations(evaluated, seed))

    # An argument given once more changes nothing, neither as a value nor as a text.
    for argument, value in call.arguments.items():
        assert DELAY.value(text, argument) == value
        assert DELAY.completed(DELAY.changed(text, argument, written(value))) == completed
        if not isinstance(value, (Call, str)):
            assert DELAY.completed(DELAY.changed(text, argument, value)) == completed


def test_laws_that_differ_are_not_taken_for_the_same():
    texts = [*SMALLEST, "gamma(1.5)", "throttled(constant, 1, [3, 4])", "duration_trace('trace.csv', False)"]
    texts += ["groups([(6, gamma(2))])", "proportional_to_examples(2)", "with_network(constant, 1, 1)"]
    laws = [DELAY.make(text, **SUPPLIED) for text in texts]
    assert [[same(one, other) for other in laws] for one in laws] == np.eye(len(laws), dtype=bool).tolist()


# The settings that are calls.


def test_dotted_names_are_put_into_the_calls_that_have_them():
    values = {"delay.mean": 2, "seed": "1", "delay": "once_per_client(gamma)", "delay.shape": "3"}
    before = dict(values)
    assert with_arguments(values, defaults={}) == {
        "delay": "once_per_client(law=gamma(mean=2.0, shape=3.0))",
        "seed": "1",
    }
    assert values == before
    assert with_arguments({"delay.mean": 2}, defaults={"delay": "pareto", "seed": "1"}) == {
        "delay": "pareto(mean=2.0)"
    }
    assert with_arguments({"seed": "1"}, defaults={"delay": "gamma"}) == {"seed": "1"}
    # In their order: the argument of the law that the one before has put there.
    changed = with_arguments({"delay.law": "gamma", "delay.shape": 3}, defaults={"delay": Settings().delay})
    assert changed == {"delay": "once_per_client(law=gamma(shape=3.0))"}


@pytest.mark.parametrize(
    ("values", "setting", "message"),
    [
        (
            {"delay.shape": 2}, "delay.shape",
            f"delay.shape{without('constant', 'shape', 'duration')} It is an argument of gamma or pareto.",
        ),
        ({"delay": "fast", "delay.shape": 2}, "delay", f"delay is 'fast', but {no_such('fast', QUOTES)}"),
        ({"delay": 5, "delay.shape": 2}, "delay", "delay is 5, but must be text."),
        ({"delay": None, "delay.shape": 2}, "delay", "delay is None, but must be text."),
    ],
)  # fmt: skip
def test_dotted_names_that_no_call_has_are_refused(values, setting, message):
    error = refused(with_arguments, values, defaults={"delay": "constant", "seed": "0"})
    assert (str(error), error.setting) == (message, setting)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (" 0.5 ", 0.5),
        ("-2", -2),
        ("1e400", math.inf),
        ("True", True),
        ("None", None),
        ("'a, b'", "a, b"),
        *((text, text) for text in ("", "x", "inf", "gamma(1)", "(1,)", "{1}", "{[]: 1}")),
        ("true", True),
        ("[1, 2]", [1, 2]),
        *(
            (text, text)
            for text in ("b'a'", "1j", "\0", "(" * 5000, "-" * 10**6 + "1", "-" * 3000 + "1", "9" * 5000)
        ),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_value_in_a_sweep_is_a_literal_or_a_text(text, value):
    said = calls.literal(text)
    assert (said, type(said)) == (value, type(value))


def test_the_files_of_settings_are_those_of_their_calls():
    assert calls.files({"delay": "once_per_client(duration_trace('~/a.csv'))", "seed": "1"}) == {
        "delay.path": pathlib.Path.home() / "a.csv"
    }
    assert calls.files({"delay": "gamma"}) == calls.files({"seed": "1"}) == {}


def test_every_setting_that_is_a_call_has_a_default_that_is_one():
    for name in calls.CALLS:
        default = getattr(Settings(), name)
        for text in [] if default is None else calls.items(name, default):
            assert calls.grammar(name).read(text)
        assert default or name in _LEFT_OUT
        assert calls.grammar(name).setting == name


# A default: the call that the algorithm or the data set decides.


def bag(colour: str | None = None, size: int | None = None, weight: float | None = None, cost: float = 1.0):
    """A bag."""
    return ("bag", colour, size, weight, cost)


def box(edge: int | None = None, colour: str | None = None, lid: bool = True):
    """A box, whose edge is its size."""
    return ("box", edge, colour, lid)


def ribbon(length: float = 1.0):
    """What only stands inside."""
    return ("ribbon", length)


PARCEL = Grammar(
    "parcel",
    {"bag": bag, "box": box},
    supplied=("size", "colour"),
    has_default=True,
    exclusive=(("size", "weight"),),
    inner={"ribbon": ribbon},
    other_names={("box", "size"): "edge"},
    short_names={"size": "parcel_size"},
)


def test_a_default_has_the_arguments_of_all_factories():
    assert PARCEL.read("default(size=2, lid=False)") == Call("default", {"size": 2, "lid": False})
    assert PARCEL.completed("default(size=2)") == "default(size=2)"
    assert PARCEL.changed("default", "cost", 2) == "default(cost=2.0)"
    assert PARCEL.value("default(size=2)", "lid") is None
    message = "parcel is 'default(depth=2)', but default has no argument 'depth'; it has colour, size, weight, cost, "
    assert str(refused(PARCEL.read, "default(depth=2)")).startswith(message)
    assert "there is no 'default'; there is empty" in str(refused(DRAWN.read, "default"))


@pytest.mark.parametrize(
    ("text", "before", "on"),
    [
        ("bag", "default(size=2, cost=3)", "bag(size=2, cost=3.0)"),
        ("bag(cost=1)", "default(size=2, cost=3)", "bag(size=2, cost=1.0)"),  # what the call itself says
        ("bag(weight=1)", "default(size=2)", "bag(weight=1.0)"),  # of two that exclude each other
        ("bag(size=None)", "default(size=2)", "bag(size=2)"),
        ("box", "default(size=2, cost=3)", "box(edge=2)"),  # under its name there, or nowhere
        ("box(edge=1)", "default(size=2)", "box(edge=1)"),
        ("default(cost=2)", "default(size=2)", "default(size=2, cost=2.0)"),
    ],
)
def test_a_call_in_the_place_of_a_default_has_its_arguments(text, before, on):
    assert PARCEL.over(text, before) == on


@pytest.mark.parametrize(
    ("text", "own", "filled"),
    [
        ("default", "bag(size=2)", "bag(size=2)"),
        ("default(cost=3)", "bag(size=2, cost=1)", "bag(size=2, cost=3.0)"),
        ("default(weight=3)", "bag(size=2)", "bag(weight=3.0)"),
        ("default(weight=None)", "bag(size=2)", "bag(size=2, weight=None)"),
        ("default(size=3, cost=2)", "box(edge=2)", "box(edge=3)"),
        ("default(size=3, edge=4)", "box", "box(edge=4)"),
        ("bag", "bag(size=2, cost=3)", "bag(size=2)"),  # of a call only what is supplied
        ("bag(size=1)", "bag(size=2)", "bag(size=1)"),
        ("bag(weight=3)", "bag(size=2)", "bag(weight=3.0)"),  # which excludes a size
        ("box", "bag(size=2, colour='red', cost=3)", "box(colour='red')"),
    ],
)
def test_the_call_of_a_run(text, own, filled):
    assert PARCEL.over(text, own) == filled


@pytest.mark.parametrize(
    ("text", "names", "rest"),
    [
        ("bag(size=2, cost=3)", ("size",), "bag(cost=3.0)"),
        ("bag(size=2, cost=3)", ("parcel", "size", "cost"), "default"),
        ("default(size=2, lid=False)", ("lid",), "default(size=2)"),
    ],
)
def test_a_call_without_what_a_preset_has_filled_in(text, names, rest):
    assert PARCEL.without(text, names) == rest
    assert DRAWN.without("line(width=1, times=3)", ("times",)) == "line(width=1.0)"


@pytest.mark.parametrize(
    ("text", "argument", "value", "has", "heeds"),
    [
        ("bag(size=2)", "size", 2, True, True),
        ("bag(size=2)", "lid", True, False, False),
        ("box(edge=2)", "size", 2, True, True),
        ("box(edge=3)", "size", 2, True, False),  # something else has taken its place
        ("box", "cost", 2.0, False, False),
    ],
)
def test_which_calls_have_and_heed_an_argument(text, argument, value, has, heeds):
    assert (PARCEL.has(text, argument), PARCEL.heeds(text, argument, value)) == (has, heeds)


def test_another_name_reaches_the_argument_that_has_its_place():
    assert PARCEL.value("box(edge=3)", "size") == 3
    assert PARCEL.changed("box", "size", 2) == "box(edge=2)"
    assert PARCEL.default("colour") is None and PARCEL.default("lid") is True


@pytest.mark.parametrize(
    ("text", "argument", "value", "changed"),
    [
        ("bag(size=2)", "weight", 3, "bag(weight=3.0)"),
        ("bag(weight=3)", "size", 2, "bag(size=2)"),
        ("bag(size=2)", "weight", None, "bag(size=2, weight=None)"),
    ],
)
def test_the_later_of_two_arguments_that_exclude_each_other_stays(text, argument, value, changed):
    assert PARCEL.changed(text, argument, value) == changed


def test_a_refusal_has_the_short_name_of_an_argument():
    assert str(refused(PARCEL.changed, "bag", "size", "x")) == (
        "parcel_size is 'x', but must be a whole number or None."
    )
    assert refused(PARCEL.changed, "bag", "cost", "x").setting == "parcel.cost"


def test_what_only_stands_inside_is_no_call_of_the_setting():
    said = "must be one of bag, box. ribbon only stands inside of another call."
    assert said in str(refused(PARCEL.read, "ribbon"))
    algorithm = calls.grammar("algorithm")
    assert [
        each.name for each in all_calls(algorithm.read("fedbuff(staleness_weight=hinge(threshold=8))"))
    ] == ["fedbuff", "hinge"]
    assert "hinge only stands inside of another call" in str(refused(algorithm.read, "hinge"))


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("fedbuff", "staleness_weight", False),
        ("fedbuff", "exponent", False),  # that of a default
        ("fedbuff", "staleness_weight.exponent", False),
        ("fedbuff(staleness_weight=polynomial)", "staleness_weight", True),
        ("fedbuff(staleness_weight=polynomial)", "exponent", False),
        ("fedbuff(staleness_weight=polynomial(1))", "exponent", True),
        ("fedbuff(staleness_weight=polynomial(1))", "staleness_weight.exponent", True),
        ("asgd,fedbuff(aggregate='sum')", "aggregate", True),
        ("asgd,fedbuff", "aggregate", False),
        ("asgd,ace", "aggregate", None),
    ],
)
def test_whether_a_call_itself_says_an_argument(text, path, said):
    assert says("algorithm", text, path) is said


def test_runs_that_differ_in_numbers_alone_look_the_same():
    texts = (
        "sgd(0.1, momentum=0.5)",
        "sgd(0.2, momentum=0.9)",
        "sgd(0.1)",
        "sgd(0.1, momentum=0.5, nesterov=True)",
    )
    settings = [Settings(client_optimizer=text) for text in texts]
    first, second, *others = (str(without_varying(each)) for each in settings)
    assert first == second and len({first, *others}) == 3
    first, second, third = (
        without_varying(Settings(algorithm=text, privacy=privacy))
        for text, privacy in (
            ("fedbuff(staleness_weight=polynomial(1))", "private(clip_norm=1.0)"),
            ("fedbuff", "private(clip_norm=2)"),
            ("fedbuff(staleness_weight=constant)", None),
        )
    )
    assert first == second and third["privacy"] is None


def test_a_call_is_specified_by_what_is_not_as_by_default():
    made = calls.grammar("client_optimizer").make(
        "sgd(learning_rate=0.1, momentum=None, nesterov=False)", jafl.specify
    )
    assert made.factory is optax.sgd and dict(made.arguments) == {"learning_rate": 0.1}


# Short names.


@pytest.mark.parametrize("name", calls.SHORT_NAMES)
def test_a_short_name_is_the_argument_that_it_stands_for(name):
    path, value = calls.SHORT_NAMES[name], 0.5 if name.endswith("rate") else 3
    by_short, by_path = Settings(**{name: value}), Settings(**{path: value})
    assert by_short == by_path == Settings().changed({name: str(value)}) != Settings()
    assert getattr(by_short, name) == by_short.value(name) == by_short.value(path) == value
    assert by_short.argument(path) == value and getattr(Settings(), name) is None
    assert getattr(dataclasses.replace(by_short, **{name: 1}), name) == 1
    assert (calls.short_name(path), calls.argument_path(name)) == (name, path)
    error = refused(Settings, **{name: value, path: value})
    assert str(error) == f"{path} is {value}, but must be left out where {name}, the same setting, is given."


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("local_steps", "client_work.local_epochs"),
        ("client_trips", "server_steps"),
        ("concurrency", "protocol.start_rate"),
        ("protocol.participation", "protocol.cohort_size"),
    ],
)
def test_of_two_arguments_that_exclude_each_other_the_later_layer_decides(one, other):
    error = refused(Settings.from_mapping, {one: "3", other: 4})
    assert str(error) == f"{other} is 4, but must be left out where {one} is given (3)."
    assert error.setting == other
    assert Settings(**{one: 3}).changed({other: 4}) == Settings(**{other: 4})
    assert Settings(**{other: 4}).changed({one: 3}) == Settings(**{one: 3})
    assert Settings.from_mapping({one: 3, other: None}).argument(one) == 3


def test_a_value_raises_and_an_argument_is_none_where_the_call_has_no_such_argument():
    run = Settings(protocol="synchronous(cohort_size=4)", delay="once_per_client(gamma(2))")
    assert run.argument("buffer_size") is None and run.argument("delay.mean") == 2.0
    assert refused(run.value, "buffer_size").setting == "buffer_size"
    assert run.concurrency == run.value("protocol.cohort_size") == 4  # how many train at a time
    assert refused(Settings(delay="gama").argument, "delay.mean").setting == "delay"


# Lists of algorithms, and layers.


@pytest.mark.parametrize(
    ("algorithm", "name", "value", "changed"),
    [
        ("fedbuff,asgd", "algorithm.aggregate", "sum", "fedbuff(aggregate='sum'),asgd"),
        (
            "fedbuff,fedasync", "algorithm.staleness_weight", "hinge",
            "fedbuff(staleness_weight=hinge),fedasync(staleness_weight=hinge)",
        ),
        (
            "fedbuff(staleness_weight=hinge(slope=1, threshold=2)),ace", "algorithm.staleness_weight.slope", 3,
            "fedbuff(staleness_weight=hinge(slope=3.0, threshold=2.0)),ace",
        ),
        (
            "ace,aced_8bit", "algorithm.memory_precision", "int8",
            "ace(memory_precision='int8'),aced_8bit(memory_precision='int8')",
        ),
    ],
)  # fmt: skip
def test_a_dotted_name_goes_to_each_algorithm_that_has_it(algorithm, name, value, changed):
    assert Settings(algorithm=algorithm, **{name: value}).algorithm == changed
    assert calls.argument({"algorithm": changed}, name) is None  # of several


def test_a_dotted_name_that_no_algorithm_of_a_list_has_is_refused():
    error = refused(Settings, algorithm="asgd,fedbuff", **{"algorithm.form": "direct"})
    assert str(error).startswith("algorithm.form: asgd has no arguments. It is an argument of ace")
    error = refused(Settings, algorithm="asgd,wkafl", **{"algorithm.momentum": "x"})
    assert str(error) == "algorithm.momentum is 'x', but must be a number."


@pytest.mark.parametrize(
    ("layers", "setting", "text"),
    [
        # An argument stays where a later call has it and does not say it itself.
        ([{"delay.shape": 3, "delay": "gamma"}, {"delay": "pareto"}], "delay", "pareto(shape=3.0)"),
        ([{"delay.shape": 3, "delay": "gamma"}, {"delay": "pareto(shape=2)"}], "delay", "pareto(shape=2)"),
        ([{"delay.shape": 3, "delay": "gamma"}, {"delay": "constant"}], "delay", "constant"),
        # That of a call written out goes with it.
        ([{"delay": "gamma(shape=3)"}, {"delay": "pareto"}], "delay", "pareto"),
        ([{"buffer_size": 5}, {"protocol": "asynchronous"}], "protocol", "asynchronous(buffer_size=5)"),
        ([{"buffer_size": 5}, {"protocol": "synchronous"}], "protocol", "synchronous"),
        ([{"concurrency": 5}, {"protocol": "synchronous"}], "protocol", "synchronous(cohort_size=5)"),
        (
            [{"buffer_size": 5}, {"protocol": "asynchronous"}, {"buffer_size": 6}],
            "protocol", "asynchronous(buffer_size=6)",
        ),
        (
            [{"protocol.restart": "at_once"}, {"buffer_size": 6}],
            "protocol", "default(buffer_size=6, restart='at_once')",
        ),
        ([{"client_trips": 5}, {"server_steps": 6}], "protocol", "default(server_steps=6)"),
        (
            [{"algorithm.aggregate": "sum", "algorithm": "fedbuff"}, {"algorithm": "ace,fedbuff"}],
            "algorithm", "ace,fedbuff(aggregate='sum')",
        ),
        ([{"algorithm.aggregate": "sum", "algorithm": "fedbuff"}, {"algorithm": "ace"}], "algorithm", "ace"),
        ([{"partition.alpha": 2}, {"partition": None}], "partition", None),
    ],
)  # fmt: skip
def test_each_layer_takes_the_place_of_what_comes_before(layers, setting, text):
    defaults = {"protocol": "default", "algorithm": "fedbuff", "delay": "constant", "partition": None}
    assert with_arguments(*layers, defaults=defaults)[setting] == text


def test_a_value_that_was_asked_for_before_is_the_callers_own():
    settings = {"model": "mlp(hidden_sizes=[20, 30])"}
    calls.argument(settings, "model.hidden_sizes").append(40)
    assert calls.argument(settings, "model.hidden_sizes") == [20, 30]
    for _ in range(2):
        assert calls.argument({"model": "mlp"}, "model.kernel_size") is None, "it has no such argument"
        with pytest.raises(SettingError, match="model is 'mlp\\(', but"):
            calls.argument({"model": "mlp("}, "model.hidden_sizes")
