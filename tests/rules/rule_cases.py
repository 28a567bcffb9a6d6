"""The table of the four papers' rules, each with the reference's, and the schedules on which they are compared."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import reference as ref
import reference_rules as papers
from against_reference import Case, make_federation

import jafl
from jafl import delays, rules
from jafl.rules import server_optimizers


def server(rate: float) -> tuple:
    """Plain SGD at the server, in both programs."""
    return jafl.specify(optax.sgd, learning_rate=rate), ref.SGD(rate)


def unequal_steps(client: int, trip: int) -> int:
    """From 0 to 6 local steps, other ones in each trip."""
    return int(3 * client + 5 * trip) % 7


def scheduled(case: Case) -> Case:
    """The case with as many local steps in each trip as the schedule says, none in some."""
    work = {**case.work, "batch_size": 4, "local_steps": "scheduled"}
    return dataclasses.replace(case, work=work, local_steps=unequal_steps)


def on_gradients(rule, expected, rate=0.3, **changes) -> Case:
    """A rule on gradients: one full-batch step of plain SGD with rate 1, so that update = -gradient."""
    settings = {"learning_rate": 1.0, "server": server(rate), "buffer_size": 5, **changes}
    return Case("", rule, expected, **settings)


def cached(rule, expected, **changes) -> Case:
    return on_gradients(rule, expected, 0.2, **{"buffer_size": 1, "initial_round": True, **changes})


def gsgm(momentum: float, buffer_size: int, round_of=None, **changes) -> Case:
    return on_gradients(
        rules.gsgm(momentum),
        lambda: papers.GSGM(1.0, momentum, round_of),
        buffer_size=buffer_size,
        restart="after_round",
        **changes,
    )


def zeno_plus_plus(refresh_every: int) -> Case:
    """The server's examples are of two of the three classes."""
    data = make_federation(CLIENTS, np.float64)
    skewed = np.flatnonzero(data.y != 2)[:30]
    x, y = data.x[skewed], data.y[skewed]
    numbers = {"gamma": 0.1, "rho": 0.02, "epsilon": 0.02}
    return on_gradients(
        rules.zeno_plus_plus(jafl.server_gradient(jafl.models.softmax(3), x, y), refresh_every, **numbers),
        lambda: papers.ZenoPlusPlus(
            1.0, lambda params: ref.softmax_regression(params, x, y)[1], refresh_every, **numbers
        ),
        buffer_size=1,
    )


def wkafl(without: str | None = None, restart: str = "at_once", **changes) -> Case:
    numbers = {"momentum": 0.2, "cosine_weight": 5.0, "staleness_decay": 0.2}
    limits = {
        "smallest_cosine": 0.35,
        "clip_norm": 0.8,
        "stage_two_clip": 0.9,
        "stage_two_loss": 0.8,
        "stage_two_by": "mean",
        **changes,
    }
    parts = {
        "gradient_selection": "gradient_selection",
        "staleness": "staleness_part",
        "non_iid": "non_iid_part",
    }
    left_out = {parts[without]: False} if without else {}
    return on_gradients(
        rules.wkafl(5, **numbers, **limits, **left_out),
        lambda: papers.WKAFL(
            1.0,
            momentum=0.2,
            cosine_weight=5.0,
            learning_rate_decay=0.2,
            minimum_similarity=limits["smallest_cosine"],
            clip_bound=limits["clip_norm"],
            stage_two_bound=limits["stage_two_clip"],
            stage_two_loss=limits["stage_two_loss"],
            stage_two_by=limits["stage_two_by"],
            without=without,
        ),
        restart=restart,
    )


def in_bfloat16(tree):
    """What a memory in bfloat16 holds of float64 arrays."""
    return ref.tree_map(lambda leaf: np.asarray(leaf).astype(jnp.bfloat16).astype(np.float64), tree)


# The cached gradients of a step's trips are replaced one after the other; the paper's steps take one trip.
MANY_TRIPS = {
    "ace": (rules.ace(), lambda: papers.ACE(1.0)),
    "direct ace": (rules.ace("direct"), lambda: papers.ACE(1.0)),
    "aced": (rules.aced(active_steps=2), lambda: papers.ACED(1.0, 2)),
    "aced by cached age": (rules.aced(2, "cached"), lambda: papers.ACED(1.0, 2, "cached")),
}


