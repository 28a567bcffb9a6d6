"""Which rules, client work and steps can be measured; SettingError, with the reason, for all others."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import optax

from jafl.base.buckets import bucket
from jafl.base.errors import SettingError, require, whole_number
from jafl.clients.argument_checks import check_number
from jafl.data import Federation
from jafl.records import Rule
from jafl.specifications import Specification, as_rule

# Why rules of the package that are not linear in the updates cannot be split, by name.
NOT_LINEAR = {
    "area": "it adds up clients' whole models, not only their updates",
    "asyncfeded": "its weights depend on the lengths of updates",
    "favas": "it averages the models from which clients have trained",
    "fedasync": "it pulls towards the client's whole model, stale as it is, not along its update",
    "fedat": "it averages models of tiers, each of which has replaced the one before",
    **dict.fromkeys(
        ("ef21", "feddyn", "masfl", "qafel", "quafl", "scaffold"),
        "what clients keep decides their updates, too",
    ),
    "fedfa": "it averages clients' whole models; its form 'updates' is linear",
    "port": "its weights depend on the directions of updates",
    "private": "it clips updates",
    "ringleader": "what it stores of a client are means, each made of the one before, and not one trip's update",
    "secure": "it clips and rounds updates",
    "wkafl": "it selects gradients by their angle, and clips them",
    "zeno_plus_plus": "it brings each gradient to the length of the server's own, and refuses some",
}


def linear_rule(rule: Any) -> Specification:
    """The rule as a specification; raises SettingError unless it is linear in the updates."""
    rule = as_rule(rule)
    built = rule.build()
    if not built.linear:
        why = NOT_LINEAR.get(factory_name(rule), "a rule of your own that is says so, with linear=True")
        raise SettingError(
            f"rule is {factory_name(rule)!r}, but must be linear in the clients' updates where the error is split: "
            f"{why}.",
            setting="rule",
        )
    require(
        built.memory_precision == "full",
        "memory_precision",
        built.memory_precision,
        "'full' where the error is split: rounding is not linear in the updates",
    )
    return rule


def factory_name(rule: Specification) -> str:
    """What the rule's factory is called."""
    return str(getattr(rule.factory, "__name__", "rule")).lstrip("_")


def keeps_something(rule: Rule, client_work: Specification, federation: Federation) -> bool:
    """Whether anything lasts from one server step of the rule to the next."""
    model = client_work.build().model

    def state():
        params = model.init(jax.random.key(0), federation.x)
        return rule.init(params, federation.num_clients)

    return rule.memory is not None or bool(jax.tree.leaves(jax.eval_shape(state)))


def client_learning_rate(client_work: Any) -> float:
    """eta_l, the clients' learning rate; raises SettingError unless the work is plain SGD on their own objectives."""
    is_client_work = isinstance(client_work, Specification) and "optimizer" in client_work.arguments
    require(is_client_work, "client_work", client_work, "what jafl.client_work returns")
    arguments = client_work.arguments
    require(
        arguments.get("schedule") is None,
        "learning_rate",
        "a schedule",
        "one number where the error is split",
    )
    rate = _rate_of_plain_sgd(arguments["optimizer"])
    require(
        not arguments["proximal"],
        "proximal",
        arguments["proximal"],
        "None where the error is split: the proximal term is no part of the clients' objectives",
    )
    require(
        not arguments["learning_rate_normalization"],
        "learning_rate_normalization",
        True,
        "False where the error is split: with it no one learning rate turns updates back into gradients",
    )
    require(
        arguments.get("compression") is None,
        "compression",
        arguments.get("compression"),
        "None where the error is split: a compressed update is no gradient times a known number",
    )
    return rate


def _rate_of_plain_sgd(optimizer: Any) -> float:
    """The learning rate of ``specify(optax.sgd, ...)`` without momentum; raises SettingError for other optimizers."""
    plain = isinstance(optimizer, Specification) and optimizer.factory is optax.sgd
    plain = plain and optimizer.arguments.get("momentum") is None
    rate: Any = optimizer.arguments["learning_rate"] if plain else None
    require(
        plain and not callable(rate),
        "the client's optimizer",
        optimizer,
        "plain SGD of one learning rate where the error is split",
        "Only then is an update a gradient times a known number: jafl.client_work(model, learning_rate=0.1).",
    )
    check_number("the client's learning rate", rate, minimum=0.0)
    require(rate > 0, "the client's learning rate", rate, "above 0 where the error is split")
    return float(rate)


def steps_to_measure(at_steps: Iterable[int]) -> np.ndarray:
    """[S] int32: the steps in order, padded, so that other steps, as many or a few more, do not recompile."""
    steps = sorted({whole_number("a step of at_steps", step, 0) for step in at_steps})
    require(steps, "at_steps", (), "at least one server step")
    return padded(np.array(steps, np.int32))


def padded(column: np.ndarray) -> np.ndarray:
    """``column`` with its length rounded up to a bucket, the rest repeating its last element."""
    return np.pad(column, (0, bucket(len(column)) - len(column)), mode="edge")
