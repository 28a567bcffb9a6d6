"""Runs that learn and runs that do not, each with what is to be said of it: the table of ``test_not_learning``."""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from learning_worlds import (
    Constant,
    a_label_per_client,
    dead,
    eight_of_ten_labels,
    federation,
    language_model,
    linear,
    mlp,
    numbers,
    one_client_is_wrong,
    shuffled,
    softmax,
    test_example_of_nan,
    texts,
    unbalanced,
)

import jafl
from jafl.simulation.not_learning import judge


@dataclasses.dataclass(frozen=True)
class Case:
    """A run, and what is said of it.

    Attributes:
      kinds: of the judgements, in order.
      says: words that are said.
      not_said: words that are not.
      follows: what is changed to follow the advice; "rate": what the text says of a learning rate.
      reaches: the accuracy of the run that follows it, or, if negative, minus the loss.
    """

    federation: Callable[[], jafl.Federation]
    model: Callable[[], jafl.Model]
    kinds: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    not_said: tuple[str, ...] = ()
    follows: Any = None
    reaches: float = 0.85
    rate: float = 0.1
    server: Any = None
    rule: Callable[[], Any] = jafl.rules.fedbuff
    trips: int = 1200
    concurrency: int = 10
    buffer_size: int = 4
    cohort_size: int = 0
    work: Any = None
    params: Callable[[Any], Any] | None = None
    evaluators: Any = None
    delay: Any = None


