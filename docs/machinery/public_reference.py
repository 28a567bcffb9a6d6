"""The pages of the reference: every public name of jafl, each rule on a page of its own, and all settings.

MkDocs gets them from ``hooks.py``; they are no files. What stands in docstrings is filled in by mkdocstrings, where a
page says ``::: jafl.simulation.simulate.simulate``.
"""

import functools
import inspect
import pathlib
import posixpath
import re
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

import jafl
from experiments.harness.declare import discovery
from jafl.cli import command_help
from jafl.config.presets import COMMON, PRESETS

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"  # pages of experiments


class Chapter(NamedTuple):
    """A page: its title, what it says first, and the names that it explains; ``delays.*`` means all of a module."""

    title: str
    introduction: str
    names: tuple[str, ...]


CHAPTERS = {
    "simulate": Chapter(
        "Simulations",
        "What puts a schedule, a federation, a model, client work and a rule together, and what comes of it.",
        ("simulate", "simulate_many", "Run", "client_work", "ditto", "Evaluator", "History", "Checkpoints",
         "forecast", "compilation_cache", "decomposed", "decomposed_four_ways", "SettingError", "DivergenceError",
         "Interrupted", "NotLearningWarning"),
    ),
    "schedules": Chapter(
        "Schedules",
        "Who trains when, from which version of the model, and at which server step it is applied.",
        ("asynchronous", "synchronous", "open_arrivals", "drawn_staleness", "queued", "compass", "tiered", "polled",
         "Dropout", "duration_trace", "read_availability", "EventSchedule", "in_waves", "trip_by_trip",
         "ExecutionPlan"),
    ),
    "delays": Chapter("Delays", "How long a client trip takes, in units of simulated time.", ("Delay", "delays.*")),
    "compression": Chapter(
        "Compression", "How clients send fewer bytes than their whole updates.", ("compression.*",)
    ),
    "availability": Chapter(
        "Availability", "When clients are there to start a trip.", ("Availability", "availability.*")
    ),
    "dropout": Chapter("Dropout", "Who leaves for ever, and when.", ("dropout.*",)),
    "traces": Chapter("Device traces", "FedScale's tables of devices, as durations and presence.", ("traces.*",)),
    "data": Chapter(
        "Data",
        "Data sets, partitions among clients, and the federation that they make.",
        ("federate", "Federation", "Source", "Partition", "data.*"),
    ),
    "models": Chapter("Models", "Models with a loss and a metric.", ("Model", "lora", "server_gradient", "models.*")),
    "contract": Chapter(
        "Rules of your own",
        "What a rule is to the engine, and what helps to write one. The how-to has "
        "[an example](../how_to.md#use-your-own-rule).",
        ("Rule", "Requirements", "Arrival", "ClientMemoryRequest", "ClientStateRequest", "rules.accumulate",
         "rules.staleness", "rules.server_optimizers", "rules.RULES", "specify", "specification", "Specification"),
    ),
    "diagnostics": Chapter(
        "Diagnostics", "What a schedule says before anything is trained.", ("diagnostics.*",)
    ),
    "privacy": Chapter(
        "Privacy",
        "What a run's noise is worth, exactly, per client; [the page on privacy](../privacy.md) explains it.",
        ("private", "secure", "privacy.*"),
    ),
    "plots": Chapter("Plots", "Pictures; [the gallery](../gallery.md) shows some.", ("plots.*",)),
}  # fmt: skip
RATES = ("learning_rate", "server_learning_rate")
RULES = sorted(jafl.rules.RULES)
# Where a module, or in a link its folder of the repository, has its page.
MODULES = {
    "jafl": "reference/index.md",
    "jafl.rules": "reference/rules/index.md",
    **{
        f"jafl.{name}": f"reference/{name}.md"
        for name in jafl.__all__
        if name in CHAPTERS and name != "rules"
    },
}


def public_value(name: str) -> Any:
    """What a name such as ``jafl.rules.fedbuff`` stands for."""
    return functools.reduce(getattr, name.split(".")[1:], jafl)


