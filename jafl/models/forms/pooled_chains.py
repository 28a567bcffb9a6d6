"""Finds convolutions that are followed by nothing but a bias, ReLU and a max-pool in a traced program.

These are what ``pooled_convolution`` computes as one operation. It does not matter which library wrote them, in which
order their axes lie, and whether axes are turned in between; a value that is used elsewhere, too, ends the search.
"""

import math
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.jaxpr_dependence import inner_programs
from jafl.models.forms import convolution, pooling
from jafl.models.forms.pooled_convolution import MOST_FEATURES, WINDOW, PooledConvolution

CONVOLUTION, MAXIMUM = "conv_general_dilated", "reduce_window_max"
# Scopes in which jafl's own layers are traced, by the operation that they are.
_SCOPES = {CONVOLUTION: convolution.SCOPE, MAXIMUM: pooling.SCOPE}
# What an axis of a value is, the others have one element; axes of space are 0 and 1.
_EXAMPLES, _FEATURES, _NOTHING = "examples", "features", "nothing"


class Chain(NamedTuple):
    """A convolution and what follows it, up to a max-pool.

    Attributes:
      equations: all of them, in the program's order; the last one is the pool.
      inputs: variables of images and kernel, and of the bias if there is one.
      what: the options of ``pooled_convolution``.
      plain: the convolution itself, which has the order of the axes of images and kernel.
      axes: what the axes of the pool's result are.
    """

    equations: tuple[Any, ...]
    inputs: tuple[Any, ...]
    what: PooledConvolution
    plain: Any
    axes: tuple[Any, ...]

    def operands(self, x: jax.Array, kernel: jax.Array, *bias: jax.Array) -> tuple[jax.Array, ...]:
        """The inputs as ``pooled_convolution`` takes them."""
        images, kernels, _ = self.plain.params["dimension_numbers"]
        x = x.transpose(images[0], *images[2:], images[1])
        kernel = kernel.transpose(*kernels[2:], kernels[1], kernels[0])
        return (x, kernel, *(each.reshape(-1) for each in bias))

    def result(self, y: jax.Array) -> jax.Array:
        """What the pool gives, of what ``pooled_convolution`` gives."""
        order = [_EXAMPLES, 0, 1, _FEATURES]
        y = y.transpose([order.index(axis) for axis in self.axes if axis != _NOTHING])
        shape: tuple[int, ...] = self.equations[-1].outvars[0].aval.shape
        return y.reshape(shape)


def plain_operation(equation: Any, name: str) -> Any:
    """The operation of this name that an equation is, also where jafl's own layer wrote it; None if it is another."""
    if equation.primitive.name == name:
        return equation
    own = equation.primitive.name.startswith("custom_vjp_call")
    if not own or not str(equation.source_info.name_stack).rstrip(")").endswith(_SCOPES[name]):
        return None
    inner = next(_inside(equation, name), None)
    # Under vmap, over several examples, the one inside may have other shapes.
    return None if inner is None or _shapes(inner) != _shapes(equation) else inner


def _shapes(equation: Any) -> list[Any]:
    return [variable.aval.shape for variable in (*equation.invars, *equation.outvars)]


def _inside(equation: Any, name: str) -> Iterator[Any]:
    for program in inner_programs(equation.params):
        for inner in getattr(program, "jaxpr", program).eqns:
            if inner.primitive.name == name:
                yield inner
            yield from _inside(inner, name)


def chains(jaxpr: Any, fits: Callable[[Any, str], bool]) -> list[Chain]:
    """All chains of a program without those of programs that it runs.

    fits: (plain operation, its name) -> whether it has a quick form.
    """
    pools = [equation for equation in jaxpr.eqns if plain_operation(equation, MAXIMUM)]
    if not pools:
        return []
    makers = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    used = Counter(v for equation in jaxpr.eqns for v in equation.invars if not hasattr(v, "val"))
    used.update(v for v in jaxpr.outvars if not hasattr(v, "val"))
    found = (_chain(pool, makers, used, fits) for pool in pools)
    return [chain for chain in found if chain]


