"""From settings as given to those of each run: presets and defaults filled in, and what no run reads refused."""

import copy
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jafl.base.errors import SettingError, choose, is_whole_number, refusal, require, seed_number
from jafl.config import calls, foretold, grid, layers, presets, world
from jafl.config.builders.data import PRECISIONS, filled_in, precision_of, split_of
from jafl.config.builders.schedule import make_dropout
from jafl.config.builders.training import make_rule
from jafl.config.data_cache import DataCache
from jafl.config.grid import Arms, Override
from jafl.config.reading import DEFAULT
from jafl.config.settings import DEFAULTS, VARYING, Settings, default_of
from jafl.config.values import items
from jafl.records import Rule
from jafl.records.stopping import StopWhen
from jafl.schedule.protocol import WAITS

KEPT = ("last", "best,last", "last,best")
UNREAD = "left out: no run reads it"
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def resolve(arms: Mapping[str, Settings], loaded: DataCache) -> list[tuple[str, Settings]]:
    """(label, settings of one run with every default filled in) for each arm and seed, the seeds of one together.

    What a run does not read is at its default. Where no run reads it at all, ``refuse_unread`` refuses it.

    arms: {label: settings}, each of one algorithm; several arms are compared with each other.

    Raises:
      SettingError: for any setting that cannot work, as far as it shows before a schedule is made.
    """
    for settings in arms.values():
        _check(settings)
    for _, run in _resolved(arms, loaded):  # refuses what cannot work before the data set is read
        foretold.check(run)
    whole = {label: filled_in(arm, loaded.source(arm)) for label, arm in arms.items()}
    runs = _resolved(whole, loaded)
    if not any(settings.different_worlds for settings in arms.values()):
        world.refuse_different(runs)
    return runs


def _resolved(arms: Mapping[str, Settings], loaded: DataCache) -> list[tuple[str, Settings]]:
    """Each run with what its algorithm fills in, and without what it does not read."""
    alone, runs = len(arms) == 1, []
    for label, settings in arms.items():
        # Seeds decide nothing of this, and a sweep resolves its arms several times.
        key = alone, *(value for name, value in vars(settings).items() if name != "seed")
        seeds = listed_seeds(settings)
        if key not in loaded.resolved:
            run = resolve_run(settings, settings.algorithm, seeds[0], alone=alone)
            loaded.resolved[key] = world.as_read(run)
        runs += [(label, _with_seed(loaded.resolved[key], seed)) for seed in seeds]
    return runs


def _with_seed(settings: Settings, seed: int) -> Settings:
    """The settings of another seed; they have been checked, which takes milliseconds, and are not checked again."""
    settings = copy.copy(settings)
    object.__setattr__(settings, "seed", str(seed))
    return settings


def unread(comparisons: Iterable[Mapping[str, Settings]], given: Collection[str] = ()) -> list[SettingError]:
    """Refusals of settings that are given and that no run reads; none where an arm cannot work, as is told first.

    Args:
      comparisons: the arms of each condition, {label: settings}; one mapping where nothing is swept.
      given: names of settings that count as given even if they have their default.
    """
    given_arms: list[Settings] = []
    runs: list[Settings] = []
    for arms in comparisons:
        given_arms += arms.values()
        try:
            runs += [resolve_run(arm, arm.algorithm, 0, alone=len(arms) == 1) for arm in arms.values()]
        except SettingError:
            return []
    refusals = []
    for name in world.OF_SOME_RUNS:
        values = [arm.value(name) for arm in given_arms]
        said = [value for value in values if name in given or value != default_of(name)]
        reasons = [world.why_unread(name, run) for run in runs]
        if said and all(reasons):
            refusals.append(refusal(name, said[0], UNREAD, " ".join(dict.fromkeys(reasons))))
    return refusals + [each for name in calls.CALLS for each in _unread_arguments(name, given_arms, runs)]


def _unread_arguments(name: str, arms: Sequence[Settings], runs: Sequence[Settings]) -> list[SettingError]:
    """A refusal of each argument that is given for a default call and that the call of no run has."""
    grammar = calls.grammar(name)
    read = [grammar.read(getattr(arm, name)) for arm in arms if grammar.has_default]
    given = {each: value for call in read if call.name == DEFAULT for each, value in call.arguments.items()}
    return [
        refusal(
            calls.short_name(f"{name}.{argument}"), value, UNREAD, world.why_not_had(name, argument, runs)
        )
        for argument, value in given.items()
        if value != grammar.default(argument)
        and not any(grammar.heeds(getattr(run, name), argument, value) for run in runs)
    ]


def refuse_unread(conditions: Sequence[tuple[Mapping[str, Any], Mapping[str, Settings]]]) -> None:
    """Raises SettingError for a setting that is given or swept and that no run reads.

    conditions: (condition, the arms under it) of each; where nothing is swept, of the one that is empty.
    """
    for name, value in (conditions[0][0] if conditions else {}).items():
        setting, dot, argument = calls.argument_path(name).partition(".")
        texts = [vars(arm)[setting] for _, arms in conditions for arm in arms.values()] if dot else []
        layers.changed(setting, [text for text in texts if text is not None], argument, value)
    for each in unread([arms for _, arms in conditions]):
        raise each


