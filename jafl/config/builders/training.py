"""What trains, from settings: the rule, with privacy if asked for, the optimizers, the clients' work, the model."""

import inspect
from typing import Any

import numpy as np

from jafl.base.errors import SettingError, require, seed_number
from jafl.config import calls
from jafl.config.builders.data import PRECISIONS
from jafl.config.presets import default_model
from jafl.config.settings import Settings
from jafl.config.values import Call, all_calls
from jafl.data import Source
from jafl.models import Model
from jafl.models.low_rank import Adapted
from jafl.records import Rule
from jafl.specifications import Specification, specify

ANY_EXAMPLES = ("softmax", "mlp")
NEXT_TOKENS = ("character_lstm", "causal_transformer")
TEXTS = ("sent140_lstm", *NEXT_TOKENS, "distilbert", "bert")


def make_rule(settings: Settings, server_gradient: Specification | None = None) -> Specification:
    """The rule of a resolved run.

    server_gradient: for a rule that takes one; it can be left out as long as nothing trains.
    """
    grammar, name = calls.grammar("algorithm"), settings.algorithm_name
    _check_staleness_weight(settings.argument("algorithm.staleness_weight"))
    parameters = inspect.signature(grammar.factory(grammar.read(settings.algorithm).name)).parameters
    supplied: dict[str, Any] = {"server_learning_rate": settings.server_learning_rate}
    if settings.buffer_size is not None:
        supplied["buffer_size"] = settings.buffer_size
    cohort_size = settings.argument("protocol.cohort_size")
    if settings.argument("protocol.cohorts") == "poisson" and cohort_size is not None:
        supplied["divide_by"] = float(cohort_size)
    if "server_gradient" in parameters:
        remedy = f"{name} compares updates with a gradient on the server's own examples."
        count = settings.argument("split.server_examples")
        require(count >= 1, "split.server_examples", count, "at least 1", remedy)
        supplied["server_gradient"] = server_gradient
    rule: Specification = grammar.make(settings.algorithm, **supplied)
    allowed = "a factory of a rule: a function with @jafl.specification that returns a jafl.Rule"
    fits = isinstance(rule, Specification) and isinstance(rule.build(), Rule)
    require(fits, "algorithm", settings.algorithm, allowed)
    return protected(rule, settings)


def _check_staleness_weight(weight: Any) -> None:
    """Raises SettingError for a number of a staleness weight that is below 0 or infinite."""
    fits = weight is None or isinstance(weight, Call)
    require(fits, "algorithm.staleness_weight", weight, "a call, such as constant")
    for argument, value in weight.arguments.items() if weight else ():
        name = f"algorithm.staleness_weight.{argument}"
        require(0 <= value < float("inf"), name, value, "a finite number, at least 0")


def make_optimizer(settings: Settings, setting: str) -> Specification:
    """The optax optimizer that ``client_optimizer`` or ``server_optimizer`` says, its numbers data of the program."""
    text = getattr(settings, setting)
    grammar = calls.grammar(setting)
    rate, momentum = grammar.value(text, "learning_rate"), grammar.read(text).arguments.get("momentum")
    name = calls.short_name(f"{setting}.learning_rate")
    # Optax itself takes any number for a rate and a momentum.
    fits = isinstance(rate, float) and 0 <= rate < float("inf")
    require(fits, name, rate, "a finite number, at least 0")
    require(momentum is None or 0 <= momentum < 1, f"{setting}.momentum", momentum, "at least 0 and below 1")
    made: Specification = grammar.make(text, specify)
    return made


def make_client_work(settings: Settings, model: Model, correction: str | None = None) -> Specification:
    """What a client does on a trip, with the correction that the rule asks for (``Requirements.correction``)."""
    optimizer = make_optimizer(settings, "client_optimizer")
    work: Specification = calls.grammar("client_work").make(
        settings.client_work, model=model, optimizer=optimizer, correction=correction
    )
    return work


def protected(rule: Specification, settings: Settings) -> Specification:
    """``rule``, of a resolved run, under secure aggregation and with privacy, as far as the settings ask for them.

    Raises:
      SettingError: for a number out of its range, or an algorithm that is not eligible; by the setting's name.
    """
    if settings.secure_aggregation is not None:
        own, others = map(settings.argument, ("secure_aggregation.clip_norm", "privacy.clip_norm"))
        if others is None:
            fits, allowed = own is not None, "given where there is no privacy"
        else:
            fits, allowed = own in (None, others), f"left out, or that of privacy, {others}"
        require(fits, "secure_aggregation.clip_norm", own, allowed)
        rule = _around("secure_aggregation", rule, settings, clip_norm=others, seed=int(settings.seed))
    if settings.privacy is not None:
        given = any(
            settings.argument(f"privacy.{name}") is not None for name in ("epsilon", "noise_multiplier")
        )
        allowed = "given, or noise_multiplier in its place, how much noise there is"
        require(given, "privacy.epsilon", None, allowed)
        if (seed := settings.argument("privacy.noise_seed")) is not None:
            # A number below 2^64 for each pair of noise seed and run's seed: runs with other seeds have other noise.
            number = (seed_number("privacy.noise_seed", seed) << 32) + int(settings.seed)
            settings = settings.changed({"privacy.noise_seed": number})
        rule = _around("privacy", rule, settings, data_in_schedule=_data_in_schedule(settings))
    return rule