def _chain(
    pool: Any, makers: Mapping[Any, Any], used: Mapping[Any, int], fits: Callable[[Any, str], bool]
) -> Chain | None:
    """The chain that ends with this pool, None if there is none or it does not pay."""
    maximum = plain_operation(pool, MAXIMUM)
    links = _links(pool, makers, used)
    if not links or not fits(maximum, MAXIMUM):
        return None
    plain = plain_operation(links[0], CONVOLUTION)
    if not fits(plain, CONVOLUTION) or not _is_plain(plain):
        return None
    followed = _Followed(plain, links[0].outvars[0])
    if not all(followed.takes(link, makers, used) for link in links[1:]):
        return None
    if not followed.is_pooled_by(maximum) or followed.features > MOST_FEATURES:
        return None
    pads = tuple((int(low), int(high)) for low, high in plain.params["padding"])
    what = PooledConvolution((pads[0], pads[1]), followed.activation or _as_it_is)
    equations = (links[0], *followed.broadcasts, *links[1:], pool)
    return Chain(equations, (*links[0].invars, *followed.bias), what, plain, tuple(followed.axes))


def _links(pool: Any, makers: Mapping[Any, Any], used: Mapping[Any, int]) -> list[Any]:
    """The equations from a convolution up to a pool, each of whose values only the next one uses; [] if none."""
    links: list[Any] = []
    variable = pool.invars[0]
    while not hasattr(variable, "val") and variable in makers and used[variable] == 1:
        equation = makers[variable]
        links.insert(0, equation)
        if plain_operation(equation, CONVOLUTION):
            return links
        # The operand of an addition that is as large as the result; a bias may be, too, and is no convolution's.
        large = [
            v for v in equation.invars if _size(v) == _size(equation.outvars[0]) and not hasattr(v, "val")
        ]
        large = [
            v for v in large if v not in makers or makers[v].primitive.name != "broadcast_in_dim"
        ] or large
        if not large:
            return []
        variable = large[0]
    return []


def _size(variable: Any) -> int:
    return math.prod(getattr(variable.aval, "shape", ()))


def _is_plain(equation: Any) -> bool:
    """Whether a convolution of images has neither steps nor holes nor groups nor negative padding."""
    params, (x, kernel) = equation.params, (variable.aval for variable in equation.invars)
    steps = (*params["window_strides"], *params["lhs_dilation"], *params["rhs_dilation"])
    return (
        x.ndim == 4
        and set(steps) == {1}
        and params["feature_group_count"] == 1
        and min(min(pad) for pad in params["padding"]) >= 0
        and x.dtype == kernel.dtype
    )


