"""Factories as the help of settings shows them, by what their docstrings say: a sentence, arguments, examples."""

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jafl.base.errors import SettingError
from jafl.config.grammar import Grammar
from jafl.config.values import EMPTY, Call, written


class Explanation(NamedTuple):
    """A factory as the help shows it: its call with all defaults, a sentence, its arguments' texts, an example."""

    call: str
    text: str
    arguments: dict[str, str]
    example: str


def explained(grammar: Grammar) -> list[Explanation]:
    """Every factory of a setting; those of calls that only stand inside another come last, without examples."""
    explanations = []
    for name, factory in [*grammar.factories.items(), *grammar.inner.items()]:
        parameters, texts = grammar.parameters(name), arguments(factory)
        call = f"{name}({', '.join(_signature(grammar, each) for each in parameters.values())})"
        own_texts = {each: texts[each] for each in parameters if each in texts}
        example = _example(grammar, name) if name in grammar.factories else ""
        explanations.append(Explanation(call, summary(factory), own_texts, example))
    return explanations


def _signature(grammar: Grammar, parameter: inspect.Parameter) -> str:
    """An argument with its default, three dots for what the experiment fills in."""
    if parameter.name in grammar.supplied:
        return f"{parameter.name}=..."
    if parameter.default is EMPTY:
        return parameter.name
    return f"{parameter.name}={written(grammar.default_value(parameter.default))}"


def _example(grammar: Grammar, name: str) -> str:
    """A call of a factory: the one of its docstring, else one with the defaults of its first arguments."""
    first = next(iter(inspect.signature(grammar.factories[name]).parameters), "")
    for example in examples(grammar.factories[name], name):
        if first in grammar.fixed:  # what the experiment fills in, as the labels or the rule
            example = re.sub(rf"^{re.escape(name)}\((?:[^=(),]|\([^()]*\))+, ", f"{name}(", example)
        with contextlib.suppress(SettingError):
            grammar.completed(example)
            if (call := grammar.read(example)).arguments:
                return str(call)
    parameters = grammar.parameters(name).values()
    if any(each.default is EMPTY and each.name not in grammar.supplied for each in parameters):
        return ""
    simple = [each for each in parameters if isinstance(each.default, (float, int, str))][:2]
    return str(Call(name, {each.name: each.default for each in simple if each.name not in grammar.supplied}))


def _docstring(factory: Callable[..., Any]) -> str:
    """Without the markup of code, roles (optax's) and links: ``:func:`optax.nadam```` as optax.nadam."""
    text = inspect.getdoc(factory.func if isinstance(factory, functools.partial) else factory) or ""
    return re.sub(r"(?::\w+:)?(`+)~?([^`]+?)(?:\s<[^`>]*>)?\1_*", r"\2", text)


def summary(factory: Callable[..., Any]) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join(_docstring(factory).split("\n\n")[0].split())


def arguments(factory: Callable[..., Any]) -> dict[str, str]:
    """{argument: its text}, from the section Args, of a class perhaps Attributes, of a docstring.

    Examples:
      >>> arguments(jafl.delays.exponential)
      {'mean': 'in units of simulated time, above 0.'}
    """
    section = re.search(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", _docstring(factory), re.M)
    found: dict[str, list[str]] = {}
    names: list[str] = []
    lines = section[1].splitlines() if section else []
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    for line in lines:
        begins = re.match(rf"^[ ]{{{indent}}}(\*?\w+(?:, \w+)*):\s*(.*)", line)
        if begins:
            names = begins[1].split(", ")
            for name in names:
                found[name] = [begins[2]]
        else:
            for name in names:
                found[name].append(line.strip())
    return {name: " ".join(filter(None, texts)) for name, texts in found.items()}


def examples(factory: Callable[..., Any], name: str) -> Iterator[str]:
    """The calls of a function in the examples of its docstring, without the names of modules before them."""
    text = "\n".join(re.findall(r"^\s*(?:>>>|\.\.\.) (.*)", _docstring(factory), re.M))
    text = re.sub(r"\b(?:jafl|\w+)\.(?=[a-z_0-9.]+\()", "", re.sub(r"\bjafl\.(?=\w)", "", text))
    for match in re.finditer(rf"(?<![\w.]){re.escape(name)}\(", text):
        depth, end = 0, match.end() - 1
        for end in range(match.end() - 1, len(text)):
            depth += (text[end] in "([") - (text[end] in ")]")
            if not depth:
                break
        yield " ".join(text[match.start() : end + 1].split())
