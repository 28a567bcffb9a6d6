"""What ``--help``, ``--helpfull`` and ``help NAME`` print: the commands, the settings, and what a setting can be."""

import ast
import contextlib
import doctest
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jafl.base.errors import SettingError, did_you_mean, unknown_name
from jafl.cli.commands import COMMANDS, FLAGS, SETTINGS, Command, Declared, declared
from jafl.config.calls import CALLS, SHORT_NAMES, argument_path, grammar, setting_of
from jafl.config.grammar import Grammar
from jafl.config.settings import GROUP, HELP, SHORT_HELP, TYPES
from jafl.config.values import EMPTY, Call, written

WIDTH = 100
# In the order in which --helpfull prints them.
GROUPS = {
    "run": "What to run, and for how long",
    "data": "Data set",
    "partition": "Partition among the clients",
    "model": "Model",
    "training": "Clients' training",
    "server": "Server and aggregation rule",
    "privacy": "Privacy of the clients: differential privacy, secure aggregation",
    "protocol": "Protocol: who trains when, and when the server steps",
    "delay": "Delays",
    "presence": "Presence: availability, dropout and failures",
    "output": "What is measured",
}
# {one of the ten settings that everybody uses: (an example, what it says)}
TEN = {
    "algorithm": ("fedbuff,ace", "what to run; several are compared"),
    "num_clients": ("100", "how many clients there are"),
    "concurrency": ("20", "how many of them train at one moment"),
    "buffer_size": ("10", "trips per server step"),
    "client_trips": ("10000", "how long to run; or --protocol.server_steps"),
    "learning_rate": ("0.1", "the clients'"),
    "server_learning_rate": ("1", "the server's"),
    "local_steps": ("10", "minibatch steps per trip; or --client_work.local_epochs"),
    "batch_size": ("8", "examples per minibatch"),
    "seed": ("0,1,2", "of everything random; several are compared"),
}
# {a setting that says in what world clients live and what they train: (an example, what it says)}
WORLD = {
    "dataset": ("cifar10", "which examples"),
    "partition": ('"dirichlet(alpha=0.1)"', "who holds which"),
    "model": ('"mlp(hidden_sizes=[200])"', "what is trained"),
    "delay": ('"gamma(shape=2)"', "how long a trip takes"),
    "availability": ("diurnal", "who is there"),
    "protocol": ("synchronous", "who trains when"),
}


class Explanation(NamedTuple):
    """A factory as the help shows it: its call with all defaults, a sentence, its arguments' texts, an example."""

    call: str
    text: str
    arguments: dict[str, str]
    example: str


def explained(grammar: Grammar) -> list[Explanation]:
    """Every factory of a setting; those of calls that only stand inside another come last, without examples."""
    explanations = []
    for name, factory in [*grammar.factories.items(), *grammar.inner.items()]:
        parameters, texts = grammar.parameters(name), _arguments(factory)
        call = f"{name}({', '.join(_signature(grammar, each) for each in parameters.values())})"
        own_texts = {each: texts[each] for each in parameters if each in texts}
        example = _example(grammar, name) if name in grammar.factories else ""
        summary = " ".join(_docstring(factory).split("\n\n")[0].split())
        explanations.append(Explanation(call, summary, own_texts, example))
    return explanations


def _signature(grammar: Grammar, parameter: inspect.Parameter) -> str:
    """An argument with its default, three dots for what the experiment fills in."""
    if parameter.name in grammar.supplied:
        return f"{parameter.name}=..."
    if parameter.default is EMPTY:
        return parameter.name
    return f"{parameter.name}={written(grammar.default_value(parameter.default))}"


def _example(grammar: Grammar, name: str) -> str:
    """A call of a factory: the one of its docstring, else one with the defaults of its first arguments."""
    factory, own = grammar.factories[name], grammar.parameters(name)
    code = "".join(each.source for each in doctest.DocTestParser().get_examples(_docstring(factory)))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name:
            # Without what the experiment fills in, as the labels or the rule, and without the names of modules.
            node.args = node.args[next(iter(inspect.signature(factory).parameters), "") in grammar.fixed :]
            node.func = ast.Name(name)
            text = re.sub(r"\b(?:\w+\.)+(?=\w+\()", "", ast.unparse(node))
            with contextlib.suppress(SettingError):
                grammar.completed(text)
                if (call := grammar.read(text)).arguments:
                    return str(call)
    given = [each for each in own.values() if each.name not in grammar.supplied]
    simple = [each for each in list(own.values()) if isinstance(each.default, (float, int, str))][:2]
    if any(each.default is EMPTY for each in given):
        return ""
    return str(Call(name, {each.name: each.default for each in simple if each in given}))


