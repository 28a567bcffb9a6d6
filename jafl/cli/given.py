"""What was typed behind ``run.py``: a command with its words and flags, read once, and the settings that they say."""

import dataclasses
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import flags

from jafl.base import checksums
from jafl.base.errors import SettingError, did_you_mean, refusal, require
from jafl.cli.commands import COMMANDS, Command, declared, define
from jafl.config import calls, grid
from jafl.config.calls import SHORT_NAMES, argument_path, grammar, is_argument, literal
from jafl.config.grid import Override
from jafl.config.layers import says
from jafl.config.settings import KINDS, TYPES, Settings, config_content, is_setting, nearest
from jafl.config.values import advise_sweep, join_with_or, split
from jafl.runs.directory import reader


@dataclasses.dataclass(frozen=True)
class Given:
    """A command with its flags, as given: ``given.output_dir``.

    Attributes:
      program: how jafl was called: python run.py, python -m jafl or jafl.
      arguments: all that stood behind that.
      command: which command it is.
      flags: every flag of the command, with its value.
      typed: the names of the flags on the command line itself, not in a --flagfile.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    command: Command
    flags: flags.FlagValues
    typed: frozenset[str]

    def __getattr__(self, name: str) -> Any:
        value = self.flags[name].value if name in self.command.flags else None
        # No shell replaces the ~ behind an equals sign.
        return os.path.expanduser(value) if name in ("output_dir", "config") and value else value

    @property
    def words(self) -> list[str]:
        """The whole line, as files record it."""
        return [*self.program, *self.arguments]

    def settings(self) -> dict[str, Any]:
        """{name: value} of the settings, and arguments of calls, that were typed or stand in a flag file.

        Raises SettingError for an argument that a given call says itself, or that excludes one that it says.
        """
        given: dict[str, Any] = {
            name: self.flags[name].value
            for name in self.flags
            if self.flags[name].present and is_setting(name)
        }
        arguments = [name for name in given if "." in argument_path(name)]
        for name in arguments:
            setting, _, path = argument_path(name).partition(".")
            partners = sorted(grammar(setting).partners(path))
            for said, what in ((path, "it, too"), *((other, "another in its place") for other in partners)):
                if setting in given and says(setting, given[setting], said):
                    allowed = f"left out where {setting} says {what}: {given[setting]}"
                    raise refusal(name, given[name], allowed)
        return given | {name: literal(given[name]) for name in arguments}


def program_name(script: str) -> tuple[str, ...]:
    """How the program was called: python run.py, python -m jafl or jafl."""
    name = pathlib.PurePath(script).name
    if name == "__main__.py":
        return "python", "-m", "jafl"
    return ("jafl",) if name in ("jafl", "jafl.exe") else ("python", script)


def command_of(arguments: Sequence[str]) -> Command:
    """The command whose name comes first; training where a flag does; raises SettingError for no command's name."""
    name = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS, "See --help for all commands.")
        how = "and a flag is written --name=value. Training needs none: --algorithm=fedbuff."
        raise SettingError(f"There is no command {name!r}, {how} {hint}")
    return COMMANDS[name]


def read(script: str, arguments: Sequence[str]) -> Given:
    """Reads a command with its words and flags.

    Args:
      script: the path of the program.
      arguments: what stands behind it.

    Returns:
      What was given. Only absl's own flags, --verbosity for example, are shared with others.

    Raises:
      SettingError: for a name that no command has, a flag that the command does not read, a value of a wrong type,
        or an empty one. Of a flag file, what only other commands read is left out, and a warning tells of it.
    """
    command = command_of(arguments)
    rest = list(arguments[1:] if command.name else arguments)
    whole = list(_with_files(rest, command))
    values = define(
        command.flags, [name for name in map(_name, whole) if is_argument(name) and _reads(command, name)]
    )
    try:
        words = values(["", *whole])[1:]
    except flags.UnrecognizedFlagError as error:
        raise _unknown(error.flagname, command) from None
    except (flags.Error, ValueError) as error:  # a ValueError for --nooverwrite=3
        raise _illegal(str(error), command) or SettingError(
            f"{str(error).rstrip('.')}. {_see(command)}"
        ) from None
    for name, flag in values.flag_values_dict().items():
        if isinstance(flag, str) and flag.startswith("--"):  # absl takes the next flag for the value
            switch = f", or --{name}=true for a switch" if is_argument(name) else ""
            stands = "a value, and the next flag stands in its place"
            raise refusal(name, flag, stands, f"Write --{name}=VALUE{switch}.")
    _set_word(command, words, values)
    typed = {name if name in values else name.removeprefix("no") for name in map(_name, rest)}
    return Given(program_name(script), tuple(arguments), command, values, frozenset(typed))