def ended(case: Case) -> tuple[list, jafl.History, Any]:
    """(the judgements, how the run ended, the run)."""
    data, model = case.federation(), case.model()
    delay = case.delay or jafl.delays.exponential(1.0)
    if case.cohort_size:
        schedule = jafl.synchronous(
            num_clients=data.num_clients, cohort_size=case.cohort_size, client_trips=case.trips, delay=delay
        )
    else:
        schedule = jafl.asynchronous(
            num_clients=data.num_clients,
            concurrency=min(case.concurrency, data.num_clients),
            buffer_size=case.buffer_size,
            client_trips=case.trips,
            delay=delay,
        )
    work = {"local_epochs": 1, "batch_size": 16, **(case.work or {})}
    if not {"optimizer", "learning_rate"} & set(work):
        work["learning_rate"] = case.rate
    params = model.init(jax.random.key(0), data.x)
    run = jafl.Run(
        schedule,
        data,
        jafl.client_work(model, **work),
        case.rule(),
        case.params(params) if case.params else params,
        jax.random.key(1),
        case.server,
        evaluators=case.evaluators,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = jafl.simulate(*run[:6], server_optimizer=case.server, evaluators=case.evaluators)
    return judge(run, history), history, run


@functools.cache
def trained() -> Any:
    return ended(CASES["learns"])[1].params


def private(noise_multiplier: float) -> Callable[[], Any]:
    return lambda: jafl.private(
        jafl.rules.fedbuff(), clip_norm=1.0, noise_multiplier=noise_multiplier, delta=1e-3
    )


def rises(version: Any) -> Any:
    """A rate that is good at first, and then too high."""
    return jnp.where(version < 2000, 0.1, 0.6)


def sgd(rate: float, **more: Any) -> Any:
    return jafl.specify(optax.sgd, learning_rate=rate, **more)


DID_NOT, FELL, APART, LACKS, NAN = (
    ("did not learn",),
    ("fell back",),
    ("clients apart",),
    ("lacks labels",),
    ("not finite",),
)

CASES: dict[str, Case] = {
    "learns": Case(federation, mlp),
    "unscaled pixels": Case(
        functools.partial(federation, scale=255.0),
        mlp,
        DID_NOT,
        ("to 0.001 for example", "Scale them"),
        ("raise",),
        "rate",
        0.85,
    ),
    "unscaled pixels, then scaled": Case(
        functools.partial(federation, scale=255.0),
        mlp,
        DID_NOT,
        ("divide by 255",),
        (),
        {"federation": federation},
        0.9,
    ),
    "unscaled pixels that a linear model learns": Case(
        functools.partial(federation, scale=255.0),
        softmax,
        ("loss rose",),
        ("The run learned, but", "Scale them"),
        ("did not learn",),
        "rate",
    ),
    "a rate a thousand times too low": Case(
        federation,
        mlp,
        DID_NOT,
        ("raise the clients' learning rate, which is 0.0001",),
        ("Lower",),
        "rate",
        rate=1e-4,
    ),
    "a client's rate that is too high": Case(
        federation,
        mlp,
        DID_NOT,
        ("Lower the clients' learning rate, which is 30",),
        ("raise",),
        "rate",
        rate=30.0,
    ),
    "a server's rate that is too high": Case(
        federation,
        mlp,
        DID_NOT,
        ("Lower the server's learning rate, which is 50, to 1 ",),
        ("raise",),
        "rate",
        server=sgd(50.0),
    ),
    "momentum that is too high": Case(
        federation,
        mlp,
        DID_NOT,
        ("Lower the server's learning rate, which is 3, to 0.1 ",),
        ("raise",),
        "rate",
        server=sgd(3.0, momentum=0.9),
        rate=0.3,
    ),
    "a server's Adam with a rate too high": Case(
        federation,
        mlp,
        DID_NOT,
        ("Lower the server's learning rate, which is 3,",),
        ("raise",),
        "rate",
        server=jafl.specify(optax.adam, learning_rate=3.0),
    ),
    "updates that are too stale": Case(
        federation,
        mlp,
        DID_NOT,
        ("server steps old on average",),
        ("raise",),
        "rate",
        rule=jafl.rules.asgd,
        rate=1.0,
        buffer_size=1,
        concurrency=20,
        trips=3000,
        work={"local_epochs": None, "local_steps": 1},
    ),
    "asgd that falls": Case(
        functools.partial(federation, alpha=0.3),
        mlp,
        FELL,
        ("has lost what it had learned", "let the rate fall with the server steps"),
        ("did not learn",),
        {"work": {"local_epochs": None, "local_steps": 1}},
        rule=jafl.rules.asgd,
        buffer_size=1,
        trips=3000,
        work={"local_epochs": None, "local_steps": 1, "learning_rate": rises},
    ),
    "noise of a private run": Case(
        federation,
        mlp,
        DID_NOT,
        ("noise", "clip_norm", "epsilon", "cohort_size"),
        ("ower the", "which is"),
        {"rule": private(0.01)},
        0.8,
        rule=private(100.0),
    ),
    "labels that no client has": Case(
        eight_of_ten_labels,
        mlp,
        LACKS,
        ("labels 8, 9", "19.5 %"),
        (),
        {"federation": federation},
        concurrency=4,
    ),
    "labels of clients that never took part": Case(
        a_label_per_client,
        mlp,
        LACKS,
        ("clients that took part",),
        (),
        {"delay": jafl.delays.exponential(1.0)},
        0.6,
        concurrency=10,
        rate=0.03,
        delay=jafl.delays.from_function(lambda client, trip: 1.0 if client < 8 else 1e6),
    ),
    "a client with wrong labels": Case(
        one_client_is_wrong, mlp, APART, ("1 of 20 (numbers 3)",), (), {"federation": federation}
    ),
    "shuffled labels": Case(
        shuffled, mlp, DID_NOT, ("labels belong to their examples",), ("raise",), {"federation": federation}
    ),
    "dead units": Case(
        federation, mlp, DID_NOT, ("dead units",), ("raise", "Lower"), {"params": None}, params=dead
    ),
    "a constant model": Case(
        federation,
        lambda: jafl.Model(Constant()),
        DID_NOT,
        ("outputs depend on its inputs",),
        ("raise", "Lower"),
        {"model": mlp},
    ),
    "unbalanced labels, learned": Case(unbalanced(True), lambda: jafl.models.softmax(2)),
    "unbalanced labels, nothing to learn": Case(
        unbalanced(False), lambda: jafl.models.softmax(2), DID_NOT, ("always naming one label gives 0.936",)
    ),
    "regression": Case(numbers, linear),
    "regression, a rate too low": Case(
        numbers,
        linear,
        DID_NOT,
        ("always predicting the same", "raise the clients'"),
        ("Lower",),
        "rate",
        -1.0,
        rate=1e-5,
    ),
    "regression, a rate too high": Case(
        numbers,
        linear,
        DID_NOT,
        ("Lower the clients' learning rate",),
        ("raise",),
        "rate",
        -1.0,
        rate=1.05,
        trips=200,
        work={"local_epochs": None, "local_steps": 2},
    ),
    "a language model": Case(texts, language_model),
    "a language model, a rate too low": Case(
        texts, language_model, DID_NOT, ("raise the clients'",), ("Lower",), "rate", 0.5, rate=1e-4
    ),
    "a single step": Case(federation, mlp, trips=4, rate=30.0),
    "too short to say": Case(federation, mlp, trips=80, rate=1e-4),
    "a trained model that stays good": Case(federation, mlp, params=lambda _: trained(), rate=0.01),
    "a trained model at a rate of almost 0": Case(federation, mlp, params=lambda _: trained(), rate=1e-6),
    "a trained model that is ruined": Case(
        federation, mlp, DID_NOT, ("Lower",), ("raise",), "rate", params=lambda _: trained(), server=sgd(50.0)
    ),
    "FedAvg, one client a round": Case(federation, mlp, rule=jafl.rules.fedavg, cohort_size=1, rate=0.03),
    "FedAvg, one client a round, one's own evaluator": Case(
        federation,
        mlp,
        rule=jafl.rules.fedavg,
        cohort_size=1,
        rate=0.03,
        evaluators={"own": lambda params: {"norm": 1.0}},
    ),
    "a test example that is NaN": Case(
        test_example_of_nan,
        mlp,
        NAN,
        ("test_loss was not finite in any of its", "test example 33 is not finite", "feature"),
        ("rate",),
    ),
    "an evaluator that gives NaN": Case(
        federation,
        mlp,
        NAN,
        ("own_score was not finite",),
        ("rate",),
        evaluators={"own": lambda params: {"score": float("nan"), "fine": 1.0}},
    ),
}
