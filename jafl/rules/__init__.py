"""Aggregation rules: one file per algorithm, on the contract of ``jafl.Rule``.

How to write a rule
-------------------

A rule is four functions that JAX can trace. ``init`` makes what lasts for the whole run (here nothing). At each
server step ``begin`` opens an empty buffer, ``fold`` takes one arrived trip at a time into it, and ``finish`` turns
it into the direction to descend:

    from jafl import Requirements, Rule, specification
    from jafl.rules import accumulate

    @specification                       # floats become data: another one does not recompile
    def half_mean(share: float = 0.5) -> Rule:
        def init(params, num_clients):
            return ()

        def begin(state, params):
            return accumulate.zeros(params), accumulate.number(0)

        def fold(buffer, arrival):
            total, count = buffer
            weight = accumulate.number(share)
            return (accumulate.add(total, weight, arrival.update), count + 1), {"weight": weight}

        def finish(buffer, params):
            total, count = buffer
            return accumulate.scaled(-1 / count, total), (), {"weight_scale": 1 / count}, True

        return Rule(init, begin, fold, finish, requirements=Requirements(linear=True, additive=True))

A new rule in the package is one file, one import line below and one row in ``tests/rules/test_contract.py``; a rule
of your own can stand in a notebook, and ``jafl.simulate(..., rule=half_mean(0.3), ...)`` runs it. What else a rule
can have:

- ``columns``: numbers per trip that depend on the schedule alone, made on the host before the run starts
  (``fedstaleweight``). ``accumulate.weighted_sum`` makes a rule of nothing else.
- ``for_schedule``: numbers of the whole run that follow from its schedule, such as how much noise a private run
  needs; the rule that it returns is run in its place (``jafl.private``).
- ``requirements``: what the schedule and the engine must offer (the downloaded model: ``fedasync``; one trip per
  step: ``asgd``; a round of all clients first: ``ace``), and what the rule itself promises (``jafl.Requirements``).
- ``memory``: a value per client, stored by the server from trip to trip and read when the rule folds the client's
  next trip; client work does not see it (``ca2fl``, ``jafl.ClientMemoryRequest``).
- ``broadcast``: a part of the rule's state that clients get with the model; ``arrival.sent``: what they hand over
  beside their updates. What clients themselves keep is up to client work (``scaffold``, ``jafl.ClientStateRequest``).
- ``whole_step``: a step in one go, where its trips wait on an accelerator (``wkafl``, whose rows are those of
  ``rows``, for rules on norms and products of K updates).
- a step that is skipped: the last value that ``finish`` returns is False (``zeno_plus_plus``); or one that is
  scaled, while the server optimizer sees all of its direction: a floating number from 0 to 1 (``fadas``).

Pitfalls: return the direction to *descend* (minus the mean update); never reset state in ``fold`` (``begin`` does);
make ``arrival.staleness``, an integer, a float before you calculate with it; keep the dtypes of ``params``, as the
functions of ``accumulate`` do.
"""

import inspect as _inspect

from jafl.records import Rule as _Rule
from jafl.rules import accumulate as accumulate
from jafl.rules import server_optimizers as server_optimizers
from jafl.rules import staleness as staleness
from jafl.rules.ace import ace as ace
from jafl.rules.aced import aced as aced
from jafl.rules.area import area as area
from jafl.rules.asgd import asgd as asgd
from jafl.rules.asyncfeded import asyncfeded as asyncfeded
from jafl.rules.ca2fl import ca2fl as ca2fl
from jafl.rules.cgad import cgad as cgad
from jafl.rules.delay_adaptive_asgd import delay_adaptive_asgd as delay_adaptive_asgd
from jafl.rules.dude_asgd import dude_asgd as dude_asgd
from jafl.rules.ef21 import ef21 as ef21
from jafl.rules.exponential_weighting import exponential_weighting as exponential_weighting
from jafl.rules.fadas import fadas as fadas
from jafl.rules.favas import favas as favas
from jafl.rules.fedasync import fedasync as fedasync
from jafl.rules.fedat import fedat as fedat
from jafl.rules.fedavg import fedavg as fedavg
from jafl.rules.fedbuff import fedbuff as fedbuff
from jafl.rules.fedcompass import fedcompass as fedcompass
from jafl.rules.feddyn import feddyn as feddyn
from jafl.rules.fedfa import fedfa as fedfa
from jafl.rules.fedfix import fedfix as fedfix
from jafl.rules.fednova import fednova as fednova
from jafl.rules.fedstaleweight import fedstaleweight as fedstaleweight
from jafl.rules.generalized_async_sgd import generalized_async_sgd as generalized_async_sgd
from jafl.rules.gsgm import gsgm as gsgm
from jafl.rules.malenia import malenia as malenia
from jafl.rules.masfl import masfl as masfl
from jafl.rules.mifa import mifa as mifa
from jafl.rules.port import port as port
from jafl.rules.qafel import qafel as qafel
from jafl.rules.quafl import quafl as quafl
from jafl.rules.rescaled_asgd import rescaled_asgd as rescaled_asgd
from jafl.rules.ringleader import ringleader as ringleader
from jafl.rules.sasgd import sasgd as sasgd
from jafl.rules.scaffold import scaffold as scaffold
from jafl.rules.twafl import twafl as twafl
from jafl.rules.wkafl import wkafl as wkafl
from jafl.rules.zeno_plus_plus import zeno_plus_plus as zeno_plus_plus

# {name: factory} of every rule imported above.
RULES = {
    name: value
    for name, value in sorted(globals().items())
    if _inspect.isfunction(value) and _inspect.signature(value).return_annotation is _Rule
}

__all__ = sorted([*RULES, "RULES", "accumulate", "server_optimizers", "staleness"])
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
