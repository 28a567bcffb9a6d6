"""What ``dir`` lists, as a completion at a prompt does: the public names of a module, and nothing that it imports."""

import inspect
import types

import pytest

import jafl

MODULES = (
    "privacy",
    "compression",
    "delays",
    "availability",
    "data",
    "models",
    "rules",
    "plots",
    "diagnostics",
)


def module(name: str) -> types.ModuleType:
    return getattr(jafl, name)


def test_dir_of_delays_lists_delays_only():
    listed = [getattr(jafl.delays, name) for name in dir(jafl.delays)]
    assert listed and all(inspect.isclass(law) and issubclass(law, jafl.Delay) for law in listed)
    every = {
        name
        for name, value in vars(jafl.delays).items()
        if inspect.isclass(value) and issubclass(value, jafl.Delay) and value is not jafl.Delay
    }
    assert set(dir(jafl.delays)) == every


def test_dir_of_availability_lists_laws_of_presence_only():
    listed = [getattr(jafl.availability, name) for name in dir(jafl.availability) if name != "always"]
    assert len(listed) == 4 and all(issubclass(law, jafl.Availability) for law in listed)


def test_dir_of_rules_lists_every_rule():
    helpers = {"RULES", "accumulate", "server_optimizers", "staleness"}
    assert set(dir(jafl.rules)) == {*jafl.rules.RULES, *helpers}


@pytest.mark.parametrize("name", MODULES)
def test_dir_lists_the_public_names(name):
    listed = dir(module(name))
    assert listed == sorted(module(name).__all__) and all(hasattr(module(name), each) for each in listed)
    modules = {each for each in listed if inspect.ismodule(getattr(module(name), each))}
    assert modules <= {"accumulate", "server_optimizers", "staleness"}  # of rules, for users


def test_dir_of_jafl_lists_what_its_docstring_speaks_of():
    listed = {name for name in dir(jafl) if not name.startswith("_")}
    assert {"simulate", "delays", "rules", "config", "runs", "sweeps", "History"} <= listed
    assert "importlib" not in listed
    for name in listed:
        assert getattr(jafl, name) is not None