@functools.cache
def chapter_names(chapter: str) -> tuple[str, ...]:
    """The names that a chapter explains, as ``jafl.simulate``; of two names of one thing only the first."""
    names: dict[int, str] = {}
    for name in CHAPTERS[chapter].names:
        module = f"jafl.{name}".removesuffix(".*")
        for each in _inside(module) if name.endswith(".*") else [module]:
            names.setdefault(id(public_value(each)), each)
    return tuple(sorted(names.values(), key=_is_constant))  # functions and classes first


def _is_constant(name: str) -> bool:
    """Whether a name stands for a table, a list or a type, which has no docstring."""
    value = public_value(name)
    documented = inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)
    return not documented or isinstance(value, types.GenericAlias)


def _inside(module: str) -> list[str]:
    """The public names of a module."""
    return [f"{module}.{name}" for name in public_value(module).__all__]


@functools.cache
def page_of_name() -> dict[str, str]:
    """{``jafl.simulate``: ``reference/simulate.md``}, for every public name.

    Raises:
      ValueError: where a public name is explained by no page.
    """
    pages = {name: f"reference/{chapter}.md" for chapter in CHAPTERS for name in chapter_names(chapter)}
    pages |= {f"jafl.rules.{name}": f"reference/rules/{name}.md" for name in RULES}
    pages |= MODULES
    explained = {id(public_value(name)): page for name, page in pages.items()}
    for name in public_names():
        if id(public_value(name)) not in explained:
            raise ValueError(
                f"{name} is on no page of the site: name it in CHAPTERS of docs/machinery/public_reference.py"
            )
        pages.setdefault(name, explained[id(public_value(name))])
    return pages


def public_names() -> list[str]:
    """Every name in ``__all__`` of jafl and of its public modules."""
    names = _inside("jafl")
    return names + [each for name in names if inspect.ismodule(public_value(name)) for each in _inside(name)]


def navigation() -> list[Any]:
    """The reference in the navigation of the site."""
    rules = [{name: f"reference/rules/{name}.md"} for name in RULES]
    return [
        "reference/index.md",
        *({chapter.title: f"reference/{name}.md"} for name, chapter in CHAPTERS.items()),
        {"Rules": ["reference/rules/index.md", *rules]},
        {"Settings": "reference/settings.md"},
    ]


def pages() -> dict[str, str]:
    """{path: Markdown} of all pages of the reference."""
    page_of_name()  # raises where a name was forgotten
    return {
        "reference/index.md": _index(),
        **{f"reference/{name}.md": _chapter(name) for name in CHAPTERS},
        "reference/rules/index.md": _rules(),
        **{f"reference/rules/{name}.md": _rule(name) for name in RULES},
        "reference/settings.md": _settings(),
    }


def with_links(html: str, here: str) -> str:
    """A page with a link at each public name in code that is not in a heading, a link or a block of code.

    Args:
      html: the content of the page.
      here: its address in the site.

    Returns:
      The content, with links.
    """

    def linked(match: re.Match[str]) -> str:
        if not match["name"]:
            return match[0]
        name = match["name"]
        if name in RULES and here.startswith("reference/rules/"):
            name = f"jafl.rules.{name}"
        elif not name.startswith("jafl."):
            name = f"jafl.{name}" if name[0].isupper() else ""
        owner = name.rpartition(".")[0]  # of a method, its class
        if name not in page_of_name() and owner in page_of_name() and owner not in MODULES:
            name = owner
        address = _address(name, here) if name in page_of_name() else ""
        if not address or address == posixpath.basename(here):
            return match[0]
        return f'<a href="{address}">{match[0]}</a>'

    skipped = r"<(?P<skip>h\d|a|pre)\b.*?</(?P=skip)>"
    return re.sub(rf"{skipped}|<code>(?P<name>jafl\.[\w.]+|\w+)</code>", linked, html, flags=re.DOTALL)


def _address(name: str, here: str) -> str:
    """The address of a public name, from the page ``here``."""
    page = page_of_name()[name].removesuffix(".md") + ".html"
    own_page = name in MODULES or page.startswith("reference/rules/")
    return posixpath.relpath(page, posixpath.dirname(here) or ".") + ("" if own_page else f"#{_anchor(name)}")


