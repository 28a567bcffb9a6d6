"""Numbers are data: a specification is a deferred call whose numbers are leaves of a pytree.

``specify(optax.sgd, learning_rate=0.1)`` remembers the call instead of making it. Floats and arrays among the
arguments are leaves; the factory and all other arguments are static. The engine makes the call inside ``jit``, so
another learning rate, momentum or exponent runs the program that is already compiled, and ``vmap`` over settings
works. (An optax optimizer that is passed as it is compiles again for every object.)

A factory may need some of its floats as they are, because it decides something by them, as several of optax's
schedules do (``if decay_rate == 0``). These are found by trying, and stay static: another one compiles again.
"""

import copy
import functools
import inspect
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jafl.base import display
from jafl.base.errors import SettingError, require, true_or_false
from jafl.records import EventSchedule, Rule


@jax.tree_util.register_pytree_node_class
class Specification:
    """A deferred call ``factory(**arguments)``; a pytree with the float and array arguments as leaves.

    Attributes:
      factory: a callable; static, compared by identity or its own equality.
      arguments: {name: value}; a value may be a specification itself. Values that are neither floats nor arrays must
        be hashable.
    """

    def __init__(self, factory: Callable[..., Any], arguments: Mapping[str, Any]):
        self.factory = factory
        self.arguments = {name: _hashable(value) for name, value in arguments.items()}

    def build(self) -> Any:
        """The result of the call; nested specifications are built first."""
        built = {name: _built(value) for name, value in self.arguments.items()}
        positional = [built.pop(name) for name in sorted(built) if name.startswith("*")]
        return self.factory(*positional, **built)

    def tree_flatten(self):
        """For JAX: (leaves, static part)."""
        names = sorted(self.arguments)
        numbers = tuple(name for name in names if _is_number(self.arguments[name]))
        fixed = tuple((name, self.arguments[name]) for name in names if name not in numbers)
        return [self.arguments[name] for name in numbers], (self.factory, numbers, fixed)

    @classmethod
    def tree_unflatten(cls, static, leaves):
        """For JAX: the inverse of ``tree_flatten``."""
        factory, numbers, fixed = static
        restored = object.__new__(cls)
        restored.factory = factory
        restored.arguments = dict(zip(numbers, leaves, strict=True)) | dict(fixed)
        return restored

    def __reduce__(self):
        """For pickles, with which Python hands it to other processes, and for copies."""
        attributes = {name: value for name, value in vars(self).items() if name != "factory"}
        return _restored, (type(self), _by_name(self.factory), attributes)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        name = str(getattr(self.factory, "__name__", self.factory)).lstrip("_")
        return f"{name}({arguments})"

    def _repr_html_(self) -> str | None:
        """In a notebook, the table of a rule under its own line; None of anything else, which has its line."""
        try:
            built = self.build()
        except (SettingError, TypeError, ValueError):
            return None
        return built._repr_html_(display.shortened(repr(self), 100)) if isinstance(built, Rule) else None


@jax.tree_util.register_pytree_node_class
class Drawn:
    """Random words that are a run's secret: from the system's entropy, in no digest, and not shown.

    They are data of the run's program. A rule keeps them in its state, from where they reach the checkpoints.

    Attributes:
      words: [4] uint32, 128 bits.
    """

    def __init__(self, words: Any = None):
        self.words = np.frombuffer(secrets.token_bytes(16), np.uint32) if words is None else words

    def tree_flatten(self):
        """For JAX: (leaves, static part)."""
        return [self.words], None

    @classmethod
    def tree_unflatten(cls, static, leaves):
        """For JAX: the inverse of ``tree_flatten``."""
        restored = object.__new__(cls)
        (restored.words,) = leaves
        return restored

    def __repr__(self) -> str:
        return "drawn from the system's entropy"


def is_drawn(value: Any) -> bool:
    """Whether ``value`` is ``Drawn``, for ``is_leaf`` of ``jax.tree``."""
    return isinstance(value, Drawn)


def with_words(value: Any, words: Iterator[Any] | None = None) -> Any:
    """A specification with other words in the place of all that it has ``Drawn``; itself if it has none.

    Args:
      value: the specification, or any other value.
      words: [4] uint32 each, in the order of the arguments' names. Default: they are drawn.

    Returns:
      A copy, with its attributes.
    """
    if is_drawn(value):
        return Drawn(next(words) if words else None)
    if not isinstance(value, Specification):
        return value
    arguments = {name: with_words(value.arguments[name], words) for name in sorted(value.arguments)}
    if all(arguments[name] is value_there for name, value_there in value.arguments.items()):
        return value
    changed = copy.copy(value)
    changed.arguments = {name: arguments[name] for name in value.arguments}
    return changed


