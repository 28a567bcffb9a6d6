"""What docstrings say of functions: a sentence, the text of each argument, examples. For the help of settings."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any


def without_partial(factory: Callable[..., Any]) -> Callable[..., Any]:
    """The function of which some arguments are given."""
    return factory.func if isinstance(factory, functools.partial) else factory


def _docstring(factory: Callable[..., Any]) -> str:
    """Without the markup of code, roles (optax's) and links: ``:func:`optax.nadam```` as optax.nadam."""
    text = inspect.getdoc(without_partial(factory)) or ""
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
