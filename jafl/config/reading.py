"""The reader of calls: what a text says, by Python's own parser, of the arguments that factories have."""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import math
import pathlib
import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

from jafl.base.errors import SettingError, did_you_mean, refusal, require, shown
from jafl.base.paths import in_home
from jafl.config.values import (
    EMPTY,
    Call,
    advise_sweep,
    as_float,
    calls_in,
    copied,
    hints_of,
    in_words,
    is_file,
    is_of,
    join_with_or,
    kinds_of,
    written,
)

FILES = (".csv", ".npz")  # endings of files that a factory reads
WORDS = {"inf": math.inf, "true": True, "false": False, "none": None}  # as flags and JSON have them
LARGEST_WHOLE_NUMBER = 2**64
DEFAULT = "default"  # the name of the call that the algorithm or the data set decides


# A file of the user's own and the function in it, at the beginning of a value: my_rules.py:fancy(beta=0.5).
_OWN = re.compile(r"\A\s*(?P<name>[^\s:()\[\]'\",=][^:()\[\]'\",=]*\.py:(?P<function>[A-Za-z_]\w*))")


def own_name(text: str) -> str:
    """``my_rules.py:fancy`` of a text that begins so; empty for any other."""
    match = _OWN.match(text)
    return match["name"] if match else ""


def file_of(name: str) -> pathlib.Path:
    """The file that a name begins with."""
    return in_home(name.rpartition(":")[0])


# {file of the user's own: (its module, {each file that was run for it: its content})}
_RUN: dict[pathlib.Path, tuple[types.ModuleType, dict[pathlib.Path, bytes]]] = {}
# {module that the file run last has imported from its folder: its file}
_BESIDE: dict[str, pathlib.Path] = {}


def imports_of(path: pathlib.Path) -> list[str]:
    """What a file of the user's own, which has been run, imported from its folder: names of files, from there."""
    folder = path.resolve().parent
    _, contents = _RUN.get(path.resolve(), (None, {}))
    return [str(each.relative_to(folder)) for each in contents if each != path.resolve()]


def _module(path: pathlib.Path, content: bytes) -> types.ModuleType:
    """The file as a module, under a name that no other content has; run again where what it reads has changed."""
    place = path.resolve()
    module, contents = _RUN.get(place, (None, {}))
    if module and all(each.is_file() and each.read_bytes() == then for each, then in contents.items()):
        return module
    digest = hashlib.sha256(f"{path}\n".encode() + content).hexdigest()
    module = types.ModuleType(f"{path.stem}-{digest[:12]}")
    module.__file__ = str(path)
    for name in _BESIDE:  # another folder may have others of these names, and this one others than before
        sys.modules.pop(name, None)
    _BESIDE.clear()
    before = set(sys.modules)
    sys.modules[module.__name__] = module  # where dataclasses, which Flax's modules are, look their types up
    # As for a script, but not for good: what functions import later would be in no digest of what a run has read.
    sys.path.insert(0, str(place.parent))
    try:
        # Python itself reads the bytes: UTF-8 unless the file says another encoding, whatever the locale is.
        exec(compile(content, str(path), "exec"), vars(module))
    finally:
        with contextlib.suppress(ValueError):  # the file may have changed it
            sys.path.remove(str(place.parent))
        _BESIDE.update(_imported_from(place.parent, set(sys.modules) - before))
    _RUN[place] = module, {place: content, **{each: each.read_bytes() for each in _BESIDE.values()}}
    return module


def _imported_from(folder: pathlib.Path, names: Collection[str]) -> dict[str, pathlib.Path]:
    """{name: file} of those modules that lie in the folder, and not in a library's folder below it."""
    found = {}
    for name in sorted(names):
        path, top = pathlib.Path(getattr(sys.modules[name], "__file__", None) or ""), name.partition(".")[0]
        lies_here = path.is_relative_to(folder) and path.relative_to(folder).parts[0].partition(".")[0] == top
        if lies_here and top != "jafl":
            found[name] = path
    return found


