"""Aggregation rules: one file per algorithm, on the contract of ``jafl.records.Rule``.

A rule opens a buffer, folds each arrival into it and closes it at the server step:

    import jafl
    from jafl import Rule, specification
    from jafl.rules import accumulate

    @specification                       # numbers become data: another one does not recompile
    def half_mean(share: float = 0.5) -> Rule:
        def init(params, num_clients): return ()
        def begin(state, params): return accumulate.zeros(params), 0
        def fold(buffer, arrival):
            total, count = buffer
            return (accumulate.add(total, accumulate.number(share), arrival.update), count + 1), {}
        def finish(buffer, params):
            total, count = buffer
            return accumulate.scaled(-1 / count, total), (), {}, True
        return Rule(init, begin, fold, finish)

A new rule is one file, one import line below and one row in ``tests/rules/test_contract.py``; in a notebook it is
no library file at all. Pitfalls: return the direction to *descend* (minus the mean update); never reset
state in ``fold`` (``begin`` does); use ``arrival.staleness`` as a number only after making it a float.
"""

import inspect as _inspect

from jafl.records import Rule as _Rule
from jafl.rules.ace import ace as ace
from jafl.rules.aced import aced as aced
from jafl.rules.asgd import asgd as asgd
from jafl.rules.ca2fl import ca2fl as ca2fl
from jafl.rules.delay_adaptive_asgd import delay_adaptive_asgd as delay_adaptive_asgd
from jafl.rules.exponential_weighting import exponential_weighting as exponential_weighting
from jafl.rules.fedasync import fedasync as fedasync
from jafl.rules.fedavg import fedavg as fedavg
from jafl.rules.fedbuff import fedbuff as fedbuff
from jafl.rules.fednova import fednova as fednova
from jafl.rules.fedstaleweight import fedstaleweight as fedstaleweight
from jafl.rules.gsgm import gsgm as gsgm
from jafl.rules.sasgd import sasgd as sasgd
from jafl.rules.twafl import twafl as twafl
from jafl.rules.wkafl import wkafl as wkafl
from jafl.rules.zeno_plus_plus import zeno_plus_plus as zeno_plus_plus

# {name: factory} of every rule imported above.
RULES = {
    name: value
    for name, value in sorted(globals().items())
    if _inspect.isfunction(value) and _inspect.signature(value).return_annotation is _Rule
}
