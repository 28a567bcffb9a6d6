"""Every public name explains itself in one form, and every example in a docstring runs.

The form is Google's: a summary of one line, then ``Args:`` with every parameter and ``Returns:``. A class may name
its fields under ``Args:`` or ``Attributes:``, or in a list with one field, or several with commas, at the start of a
line.
"""

import dataclasses
import doctest
import importlib
import inspect
import pathlib
import re

import flax.linen as nn
import pytest

import jafl

ROOT = pathlib.Path(__file__).parent.parent
NAMESPACES = ("delays", "availability", "data", "models", "rules", "plots", "diagnostics")
# What examples may use without importing it.
GLOBALS = ("jafl", "jax", "jax.numpy as jnp", "numpy as np", "optax")
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples|Source|Note):\s*$")
NAMES = r"\*{0,2}\w+(?:,\s+\*{0,2}\w+)*"


def public_names() -> list[str]:
    """``simulate``, ``rules.fedbuff``, ...: every function and class that users reach from ``jafl``."""
    names = [name for name in jafl.__all__ if not inspect.ismodule(getattr(jafl, name))]
    for namespace in NAMESPACES:
        module = getattr(jafl, namespace)
        exported = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "").startswith(module.__name__)
        ]
        names += [f"{namespace}.{name}" for name in exported]
    return [name for name in names if inspect.isfunction(resolve(name)) or inspect.isclass(resolve(name))]


def resolve(name: str) -> object:
    """The object called ``jafl.<name>``."""
    value: object = jafl
    for part in name.split("."):
        value = getattr(value, part)
    return value


def sections(docstring: str) -> dict[str, list[str]]:
    """{heading: its lines}; what stands before the first heading, or after a section, is under ""."""
    lines: dict[str, list[str]] = {"": []}
    heading = ""
    for line in docstring.splitlines():
        if match := SECTION.match(line):
            heading = match[1]
            lines.setdefault(heading, [])
        else:
            if line and not line.startswith(" "):
                heading = ""
            lines[heading].append(line)
    return lines


def split_names(text: str) -> set[str]:
    return {name.strip().lstrip("*") for name in text.split(",")}


def entries(lines: list[str]) -> set[str]:
    """The names that a section explains: ``name: ...``, ``name (type): ...`` or ``name, name: ...``."""
    names: set[str] = set()
    text = "\n".join(lines)
    for match in re.finditer(rf"^\s+({NAMES})(?:\s+\([^)]*\))?:", text, re.MULTILINE):
        names |= split_names(match[1])
    return names


def listed_fields(docstring: str) -> set[str]:
    """The names at the start of a line, or after a semicolon."""
    names: set[str] = set()
    for match in re.finditer(rf"(?:^|;)\s*({NAMES})", docstring, re.MULTILINE):
        names |= split_names(match[1])
    return names


def parameters(value) -> list[str]:
    """The parameters of a call of a function or class, in the order of its signature."""
    signature = inspect.signature(value).parameters
    names = [name for name in signature if not name.startswith("_")]
    if inspect.isclass(value):  # one that takes any keyword describes it in words
        names = [name for name in names if signature[name].kind is not inspect.Parameter.VAR_KEYWORD]
        if issubclass(value, nn.Module):
            names = [
                name for name in names if name not in ("parent", "name")
            ]  # every module of Flax has these
    return names


def docstring_of(value) -> str:
    """The cleaned docstring, "" for none and for the one that a dataclass makes of its fields."""
    text = inspect.getdoc(value) or ""
    generated = dataclasses.is_dataclass(value) and text.startswith(f"{value.__name__}(")
    return "" if generated else text


@pytest.mark.parametrize("name", public_names())
def test_a_public_name_explains_itself(name):
    value = resolve(name)
    docstring = docstring_of(value)
    assert docstring, f"jafl.{name} has no docstring"
    summary, *rest = docstring.splitlines()
    assert summary.endswith("."), (
        f"the summary of jafl.{name} is no line that ends with a full stop: {summary}"
    )
    assert not rest or not rest[0], f"no empty line follows the summary of jafl.{name}"

    parts = sections(docstring)
    explained = entries(parts.get("Args", []) + parts.get("Attributes", []))
    if inspect.isclass(value):
        explained |= listed_fields(docstring)
    if not (inspect.isclass(value) and issubclass(value, Exception)):  # users catch these, and never make one
        missing = [parameter for parameter in parameters(value) if parameter not in explained]
        assert not missing, f"jafl.{name} does not explain {', '.join(missing)}"


@pytest.mark.parametrize("name", [name for name in public_names() if inspect.isfunction(resolve(name))])
def test_a_public_function_says_what_it_returns(name):
    value = resolve(name)
    if inspect.signature(value).return_annotation not in (None, "None"):
        returns = sections(docstring_of(value)).get("Returns")
        assert returns, f"jafl.{name} does not say what it returns"


@pytest.mark.parametrize("name", [name for name in public_names() if inspect.isclass(resolve(name))])
def test_public_methods_have_docstrings(name):
    cls = resolve(name)
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for attribute, value in vars(cls).items():
        method = inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod))
        if method and not attribute.startswith("_") and attribute not in fields:
            assert inspect.getdoc(getattr(cls, attribute)), f"jafl.{name}.{attribute} has no docstring"


def modules_with_examples() -> list[str]:
    """Names of the modules of jafl with an example in their text."""
    files = sorted((ROOT / "jafl").rglob("*.py"))
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if ">>>" in file.read_text()
    ]
    return [name.removesuffix(".__init__") for name in names]


def doctests(module) -> list[doctest.DocTest]:
    """The examples in the docstrings of a module and of what it defines.

    ``DocTestFinder`` alone would miss decorated functions, such as every rule.
    """
    tests = doctest.DocTestFinder(recurse=False).find(module, module.__name__)
    for name, value in vars(module).items():
        defined = inspect.isfunction(value) or inspect.isclass(value)
        if defined and value.__module__ == module.__name__:
            tests += doctest.DocTestFinder().find(value, f"{module.__name__}.{name}", module=module)
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_run(name):
    globals_of_examples: dict = {}
    exec("\n".join(f"import {module}" for module in GLOBALS), globals_of_examples)
    tests = doctests(importlib.import_module(name))
    assert tests, f"{name} has an example outside of the docstrings of its functions and classes"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False)
    report: list[str] = []
    for test in tests:
        test.globs.update(globals_of_examples)
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)
