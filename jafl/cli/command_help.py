"""What ``--help`` and ``--helpfull`` print: usage, what to do, and the settings by group."""

import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from jafl.base.errors import unknown_name
from jafl.config.calls import CALLS, SHORT_NAMES, argument_path, grammar
from jafl.config.declaration import GROUPS
from jafl.config.settings import DECLARED, DEFAULTS, HELP, MOST_USED, SHORT_HELP, TYPES

WIDTH = 100
USAGE = """Simulates asynchronous federated learning: flags in, a run directory out.

    python run.py                                     compares four algorithms on handwritten digits
    python run.py --algorithm=fedbuff --seed=0,1,2    one algorithm, three seeds
    python run.py --algorithm=fedbuff --buffer_size=5 --delay=half_normal
    python run.py --algorithm=fedbuff --protocol=synchronous    FedBuff's rule in synchronous rounds
    python run.py --prepare=cifar10 --data_dir=data   downloads and prepares a data set, once
    python run.py --config=runs/001/fedbuff-seed0/config.json --output_dir=again    repeats a run
    python run.py --sweep="partition.alpha=0.1,1;delay.sigma=0.5,2" --output_dir=runs/sweep
    python run.py --experiment=list                   the papers' figures and tables
    python run.py --experiment=NAME                   runs one of them
    python run.py --experiment=NAME --dry_run         says what it would run
    python run.py --benchmark=clients                 how fast this machine trains
    python run.py --forecast=v5e:1x1                  would it fit on a chip that is not here
    python run.py --report=runs/sweep                 one page on everything in it: report.html
    python run.py --resume --output_dir=runs/001      goes on with what was stopped or killed
    python run.py --distributed                       one run on several hosts: docs/clusters.md
    python run.py help delay                          what a setting is, and what it can be

Every setting has a default. Settings can also stand in a file, one --name=value a line:
--flagfile=FILE.
"""


class Explained(NamedTuple):
    """A flag as the help shows it. A switch is a flag that ``--no`` before its name turns off."""

    name: str
    default: Any
    text: str
    is_switch: bool


def short(command: str, flags: Iterable[Explained]) -> str:
    """Usage, the settings that are used most, ``flags`` of the command, and the names of all settings by group.

    command: how the program is called, ``python run.py``.
    """
    texts = HELP | SHORT_HELP
    most_used = [_setting(name)._replace(text=texts[name]) for name in MOST_USED]
    names = [_wrapped(f"{title}: {', '.join(_names(group))}", indent="  ") for group, title in GROUPS.items()]
    return "\n".join(
        [
            _usage(command),
            _section("Most used", most_used),
            _section("What to do", flags),
            "All settings, which --helpfull explains:",
            *names,
        ]
    )


def full(command: str, flags: Iterable[Explained]) -> str:
    """Usage, ``flags`` of the command, and every setting, by group; ``command`` as above."""
    sections = [_section(title, settings) for title, settings in by_group().items()]
    kinds = [f"  --{name}: {', '.join(grammar(name).factories)}" for name in CALLS]
    explained = ["What calls can be, which run.py help NAME explains with arguments and examples:"]
    explained += [_wrapped(line.strip(), "  ") for line in kinds]
    return "\n".join([_usage(command), _section("What to do", flags), *sections, *explained])


def of_setting(name: str) -> str:
    """What a setting is, and what it can be; raises SettingError for an unknown one, with the nearest name.

    name: of a setting, or the dotted or short name of an argument of one: ``delay.shape``.
    """
    setting, _, argument = argument_path(name).partition(".")
    if setting not in HELP or (argument and setting not in CALLS):
        raise unknown_name("help", name, [*HELP, *SHORT_NAMES])
    if not argument:
        text = _explained(_setting(name))
        return f"{text}\n\n{_can_be(name)}" if name in CALLS else text
    lines = []
    if name in SHORT_HELP:
        lines = [_wrapped(f"--{name}: {SHORT_HELP[name]} It is {argument_path(name)}.", "  ")]
    for each in grammar(setting).explained():
        if argument in each.arguments:
            lines += [_wrapped(each.call, ""), _wrapped(f"{argument}: {each.arguments[argument]}", "    ")]
    if not lines:
        known = {f"{setting}.{one}" for each in grammar(setting).arguments().values() for one in each}
        raise unknown_name("help", name, sorted(known))
    return "\n".join(lines)


def _can_be(name: str) -> str:
    """What the call of a setting can be, with all arguments and an example each."""
    lines = []
    for each in grammar(name).explained():
        lines += [_wrapped(each.call, ""), _wrapped(each.text, "    ")]
        lines += [_wrapped(f"{argument}: {text}", "      ") for argument, text in each.arguments.items()]
        lines += [f'    --{name}="{each.example}"', ""] if each.example else [""]
    return "\n".join(lines).rstrip()


def by_group() -> dict[str, list[Explained]]:
    """{title of a group: its settings}, for the help and for the site of pages."""
    return {title: [_setting(name) for name in _names(group)] for group, title in GROUPS.items()}


def _usage(command: str) -> str:
    return USAGE.replace("python run.py", command)


def _section(title: str, flags: Iterable[Explained]) -> str:
    return "\n".join([f"{title}:", *map(_explained, flags), ""])


def _names(group: str) -> list[str]:
    """The names of its settings, after each the short ones of its arguments."""
    short_names = {name: path.partition(".")[0] for name, path in SHORT_NAMES.items()}
    return [
        each
        for name, declared in DECLARED.items()
        if declared.group == group
        for each in (name, *(short for short, setting in short_names.items() if setting == name))
    ]


def _setting(name: str) -> Explained:
    """A setting, or an argument under its short name."""
    if name in SHORT_HELP:
        text = f"{SHORT_HELP[name]} A short name of --{SHORT_NAMES[name]}."
        return Explained(name, None, text, is_switch=False)
    return Explained(name, DEFAULTS[name], HELP[name], is_switch=bool in TYPES[name])


def _explained(flag: Explained) -> str:
    """``--name: text (default: value)``; where the default is none, the text tells what that means."""
    default = flag.default
    if isinstance(default, bool):
        default = str(default).lower()
    shown = "" if default in (None, "") else f" (default: {default})"
    choices, end, text = flag.text.partition(
        ">: "
    )  # of a flag that is one of several words: <auto|never>: ...
    text = text if end and choices.startswith("<") else flag.text
    return _wrapped(f"--{'[no]' if flag.is_switch else ''}{flag.name}: {text}{shown}", indent="  ")


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