def specify(factory: Callable[..., Any], *args: Any, **kwargs: Any) -> Specification:
    """Defers the call ``factory(*args, **kwargs)``, so that its numbers can change without compiling again.

    Floats become data of the compiled program, unless the factory decides something by them; ints, bools, strings,
    None and functions are part of it, so write ``1.0`` for a number that you mean to change.

    Args:
      factory: any function or class that returns what is wanted, ``optax.adam`` for example.
      args: its positional arguments; specifications may be among them, also in lists and dicts.
      kwargs: its keyword arguments; likewise.

    Returns:
      The specification; ``build`` makes the call.

    Raises:
      TypeError: if the arguments do not fit the factory's signature.
      SettingError: for True or False in the place of a float.

    Examples:
      >>> jafl.specify(optax.adam, learning_rate=0.01)
      adam(learning_rate=0.01)
      >>> clipped = jafl.specify(optax.chain, jafl.specify(optax.clip, 1.0), jafl.specify(optax.sgd, 0.1))
    """
    bound = inspect.signature(factory).bind(*args, **kwargs)
    _check_numbers(factory, bound)
    return _with_fixed_numbers(Specification(factory, _flat(bound)))


def specification(factory: Callable[..., Any]) -> Callable[..., Specification]:
    """Decorates a factory so that calling it defers the call, its default numbers included.

    An int given for an argument whose default is a float becomes a float, so that 1 and 0.5 are one program.

    Args:
      factory: the function to decorate, one that returns a ``Rule`` for example.

    Returns:
      A function of the same arguments that returns a specification.

    Examples:
      >>> @jafl.specification
      ... def power(exponent: float = 2.0):
      ...     return lambda x: x**exponent
      >>> power(3)
      power(exponent=3.0)
      >>> power(3).build()(2.0)
      8.0
    """
    signature = inspect.signature(factory)

    @functools.wraps(factory)
    def deferred(*args: Any, **kwargs: Any) -> Specification:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        _check_numbers(factory, bound)
        for name, value in bound.arguments.items():
            wants_float = isinstance(signature.parameters[name].default, float)
            text = isinstance(value, str) or value is None
            require(not (wants_float and text), f"{name} of {factory.__name__}", value, "a number")
            if isinstance(signature.parameters[name].default, bool):
                true_or_false(name, value)
            if wants_float and isinstance(value, int):
                bound.arguments[name] = float(value)
        spec = Specification(factory, _flat(bound))
        return spec if str(factory.__module__).startswith("jafl.") else _with_fixed_numbers(spec)

    return deferred


def as_specification(value: Any) -> Specification:
    """``value`` itself if it is a specification, else one that builds ``value``, as a static object."""
    return value if isinstance(value, Specification) else Specification(_itself, {"value": value})


def as_rule(rule: Any) -> Specification:
    """The specification of a rule; SettingError for anything else, such as a rule's name or its factory."""
    spec = as_specification(rule)
    is_rule = isinstance(rule, Rule) or (spec is rule and isinstance(spec.build(), Rule))
    name = rule if isinstance(rule, str) else getattr(rule, "__name__", "fedbuff")
    require(is_rule, "rule", rule, "a rule", f"Call its factory: jafl.rules.{name}().")
    return spec


def for_schedule(rule: Any, schedule: EventSchedule, num_examples: np.ndarray) -> Any:
    """The rule to run on a schedule: what ``Rule.for_schedule`` makes of ``rule``, or ``rule`` as it is.

    Args:
      rule: a rule or a specification of one.
      schedule: the events of the run.
      num_examples: [N] ints, examples that each client holds.

    Returns:
      The rule; ``rule`` itself where its ``for_schedule`` returns None, as that of one made for this schedule does.

    Raises:
      SettingError: if the rule cannot run on this schedule.
    """
    built = as_specification(rule).build()
    if not isinstance(built, Rule) or built.for_schedule is None:
        return rule
    spec = built.for_schedule(schedule, num_examples)
    return rule if spec is None else for_schedule(spec, schedule, num_examples)


def _itself(value: Any) -> Any:
    return value


