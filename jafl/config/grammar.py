"""A setting as the call of a public factory: ``gamma(mean=1.0, shape=2)`` on the command line, in sweeps and files.

The names, arguments, types and defaults are those of the Python functions, so they are written once. A dotted name is
one argument of a call: ``delay.shape=2``. Texts are read by Python's own parser into literals, lists, names and calls
of registered factories; nothing in them is run. A factory may stand in a file of the user's own, which is run:
``my_rules.py:fancy(beta=0.5)``.

``default(buffer_size=5)`` is the call that the algorithm or the data set decides, with this argument. It has the
arguments of all factories; which of them the run's own factory has is known when the run is resolved.
"""

import ast
import dataclasses
import functools
import inspect
import math
import os
import pathlib
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jafl.base.errors import SettingError, did_you_mean, refusal, require, shown
from jafl.config import documented
from jafl.config.declaration import join_with_or
from jafl.config.own_files import own_factory, own_name, without_file

if TYPE_CHECKING:
    from jafl.specifications import Specification

# What a value may be, in words, by the type that the factory's signature has.
KINDS: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "True or False",
    str: "a text in quotes",
    os.PathLike: "a text in quotes",
    type(None): "None",
}
FILES = (".csv", ".npz")  # endings of files that a factory reads
SEQUENCES = (list, tuple, Sequence)
WORDS = {"inf": math.inf, "true": True, "false": False, "none": None}  # as flags and JSON have them
LARGEST_WHOLE_NUMBER = 2**64
EMPTY = inspect.Parameter.empty
DEFAULT = "default"  # the name of the call that the algorithm or the data set decides


@dataclasses.dataclass(frozen=True)
class Call:
    """The call of a factory, not yet made.

    Attributes:
      name: of the factory.
      arguments: {name: value}; a value is a literal, a list or tuple of values, or a call.
    """

    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        """As ``Grammar.read`` reads it; without brackets where there are no arguments."""
        arguments = ", ".join(f"{name}={written(value)}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})" if arguments else self.name


class Explanation(NamedTuple):
    """A factory as the help shows it: its call with all defaults, a sentence, its arguments' texts, an example."""

    call: str
    text: str
    arguments: dict[str, str]
    example: str


def written(value: Any) -> str:
    """A value of a call as text.

    Examples:
      >>> written([1, (2.5, "a"), Call("gamma", {"shape": 2.0}), float("inf")])
      "[1, (2.5, 'a'), gamma(shape=2.0), inf]"
    """
    if isinstance(value, Call):
        return str(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(written, value))}{',' * (len(value) == 1)})"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return repr(value)