def _docstring(factory: Callable[..., Any]) -> str:
    """Without the markup of code, roles (optax's) and links: ``:func:`optax.nadam```` as optax.nadam."""
    text = inspect.getdoc(factory.func if isinstance(factory, functools.partial) else factory) or ""
    return re.sub(r"(?::\w+:)?(`+)~?([^`]+?)(?:\s<[^`>]*>)?\1_*", r"\2", text)


def _arguments(factory: Callable[..., Any]) -> dict[str, str]:
    """{argument: its text}, from the section Args, of a class perhaps Attributes, of a docstring."""
    section = re.search(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", _docstring(factory), re.M)
    entry = re.compile(r"^(\*?\w+(?:, \w+)*):(.*(?:\n(?:[ \t].*)?)*)", re.M)
    found = entry.findall(textwrap.dedent(section[1])) if section else []
    return {name: " ".join(text.split()) for names, text in found for name in names.split(", ")}


def short(program: str) -> str:
    """The commands, the ten settings that everybody uses, and where the others are explained.

    program: how jafl is called, ``python run.py``.
    """
    commands = [
        *((next(iter(each.examples)), each.summary) for each in COMMANDS.values()),
        ("help delay", "tells what a setting can be, a command does, a flag means"),
    ]
    lines = [
        "Simulates asynchronous federated learning: settings in, a folder of numbers and pictures out.",
        "",
        f"Commands, written behind {program}; sweep --help explains one and its flags:",
        *_columns(commands),
        "",
        "The ten settings that everybody uses:",
        *_columns([(f"--{name}={example}", text) for name, (example, text) in TEN.items()]),
        "",
        "And what a run is made of. A value is a call; a dotted name, --partition.alpha=0.1, is an argument:",
        *_columns([(f"--{name}={example}", text) for name, (example, text) in WORLD.items()]),
        "",
        f"Every setting has a default. {program} --helpfull explains all {len(TYPES)} settings; they can also",
        "stand in a file, one --name=value a line: --flagfile=FILE.",
    ]
    return "\n".join(lines)


def explain_command(command: Command, program: str) -> str:
    """What a command does, examples, and its flags; ``program`` as above."""
    lines = [_wrapped(command.text, ""), ""]
    for words, text in command.examples.items():
        lines += [f"  {program} {words}", f"      {text}"]
    own = [name for name in command.flags if name not in SETTINGS and name != command.word]
    settings = [name for name in command.flags if name in SETTINGS]
    if own:
        lines += ["", "Flags:", *(_explained(name, declared(name)) for name in own)]
    if len(settings) == len(SETTINGS):
        lines += ["", f"And every setting: {program} --helpfull."]
    elif settings:
        text = f"And these settings, which {program} --helpfull explains: {', '.join(settings)}."
        lines += ["", _wrapped(text, "")]
    return "\n".join(lines)


def full(program: str) -> str:
    """The commands with their flags, and every setting, by group; ``program`` as above."""
    sections = [_section(title, settings) for title, settings in by_group().items()]
    own = _section("Flags of commands", {name: FLAGS[name] for name in FLAGS if name not in COMMANDS})
    return "\n".join([short(program), "", own, *sections]).rstrip()


def of(name: str, program: str) -> str:
    """What a command does, or a setting is and can be; raises SettingError for an unknown name, with the nearest.

    Args:
      name: of a command or setting, or the dotted or short name of an argument: ``delay.shape``.
      program: how jafl is called.
    """
    name = name.lstrip("-")
    if name == "flagfile":
        text = "a file of flags, one --name=value a line, without quotes; # begins a comment."
        return _wrapped(f"--flagfile: {text}", "  ")
    if name in COMMANDS and name not in HELP:
        return explain_command(COMMANDS[name], program)
    setting, _, argument = argument_path(name).partition(".")
    if name in FLAGS:
        return _explained(name, FLAGS[name])
    if setting not in HELP or (argument and setting not in CALLS):
        if values := _values(name):
            return values
        names = [
            *HELP,
            *SHORT_NAMES,
            *COMMANDS,
            *FLAGS,
            *(each for one in CALLS for each in (*grammar(one).factories, *grammar(one).inner)),
        ]
        hint = did_you_mean(name, names, "See --help for the commands.")
        raise SettingError(f"No command, setting or flag is called {name!r}. {hint}")
    if not argument:
        if name not in CALLS:
            return _explained(name, declared(name))
        # Its own text without the names, which follow with all arguments.
        lines = [_explained(name, declared(name)), ""]
        lines += [line for each in explained(grammar(name)) for line in _explanation(name, each)]
        return "\n".join(lines).rstrip()
    lines = []
    if name in SHORT_HELP:
        lines = [_wrapped(f"--{name}: {SHORT_HELP[name]} It is {argument_path(name)}.", "  ")]
    for each in explained(grammar(setting)):
        if argument in each.arguments:
            lines += [_wrapped(each.call, ""), _wrapped(f"{argument}: {each.arguments[argument]}", "    ")]
    if not lines:
        known = {f"{setting}.{one}" for each in grammar(setting).arguments().values() for one in each}
        raise unknown_name("help", name, sorted(known))
    return "\n".join(lines)


def _values(name: str) -> str:
    """What a call of this name is, of each setting that can have it; empty where none can."""
    lines = []
    for setting in CALLS:
        for each in explained(grammar(setting)):
            if each.call.partition("(")[0] == name:
                lines += [f"A value of --{setting}:", *_explanation(setting, each)]
    return "\n".join(lines).rstrip()


def _explanation(setting: str, each: Explanation) -> list[str]:
    """The lines on one call; arguments that have one text together stand together."""
    together: dict[str, list[str]] = {}
    for argument, text in each.arguments.items():
        together.setdefault(text, []).append(argument)
    lines = [_wrapped(each.call, ""), _wrapped(each.text, "    ")]
    lines += [_wrapped(f"{', '.join(names)}: {text}", "      ") for text, names in together.items()]
    return [*lines, *([f'    --{setting}="{each.example}"'] if each.example else []), ""]


def by_group() -> dict[str, dict[str, Declared]]:
    """{title of a group: {its settings, after each the short names of its arguments}}, for the help and the site."""
    groups: dict[str, dict[str, Declared]] = {title: {} for title in GROUPS.values()}
    for setting, group in GROUP.items():
        for name in (setting, *(each for each in SHORT_NAMES if setting_of(each) == setting)):
            groups[GROUPS[group]][name] = _setting(name)
    return groups


def _section(title: str, flags: Mapping[str, Declared]) -> str:
    return "\n".join([f"{title}:", *(_explained(name, flag) for name, flag in flags.items()), ""])


def _setting(name: str) -> Declared:
    """A setting, what it can be in its text, or an argument under its short name."""
    if name not in CALLS:
        return declared(name)
    kinds = grammar(name).factories
    text = f" One of {', '.join(kinds)};" if len(kinds) > 1 else ""
    return declared(name)._replace(help=f"{HELP[name]}{text} run.py help {name} lists all arguments.")


def _explained(name: str, flag: Declared) -> str:
    """``--name: text (default: value)``; where the default is none, the text tells what that means."""
    default = flag.default
    if isinstance(default, bool):
        default = str(default).lower()
    shown = "" if default in (None, "", "default") else f" (default: {default})"
    return _wrapped(f"--{'[no]' if flag.type is bool else ''}{name}: {flag.help}{shown}", indent="  ")


def _columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Each row as a line, the second column under itself."""
    rows = list(rows)
    width = max(len(first) for first, _ in rows) + 2
    return [f"  {first:<{width}}{second}".rstrip() for first, second in rows]


def _wrapped(text: str, indent: str) -> str:
    how: dict[str, Any] = {"initial_indent": indent, "subsequent_indent": indent + "    "}
    return textwrap.fill(text, WIDTH, **how, break_long_words=False, break_on_hyphens=False)