def fadas(delay_form: str, form: str = "paper", rate: float = 0.2) -> Case:
    """In one of the forms of its AMSGrad, "sgd" for a server with momentum in its place; delays count from 2."""
    amsgrad = jafl.specify(server_optimizers.fedamsgrad, learning_rate=rate, epsilon=1e-3, form=form)
    momentum = jafl.specify(optax.sgd, learning_rate=rate, momentum=0.5), ref.SGD(rate, 0.5)
    return Case(
        "",
        rules.fadas(delay_form, 2, server_learning_rate=rate),
        lambda: papers.FADAS(delay_form, 2, rate) if delay_form != "none" else ref.FedAvg(),
        momentum if form == "sgd" else (amsgrad, papers.AMSGrad(rate, form, epsilon=1e-3)),
        buffer_size=3,
    )


def compressed(
    compression, expected, error_feedback: bool, rule=None, reference=None, correction: str | None = None
) -> Case:
    """FedBuff, or another rule, whose clients send their updates of three local steps compressed.

    Of a multilayer perceptron: softmax regression begins with gradients in which numbers are equal but for rounding,
    and which of them are the largest is then chance.
    """
    work = {"compression": compression, "error_feedback": error_feedback}
    return Case(
        "",
        rule or rules.fedbuff(),
        reference or (lambda: papers.Compressed(expected, error_feedback)),
        server(0.5),
        buffer_size=4,
        learning_rate=0.1,
        model="mlp",
        work={"batch_size": 4, "local_steps": 3, "correction": correction, **work},
    )


def ditto(expected, personal: jafl.Specification, **changes) -> Case:
    """FedBuff whose clients train personal models beside their updates."""
    work = {"batch_size": 4, "local_steps": 3, "personal": personal}
    server_rate = server(0.5)
    return Case(
        "", rules.fedbuff(), expected, server_rate, buffer_size=4, learning_rate=0.1, work=work, **changes
    )


def with_state(rule, expected, correction: str, rates=(1.0, 1.0), **changes) -> Case:
    """A rule whose clients correct three local steps by what they keep; ``rates``: of the two servers."""
    return Case(
        "",
        rule,
        expected,
        (jafl.specify(optax.sgd, learning_rate=rates[0]), ref.SGD(rates[1])),
        work={"batch_size": 4, "local_steps": 3, "correction": correction},
        **{"buffer_size": 4, "learning_rate": 0.1, **changes},
    )


def polled(rule, expected) -> Case:
    """Polls of three clients, who have made from 0 to 4 local steps."""
    work = {"batch_size": 4, "local_steps": "scheduled"}
    return Case("", rule, expected, server(1.0), buffer_size=3, work=work, polls=(0.8, 4))


def quafl(compression=None, expected=None) -> Case:
    """Clients that are polled go on with models of their own."""
    work = {"batch_size": 4, "local_steps": "scheduled", "correction": "quafl", "compression": compression}
    return Case(
        "",
        rules.quafl(3),
        lambda: papers.QuAFL(3, expected),
        server(1.0),
        buffer_size=3,
        work=work,
        polls=(0.8, 4),
        download="before_step",
    )


