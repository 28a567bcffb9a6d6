"""The settings that only some runs read, and why the others do not.

What is unread changes nothing: two runs that differ in it alone are the same run, and a table of both would mislead.
Most settings are read by every run, or are arguments of a call that no other call has.
"""

from collections.abc import Sequence

from jafl.config import calls
from jafl.config.builders.data import source_parameters
from jafl.config.calls import NOT_ALWAYS_READ
from jafl.config.settings import Settings, default_of
from jafl.config.values import join_with_or

# Data sets of which a seed decides what is drawn, or which examples are held out.
DIVIDED_BY_SEED = (
    *("digits", "synthetic", "mnist_5000", "mnist_1d", "python_source", "shakespeare"),
    *("celeb_a", "sentiment140"),
)
# Settings with which a seed decides the same for any data set.
DIVIDING = tuple(
    f"split.{name}"
    for name in (
        *("test_fraction", "validation_fraction", "server_examples"),
        *("evaluation_examples", "shuffle_labels"),
    )
)
OF_SOME_RUNS = (
    *("data_dir", "split.test_fraction", "split.seed", "split.resample", "split.server_classes"),
    *NOT_ALWAYS_READ,
)


def why_unread(name: str, run: Settings) -> str:
    """Why a run does not read a setting, or has no such argument, in a sentence; empty where it does.

    run: its settings as ``resolve_run`` returns them.
    """
    setting, _, argument = calls.argument_path(name).partition(".")
    protocol = calls.grammar("protocol").read(run.protocol).name
    if name in ("data_dir", "split.test_fraction"):
        own = argument or setting
        return "" if own in source_parameters(run) else f"dataset is {run.dataset_name}, which has no {own}."
    if name in ("split.seed", "split.resample"):
        deciding = [*DIVIDING, *["split.folds"] * (argument == "seed")]
        given = (run.value(each) != default_of(each) and not why_unread(each, run) for each in deciding)
        if run.dataset_name in DIVIDED_BY_SEED or any(given):
            return ""
        return f"dataset is {run.dataset_name}, and none of {join_with_or(deciding)} is given."
    if name == "split.server_classes":
        return "" if run.value("split.server_examples") else "split.server_examples is left out."
    if name in NOT_ALWAYS_READ and protocol in calls.WITHOUT_LOSSES:
        return f"protocol is {protocol}, which has no {name}."
    if argument and not calls.grammar(setting).has(getattr(run, setting), argument):
        return why_not_had(setting, argument, [run])
    return ""


def as_read(run: Settings) -> Settings:
    """The settings of a run, those that it does not read at their defaults."""
    return run.changed({name: default_of(name) for name in OF_SOME_RUNS if why_unread(name, run)})


def why_not_had(setting: str, argument: str, runs: Sequence[Settings]) -> str:
    """Which calls the runs have, and which would have the argument."""
    grammar = calls.grammar(setting)
    here = dict.fromkeys(grammar.read(getattr(run, setting)).name for run in runs)
    return f"{setting} is {' and '.join(here)}, without {argument}. {grammar.where(argument)}".rstrip()