def _illegal(message: str, command: Command) -> SettingError | None:
    """The refusal of a value that a command's flag cannot have, from what absl says; None of another message."""
    found = re.match(r"flag --(\w+)=(.*?): ", message, re.S)
    if not found or found[1] not in command.flags:
        return None
    _, _, kind, least = declared(found[1])
    words = f"one of {', '.join(least)}" if isinstance(least, tuple) else KINDS[kind]
    words = f"{words} of at least {least}" if isinstance(least, int) else words
    texts = split(found[2], ",") if declared(found[1]).allowed is None else []
    values = [literal(each) for each in texts if each.strip()]
    return refusal(found[1], found[2], words, advise_sweep(found[1], values))


def _set_word(command: Command, words: Sequence[str], values: flags.FlagValues) -> None:
    """Sets the flag that stands for the words behind a command's name."""
    places = command.words.split()
    if len(words) > len(places):
        extra = words[len(places)]
        what = "a command: write it first." if extra in COMMANDS else "not a flag: write --name=value."
        what += " A value with spaces stands in quotes."
        if command.name == "sweep":
            what += " Several settings are one value, with semicolons between them."
        raise SettingError(f"{extra!r} is {what} {_see(command)}")
    if words:
        before, allowed = values[command.word], f"left out behind {words[0]!r}, which says it, too"
        require(not before.present, command.word, before.value, allowed)
        before.parse(",".join(words))
    if places and not command.words.startswith("[") and values[command.word].value is None:
        how = f"write {next(iter(command.examples))}, for example."
        raise SettingError(f"{command.name} needs {command.words}: {how} {_see(command)}")
    for name in command.flags:
        value = values[name].value
        empty = isinstance(value, str) and not value.strip() and name not in TYPES and name not in SHORT_NAMES
        require(not empty, name, value, "left out, or given a value")  # as from an unset variable


def _with_files(arguments: Sequence[str], command: Command) -> Iterator[str]:
    """The arguments; in the place of --flagfile the flags of that file that the command reads.

    Raises SettingError for a flag that is typed twice, or typed before a file that has it; behind it, the file's is
    another default, as absl's users expect.
    """
    left, typed = iter(arguments), set[str]()
    for argument in left:
        if _name(argument) != "flagfile":
            name = _known_name(argument)
            if name in typed:
                raise SettingError(f"--{name} is given twice. Write it once.", setting=name)
            typed |= {name} if _readers(name) else set()
            yield argument
            continue
        path = argument.partition("=")[2] if "=" in argument else next(left, "")
        # As from an unset variable: absl would go on without a file.
        require(path.strip() and not path.startswith("--"), "flagfile", path, "the name of a file")
        try:
            in_file = flags.FlagValues().read_flags_from_files([f"--flagfile={path}"])
            # The mark of UTF-8 that editors of Windows begin a file with.
            in_file = [each.removeprefix("\ufeff") for each in in_file]
        except flags.Error as error:
            remedy = f"{str(error).removeprefix('ERROR:: ')}."
            raise refusal("flagfile", path, "a file that can be read", remedy) from None
        except UnicodeDecodeError as error:
            raise SettingError(f"The file of --flagfile is not text: {error}.") from None
        for each in in_file:
            name = _known_name(each)
            if name in typed:
                message = f"--{name} stands before --flagfile, whose file has it, too."
                raise SettingError(f"{message} Write it behind --flagfile.", setting=name)
            before, _, value = each.partition("=")
            quoted = re.fullmatch(r"\s*([\"']).*\1\s*", value, re.S)
            allowed = "without quotes around it: no shell reads it"
            require(not quoted, f"{name} in the flag file", value.strip(), allowed)
            is_alone = before.rstrip() == before and " --" not in value and not value.endswith("\\")
            allowed = "--name=value alone, without spaces around = and \\ at its end"
            require(is_alone, "a line of the flag file", each, allowed)
            if _reads(command, name) or not _readers(name):
                yield each
            else:
                what = f"{command.name or 'training'} does not read it."
                print(f"Warning: {each} stands in the flag file, but {what}", file=sys.stderr)


def _name(argument: str) -> str:
    """The name in --name=value; of a word nothing."""
    return argument.lstrip("-").partition("=")[0] if argument.startswith("-") else ""


def _known_name(argument: str) -> str:
    """The name of the flag in --name=value or --noname."""
    name = _name(argument)
    return name if _readers(name) else name.removeprefix("no")