@dataclasses.dataclass(frozen=True)
class Reader:
    """What texts say of the factories of a setting.

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
    # {text: its value}: an experiment reads the same few texts thousands of times.
    _read_before: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def said(self, text: str) -> Any:
        """The value that a text says, the caller's own."""
        require(isinstance(text, str), self.setting, text, "text")
        if not text.strip():
            raise refusal(self.setting, text, f"a name, or a call such as {self.example()}")
        if text in self._read_before:
            return copied(self._read_before[text])
        try:
            node = self._parsed(text)
            if own := own_name(text):
                self.factory(own)  # refuses a file without this function
                name = ast.Name(own, ast.Load())
                node = ast.Call(name, node.args, node.keywords) if isinstance(node, ast.Call) else name
            value = self._value(node, text)
        except RecursionError:
            raise refusal(self.setting, text, "nested less deeply") from None
        if not own:  # a file may hold something else later
            self._read_before[text] = copied(value)
        return value

    def _parsed(self, text: str) -> ast.expr:
        try:
            return ast.parse(_OWN.sub(r"\g<function>", text).strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if text.strip().isidentifier():  # a word of Python's own: async
                return ast.Name(text.strip(), ast.Load())
            said = error.msg if isinstance(error, SyntaxError) else str(error) or "too deeply nested"
            said = said.partition(". Maybe you meant")[0]  # another statement, which is no value either
            remedy = f"Python's parser says: {said}."
            if "\\" in text:
                remedy = "The path of a file stands in quotes, with / in the place of \\."
            allowed = f"a name, or a call such as {self.example(text)}"
            raise refusal(self.setting, text, allowed, self._about_file(text) or remedy) from None

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
        return as_float(value) if is_large else value

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
        is_outermost = "." not in self.setting and text.strip().startswith(name)
        known = [*self.factories, *[DEFAULT] * self.has_default]
        if self.inner and not is_outermost:
            known = [*self.inner]
        hint = self.instead.get(name) or did_you_mean(name, [*known, *self.inner], "A text stands in quotes.")
        return self.wrong(text, f"there is no {name!r}; there is {', '.join(known)}", hint)

    def _code(self, node: ast.expr, text: str) -> SettingError:
        part = ast.unparse(node)
        remedy = self._about_file(text)
        if not remedy and pathlib.PurePath(part).suffix in FILES:
            remedy = f"A text stands in quotes: {part!r}."
        if pathlib.PurePath(part).suffix == ".py":
            remedy = f"Of a file of your own, name the function, too: {part}:NAME."
        elif isinstance(node, ast.Attribute) and node.attr in {*self.factories, *self.inner}:
            remedy = f"Names stand without their module: {node.attr}."
        remedy = remedy or f"Only numbers, texts, lists, names and calls are read; {part!r} is none of these."
        return refusal(self.setting, text, f"a call such as {self.example(text)}", remedy)

    def _about_file(self, text: str) -> str:
        """What to write where the text is the name of a file; empty where it is none."""
        readers = [name for name in self.factories if any(map(is_file, self.hints(name).values()))]
        is_name = readers and pathlib.PurePath(text).suffix in FILES and "(" not in text
        return f"A file is read by {readers[0]}({text!r})." if is_name else ""

    def _bound(self, name: str, values: list[ast.expr], named: list[ast.keyword], text: str) -> Call:
        """The call with every argument under its name."""
        parameters = list(self.parameters(name))
        listed = ", ".join(parameters) or "none"
        if len(values) > len(parameters):
            raise self.wrong(text, f"{name} has {len(parameters)} arguments ({listed}), not {len(values)}")
        given: dict[str, ast.expr] = dict(zip(parameters, values, strict=False))
        for keyword in named:
            if keyword.arg is None:
                raise self.wrong(text, "** is not read")
            if keyword.arg in given:
                raise self.wrong(text, f"{name} gets {keyword.arg} twice")
            if keyword.arg not in parameters:
                hint = did_you_mean(keyword.arg, parameters, self.where(keyword.arg))
                raise self.wrong(text, f"{name} has no argument {keyword.arg!r}; it has {listed}", hint)
            given[keyword.arg] = keyword.value
        ordered = [(argument, given[argument]) for argument in parameters if argument in given]
        return Call(name, {each: self.checked(name, each, self._value(node, text)) for each, node in ordered})

    def where(self, argument: str) -> str:
        """Where an argument is that a call does not have; empty where it is nowhere."""
        others = [name for name in self.factories if argument in self.parameters(name)]
        if others:
            return f"It is an argument of {join_with_or(others)}."
        return f"{argument} is a setting of its own." if argument in self.elsewhere else ""

    def wrong(self, text: str, reason: str, hint: str = "") -> SettingError:
        """The error for a text that says what cannot be, and why."""
        message = f"{self.setting} is {shown(text)}, but {reason}."
        return SettingError(f"{message} {hint}".rstrip(), setting=self.setting, value=text)

    # Factories and their arguments.

    def factory(self, name: str) -> Callable[..., Any]:
        """The function that a call's name means."""
        if ":" in name:
            return self._own_factory(name)
        return self.factories[name] if name in self.factories else self.inner[name]

    def _own_factory(self, name: str) -> Callable[..., Any]:
        """The function of a user's file, which is run for it, once for each content that it has."""
        path, function = file_of(name), name.rpartition(":")[2]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self.wrong(name, f"{str(path)!r} cannot be read: {error.strerror}") from error
        try:
            module = _module(path, content)
        # sys.exit() would end the command with status 0, without a word.
        except (Exception, SystemExit) as error:
            is_exit = isinstance(error, SystemExit)
            hint = 'What follows if __name__ == "__main__": is not run.' if is_exit else ""
            reason = f"{str(path)!r} fails when it is run: {type(error).__name__}: {error}"
            raise self.wrong(name, reason, hint) from error
        found: Callable[..., Any] | None = getattr(module, function, None)
        if not callable(found):
            own = [
                each
                for each, value in vars(module).items()
                if callable(value) and getattr(value, "__module__", None) == module.__name__
            ]
            reason = f"{str(path)!r} has no function {function!r}; it has {', '.join(own) or 'none'}"
            raise self.wrong(name, reason, did_you_mean(function, own))
        return found

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The parameters of a factory that a call can have; of ``default`` those of all factories."""
        return self._known[name] if name in self._known else self._parameters_of(name)

    @functools.cached_property
    def _known(self) -> dict[str, dict[str, inspect.Parameter]]:
        """{name of a registered factory: its parameters}."""
        known = {name: self._parameters_of(name) for name in [*self.factories, *self.inner]}
        return known | {DEFAULT: {each: one for name in self.factories for each, one in known[name].items()}}

    def _parameters_of(self, name: str) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.factory(name)).parameters
        # What the experiment fills in is of the setting's own factories: a call inside may have the same name.
        fixed = () if name in self.inner else self.fixed
        return {argument: each for argument, each in parameters.items() if argument not in fixed}

    def hints(self, name: str) -> Mapping[str, Any]:
        """{argument: type} of a factory; of ``default`` all the types that factories have for the argument."""
        if name != DEFAULT:
            return hints_of(self.factory(name))
        hints: dict[str, Any] = {}
        for factory in self.factories.values():
            for argument, hint in hints_of(factory).items():
                hints[argument] = hints[argument] | hint if argument in hints else hint
        return hints

    def named(self, argument: str) -> str:
        """What messages call an argument of the setting's call."""
        own = f"{self.setting}.{argument}"
        return argument if argument in self.fixed else self.short_names.get(argument, own)

    def checked(self, name: str, argument: str, value: Any) -> Any:
        """The value, as a float where the argument is one; raises SettingError for one of another type."""
        kinds = kinds_of(self.hints(name).get(argument, Any))
        if value is None and argument in self.supplied:
            return None
        fits = not kinds or any(is_of(value, kind) for kind in kinds)
        said = written(value) if calls_in(value) else value
        require(fits, self.named(argument), said, in_words(kinds), advise_sweep(self.named(argument), value))
        return as_float(value) if float in kinds and is_of(value, float) and int not in kinds else value

    def example(self, text: str = "") -> str:
        """A call: of the factory that a text begins with, else of the first one that has arguments to show."""
        named = text.strip().partition("(")[0]
        names = [named] if named in self.factories else [*self.factories]
        for name in names:
            own = [each for each in self.parameters(name).values() if each.name not in self.supplied]
            needed = [f"{each.name}=..." for each in own if each.default is EMPTY]
            numbers = [each for each in own if type(each.default) in (int, float)]
            if shown := needed or [f"{each.name}={each.default!r}" for each in numbers[:1]]:
                return f"{name}({', '.join(shown)})"
        return names[0]
