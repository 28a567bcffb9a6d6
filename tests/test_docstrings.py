"""Every public name explains itself in one form, and every example in a docstring runs.

The form is Google's: a summary of one line, then ``Args:`` with every parameter and ``Returns:``. A class names its
fields under ``Args:`` or ``Attributes:``, which the site of pages shows as a list.
"""

import dataclasses
import doctest
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterator

import flax.linen as nn
import pytest

import jafl

ROOT = pathlib.Path(__file__).parent.parent
NAMESPACES = ("compression", "delays", "availability", "data", "models", "rules", "plots", "diagnostics")
# What examples may use without importing it.
GLOBALS = ("jafl", "jax", "jax.numpy as jnp", "numpy as np", "optax")
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Examples|Source|Note):\s*$")
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
    for match in re.finditer(rf"^  ({NAMES})(?:\s+\([^)]*\))?:", text, re.MULTILINE):
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


def faults_of(name: str) -> Iterator[str]:
    """What is wrong with how a public name explains itself."""
    value = resolve(name)
    docstring = docstring_of(value)
    if not docstring:
        yield "has no docstring"
        return
    summary, *rest = docstring.splitlines()
    if not summary.endswith("."):
        yield f"has a summary that is no line with a full stop at its end: {summary}"
    if rest and rest[0]:
        yield "has no empty line after its summary"
    parts = sections(docstring)
    fields = entries(parts.get("Attributes", []))
    if not (inspect.isclass(value) and issubclass(value, Exception)):  # users catch these, and never make one
        explained = fields | entries(parts.get("Args", []))
        missing = [parameter for parameter in parameters(value) if parameter not in explained]
        if missing:
            yield f"does not explain {', '.join(missing)}"
        unknown = [field for field in sorted(fields) if field not in {*dir(value), *parameters(value)}]
        if unknown:
            yield f"explains attributes that it does not have: {', '.join(unknown)}"
    if inspect.isclass(value):
        yield from faults_of_methods(value)
    elif inspect.signature(value).return_annotation not in (None, "None") and not parts.get("Returns"):
        yield "does not say what it returns"


def faults_of_methods(cls: type) -> Iterator[str]:
    """The public methods and properties of a class that have no docstring."""
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for attribute, value in vars(cls).items():
        method = inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod))
        public = method and not attribute.startswith("_") and attribute not in fields
        if public and not inspect.getdoc(getattr(cls, attribute)):
            yield f"has a method without a docstring: {attribute}"


def test_every_public_name_explains_itself():
    names = public_names()
    assert len(names) > 150
    faults = [f"jafl.{name} {fault}" for name in names for fault in faults_of(name)]
    assert not faults, "\n".join(faults)


def modules_with_examples() -> list[str]:
    """Names of the modules of jafl with an example in their text."""
    files = sorted((ROOT / "jafl").rglob("*.py"))
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if ">>>" in file.read_text()
    ]
    return [name.removesuffix(".__init__") for name in names]


def doctests(module) -> list[doctest.DocTest]:
    """The examples in the docstrings of a module and of what it defines.

    ``DocTestFinder`` alone would miss decorated functions, such as every rule and every private function that is
    jitted.
    """
    tests = doctest.DocTestFinder(recurse=False).find(module, module.__name__)
    for name, value in vars(module).items():
        # A jitted function is an object of JAX; the one with the docstring is inside.
        value = inspect.unwrap(value) if callable(value) else value
        defined = inspect.isfunction(value) or inspect.isclass(value)
        if defined and value.__module__ == module.__name__:
            tests += doctest.DocTestFinder().find(value, f"{module.__name__}.{name}", module=module)
    return [test for test in tests if test.examples]


@pytest.mark.full
def test_examples_in_docstrings_run():
    report: list[str] = []
    for name in modules_with_examples():
        globals_of_examples: dict = {}
        exec("\n".join(f"import {module}" for module in GLOBALS), globals_of_examples)
        tests = doctests(importlib.import_module(name))
        if not tests:
            report.append(f"{name} has an example outside of the docstrings of its functions and classes\n")
        options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        runner = doctest.DocTestRunner(optionflags=options, verbose=False)
        for test in tests:
            test.globs.update(globals_of_examples)
            runner.run(test, out=report.append)
    assert not report, "".join(report)