def without_unread(
    settings: Settings,
    typed: Collection[str],
    *,
    sweep: str | Mapping[str, Sequence[Any]] = "",
    arms: Arms | None = None,
    overrides: Sequence[Override] = (),
) -> tuple[Settings, list[SettingError]]:
    """The settings without those that no run reads, and the refusals of these.

    Args:
      settings: those that all runs share; some may come from a file.
      typed: names of those that come from no file.
      sweep, arms, overrides: as of ``jafl.sweeps.sweep.run_sweep``.

    Raises:
      SettingError: for one of ``typed`` that no run reads, even if it has its default, or that the sweep lists.
    """
    values = grid.parse(sweep) if isinstance(sweep, str) and sweep else dict(sweep or {})
    compared = grid.algorithm_arms(settings) if arms is None else arms
    conditions = [grid.under(settings, compared, each, overrides) for each in grid.product(values)]
    paths = set(map(calls.argument_path, typed))
    swept = set(map(calls.argument_path, values))
    for name in typed:
        allowed = "left out where the sweep lists its values"
        require(calls.argument_path(name) not in swept, name, settings.argument(name), allowed)
    left_out = []
    for each in unread(conditions, typed):
        path = calls.argument_path(each.setting)
        name, dot, argument = path.partition(".")
        if path in swept:
            continue
        if paths & {path, name}:
            raise each
        text = getattr(settings, name)
        if text != DEFAULTS[name] and (not dot or layers.says(name, text, argument)):
            rest: Any = calls.grammar(name).without(text, [argument]) if dot else DEFAULTS[name]
            settings = dataclasses.replace(settings, **{name: rest})
            left_out.append(each)
    return settings, left_out


def resolve_run(settings: Settings, algorithm: str, seed: int, *, alone: bool = True) -> Settings:
    """One run's settings: one algorithm, one seed, and every None that a preset or a rule fills in, filled in.

    alone: False where several algorithms are compared: one that is defined for a single buffer size then takes it,
    whatever ``buffer_size`` says for the others.

    Raises SettingError for an unknown algorithm, with the nearest name, and for settings that exclude each other.
    """
    name = calls.grammar("algorithm").read(algorithm).name
    _refuse_presets_restart(settings, name)
    own = {**presets.values(name), "model": presets.default_model(settings.dataset_name)}
    algorithm, protocol = _with_same_tiers(
        algorithm, calls.grammar("protocol").over(settings.protocol, own["protocol"])
    )
    settings = dataclasses.replace(settings, protocol=protocol)
    # In one spelling, with every default: what is the same then looks the same.
    whole: dict[str, Any] = {"seed": str(seed)}
    for setting in calls.CALLS:
        text, grammar = getattr(settings, setting), calls.grammar(setting)
        text = algorithm if setting == "algorithm" else text
        if text is not None:
            whole[setting] = grammar.completed(grammar.over(text, own[setting]) if setting in own else text)
    settings = dataclasses.replace(settings, **whole)
    if make_dropout(settings) is None:
        settings = dataclasses.replace(settings, dropout="nobody")
    with calls.naming("algorithm", settings.algorithm):
        rule: Rule = make_rule(settings).build()
    filled = settings.changed(_rule_values(settings, rule, alone))
    _refuse_waiting(filled, rule)
    protocol = calls.grammar("protocol").read(filled.protocol).name
    size = calls.TRIPS_PER_STEP.get(protocol)
    if size is None:
        allowed = f"another: it makes steps of any number of trips, and {name} takes {rule.buffer_size}"
        require(rule.buffer_size is None, "protocol", protocol, allowed)
        return filled
    trips = filled.value(f"protocol.{size}")
    only = f"{rule.buffer_size} for {name}, which is not defined for another number of trips per server step"
    if trips is None and rule.buffer_size:
        instead = sorted(f"protocol.{other}" for other in calls.grammar("protocol").partners(size))
        path = next(path for path in instead if filled.argument(path) is not None)
        raise refusal(path, filled.value(path), f"left out, and {size} {only}")
    require(rule.buffer_size in (None, trips), calls.short_name(f"protocol.{size}"), trips, only)
    return filled


def _with_same_tiers(algorithm: str, protocol: str) -> tuple[str, str]:
    """(the algorithm, the protocol) with as many tiers: FedAT's rule has those of its protocol, whichever says them.

    Raises SettingError where both say them, and not the same.
    """
    texts = {"algorithm": algorithm, "protocol": protocol}
    grammars = {setting: calls.grammar(setting) for setting in texts}
    if not all(grammar.has(texts[setting], "tiers") for setting, grammar in grammars.items()):
        return algorithm, protocol
    saying = [setting for setting in texts if grammars[setting].says(texts[setting], "tiers")]
    said = {setting: grammars[setting].value(texts[setting], "tiers") for setting in saying}
    of_clients = said.get("protocol")
    if isinstance(of_clients, (list, tuple)) and of_clients and all(map(is_whole_number, of_clients)):
        said["protocol"] = max(of_clients) + 1  # the tier of each client
    if len(said) == 2:
        allowed = f"the number of tiers of the protocol, {said['protocol']}"
        remedy = "Leave one out: it follows."
        require(said["algorithm"] == said["protocol"], "algorithm.tiers", said["algorithm"], allowed, remedy)
    for other in texts.keys() - said if said else ():
        (number,) = said.values()
        if is_whole_number(number) and number < 1:
            break  # which is refused where it was said
        texts[other] = grammars[other].changed(texts[other], "tiers", number)
    return texts["algorithm"], texts["protocol"]