def _anchor(name: str) -> str:
    """The anchor of a public name: that of the name under which its page explains the same object."""
    chapter = page_of_name()[name].removeprefix("reference/").removesuffix(".md")
    return next(each for each in chapter_names(chapter) if public_value(each) is public_value(name))


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    heading = list(heading)
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _summary(name: str) -> str:
    """The first line of a docstring, as Markdown; what a table holds has none."""
    value = public_value(name)
    text = _contents(value) if _is_constant(name) else (inspect.getdoc(value) or "").partition("\n")[0]
    return re.sub(r"(?<!`)\*(?=[A-Z])", r"\\*", text)


def _contents(value: Any) -> str:
    """What a constant is: the names in a table or a list, or a type."""
    if isinstance(value, types.GenericAlias):
        return f"A type: `{str(value).replace('collections.abc.', '')}`."
    return f"Holds {', '.join(f'`{each}`' for each in value)}."


def _index() -> str:
    """All public names, by page."""
    parts = ["# Reference", "Every public name of jafl, and the [settings](settings.md) of the command line."]
    for chapter, (title, introduction, _) in CHAPTERS.items():
        rows = [[f"[`{name}`]({chapter}.md#{name})", _summary(name)] for name in chapter_names(chapter)]
        parts += [f"## [{title}]({chapter}.md)", introduction, _table(["name", "what"], rows)]
    rows = [[f"[`jafl.rules.{name}`](rules/{name}.md)", _summary(f"jafl.rules.{name}")] for name in RULES]
    return "\n\n".join([*parts, "## [Rules](rules/index.md)", _table(["name", "what"], rows), ""])


def _chapter(chapter: str) -> str:
    """A page on several names."""
    title, introduction, _ = CHAPTERS[chapter]
    parts = [f"# {title}", introduction]
    if chapter == "contract":  # the docstring of the module tells how to write a rule
        parts.append((inspect.getdoc(jafl.rules) or "").partition("\n")[2])
    for name in chapter_names(chapter):
        parts.append(f'<a id="{name}"></a>')
        if _is_constant(name):
            parts.append(f"## {name}\n\n{_contents(public_value(name))}")
        else:  # all laws of a chapter have the same methods, which its base class explains
            parts.append(
                _explained(name, members=not name.startswith(("jafl.delays.", "jafl.availability.")))
            )
    return "\n\n".join([*parts, ""])


def _explained(name: str, *, members: bool = True) -> str:
    """What mkdocstrings makes a name's section of: where it is defined, and how users call it."""
    value = public_value(name)
    path = value.__name__ if inspect.ismodule(value) else f"{value.__module__}.{value.__qualname__}"
    options = {"heading": name, "toc_label": name}
    lines = [f"::: {path}", "    options:", *(f"      {key}: {text}" for key, text in options.items())]
    return "\n".join([*lines, *(["      members: false"] if not members else [])])


def _algorithms(rule: str) -> dict[str, dict[str, Any]]:
    """{algorithm: its defaults} of the algorithms that use a rule, itself first."""
    presets = {name: COMMON | preset for name, preset in PRESETS.items() if preset.get("rule", name) == rule}
    return dict(sorted(({rule: COMMON} | presets).items(), key=lambda each: each[0] != rule))


def _rules() -> str:
    """The list of rules and of the algorithms that they make."""
    rules_by_algorithm = {algorithm: rule for rule in RULES for algorithm in _algorithms(rule)}
    rows = [
        [f"`{algorithm}`", f"[{rule}]({rule}.md)", _summary(f"jafl.rules.{rule}")]
        for algorithm, rule in sorted(rules_by_algorithm.items())
    ]
    return "\n\n".join(
        [
            "# Rules",
            "How the server uses what arrives. `--algorithm` takes these names; an algorithm is a rule with a "
            "protocol, a server optimizer and learning rates. [Rules of your own](../contract.md) need none of this.",
            _table(["algorithm", "rule", "what the rule does"], rows),
            "",
        ]
    )