BY_MEAN = {"step_when": "harmonic_mean"}
ROUNDS = {"step_when": "each_client_once_a_round"}
CLIENTS = 9
ROUTING = (1, 1, 2, 2, 3, 3, 4, 4, 5)
RULES = {
    "fedstaleweight, equation 8": Case(
        "", rules.fedstaleweight(), lambda: papers.FedStaleWeight("equation_8"), buffer_size=5
    ),
    "fedstaleweight, algorithm 1": Case(
        "", rules.fedstaleweight("algorithm_1"), lambda: papers.FedStaleWeight("algorithm_1"), buffer_size=5
    ),
    "fedstaleweight, window": Case(
        "",
        rules.fedstaleweight(average="window", window=3),
        lambda: papers.FedStaleWeight(window=3),
        buffer_size=5,
    ),
    "fedstaleweight, all trips": Case(
        "",
        rules.fedstaleweight(average="all"),
        lambda: papers.FedStaleWeight(all_trips=True),
        buffer_size=5,
    ),
    "fedstaleweight, exponential average": Case(
        "",
        rules.fedstaleweight(average="exponential", decay=0.7),
        lambda: papers.FedStaleWeight(decay=0.7),
        buffer_size=5,
    ),
    "exponential weighting": Case(
        "", rules.exponential_weighting(0.5), lambda: papers.ExponentialWeighting(0.5), buffer_size=5
    ),
    "reverse exponential weighting": Case(
        "", rules.exponential_weighting(1.5), lambda: papers.ExponentialWeighting(1.5), buffer_size=5
    ),
    "asgd": on_gradients(rules.asgd(), lambda: papers.VanillaASGD(1.0), buffer_size=1),
    "delay-adaptive, scale": on_gradients(
        rules.delay_adaptive_asgd("scale", 6), lambda: papers.DelayAdaptiveASGD(1.0, 6), buffer_size=1
    ),
    "delay-adaptive, drop": on_gradients(
        rules.delay_adaptive_asgd("drop", 6), lambda: papers.DelayAdaptiveASGD(1.0, 6, "drop"), buffer_size=1
    ),
    "delay-adaptive, bound": on_gradients(
        rules.delay_adaptive_asgd("bound", 6, smoothness=0.3, server_learning_rate=0.3),
        lambda: papers.DelayAdaptiveASGD(1.0, 6, "bound", 0.3, 0.3),
        buffer_size=1,
    ),
    "rescaled asgd": on_gradients(
        rules.rescaled_asgd(), lambda: papers.RescaledASGD(1.0), 0.1, buffer_size=1
    ),
    "rescaled asgd, trip": on_gradients(
        rules.rescaled_asgd("trip"), lambda: papers.RescaledASGD(1.0, "trip"), 0.1, buffer_size=1
    ),
    "rescaled asgd, frequency": on_gradients(
        rules.rescaled_asgd("frequency"), lambda: papers.RescaledASGD(1.0, "frequency"), 0.1, buffer_size=1
    ),
    "ringmaster": on_gradients(
        rules.asgd(), lambda: papers.VanillaASGD(1.0), buffer_size=1, protocol={"staleness_limit": 4}
    ),
    "ringmaster, stops": on_gradients(
        rules.asgd(),
        lambda: papers.VanillaASGD(1.0),
        buffer_size=1,
        protocol={"staleness_limit": 4, "too_stale": "cancel"},
    ),
    "rennala": on_gradients(rules.fedavg(), ref.FedAvg, protocol={"cancel_at_step": True}),
    "malenia": on_gradients(rules.malenia(), lambda: papers.Malenia(1.0), buffer_size=12, protocol=BY_MEAN),
    "malenia, stops": on_gradients(
        rules.malenia(),
        lambda: papers.Malenia(1.0),
        buffer_size=12,
        protocol={**BY_MEAN, "cancel_at_step": True},
    ),
    "generalized async sgd": on_gradients(
        rules.generalized_async_sgd(tuple(ROUTING)),
        lambda: papers.GeneralizedAsyncSGD(1.0, np.array(ROUTING) / sum(ROUTING)),
        0.1,
        buffer_size=1,
    ),
    "ringleader": on_gradients(rules.ringleader(), lambda: papers.Ringleader(1.0), 0.2, protocol=ROUNDS),
    "fedfix": Case(
        "", rules.fedfix(), lambda: papers.FedFix(0.75), restart="after_step", protocol={"step_every": 0.75}
    ),
    "fadas": fadas("paper"),
    "fadas, release": fadas("release", "release"),
    "fadas, as optax has it": fadas("release", "optax"),
    "fadas, no delay": fadas("none"),
    "fadas, momentum": fadas("release", "sgd"),
    "sasgd": on_gradients(rules.sasgd(), lambda: papers.SASGD(1.0)),
    "twafl": on_gradients(rules.twafl(), lambda: papers.TWAFL(1.0)),
    "sasgd, after the step": on_gradients(rules.sasgd(), lambda: papers.SASGD(1.0), restart="after_step"),
    "twafl, after the step": on_gradients(rules.twafl(), lambda: papers.TWAFL(1.0), restart="after_step"),
    "gsgm, whole rounds": gsgm(0.5, 3),
    "gsgm, steps across rounds": gsgm(0.5, 5),
    "gsgm, some leave": gsgm(0.5, 5, lambda trip: trip.trip, leaves=((0, 4, 7), 40)),
    "zeno++": zeno_plus_plus(1),
    "zeno++, lazy": zeno_plus_plus(3),
    "ace": cached(rules.ace(), lambda: papers.ACE(1.0)),
    "ace, direct": cached(rules.ace("direct"), lambda: papers.ACE(1.0)),
    "ace against the incremental form": cached(rules.ace(), lambda: papers.IncrementalACE(1.0)),
    "aced, short": cached(rules.aced(active_steps=4), lambda: papers.ACED(1.0, 4)),
    "aced, one step": cached(rules.aced(active_steps=1), lambda: papers.ACED(1.0, 1)),
    "aced, long": cached(rules.aced(active_steps=25), lambda: papers.ACED(1.0, 25)),
    "aced, bfloat16": cached(
        rules.aced(4, memory_precision="bfloat16"), lambda: papers.ACED(1.0, 4, quantise=in_bfloat16)
    ),
    "aced, some leave": cached(
        rules.aced(active_steps=6), lambda: papers.ACED(1.0, 6), leaves=((0, 4, 7), 40)
    ),
    **{
        f"aced by cached age, {threshold}": cached(
            rules.aced(threshold, "cached"), lambda threshold=threshold: papers.ACED(1.0, threshold, "cached")
        )
        for threshold in (2, 7, 25)
    },
    **{
        f"{name} in buffers": cached(rule, expected, buffer_size=5)
        for name, (rule, expected) in MANY_TRIPS.items()
    },
    **{
        f"{name} of all due": cached(rule, expected, due=True)
        for name, (rule, expected) in MANY_TRIPS.items()
    },
    "aced of all due, bfloat16": cached(
        rules.aced(2, memory_precision="bfloat16"),
        lambda: papers.ACED(1.0, 2, quantise=in_bfloat16),
        due=True,
    ),
    "ca2fl of all due": Case("", rules.ca2fl(), papers.CA2FL, due=True),
    "fedbuff of all due": Case(
        "", rules.fedbuff(rules.staleness.constant()), lambda: ref.FedBuff(ref.constant()), due=True
    ),
    "ca2fl": Case("", rules.ca2fl(), papers.CA2FL, buffer_size=5),
    "ca2fl, changes with the step": Case(
        "", rules.ca2fl("step"), lambda: papers.CA2FL("step"), buffer_size=5
    ),
    "mifa": Case("", rules.mifa(), papers.MIFA, buffer_size=4),
    "mifa, initial round": Case("", rules.mifa(), papers.MIFA, buffer_size=4, initial_round=True),
    "mifa, bfloat16": Case(
        "", rules.mifa("bfloat16"), lambda: papers.MIFA(quantise=in_bfloat16), buffer_size=4
    ),
    "dude-asgd": cached(rules.dude_asgd(), lambda: papers.DuDeASGD(1.0), buffer_size=4),
    "area": Case("", rules.area(), papers.AREA, server(1.0), buffer_size=4),
    "area, one trip a step": Case("", rules.area(), papers.AREA, server(1.0), buffer_size=1),
    "fedfa": Case("", rules.fedfa(4), lambda: papers.FedFa(4, True), server(1.0), buffer_size=1),
    "fedfa, updates": Case(
        "", rules.fedfa(4, "updates"), lambda: papers.FedFa(4, False), server(0.3), buffer_size=1
    ),
    "asyncfeded": Case("", rules.asyncfeded(0.8), lambda: papers.AsyncFedED(0.8), server(0.5), buffer_size=1),
    "port": Case("", rules.port(4.0, 1.0, 2.0), lambda: papers.PORT(4.0, 1.0, 2.0), buffer_size=4),
    "port, uniform": Case(
        "",
        rules.port(10.0, 3.0, 1.0, False),
        lambda: papers.PORT(10.0, 3.0, 1.0, False),
        buffer_size=3,
        work={"batch_size": 4, "local_steps": 3},
    ),
    "fedcompass": scheduled(Case("", rules.fedcompass(), papers.FedCompass, server(1.5), buffer_size=4)),
    "fedat": Case("", rules.fedat(3), lambda: papers.FedAT(()), server(1.0), buffer_size=2, tiers=3),
    "fedat, uniform": Case(
        "",
        rules.fedat(2, False),
        lambda: papers.FedAT((), False),
        server(0.8),
        buffer_size=4,
        tiers=(1, 0, 0, 1, 1, 0, 0, 1, 1),
        work={"batch_size": 4, "local_steps": 2},
    ),
    "favas": polled(rules.favas(), papers.FAVAS),
    "favas, by the steps made": polled(rules.favas("made"), lambda: papers.FAVAS(made=True)),
    "quafl": quafl(),
    "quafl, QSGD": quafl(jafl.compression.qsgd(8), papers.QSGD(8)),
    "cgad": Case(
        "",
        rules.cgad(0.2, 7.0),
        lambda: ref.FedBuff(papers.cosine_gated(0.2, 7.0)),
        (jafl.specify(optax.adam, learning_rate=0.02, eps=1e-3), ref.Adam(0.02, epsilon=1e-3)),
        buffer_size=2,
    ),
    "cgad, plain server": Case(
        "", rules.cgad(0.2, 7.0), lambda: ref.FedBuff(papers.cosine_gated(0.2, 7.0)), buffer_size=2
    ),
    "wkafl": wkafl(),
    "wkafl, after the step": wkafl(restart="after_step"),
    "wkafl, none passes": wkafl(smallest_cosine=0.99),
    "wkafl, no gradient selection": wkafl("gradient_selection"),
    "wkafl, no staleness part": wkafl("staleness"),
    "wkafl, no non-IID part": wkafl("non_iid"),
    "wkafl, sum of losses": wkafl(stage_two_by="sum", stage_two_loss=3.0),
    "scaffold": with_state(rules.scaffold(), lambda: papers.SCAFFOLD(0.1), "scaffold", (0.4, 0.4)),
    "scaffold, scheduled steps": scheduled(
        with_state(rules.scaffold(), lambda: papers.SCAFFOLD(0.1), "scaffold", (0.4, 0.4))
    ),
    "feddyn, scheduled steps": scheduled(
        with_state(rules.feddyn(0.3), lambda: papers.FedDyn(0.3), "feddyn", (0.5, 0.5))
    ),
    "adamasfl, scheduled steps": scheduled(
        with_state(
            rules.masfl(0.7, normalize=True),
            lambda: papers.MasFL(0.1, 0.7, adaptive=True),
            "adamasfl",
            (2.0, 0.2),
        )
    ),
    "fedbuff, clients keep their momentum, scheduled steps": scheduled(
        Case(
            "",
            rules.fedbuff(),
            lambda: papers.KeptMomentum(0.8),
            server(0.5),
            buffer_size=4,
            learning_rate=0.05,
            work={
                "keep_optimizer_state": True,
                "optimizer": jafl.specify(optax.sgd, learning_rate=0.05, momentum=0.8),
            },
        )
    ),
    "scaffold, one trip a step": with_state(
        rules.scaffold(), lambda: papers.SCAFFOLD(0.1), "scaffold", (0.1, 0.1), buffer_size=1
    ),
    "feddyn": with_state(rules.feddyn(0.3), lambda: papers.FedDyn(0.3), "feddyn", (0.5, 0.5)),
    "masfl": with_state(
        rules.masfl(0.7), lambda: papers.MasFL(0.1, 0.7, adaptive=False), "masfl", (0.1, 0.1)
    ),
    "adamasfl": with_state(
        rules.masfl(0.7, normalize=True),
        lambda: papers.MasFL(0.1, 0.7, adaptive=True),
        "adamasfl",
        (2.0, 0.2),  # the paper's rate over that of the clients
    ),
    "fedbuff, clients keep their momentum": Case(
        "",
        rules.fedbuff(),
        lambda: papers.KeptMomentum(0.8),
        server(0.5),
        buffer_size=4,
        learning_rate=0.05,
        work={
            "batch_size": 4,
            "local_steps": 3,
            "keep_optimizer_state": True,
            "optimizer": jafl.specify(optax.sgd, learning_rate=0.05, momentum=0.8),
        },
    ),
    "fedbuff, ditto": ditto(lambda: papers.Ditto(0.7, 0.3), jafl.ditto(0.7, 0.3)),
    "fedbuff, ditto with more steps, late trips are lost": ditto(
        lambda: papers.Ditto(0.2, 0.5, 5),
        jafl.ditto(0.2, 0.5, local_steps=5),
        protocol={"staleness_limit": 4},
    ),
    "fedbuff, ditto, scheduled steps": scheduled(ditto(lambda: papers.Ditto(0.7, 0.3), jafl.ditto(0.7, 0.3))),
    "fedbuff, top-k with error feedback": compressed(jafl.compression.top_k(0.2), papers.TopK(11), True),
    "fedbuff, QSGD": compressed(jafl.compression.qsgd(3), papers.QSGD(3), False),
    "fedbuff, QSGD with error feedback": compressed(jafl.compression.qsgd(8), papers.QSGD(8), True),
    "ef21": compressed(
        jafl.compression.top_k(0.2), None, False, rules.ef21(), lambda: papers.EF21(papers.TopK(11)), "ef21"
    ),
    "qafel": compressed(
        jafl.compression.top_k(0.2),
        None,
        True,
        rules.qafel(jafl.compression.top_k(0.3)),
        lambda: papers.QAFeL(papers.TopK(16), papers.TopK(11), error_feedback=True),
        "qafel",
    ),
    "fedbuff, top-k with error feedback, scheduled steps": scheduled(
        compressed(jafl.compression.top_k(0.2), papers.TopK(11), True)
    ),
    "fednova": Case(
        "",
        rules.fednova(),
        lambda: papers.FedNova(lambda trip: 2 * -(-trip.num_examples // 8)),
        buffer_size=5,
        work={"batch_size": 8, "local_epochs": 2},
    ),
    "fednova, by examples": Case(
        "",
        rules.fednova(True),
        lambda: papers.FedNova(lambda trip: -(-trip.num_examples // 8), True),
        buffer_size=5,
        work={"batch_size": 8, "local_epochs": 1},
    ),
    "fednova, scheduled steps": scheduled(
        Case(
            "",
            rules.fednova(True),
            lambda: papers.FedNova(lambda trip: unequal_steps(trip.client, trip.trip), True),
            buffer_size=3,
        )
    ),
    "ca2fl, scheduled steps": scheduled(Case("", rules.ca2fl(), papers.CA2FL, buffer_size=4)),
    "port, scheduled steps": scheduled(
        Case("", rules.port(4.0), lambda: papers.PORT(4.0, 1.0, 1.0), buffer_size=4)
    ),
    "port, interrupts": Case(
        "",
        rules.port(2.0),
        lambda: papers.PORT(2.0, 1.0, 1.0),
        buffer_size=4,
        work={"batch_size": 4, "local_steps": "scheduled"},
        protocol={"staleness_limit": 2, "too_stale": "interrupt", "local_steps": 6},
    ),
}
# Durations: most clients are quick and may arrive twice in one buffer; all arrive together; some are slow. As many
# clients in each, so that one program is compiled for all three.
SCHEDULES = {
    "very unequal clients": delays.once_per_client(delays.log_normal(1.0, 1.5)),
    "simultaneous arrivals": delays.constant(1.0),
    "slow clients": delays.groups(((7, delays.exponential(1.0)), (2, delays.exponential(10.0)))),
}
CASES = [
    dataclasses.replace(
        case, name=f"{name}; {schedule}", delay=delay, steps=120, clients=CLIENTS, concurrency=CLIENTS
    )
    for name, case in RULES.items()
    for schedule, delay in SCHEDULES.items()
]


def of_rule(name: str) -> list[Case]:
    return [case for case in CASES if case.name.split(";")[0] == name]