@dataclasses.dataclass(frozen=True)
class Grammar:
    """What a setting may be: calls of these factories.

    Attributes:
      setting: its name.
      factories: {name: factory}.
      supplied: arguments that the experiment fills in where a call leaves them out: the clients' numbers of examples,
        for example.
      fixed: arguments of these factories that the experiment fills in, and no call can have: labels, for example.
      has_default: whether ``default`` stands for the call that the algorithm or the data set decides.
      exclusive: pairs of arguments of which a call has at most one; the later one takes the place of the other.
      inner: {name: factory} of those that only stand inside of another call: staleness weights, for example.
      other_names: {(factory, argument): the argument that has its place there}: how many clients train at a time is
        the concurrency of one protocol, and the size of another's cohorts.
      elsewhere: names of settings, which an argument that a call does not have may be.
      short_names: {argument: the setting's own name for it}: learning_rate for client_optimizer.learning_rate.
      instead: {a name that is none of a factory: what to write in its place}.
    """

    setting: str
    factories: Mapping[str, Callable[..., Any]]
    supplied: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    has_default: bool = False
    exclusive: tuple[tuple[str, str], ...] = ()
    inner: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    other_names: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    elsewhere: Collection[str] = ()
    short_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    instead: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def read(self, text: str) -> Call:
        """The call that a text says.

        Raises:
          SettingError: for a text that is no call, with what is wrong and what is allowed.

        Examples:
          >>> Grammar("delay", jafl.schedule.DELAYS).read("gamma(2, shape=3)")
          Call(name='gamma', arguments={'mean': 2.0, 'shape': 3.0})
        """
        call = self._said(text)
        if not isinstance(call, Call):
            raise refusal(self.setting, text, f"a call, such as {self._example()}")
        if call.name in self.inner:
            allowed = f"one of {', '.join(self.factories)}"
            raise refusal(self.setting, text, allowed, f"{call.name} only stands inside of another call.")
        return call

    def completed(self, text: str) -> str:
        """The call in its one spelling: every argument by name, in the factory's order, every default written out."""
        return str(self._complete(self.read(text)))

    def changed(self, text: str, path: str, value: Any) -> str:
        """The call with another value of one argument.

        Args:
          text: the call.
          path: the argument's name, of the outermost call, or else of the only call inside it that has one of this
            name. Of several, name the way to it: ``law.mean``.
          value: the new value: a literal, or a text, which is read where the argument takes no text.

        Examples:
          >>> Grammar("delay", jafl.schedule.DELAYS).changed("gamma(mean=2)", "shape", 3)
          'gamma(mean=2.0, shape=3.0)'
        """
        call = self.read(text)
        holder, name = self._find(call, path)
        if isinstance(value, str):
            value = self._from_text(holder, name, value)
        given = {**holder.arguments, name: self._checked(holder.name, name, value)}
        for partner in self.partners(name):
            if value is not None and given.get(partner) is not None:
                del given[partner]
        if value is None and name in self.supplied:
            del given[name]  # filled in as if it had not been given
        ordered = self._ordered(holder.name, given)
        holder.arguments.clear()
        holder.arguments.update(ordered.arguments)
        return str(call)

    def _ordered(self, name: str, given: Mapping[str, Any]) -> Call:
        """The call of a factory with these arguments, in its order."""
        return Call(name, {each: given[each] for each in self._parameters(name) if each in given})

    def partners(self, name: str) -> set[str]:
        """The arguments that a call has not beside this one."""
        return {other for pair in self.exclusive for one, other in (pair, pair[::-1]) if one == name}

    def on(self, text: str, before: str) -> str:
        """The call ``text`` in the place of another one: with the arguments of ``before`` where that is a default.

        Examples:
          >>> Grammar("optimizer", {"adam": optax.adam}, has_default=True).on("adam", "default(learning_rate=0.1)")
          'adam(learning_rate=0.1)'
        """
        call, earlier = self.read(text), self.read(before)
        if earlier.name != DEFAULT:
            return text
        return str(self._beside(call, self._in_place(call.name, earlier)))

    def _beside(self, call: Call, others: Mapping[str, Any]) -> Call:
        """The call with those of other arguments that its factory has and that it leaves open."""
        parameters = self._parameters(call.name)
        said = {name for name, value in call.arguments.items() if value is not None}
        kept = {
            name: value
            for name, value in others.items()
            if name in parameters and not {name, *self.partners(name)} & said
        }
        return self._ordered(call.name, {**call.arguments, **kept})

    def filled(self, text: str, own: str) -> str:
        """The call of a run: of a default that of the run's own factory, with the arguments that it has.

        Args:
          text: the call as given.
          own: the run's own call, which the algorithm or the data set decides. Of another factory, too, it fills in
            the arguments that an experiment supplies.

        Examples:
          >>> grammar = Grammar("optimizer", {"sgd": optax.sgd, "adam": optax.adam}, ("learning_rate",), (), True)
          >>> grammar.filled("default(momentum=0.5)", "sgd(learning_rate=0.1)")
          'sgd(learning_rate=0.1, momentum=0.5)'
          >>> grammar.filled("adam", "sgd(learning_rate=0.1)")
          'adam(learning_rate=0.1)'
        """
        call, owned = self.read(text), self.read(own)
        if call.name == DEFAULT:
            said = self._ordered(owned.name, self._in_place(owned.name, call))
            others = {name: value for name, value in owned.arguments.items() if name not in said.arguments}
            return str(self._beside(said, others))
        supplied = {name: value for name, value in owned.arguments.items() if name in self.supplied}
        return str(self._beside(call, supplied))

    def without(self, text: str, names: Collection[str]) -> str:
        """The call without these arguments; with the setting's own name among them, of the default factory."""
        call = self.read(text)
        kept = {name: value for name, value in call.arguments.items() if name not in names}
        return str(Call(DEFAULT if self.setting in names else call.name, kept))

    def _in_place(self, factory: str, call: Call) -> dict[str, Any]:
        """The arguments of a default call under the names that a factory has for them."""
        named = dict(call.arguments)
        for name, value in call.arguments.items():
            other = self.other_names.get((factory, name), name)
            beside = [each for each in self.partners(other) if named.get(each) is not None]
            if other != name and named.get(other) is None and not beside:
                named[other] = value
        return named

    def has(self, text: str, argument: str) -> bool:
        """Whether the outermost factory of a call has an argument of this name, or another one in its place."""
        name = self.read(text).name
        return argument in self._parameters(name) or (name, argument) in self.other_names

    def defaults(self, argument: str) -> list[Any]:
        """The defaults that factories have for an argument."""
        having = (self._parameters(name) for name in self.factories)
        return [parameters[argument].default for parameters in having if argument in parameters]

    def default(self, argument: str) -> Any:
        """The default of an argument: of the first factory that has one; None without any."""
        return next((value for value in self.defaults(argument) if value is not EMPTY), None)

    def heeds(self, text: str, argument: str, value: Any) -> bool:
        """Whether a run's call has an argument of a default call, or its value in another one in its place."""
        call = self.read(text)
        other = self.other_names.get((call.name, argument))
        is_there = other is not None and call.arguments.get(other) == value
        return argument in self._parameters(call.name) or is_there

    def without_numbers(self, text: str, names: Collection[str]) -> str:
        """The call, a mark in place of these arguments where they are numbers; for runs that share a program."""
        whole = self._complete(self.read(text))
        for call in _calls(whole):
            for name in set(names) & set(call.arguments):
                if isinstance(call.arguments[name], float):
                    call.arguments[name] = Call("number", {})
        return str(whole)

    def specified(self, text: str) -> "Specification":
        """The call as a specification, with the arguments that are not as by default: their floats are data."""
        from jafl.specifications import specify  # imports JAX, which the list of experiments does without

        specification: Specification = self._made(self.read(text), {}, specify)
        return specification

    def make(self, text: str, **supplied: Any) -> Any:
        """What the call makes.

        Args:
          text: the call.
          supplied: arguments that the experiment fills in, for factories that have them.

        Raises:
          SettingError: for a value that a factory refuses, under the name ``setting.argument``.
        """
        return self._made(self.read(text), supplied)

    def given(self, text: str) -> dict[str, Any]:
        """{argument: value} of a call, every default included; calls among them are not made."""
        return self._complete(self.read(text)).arguments

    def is_call(self, text: Any) -> bool:
        """Whether a value is the text of a call, perhaps of one that only stands inside of another."""
        try:
            return isinstance(self._said(text), Call)
        except SettingError:
            return False

    def names(self, text: str) -> Iterator[str]:
        """The names of all factories that a call has in it, the outermost first."""

        def inside(value: Any) -> Iterator[str]:
            if isinstance(value, Call):
                yield value.name
                value = list(value.arguments.values())
            for each in value if isinstance(value, (list, tuple)) else ():
                yield from inside(each)

        return inside(self.read(text))

    def value(self, text: str, path: str) -> Any:
        """The value of one argument, the default where the call leaves it out; ``path`` as of ``changed``."""
        holder, name = self._find(self.read(text), path)
        if name in holder.arguments:
            return holder.arguments[name]
        default = self._parameters(holder.name)[name].default
        is_known = default is not EMPTY and name not in self.supplied and holder.name != DEFAULT
        return self._default(default) if is_known else None

    def says(self, text: str, path: str) -> bool:
        """Whether the call itself has a value for an argument; ``path`` as of ``changed``."""
        call = self.read(text)
        own = list(_calls(call))  # the others are defaults, which are written out on the way
        holder, name = self._find(call, path)
        return any(holder is each for each in own) and name in holder.arguments

    def flattened(self, text: str) -> tuple[str, dict[str, Any]]:
        """(the call without the arguments that a name alone can tell, these arguments by name), for tables.

        Examples:
          >>> Grammar("delay", jafl.schedule.DELAYS).flattened("gamma(mean=2.0, shape=3.0)")
          ('gamma', {'mean': 2.0, 'shape': 3.0})
        """
        call = self._complete(self.read(text))
        counts = Counter(name for each in _calls(call) for name in each.arguments)
        found: dict[str, Any] = {}

        def without(call: Call) -> Call:
            rest = {}
            for name, value in call.arguments.items():
                if isinstance(value, Call) and value.name not in self.inner:
                    rest[name] = without(value)
                elif isinstance(value, Call):
                    found[name] = without(value).name
                elif counts[name] > 1 or not _is_plain(value):
                    rest[name] = value
                else:
                    found[name] = value
            return Call(call.name, rest)

        return str(without(call)), found

    def paths(self, text: str) -> dict[str, str]:
        """{argument: file} of all files that a call reads: arguments that may be ``os.PathLike``.

        Of several arguments of one name, the second is ``path[1]``, the third ``path[2]``.
        """
        found: dict[str, str] = {}
        for call in _calls(self.read(text)):
            for name, value in call.arguments.items():
                if value is not None and self._is_file(self._hints(call.name).get(name, Any)):
                    number = sum(other.partition("[")[0] == name for other in found)
                    found[f"{name}[{number}]" if number else name] = value
        return found

    def arguments_of(self, name: str) -> list[str]:
        """The names of a factory's arguments; also of one that only stands inside of another call."""
        return list(self._parameters(name))

    def arguments(self) -> dict[str, list[str]]:
        """{factory: the names of its arguments}."""
        return {name: list(self._parameters(name)) for name in self.factories}

    def explained(self) -> list["Explanation"]:
        """Every factory as the help shows it; those of calls that only stand inside another come last."""
        explanations = []
        for name, factory in [*self.factories.items(), *self.inner.items()]:
            parameters = self._parameters(name)
            texts = documented.arguments(factory)
            explanations.append(
                Explanation(
                    f"{name}({', '.join(map(self._signature, parameters.values()))})",
                    documented.summary(factory),
                    {argument: texts[argument] for argument in parameters if argument in texts},
                    # The value of a setting is no call that only stands inside another.
                    self._shown_example(name, factory) if name in self.factories else "",
                )
            )
        return explanations

    def _signature(self, parameter: inspect.Parameter) -> str:
        """An argument with its default, three dots for what the experiment fills in."""
        if parameter.name in self.supplied:
            return f"{parameter.name}=..."
        if parameter.default is EMPTY:
            return parameter.name
        return f"{parameter.name}={written(self._default(parameter.default))}"

    def _shown_example(self, name: str, factory: Callable[..., Any]) -> str:
        """A call of a factory: the one of its docstring, else one with the defaults of its first arguments."""
        first = next(iter(inspect.signature(factory).parameters), "")
        for example in documented.examples(factory, name):
            if first in self.fixed:  # what the experiment fills in, as the labels or the rule
                example = re.sub(rf"^{re.escape(name)}\((?:[^=(),]|\([^()]*\))+, ", f"{name}(", example)
            try:
                call = self._said(example)
                self._complete(call)
            except SettingError:
                continue
            if isinstance(call, Call) and call.arguments:
                return str(call)
        parameters = self._parameters(name).values()
        if any(each.default is EMPTY and each.name not in self.supplied for each in parameters):
            return ""
        simple = [each for each in parameters if isinstance(each.default, (float, int, str))]
        return str(
            Call(name, {each.name: each.default for each in simple[:2] if each.name not in self.supplied})
        )

    # Reading.

    def _said(self, text: str) -> Any:
        """The value that a text says, the caller's own."""
        require(isinstance(text, str), self.setting, text, "text")
        if not text.strip():
            raise refusal(self.setting, text, f"a name, or a call such as {self._example()}")
        if text in self._read_before:
            return _copied(self._read_before[text])
        try:
            node = self._parsed(text)
            if own := own_name(text):
                self.factory(own)  # refuses a file without this function
                node = _renamed(node, own)
            value = self._value(node, text)
        except RecursionError:
            raise refusal(self.setting, text, "nested less deeply") from None
        if not own:  # a file may hold something else later
            self._read_before[text] = _copied(value)
        return value

    @functools.cached_property
    def _read_before(self) -> dict[str, Any]:
        """{text: its value}: an experiment reads the same few texts thousands of times."""
        return {}

    def _parsed(self, text: str) -> ast.expr:
        try:
            return ast.parse(without_file(text).strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            said = error.msg if isinstance(error, SyntaxError) else str(error) or "too deeply nested"
            allowed = f"a name, or a call such as {self._example()}"
            remedy = self._about_file(text) or f"Python's parser says: {said}."
            raise refusal(self.setting, text, allowed, remedy) from None

    def _value(self, node: ast.expr, text: str) -> Any:
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str()):
                return self._literal(node.value, text)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                number = self._value(operand, text)
                if isinstance(number, (int, float)) and not isinstance(number, bool):
                    return -number if isinstance(sign, ast.USub) else number
            case ast.List(elts=elements):
                return [self._value(each, text) for each in elements]
            case ast.Tuple(elts=elements):
                return tuple(self._value(each, text) for each in elements)
            case ast.Name(id=name) if name in WORDS:
                return WORDS[name]
            case ast.Call(func=function, args=values, keywords=named):
                return self._bound(self._name(function, text), values, named, text)
            case ast.BinOp(left=left, op=ast.Div(), right=ast.Call(func=last, args=values, keywords=named)):
                # To Python, emnist/byclass(x=1) is emnist / (byclass(x=1)).
                function = ast.BinOp(left, ast.Div(), last)
                return self._bound(self._name(function, text), values, named, text)
            case ast.Name() | ast.BinOp(op=ast.Div()):
                return Call(self._name(node, text), {})
        raise self._code(node, text)

    def _literal(self, value: Any, text: str) -> Any:
        """The value, a whole number that no array holds as a float; SettingError for a text with a null byte."""
        fits = not isinstance(value, str) or "\0" not in value
        require(fits, self.setting, text, "without null bytes")
        is_large = isinstance(value, int) and value >= LARGEST_WHOLE_NUMBER
        return _as_float(value) if is_large else value

    def _name(self, node: ast.expr, text: str) -> str:
        """The name of a factory, which may have slashes: emnist/byclass."""
        if not all(isinstance(part, (ast.Name, ast.BinOp, ast.Div, ast.Load)) for part in ast.walk(node)):
            raise self._code(node, text)
        name = ast.unparse(node).replace(" / ", "/")
        if name == own_name(text) and name:
            return name
        if name not in {*self.factories, *self.inner, *[DEFAULT] * self.has_default}:
            raise self._unknown(name, text)
        return name

    def _unknown(self, name: str, text: str) -> SettingError:
        known = [*self.factories, *[DEFAULT] * self.has_default]
        near = did_you_mean(name, [*known, *self.inner], "A text stands in quotes.")
        hint = self.instead.get(name, near)
        return self._wrong(text, f"there is no {name!r}; there is {', '.join(known)}", hint)

    def factory(self, name: str) -> Callable[..., Any]:
        """The function that a call's name means."""
        if ":" in name:
            return own_factory(self.setting, name)
        return self.factories[name] if name in self.factories else self.inner[name]

    def _code(self, node: ast.expr, text: str) -> SettingError:
        part = ast.unparse(node)
        remedy = self._about_file(text)
        if not remedy and pathlib.PurePath(part).suffix in FILES:
            remedy = f"A text stands in quotes: {part!r}."
        remedy = remedy or f"Only numbers, texts, lists, names and calls are read; {part!r} is none of these."
        return refusal(self.setting, text, f"a call such as {self._example()}", remedy)

    def _about_file(self, text: str) -> str:
        """What to write where the text is the name of a file; empty where it is none."""
        readers = [name for name in self.factories if any(map(self._is_file, self._hints(name).values()))]
        is_name = readers and pathlib.PurePath(text).suffix in FILES and "(" not in text
        return f"A file is read by {readers[0]}({text!r})." if is_name else ""

    @staticmethod
    def _is_file(hint: Any) -> bool:
        return os.PathLike in _kinds(hint)

    def _bound(self, name: str, values: list[ast.expr], named: list[ast.keyword], text: str) -> Call:
        """The call with every argument under its name."""
        parameters = list(self._parameters(name))
        listed = ", ".join(parameters) or "none"
        if len(values) > len(parameters):
            raise self._wrong(text, f"{name} has {len(parameters)} arguments ({listed}), not {len(values)}")
        arguments: dict[str, ast.expr] = dict(zip(parameters, values, strict=False))
        for keyword in named:
            if keyword.arg is None:
                raise self._wrong(text, "** is not read")
            if keyword.arg in arguments:
                raise self._wrong(text, f"{name} gets {keyword.arg} twice")
            if keyword.arg not in parameters:
                hint = did_you_mean(keyword.arg, parameters, self.where(keyword.arg))
                raise self._wrong(text, f"{name} has no argument {keyword.arg!r}; it has {listed}", hint)
            arguments[keyword.arg] = keyword.value
        return Call(
            name,
            {
                argument: self._checked(name, argument, self._value(arguments[argument], text))
                for argument in parameters
                if argument in arguments
            },
        )

    def where(self, argument: str) -> str:
        """Where an argument is that a call does not have; empty where it is nowhere."""
        others = [name for name in self.factories if argument in self._parameters(name)]
        if others:
            return f"It is an argument of {join_with_or(others)}."
        return f"{argument} is a setting of its own." if argument in self.elsewhere else ""

    def _from_text(self, holder: Call, name: str, text: str) -> Any:
        """An argument's value from a text, which needs no quotes where the argument takes a text."""
        kinds = _kinds(self._hints(holder.name).get(name, Any))
        own = dataclasses.replace(self, setting=self._named(name))
        takes_call = not kinds or any(kind not in KINDS and kind not in SEQUENCES for kind in kinds)
        try:
            value = own._said(text)
        except SettingError:
            is_list = any(kind in SEQUENCES for kind in kinds) and text.strip().startswith(("[", "("))
            if str not in kinds and (takes_call or is_list):
                raise
            return text
        return text if isinstance(value, Call) and not takes_call else value

    def _wrong(self, text: str, reason: str, hint: str = "") -> SettingError:
        message = f"{self.setting} is {shown(text)}, but {reason}."
        return SettingError(f"{message} {hint}".rstrip(), setting=self.setting, value=text)

    # Arguments.

    def _parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The parameters of a factory that a call can have; of ``default`` those of all factories."""
        if name == DEFAULT:
            return self._all_parameters
        return self._own_parameters[name] if name in self._own_parameters else self._parameters_of(name)

    def _parameters_of(self, name: str) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.factory(name)).parameters
        # What the experiment fills in is of the setting's own factories: a call inside may have the same name.
        fixed = () if name in self.inner else self.fixed
        return {argument: each for argument, each in parameters.items() if argument not in fixed}

    @functools.cached_property
    def _own_parameters(self) -> dict[str, dict[str, inspect.Parameter]]:
        """{name of a registered factory: its parameters}."""
        return {name: self._parameters_of(name) for name in [*self.factories, *self.inner]}

    @functools.cached_property
    def _all_parameters(self) -> dict[str, inspect.Parameter]:
        return {each: one for name in self.factories for each, one in self._own_parameters[name].items()}

    def _hints(self, name: str) -> Mapping[str, Any]:
        if name != DEFAULT:
            return _hints_of(self.factory(name))
        hints: dict[str, Any] = {}
        for factory in self.factories.values():
            for argument, hint in _hints_of(factory).items():
                hints[argument] = hints[argument] | hint if argument in hints else hint
        return hints

    def _named(self, argument: str) -> str:
        """What messages call an argument of the setting's call."""
        own = f"{self.setting}.{argument}"
        return argument if argument in self.fixed else self.short_names.get(argument, own)

    def _checked(self, name: str, argument: str, value: Any) -> Any:
        """The value, as a float where the argument is one; raises SettingError for one of another type."""
        kinds = _kinds(self._hints(name).get(argument, Any))
        if value is None and argument in self.supplied:
            return None
        fits = not kinds or any(_is_of(value, kind) for kind in kinds)
        allowed = " or ".join(dict.fromkeys(KINDS.get(kind) or _in_words(kind) for kind in kinds))
        require(fits, self._named(argument), written(value) if _calls_in(value) else value, allowed)
        return _as_float(value) if float in kinds and _is_of(value, float) and int not in kinds else value

    def _find(self, call: Call, path: str, way: str = "") -> tuple[Call, str]:
        """The call inside of ``call`` that has the argument, and the argument's name; ``way``: that to ``call``."""
        first, dot, rest = path.partition(".")
        first = self.other_names.get((call.name, first), first)
        whole = f"{self.setting}.{way}{path}"
        named = whole if way or dot else self.short_names.get(path, whole)
        said = str(call)
        holders = self._holders(call, first)
        if not holders:
            names = {name: None for each in _calls(call) for name in self._parameters(each.name)}
            there = f"no argument {first!r}; it has {', '.join(names)}" if names else "no arguments"
            hint = did_you_mean(first, names, self.where(first))
            raise SettingError(
                f"{named}: {said} has {there}. {hint}".rstrip(),
                setting=named,
            )
        if len(holders) > 1:
            raise SettingError(
                f"{named}: {said} has several calls with an argument {first!r}. Write the whole value.",
                setting=named,
            )
        if not dot:
            return holders[0], first
        inner = self._complete(holders[0], deep=False).arguments.get(first)
        if not isinstance(inner, Call):
            raise refusal(named, written(inner), "a call, of which an argument can be set")
        holders[0].arguments[first] = inner
        return self._find(inner, rest, f"{way}{first}.")

    def _holders(self, call: Call, argument: str) -> list[Call]:
        """``call`` if it has the argument, else the calls nearest inside that do; writes out defaults on the way."""
        if argument in self._parameters(call.name):
            return [call]
        call.arguments.update(self._complete(call, deep=False).arguments)
        inner = [each for value in call.arguments.values() for each in _calls_in(value)]
        return [holder for each in inner for holder in self._holders(each, argument)]

    def _complete(self, call: Call, deep: bool = True) -> Call:
        """The call with every default; of the calls inside of it, too, if ``deep``."""
        arguments = {}
        for name, parameter in self._parameters(call.name).items():
            if call.name == DEFAULT and name not in call.arguments:
                continue
            if name in call.arguments and not (call.arguments[name] is None and name in self.supplied):
                arguments[name] = call.arguments[name]
            elif parameter.default is not EMPTY and name not in self.supplied:
                arguments[name] = self._default(parameter.default)
            elif name not in self.supplied:
                raise self._wrong(str(call), f"{call.name} lacks its argument {name}, which has no default")
        return Call(
            call.name,
            {name: self._completed_value(value) for name, value in arguments.items()} if deep else arguments,
        )

    def _default(self, value: Any) -> Any:
        """The default of an argument as a text has it: a specification as a call, a tuple as a list."""
        if hasattr(value, "factory"):
            return self._said(repr(value))
        return list(value) if isinstance(value, tuple) else value

    def _completed_value(self, value: Any) -> Any:
        if isinstance(value, Call):
            return self._complete(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._completed_value, value))
        return value

    # Making.

    def _made(self, value: Any, supplied: Mapping[str, Any], make: Callable[..., Any] | None = None) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._made(each, supplied, make) for each in value)
        if not isinstance(value, Call):
            return value
        parameters = inspect.signature(self.factory(value.name)).parameters
        arguments = {
            name: self._made(each, supplied, make)
            for name, each in self._complete(value).arguments.items()
            if make is None or each != parameters[name].default
        }
        arguments |= {
            name: each for name, each in supplied.items() if name in parameters and name not in arguments
        }
        factory = self.factory(value.name)
        try:
            return factory(**arguments) if make is None else make(factory, **arguments)
        except SettingError as error:
            # A factory names its argument, perhaps as "the delay's mean".
            argument = error.setting.rpartition("'s ")[2]
            if argument in parameters:
                raise error.of(self._named(argument)) from error
            if error.setting == self.setting:
                raise
            raise error.within(self.setting, setting=self.setting) from error

    def _example(self) -> str:
        """A call with an argument, if there is one."""
        for name in self.factories:
            for parameter in self._parameters(name).values():
                if isinstance(parameter.default, (int, float)) and not isinstance(parameter.default, bool):
                    return f"{name}({parameter.name}={parameter.default!r})"
        return next(iter(self.factories))