def _around(setting: str, rule: Specification, settings: Settings, **supplied: Any) -> Specification:
    count, what = settings.decompose_steps, "clipped" if setting == "privacy" else "rounded"
    allowed = f"0 where {setting} is given: {what} updates are not linear in the gradients"
    require(count == 0, "decompose_steps", count, allowed)
    try:
        made: Specification = calls.grammar(setting).make(getattr(settings, setting), rule=rule, **supplied)
    except SettingError as error:
        raise in_settings(error, settings, setting) from None
    return made


def in_settings(error: SettingError, settings: Settings, *names: str) -> SettingError:
    """A refusal of an argument of ``private`` or ``secure`` under its setting's name; any other one as it is.

    names: the settings that it may be of, ``privacy`` and ``secure_aggregation``.
    """
    for setting in names:
        text = getattr(settings, setting)
        if text is not None and error.setting == "rule":
            return error.within(f"algorithm is {settings.algorithm_name}, with {setting}", "algorithm")
        if text is not None and calls.grammar(setting).has(text, error.setting):
            return error.of(f"{setting}.{error.setting}")
    return error


def _data_in_schedule(settings: Settings) -> tuple[str, ...]:
    """What the schedule of these settings is made from that clients hold."""
    facts = []
    laws = {call.name for call in all_calls(calls.grammar("delay").read(settings.delay))}
    if "proportional_to_examples" in laws:
        facts.append("how many examples each client holds")
    if settings.richest_last and "groups" in laws:
        facts.append(f"which clients hold the largest shares of the labels {settings.richest_last}")
    return tuple(facts)


def make_model(settings: Settings, source: Source) -> Model:
    """The model, for the data set's classes.

    Raises:
      SettingError: if the model does not fit the examples, or needs a file that is not as it must be.
    """
    # Also before a run is resolved.
    text = calls.grammar("model").over(settings.model, default_model(settings.dataset_name))
    name = _network_name(text)
    if source.y.ndim == 2:
        allowed = f"{' or '.join(NEXT_TOKENS)}, for {source.name} asks for the next token at each place"
        require(name in NEXT_TOKENS or ":" in name, "model", text, allowed)
    if name in TEXTS:
        return _text_model(settings, source, text)
    if name == "mnist_1d_cnn":
        allowed = f"softmax or mlp, for {source.name} has no signals"
        require(source.x.ndim == 3, "model", text, allowed)
    elif name not in ANY_EXAMPLES and ":" not in name:  # a user's own model takes what it takes
        others = "softmax, mlp or mnist_1d_cnn" if source.x.ndim == 3 else "softmax or mlp"
        allowed = f"{others}, for {source.name} has no images"
        require(source.x.ndim == 4, "model", text, allowed)
    if name == "cnn":
        channels, sides = calls.grammar("model").value(text, "channels"), source.x.shape[1:3]
        most, pixels = int(np.log2(min(sides))), " by ".join(map(str, sides))
        allowed = f"at most {most} widths, for each convolution halves the images, {pixels} pixels"
        require(len(channels) <= most, "model.channels", channels, allowed)
    return _made(text, num_classes=source.num_classes)


def _network_name(text: str) -> str:
    """The name of the call that makes the network: of that inside of ``lora``, if it is one of these."""
    call = calls.grammar("model").read(text)
    inner = call.arguments.get("model") if call.name == "lora" else None
    return inner.name if isinstance(inner, Call) else call.name


def _made(text: str, **supplied: Any) -> Model:
    model: Model = calls.grammar("model").make(text, **supplied)
    require(isinstance(model, Model), "model", text, "a factory of a jafl.Model, as those of jafl.models are")
    return model


def _text_model(settings: Settings, source: Source, text: str) -> Model:
    name = _network_name(text)
    fits = source.x.ndim == 2 and np.issubdtype(source.x.dtype, np.integer)
    require(fits, "model", text, f"one for numbers or images: {source.name} has no texts")
    supplied: dict[str, Any] = {
        "num_classes": source.num_classes,
        "param_dtype": PRECISIONS[settings.float_type],
    }
    if name in NEXT_TOKENS:
        allowed = f"another, for {source.name} asks for the class of a whole text"
        require(source.y.ndim == 2, "model", text, allowed)
        return _made(text, **supplied)
    largest = max(int(x.max()) for x in (source.x, source.test_x, source.validation_x) if x is not None)
    supplied["vocabulary"] = source.vocabulary
    if name == "sent140_lstm":
        where, tokens = f"the vocabulary of {source.name}", len(source.vocabulary or range(largest + 1))
        model = _made(text, tokens=tokens, **supplied)
    else:
        model = _made(text, **supplied)
        where = f"the embedding of {calls.grammar('model').value(text, 'model_dir')}"
        base: Any = model.network.base if isinstance(model.network, Adapted) else model.network
        tokens = base.module.config.tokens
    remedy = "Number the texts by that vocabulary."
    require(
        largest < tokens, f"the largest token in {source.name}", largest, f"below {tokens}, {where}", remedy
    )
    return model