def _by_name(factory: Callable[..., Any]) -> Any:
    """What a pickle holds in the place of a factory: under its name stands the function that defers its call."""
    module = sys.modules.get(getattr(factory, "__module__", ""))
    deferred = getattr(module, getattr(factory, "__name__", ""), None)
    return (deferred,) if getattr(deferred, "__wrapped__", None) is factory else factory


def _restored(kind: type[Specification], factory: Any, attributes: dict[str, Any]) -> Specification:
    """The specification of a pickle; ``factory`` as ``_by_name`` returns it."""
    spec = object.__new__(kind)
    spec.factory = factory[0].__wrapped__ if isinstance(factory, tuple) else factory
    vars(spec).update(attributes)
    return spec


class _FixedNumber(float):
    """A float that is no data of the compiled program."""


class _FixedDict(dict):
    """A dict that is no data of the compiled program; compared by value."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(map(str, self)))


def _check_numbers(factory: Callable[..., Any], bound: inspect.BoundArguments) -> None:
    """Raises SettingError for True or False where the default is a float: Python would count it as 1 or 0."""
    for name, value in bound.arguments.items():
        if isinstance(bound.signature.parameters[name].default, float):
            setting = f"{name} of {getattr(factory, '__name__', factory)}"
            require(not isinstance(value, (bool, np.bool_)), setting, value, "a number")


def _built(value: Any) -> Any:
    """An argument as its factory gets it."""
    if isinstance(value, Specification):
        return value.build()
    if isinstance(value, _FixedNumber):
        return float(value)
    if type(value) is tuple:
        return tuple(map(_built, value))
    return (
        {name: _built(inner) for name, inner in value.items()} if type(value) in (dict, _FixedDict) else value
    )


def _with_fixed_numbers(spec: Specification) -> Specification:
    """The specification, with those numbers static that its factory cannot take as data."""
    numbers = [
        name
        for name, value in spec.arguments.items()
        if _is_number(value) and all(isinstance(leaf, (float, int)) for leaf in jax.tree.leaves(value))
    ]
    if not numbers or _can_build(spec, numbers) or not _can_build(spec, []):
        return spec
    alone = [name for name in numbers if not _can_build(spec, [name])]
    for name in alone or numbers:
        value = spec.arguments[name]
        spec.arguments[name] = _FixedDict(value) if isinstance(value, dict) else _FixedNumber(value)
    return spec


def _can_build(spec: Specification, traced: list[str]) -> bool:
    """Whether the factory can be called while JAX traces these arguments."""

    def build(values: dict[str, Any]) -> None:
        Specification(spec.factory, {**spec.arguments, **values}).build()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jax.eval_shape(build, {name: spec.arguments[name] for name in traced})
    except Exception:  # of whatever kind: it is said where the factory is called
        return False
    return True


def _flat(bound: inspect.BoundArguments) -> dict[str, Any]:
    """{name: value} of all arguments; positional ones without a name are called ``*000``, ``*001``, ..."""
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    arguments = dict(bound.arguments)
    for name, kind in kinds.items():
        if kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(name, {}))
        elif kind is inspect.Parameter.VAR_POSITIONAL:  # of optax.chain, for example
            for place, value in enumerate(arguments.pop(name, ())):
                arguments[f"*{place:03d}"] = value
    return arguments


def _is_number(value: Any) -> bool:
    """Whether an argument is data of the compiled program: a float, an array, or what holds some."""
    if type(value) is tuple:
        return bool(value) and all(isinstance(part, Specification) for part in value)
    if isinstance(value, (bool, int, str, tuple, _FixedNumber)) or value is None or callable(value):
        return isinstance(value, Specification)
    kinds = (float, np.ndarray, np.floating, jax.Array, Specification, Drawn)
    return isinstance(value, kinds) or not _can_hash(value)


def _is_specification(value: Any) -> bool:
    return isinstance(value, Specification)


def _is_data(leaf: Any) -> bool:
    """Whether a part of an argument can be data of the compiled program."""
    if isinstance(leaf, (bool, np.bool_)):  # as in a mask, by which the factory decides
        return False
    return isinstance(leaf, (Specification, float, int, np.ndarray, np.number, jax.Array)) or hasattr(
        leaf, "dtype"
    )


def _can_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _hashable(value: Any) -> Any:
    """NumPy's floats as Python's, lists as tuples, dicts that hold more than numbers as static ones."""
    if isinstance(value, np.floating):
        return float(value)
    if type(value) is dict and not all(map(_is_data, jax.tree.leaves(value, is_leaf=_is_specification))):
        return _FixedDict(value)
    return tuple(_hashable(v) for v in value) if isinstance(value, list) else value