def _rule(name: str) -> str:
    """The page of one rule: its source, its defaults, what it asks of a run, where the papers' experiments use it."""
    module = inspect.getmodule(inspect.unwrap(public_value(f"jafl.rules.{name}")))
    source = (inspect.getdoc(module) or "").partition("\n")[0]
    defaults = [_defaults(algorithm, settings) for algorithm, settings in _algorithms(name).items()]
    return "\n\n".join(
        [
            f"# {name}",
            source,
            _explained(f"jafl.rules.{name}"),
            "## Default settings",
            "The learning rates come from "
            "[one equal search over ten worlds]"
            "(../../experiments/tools/benchmarks/README.md#default-learning-rates).",
            _table(
                ["`--algorithm`", "clients' learning rate", "server's learning rate", "besides"], defaults
            ),
            "## What it needs, and what it allows",
            _requirements(name),
            "## In the papers' experiments",
            _experiments(name),
            "",
        ]
    )


def _defaults(algorithm: str, settings: dict[str, Any]) -> list[str]:
    """The row of an algorithm in its rule's table: its learning rates, and what else is not as everywhere."""
    rates = [f"{settings[name]:g}" for name in RATES]
    others = {name: value for name, value in settings.items() if name not in (*RATES, "rule")}
    besides = [f"`{name}={value}`" for name, value in others.items() if COMMON.get(name) != value]
    return [f"`{algorithm}`", *rates, ", ".join(besides) or "nothing"]


def _requirements(name: str) -> str:
    """What a rule requires and promises, as a list."""
    rule = public_value(f"jafl.rules.{name}")().build()
    needs = rule.requirements
    said = {
        "Needs the model that each client downloaded.": needs.needs_start,
        f"Needs server steps of {needs.buffer_size} trip{'s' * (needs.buffer_size != 1)}.": needs.buffer_size
        is not None,
        "Needs a first round in which every client trains at the initial model.": needs.initial_round,
        "Stores a value of the model's size for each client.": rule.remembers is not None,
        "Is linear in the updates, so the server's error can be decomposed.": needs.linear,
        "Adds up a buffer, so that several devices can share one.": needs.additive,
    }
    lines = [f"- {sentence}" for sentence, holds in said.items() if holds]
    return "\n".join(["With its default arguments:", "", *lines]) if lines else "It runs on any schedule."


@functools.cache
def _algorithms_of_experiments() -> dict[str, set[str]]:
    """{experiment: the algorithms that its arms compare}."""
    used = {}
    for name in discovery.names():
        scales = discovery.load(name).scales.values()
        named = [of.get("algorithm", "") for scale in scales for of in (scale.settings, *scale.arms.values())]
        used[name] = {algorithm for text in named for algorithm in str(text).split(",")}
    return used


def _experiments(name: str) -> str:
    """Links to the experiments that train a rule."""
    algorithms = set(_algorithms(name))
    found = [each for each, used in _algorithms_of_experiments().items() if used & algorithms]
    links = [
        f"[{each}](../../results/{each}.md)" if (RESULTS / f"{each}.md").is_file() else each for each in found
    ]
    return f"{', '.join(links)}." if links else "None yet."


def _settings() -> str:
    """All settings, by group."""
    parts = [
        "# Settings",
        "Each is a flag, `python run.py --NAME=VALUE`, and a field of a run's `config.json`. Without "
        "a default the text says what decides. `python run.py --helpfull` prints the same, and the flags that say "
        "what to do.",
    ]
    for title, settings in command_help.by_group().items():
        rows = [[f"`{name}`", _plain(one.help) + _default(one.default)] for name, one in settings.items()]
        parts += [f"## {title}", _table(["setting", "what"], rows)]
    return "\n\n".join([*parts, ""])


def _default(value: Any) -> str:
    """A sentence with the default of a setting, if it has one that is not decided elsewhere."""
    return "" if value in (None, "") else f" Default: `{value}`."


def _plain(text: str) -> str:
    """Help text as Markdown that shows it as it is."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", text)