class _Followed:
    """What a convolution's result has become, link by link.

    Attributes:
      variable: the value.
      axes: what each of its axes is.
      bias: [the variable that is added], once it is.
      broadcasts: the equation that spreads the bias, if there is one.
      activation: once there is one.
    """

    def __init__(self, plain: Any, variable: Any):
        _, _, results = plain.params["dimension_numbers"]
        named = {results[0]: _EXAMPLES, results[1]: _FEATURES, results[2]: 0, results[3]: 1}
        self.variable = variable
        self.axes: list[Any] = [named[axis] for axis in range(4)]
        self.bias: list[Any] = []
        self.broadcasts: list[Any] = []
        self.activation: Callable[[jax.Array], jax.Array] | None = None

    @property
    def features(self) -> int:
        """How many."""
        features: int = self.variable.aval.shape[self.axes.index(_FEATURES)]
        return features

    def takes(self, link: Any, makers: Mapping[Any, Any], used: Mapping[Any, int]) -> bool:
        """Goes on to the result of the next equation; False if it is none that belongs to a chain."""
        name = link.primitive.name
        if name in ("add", "add_any") and not (self.bias or self.activation):
            fits = self._add(link, makers, used)
        elif name in ("transpose", "squeeze", "expand_dims", "reshape", "broadcast_in_dim"):
            fits = self._turn(link)
        else:
            self.activation, already = activation(link), self.activation
            fits = self.activation is not None and already is None
        self.variable = link.outvars[0]
        return fits and len(self.axes) == self.variable.aval.ndim

    def _add(self, link: Any, makers: Mapping[Any, Any], used: Mapping[Any, int]) -> bool:
        """Whether what is added is one number for each feature."""
        others = [v for v in link.invars if v is not self.variable]
        if len(others) != 1 or hasattr(others[0], "val"):
            return False
        (bias,) = others
        place, features = self.axes.index(_FEATURES), self.features
        maker = makers.get(bias)
        if maker is not None and maker.primitive.name == "broadcast_in_dim" and used[bias] == 1:
            source = maker.invars[0]
            along = maker.params["broadcast_dimensions"]
            if hasattr(source, "val") or len(maker.invars) != 1 or source.aval.size != features:
                return False
            if (
                features > 1
                and source.aval.shape[list(along).index(place) if place in along else 0] != features
            ):
                return False
            self.broadcasts, bias = [maker], source
        elif (
            bias.aval.ndim != len(self.axes)
            or bias.aval.size != features
            or bias.aval.shape[place] != features
        ):
            return False
        self.bias = [bias]
        return bool(bias.aval.dtype == self.variable.aval.dtype)

    def _turn(self, link: Any) -> bool:
        """Follows the axes where they are turned, or axes of one element come or go."""
        before, after = link.invars[0].aval.shape, link.outvars[0].aval.shape
        if link.primitive.name == "transpose":
            self.axes = [self.axes[axis] for axis in link.params["permutation"]]
            return True
        if math.prod(before) != math.prod(after) or len(link.invars) != 1:
            return False
        # An axis that matters and has one element could be any of those.
        left = [axis for axis, size in zip(self.axes, before, strict=True) if size > 1]
        fits = len(left) == len(set(self.axes) - {_NOTHING}) and [n for n in before if n > 1] == [
            n for n in after if n > 1
        ]
        if fits:
            self.axes = [left.pop(0) if size > 1 else _NOTHING for size in after]
        return fits

    def is_pooled_by(self, maximum: Any) -> bool:
        """Whether a pool's windows are 2x2 and lie side by side in the axes of space."""
        params = maximum.params
        sizes = tuple(WINDOW if axis in (0, 1) else 1 for axis in self.axes)
        fits = tuple(params["window_dimensions"]) == tuple(params["window_strides"]) == sizes
        space = [n for axis, n in zip(self.axes, self.variable.aval.shape, strict=True) if axis in (0, 1)]
        return fits and not np.any(params["padding"]) and min(space) >= WINDOW


def _as_it_is(x: jax.Array) -> jax.Array:
    return x


def activation(equation: Any) -> Callable[[jax.Array], jax.Array] | None:
    """ReLU, with the derivative at 0 that an equation was written with; None if it is another."""
    name = equation.primitive.name
    if name == "max":
        zeros = [v for v in equation.invars if hasattr(v, "val") and np.all(np.asarray(v.val) == 0)]
        return _positive if len(zeros) == 1 and len(equation.outvars) == 1 else None
    inner = [getattr(program, "jaxpr", program) for program in inner_programs(equation.params)]
    if len(inner) != 1 or len(inner[0].eqns) != 1 or inner[0].outvars != inner[0].eqns[0].outvars:
        return None
    if name in ("jit", "pjit"):
        return activation(inner[0].eqns[0])
    if name == "custom_jvp_call" and _is_jaxs_relu(inner[0]):
        return jax.nn.relu if activation(inner[0].eqns[0]) else None
    return None


def _positive(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0)


def _is_jaxs_relu(jaxpr: Any) -> bool:
    """Whether a program with a derivative of its own is ``jax.nn.relu``: another one may have another derivative."""
    source = str(getattr(getattr(jaxpr, "debug_info", None), "func_src_info", ""))
    return source.startswith("relu at ") and str(pathlib.Path(jax.__file__).parent) in source