def _renamed(node: ast.expr, name: str) -> ast.expr:
    """The name or call with another name."""
    own = ast.Name(name, ast.Load())
    return ast.Call(own, node.args, node.keywords) if isinstance(node, ast.Call) else own


def _copied(value: Any) -> Any:
    """The value with calls and lists of its own."""
    if isinstance(value, Call):
        return Call(value.name, {name: _copied(each) for name, each in value.arguments.items()})
    return type(value)(map(_copied, value)) if isinstance(value, (list, tuple)) else value


def _calls_in(value: Any) -> list[Call]:
    """The calls that a value is, or that lie in it as in a list."""
    if isinstance(value, Call):
        return [value]
    return [call for each in value for call in _calls_in(each)] if isinstance(value, (list, tuple)) else []


def _is_plain(value: Any) -> bool:
    """Whether a value is a literal, or a list of literals."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return not any(isinstance(each, (list, tuple, Call)) for each in values)


def _calls(call: Call) -> Iterator[Call]:
    """A call and all calls in it."""
    yield call
    for value in call.arguments.values():
        for inner in _calls_in(value):
            yield from _calls(inner)


@functools.cache
def _hints_of(factory: Callable[..., Any]) -> Mapping[str, Any]:
    """{argument: type}, without those that cannot be resolved."""
    if isinstance(factory, functools.partial):
        return _hints_of(factory.func)
    function = inspect.getattr_static(factory, "__init__") if isinstance(factory, type) else factory
    try:
        return typing.get_type_hints(function)
    except TypeError:
        return {}
    except NameError:
        annotations = inspect.get_annotations(function)
        return {name: hint for name, hint in annotations.items() if not isinstance(hint, str)}


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of which a value may be, without arrays and functions, which no text says; none where all may."""
    if hint is Any or hint is EMPTY:
        return ()
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts: Collection[Any] = typing.get_args(hint)
        if np.number in parts:  # all that an array is made of: a number
            parts = [each for each in parts if each in (float, type(None))]
        return tuple(kind for each in parts if not _is_unsaid(each) for kind in _kinds(each))
    return (typing.get_origin(hint) or hint,)


def _is_unsaid(hint: Any) -> bool:
    """Whether it is the type of arrays, or of functions."""
    return hasattr(hint, "dtype") or typing.get_origin(hint) is Callable


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value of a call is of a type; any call may be of a type that is none of Python's own."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
    if kind in (int, bool, str, type(None)):
        return type(value) is kind
    if kind is os.PathLike:
        return isinstance(value, str)
    if kind in SEQUENCES:
        return isinstance(value, (list, tuple))
    return isinstance(value, Call)


def _as_float(value: float) -> float:
    """The number as a float, infinite where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _in_words(kind: Any) -> str:
    return "a list" if kind in SEQUENCES else "a call"
