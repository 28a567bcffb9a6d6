"""A setting as the call of a public factory: ``gamma(mean=1.0, shape=2)`` on the command line, in sweeps and files.

The names, arguments, types and defaults are those of the Python functions, so they are written once. A dotted name is
one argument of a call: ``delay.shape=2``. Texts are read by Python's own parser into literals, lists, names and calls
of registered factories; nothing in them is run. A factory may stand in a file of the user's own, which is run:
``my_rules.py:fancy(beta=0.5)``.

``default(buffer_size=5)`` is the call that the algorithm or the data set decides, with this argument. It has the
arguments of all factories; which of them the run's own factory has is known when the run is resolved.
"""

import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from jafl.base.errors import SettingError, did_you_mean, refusal
from jafl.config.reading import DEFAULT, Reader
from jafl.config.values import (
    EMPTY,
    KINDS,
    SEQUENCES,
    Call,
    advise_sweep,
    all_calls,
    calls_in,
    kinds_of,
    with_calls,
    written,
)

NESTED = (list, tuple, Call)


class Grammar(Reader):
    """What a setting may be: calls of these factories; its attributes are those of a ``Reader``."""

    def read(self, text: str) -> Call:
        """The call that a text says.

        Raises:
          SettingError: for a text that is no call, with what is wrong and what is allowed.

        Examples:
          >>> Grammar("delay", jafl.schedule.DELAYS).read("gamma(2, shape=3)")
          Call(name='gamma', arguments={'mean': 2.0, 'shape': 3.0})
        """
        call = self.said(text)
        if not isinstance(call, Call):
            remedy = (
                "Leave out the quotes around it."
                if isinstance(call, str)
                else advise_sweep(self.setting, call)
            )
            raise refusal(self.setting, text, f"a call, such as {self.example()}", remedy)
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
        given = {**holder.arguments, name: self.checked(holder.name, name, value)}
        for partner in self.partners(name):
            if value is not None and given.get(partner) is not None:
                del given[partner]
        if value is None and name in self.supplied:
            del given[name]  # filled in as if it had not been given
        holder.arguments.clear()
        holder.arguments.update({each: given[each] for each in self.parameters(holder.name) if each in given})
        return str(call)

    def partners(self, name: str) -> set[str]:
        """The arguments that a call has not beside this one."""
        return {other for pair in self.exclusive for one, other in (pair, pair[::-1]) if one == name}

    def over(self, text: str, below: str) -> str:
        """The call ``text`` laid over another one, with arguments of that which it leaves open.

        A default is the call below it, with its own arguments; a call over a default has all of those that its
        factory has; a call over another one those that an experiment supplies.

        Examples:
          >>> grammar = Grammar("optimizer", {"sgd": optax.sgd, "adam": optax.adam}, ("learning_rate",), (), True)
          >>> grammar.over("default(momentum=0.5)", "sgd(learning_rate=0.1)")
          'sgd(learning_rate=0.1, momentum=0.5)'
          >>> grammar.over("adam", "default(learning_rate=0.1)")
          'adam(learning_rate=0.1)'
        """
        call, under = self.read(text), self.read(below)
        base, others = below, call.arguments
        if call.name != DEFAULT:
            said = {name for name, value in call.arguments.items() if value is not None}
            base, others = text, {}
            for name, value in under.arguments.items():
                own = self.other_names.get((call.name, name), name)
                is_open = not {own, *self.partners(own)} & said
                if is_open and (under.name == DEFAULT or own in self.supplied):
                    others[name] = value
        for name, value in others.items():
            if self.has(base, name):
                base = self.changed(base, name, written(value))
        return str(self.read(base))

    def without(self, text: str, names: Collection[str]) -> str:
        """The call without these arguments; with the setting's own name among them, of the default factory."""
        call = self.read(text)
        kept = {name: value for name, value in call.arguments.items() if name not in names}
        return str(Call(DEFAULT if self.setting in names else call.name, kept))

    def has(self, text: str, argument: str) -> bool:
        """Whether the outermost factory of a call has an argument of this name, or another one in its place."""
        name = self.read(text).name
        return argument in self.parameters(name) or (name, argument) in self.other_names

    def default(self, argument: str) -> Any:
        """The default of an argument: of the first factory that has one; None without any."""
        own = [each[argument].default for each in map(self.parameters, self.factories) if argument in each]
        return next((value for value in own if value is not EMPTY), None)

    def heeds(self, text: str, argument: str, value: Any) -> bool:
        """Whether a run's call has an argument of a default call, or its value in another one in its place."""
        call = self.read(text)
        other = self.other_names.get((call.name, argument))
        is_there = other is not None and call.arguments.get(other) == value
        return argument in self.parameters(call.name) or is_there

    def make(self, text: str, how: Callable[..., Any] | None = None, /, **supplied: Any) -> Any:
        """What the call makes.

        Args:
          text: the call.
          how: what is called with each factory and its arguments, but for those that are as by default.
          supplied: arguments that the experiment fills in, for factories that have them.

        Raises:
          SettingError: for a value that a factory refuses, under the name ``setting.argument``.
        """
        return self._made(supplied, how, self.read(text))

    def value(self, text: str, path: str) -> Any:
        """The value of one argument, the default where the call leaves it out; ``path`` as of ``changed``."""
        holder, name = self._find(self.read(text), path)
        if name in holder.arguments:
            return holder.arguments[name]
        default = self.parameters(holder.name)[name].default
        is_known = default is not EMPTY and name not in self.supplied and holder.name != DEFAULT
        return self.default_value(default) if is_known else None

    def says(self, text: str, path: str) -> bool:
        """Whether the call itself has a value for an argument; ``path`` as of ``changed``."""
        call = self.read(text)
        own = list(all_calls(call))  # the others are defaults, which are written out on the way
        holder, name = self._find(call, path)
        return any(holder is each for each in own) and name in holder.arguments

    def flattened(self, text: str) -> tuple[str, dict[str, Any]]:
        """(the call without the arguments that a name alone can tell, these arguments by name), for tables.

        Examples:
          >>> Grammar("delay", jafl.schedule.DELAYS).flattened("gamma(mean=2.0, shape=3.0)")
          ('gamma', {'mean': 2.0, 'shape': 3.0})
        """
        call = self._complete(self.read(text))
        counts = Counter(name for each in all_calls(call) for name in each.arguments)
        found: dict[str, Any] = {}

        def without(call: Call) -> Call:
            rest = {}
            for name, value in call.arguments.items():
                if isinstance(value, Call) and value.name not in self.inner:
                    rest[name] = without(value)
                elif isinstance(value, Call):
                    found[name] = without(value).name
                elif counts[name] > 1 or (
                    isinstance(value, (list, tuple)) and any(isinstance(each, NESTED) for each in value)
                ):
                    rest[name] = value
                else:
                    found[name] = value
            return Call(call.name, rest)

        return str(without(call)), found

    def arguments(self) -> dict[str, list[str]]:
        """{factory: the names of its arguments}."""
        return {name: list(self.parameters(name)) for name in self.factories}

    def _from_text(self, holder: Call, name: str, text: str) -> Any:
        """An argument's value from a text, which needs no quotes where the argument takes a text."""
        kinds = kinds_of(self.hints(holder.name).get(name, Any))
        own = dataclasses.replace(self, setting=self.named(name))
        takes_call = not kinds or any(kind not in KINDS and kind not in SEQUENCES for kind in kinds)
        try:
            value = own.said(text)
        except SettingError:
            is_list = any(kind in SEQUENCES for kind in kinds) and text.strip().startswith(("[", "("))
            if str not in kinds and (takes_call or is_list):
                raise
            return text
        return text if isinstance(value, Call) and not takes_call else value

    def _find(self, call: Call, path: str, way: str = "") -> tuple[Call, str]:
        """The call inside of ``call`` that has the argument, and the argument's name; ``way``: that to ``call``."""
        first, dot, rest = path.partition(".")
        first = self.other_names.get((call.name, first), first)
        whole = f"{self.setting}.{way}{path}"
        named = whole if way or dot else self.short_names.get(path, whole)
        said = str(call)
        holders = self._holders(call, first)
        if not holders:
            names = {name: None for each in all_calls(call) for name in self.parameters(each.name)}
            there = f"no argument {first!r}; it has {', '.join(names)}" if names else "no arguments"
            hint = did_you_mean(first, names, self.where(first))
            raise SettingError(f"{named}: {said} has {there}. {hint}".rstrip(), setting=named)
        if len(holders) > 1:
            many = f"several calls with an argument {first!r}. Write the whole value."
            raise SettingError(f"{named}: {said} has {many}", setting=named)
        if not dot:
            return holders[0], first
        inner = self._with_defaults(holders[0]).get(first)
        if not isinstance(inner, Call):
            outer = f"{self.setting}.{way}{first}"
            value = written(inner) if calls_in(inner) else inner
            raise refusal(outer, value, f"a call, of which {rest} can be set")
        holders[0].arguments[first] = inner
        return self._find(inner, rest, f"{way}{first}.")

    def _holders(self, call: Call, argument: str) -> list[Call]:
        """``call`` if it has the argument, else the calls nearest inside that do; writes out defaults on the way."""
        if argument in self.parameters(call.name):
            return [call]
        call.arguments.update(self._with_defaults(call))
        inner = [each for value in call.arguments.values() for each in calls_in(value)]
        return [holder for each in inner for holder in self._holders(each, argument)]

    def _complete(self, call: Call) -> Call:
        """The call with every default, and those inside of it."""
        whole = self._with_defaults(call).items()
        return Call(call.name, {name: with_calls(value, self._complete) for name, value in whole})

    def _with_defaults(self, call: Call) -> dict[str, Any]:
        """{argument: value} of a call with every default."""
        arguments = {}
        for name, parameter in self.parameters(call.name).items():
            if call.name == DEFAULT and name not in call.arguments:
                continue
            if name in call.arguments and not (call.arguments[name] is None and name in self.supplied):
                arguments[name] = call.arguments[name]
            elif parameter.default is not EMPTY and name not in self.supplied:
                arguments[name] = self.default_value(parameter.default)
            elif name not in self.supplied:
                raise self.wrong(str(call), f"{call.name} lacks its argument {name}, which has no default")
        return arguments

    def default_value(self, value: Any) -> Any:
        """The default of an argument as a text has it: a specification as a call, a tuple as a list."""
        if hasattr(value, "factory"):
            return self.said(repr(value))
        return list(value) if isinstance(value, tuple) else value

    # Making.

    def _made(self, supplied: Mapping[str, Any], make: Callable[..., Any] | None, call: Call) -> Any:
        """What a call makes; ``make`` as ``how`` above."""
        factory, inner = self.factory(call.name), functools.partial(self._made, supplied, make)
        parameters = inspect.signature(factory).parameters
        arguments = {
            name: with_calls(each, inner)
            for name, each in self._complete(call).arguments.items()
            if make is None or each != parameters[name].default
        }
        given = arguments.keys()
        arguments |= {each: supplied[each] for each in supplied if each in parameters and each not in given}
        try:
            return factory(**arguments) if make is None else make(factory, **arguments)
        except SettingError as error:
            # A factory names its argument, perhaps as "the delay's mean".
            argument = error.setting.rpartition("'s ")[2]
            if error.setting in (self.setting, *self.fixed):
                raise
            if argument in parameters:
                raise error.of(self.named(argument)) from error
            raise error.within(self.setting, setting=self.setting) from error