def _refuse_waiting(run: Settings, rule: Rule) -> None:
    """Raises SettingError where the server would wait, and then apply more trips than the rule is defined for."""
    limit, name = run.argument("protocol.staleness_limit"), run.algorithm_name
    if rule.buffer_size is None or limit is None:
        return
    remedy = f"A server that waits applies all trips that have arrived; {name} takes {rule.buffer_size}."
    too_stale = run.value("protocol.too_stale")
    require(too_stale not in WAITS, "protocol.too_stale", too_stale, f"'drop' for {name}", remedy)


def _refuse_presets_restart(settings: Settings, algorithm: str) -> None:
    """Raises SettingError for open arrivals of an algorithm whose clients wait for each other before they start."""
    restart = calls.argument(presets.values(algorithm), "protocol.restart") or ""
    is_open = calls.grammar("protocol").read(settings.protocol).name == "open_arrivals"
    if is_open and restart in ("after_step", "after_round") and not settings.value("protocol.restart"):
        when = restart.replace("_", " a ")
        allowed = f"asynchronous for {algorithm}, whose clients start again {when} only"
        remedy = "With --protocol.restart=at_once it is another algorithm, and allowed."
        raise refusal("protocol", settings.protocol, allowed, remedy)


def _rule_values(run: Settings, rule: Rule, alone: bool) -> dict[str, Any]:
    """What follows from the rule and the protocol: arguments of the protocol that no call tells."""
    name = calls.grammar("protocol").read(run.protocol).name

    def has(argument: str) -> bool:
        return calls.grammar("protocol").has(run.protocol, argument)

    filled: dict[str, Any] = {}
    if has("restart") and run.value("protocol.restart") is None:
        filled["protocol.restart"] = "at_once"
    step_when = run.argument("protocol.step_when") or "buffer_full"
    all_train = rule.initial_round or step_when != "buffer_full"
    clients = run.num_clients if all_train else min(20, run.num_clients)
    if name == "synchronous":
        if run.value("protocol.cohort_size") is None and run.value("protocol.participation") is None:
            filled["protocol.cohort_size"] = clients
    elif name == "tiered":
        tiers = run.argument("protocol.tiers")
        if run.value("protocol.cohort_size") is None and isinstance(tiers, int):
            filled["protocol.cohort_size"] = min(10, max(1, run.num_clients // max(1, tiers)))
    elif name == "polled":
        if run.value("protocol.cohort_size") is None:
            filled["protocol.cohort_size"] = rule.buffer_size or max(1, run.num_clients // 5)
    elif name == "queued":
        if run.value("protocol.tasks") is None:
            filled["protocol.tasks"] = clients
    elif has("concurrency") and run.concurrency is None and run.argument("protocol.start_rate") is None:
        filled["concurrency"] = clients
    instead = ("protocol.reports", "protocol.step_every")
    takes_size = has("buffer_size") and all(run.argument(path) is None for path in instead)
    takes_size = takes_size and step_when != "each_client_once_a_round"
    if takes_size and (run.buffer_size is None or (rule.buffer_size and not alone)):
        filled["buffer_size"] = rule.buffer_size or 10
    if run.client_trips is None and run.server_steps is None:
        filled["client_trips"] = 10000
    return filled


def listed_seeds(settings: Settings) -> list[int]:
    """The seeds that the settings list.

    Raises SettingError if one is no whole number, too large, or there twice.
    """
    seeds = [seed_number("seed", calls.literal(seed)) for seed in items("seed", settings.seed)]
    require(len(set(seeds)) == len(seeds), "seed", settings.seed, "a list without repetitions")
    return seeds


def _check(settings: Settings) -> None:
    """Raises SettingError for what can be said of settings whatever the algorithm."""
    precision_of(settings)
    dtype = PRECISIONS[settings.float_type]
    fits, remedy = (
        jax.dtypes.canonicalize_dtype(dtype) == dtype,
        "Call jax.config.update('jax_enable_x64', True) first.",
    )
    require(fits, "precision", settings.precision, "float32 while JAX computes in 32 bits", remedy)
    split_of(settings)
    for name in VARYING:
        value = settings.argument(name)
        fits = value is None or settings.float_type == "float64" or not abs(value) > LARGEST_FLOAT32
        require(fits, name, value, f"a finite number, at most {LARGEST_FLOAT32:.3g}, the largest in float32")
    choose("keep", settings.keep, dict.fromkeys(KEPT))
    if settings.stop_when is not None:
        StopWhen.parsed(settings.stop_when)
    target = settings.target_accuracy
    require(0 < target <= 1, "target_accuracy", target, "above 0, at most 1")