def _reads(command: Command, name: str) -> bool:
    """Whether a command reads a flag; of an argument of a call, whether it reads the call."""
    return (name.partition(".")[0] if is_argument(name) else name) in command.flags


def _readers(name: str) -> list[str]:
    """The names of the commands that read a flag."""
    return [each.name or "training" for each in COMMANDS.values() if _reads(each, name)]


def _unknown(name: str, command: Command) -> SettingError:
    """The error for a flag that a command does not read."""
    if name in ("help", "helpshort", "helpfull", "version"):  # with a value, or in a flag file
        text = f"--{name} stands on the command line, without a value. help NAME explains a setting."
        return SettingError(text, setting=name)
    known = _known_name(f"--{name}")
    what = f"{command.name or 'training'} has no flag {name!r}"
    if known in COMMANDS:
        text = f"{known} is a command: write {known} first, as in {next(iter(COMMANDS[known].examples))}"
    elif readers := _readers(known):
        text = f"only {join_with_or(readers).replace(' or ', ' and ')} {'read' if len(readers) > 1 else 'reads'} it"
    else:
        is_small = len(command.flags) < len(TYPES)
        flags_there = (*command.flags, "flagfile", "help", "helpfull")
        hint = did_you_mean(name, command.flags) if is_small else nearest(name, "", flags_there)
        return SettingError(f"There is no flag {name!r}. {hint or _see(command)}", setting=name)
    return SettingError(f"{what}; {text}. {_see(command)}", setting=name)


def _see(command: Command) -> str:
    return f"See {command.name} --help for its flags." if command.name else "See --helpfull for all flags."


def settings_of(asked: Given) -> Settings:
    """The settings: those typed, over those of a file, over the defaults."""
    typed = asked.settings()
    if asked.command.name == "resume":
        return Settings.from_file(str(reader.settings_file(asked.output_dir)), **typed)
    if not asked.config:
        return Settings.from_mapping(typed)
    settings = Settings.from_file(asked.config, **typed)
    _tell_of_changed_inputs(asked.config, typed)
    return settings


def swept_by(asked: Given) -> dict[str, Any]:
    """``sweep``, ``arms`` and ``overrides``, typed or of a ``sweep.json``, as keyword arguments; or nothing."""
    content: dict[str, Any] = {}
    if asked.command.name == "resume":
        if reader.settings_file(asked.output_dir).name == "config.json":
            reader.read_run(asked.output_dir, with_metrics=False)  # refuses a file without algorithm
        content = reader.swept(asked.output_dir) or {}
    elif asked.config:
        content = grid.checked(reader.swept_in(config_content(asked.config)), asked.config)
    if "overrides" in content:
        content = {**content, "overrides": [Override(**each) for each in content["overrides"]]}
    return {**content, "sweep": asked.sweep} if asked.sweep else content


def without_unread(asked: Given, settings: Settings, swept: dict[str, Any]) -> Settings:
    """The settings without those of files that no run reads, of which it tells; refuses those typed."""
    from jafl.config import resolution  # imports JAX, which a mistyped command does without

    typed = set(filter(is_setting, asked.typed))
    readable_settings, left_out = resolution.without_unread(settings, typed, **swept)
    flagged = set(map(argument_path, asked.settings()))
    for each in left_out:
        path = argument_path(each.setting)
        in_flags = flagged & {path, path.partition(".")[0]}
        source = "the flag file" if in_flags else asked.config or asked.output_dir
        warn(f"{each.setting} is {each.value!r} in {source}, but no run reads it. {each.remedy}")
    return readable_settings


def _tell_of_changed_inputs(path: str, names: Iterable[str]) -> None:
    """Warns of files that the run of a config.json has read, and that hold something else now.

    names: the settings that were typed, which take the place of those in the file.
    """
    content = config_content(path)
    before = content.get("inputs")
    if not isinstance(before, dict):
        return
    files = {
        what: file
        for what, file in calls.files(content).items()
        if not {what.partition("/")[0], what.partition(".")[0]} & set(names)
    }
    now = {what: checksums.file_checksum(file) for what, file in files.items() if file.is_file()}
    known = {what: digest for what, digest in before.items() if what in now}
    for line in calls.changed_inputs(content, known, {what: now[what] for what in known}):
        warn(f"the run of {path} had other inputs, so this one does not repeat it. {line}.")


def warn(text: str) -> None:
    """Prints a warning."""
    print(f"Warning: {text}", file=sys.stderr)
