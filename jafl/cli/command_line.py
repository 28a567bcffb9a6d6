"""The command ``jafl``, which is also ``python -m jafl`` and, in the repository, ``python run.py``.

It is separate from those three so that each of them is a line, a console script has a function to call, and the
flags are defined once. Only this file reads flags; ``command_help`` writes what --help prints.

Exit status: 0 done, 1 diverged, or a row of a benchmark failed, 2 a setting cannot work or a run is damaged, 3 a file
could not be written, or a picture could not be drawn, 130 interrupted.
"""

import os
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from absl import app, flags, logging

import jafl
from jafl.base import checksums
from jafl.base.errors import SettingError, choose, refusal, require
from jafl.base.stopwatch import Stopwatch
from jafl.cli import command_help
from jafl.config.calls import CALLS, SHORT_NAMES, argument_path, former_argument, literal, says
from jafl.config.parsing import items
from jafl.config.settings import (
    DEFAULTS,
    HELP,
    SHORT_HELP,
    TYPES,
    Settings,
    config_content,
    is_setting,
)
from jafl.runs.directory import reader
from jafl.runs.hosts.streams import keep_going_without_readers

if TYPE_CHECKING:
    from jafl.runs.hosts.several_hosts import Hosts, Member


class _PicturesParser(flags.EnumParser):
    """all, few or none; --pictures alone is all, and --nopictures none, as they were when this was a switch."""

    def parse(self, argument: str) -> str:
        """The value; raises ValueError for another one."""
        return super().parse({"true": "all", "false": "none"}.get(argument, argument))


def _pictures_flag() -> Any:
    """Defines --pictures, which has a value and is a switch, too."""
    text = (
        "Which pictures are drawn: all; few, those that are mostly looked at (of a comparison or a sweep its own in "
        "place of its runs'); or none. --resume draws what is missing of runs that are over. Default: few."
    )
    parser = _PicturesParser(["all", "few", "none"])
    flag = flags.Flag(parser, flags.ArgumentSerializer(), "pictures", None, text, boolean=True)
    return flags.DEFINE_flag(flag)


_CONFIG = flags.DEFINE_string(
    "config", None, "Start from the settings in this config.json of an earlier run."
)
_OUTPUT = flags.DEFINE_string(
    "output_dir", None, "Directory for the results. Default: runs/001, or the next number."
)
_DRY_RUN = flags.DEFINE_bool(
    "dry_run",
    False,
    "Compute and draw the schedules, and train nothing; of an experiment, say what it would run: arms, settings, "
    "seeds, trips, memory, multiply-adds.",
)
_FORECAST = flags.DEFINE_string(
    "forecast",
    None,
    "Say whether the runs, or those of a sweep or an experiment, fit on these chips and what memory they need, and "
    "train nothing: v5e:1x1, v5e:2x4, v6e:1x1, v4:2x2x1, ..., h100. Needs jafl[tpu], and no such chip.",
)
_PREPARE = flags.DEFINE_string(
    "prepare", None, "Download and prepare this data set under data_dir, and do nothing else."
)
_MANUAL_DIR = flags.DEFINE_string(
    "manual_dir",
    None,
    "Folder with archives downloaded by hand (prepare). Default: downloads/manual/NAME in data_dir.",
)
_RESUME = flags.DEFINE_bool(
    "resume",
    False,
    "Go on with the run or comparison that output_dir holds, from its last checkpoint and with its settings; with "
    "--target_accuracy, by another target; with a larger --client_trips, train again and then replace it.",
)
_CHECKPOINT_EVERY = flags.DEFINE_integer(
    "checkpoint_every",
    None,
    "Client trips between checkpoints; 0: none. Default: one a minute, and one at Ctrl-C.",
    lower_bound=0,
)
_TENSORBOARD = flags.DEFINE_bool(
    "tensorboard", False, "The same as --trackers=tensorboard: metrics as event files (needs tensorboardX)."
)
_TRACKERS = flags.DEFINE_string(
    "trackers",
    "",
    "Where metrics also go, with commas: csv (metrics.csv in the run directory), tensorboard, wandb (Weights & "
    "Biases), mlflow; each needs its library. Default: nowhere.",
)
_PICTURES = _pictures_flag()
_SWEEP = flags.DEFINE_string(
    "sweep",
    None,
    'Values to try, crossed with all algorithms and seeds: "partition.alpha=0.1,1;delay.mean=5,30". The same command '
    "goes on with a sweep that was stopped, also in several processes at once.",
)
_EXPERIMENT = flags.DEFINE_string(
    "experiment",
    None,
    "Run this experiment of a paper, or several, separated by commas; all: all of them; list: tells which there are. "
    "The same command goes on with what was stopped.",
)
_BENCHMARK = flags.DEFINE_string(
    "benchmark",
    None,
    "Measure this machine; list: tells which benchmarks there are. clients: FedBuff, ACE and WKAFL with 1,000 to "
    "100,000 clients; algorithm, model and num_clients choose among its rows.",
)
_COMPARE = flags.DEFINE_string(
    "compare", None, "Two benchmarks side by side: a.json,b.json, as --benchmark=clients leaves them."
)
_SCALE = flags.DEFINE_string(
    "scale", "desk", "Size of the experiment: desk (minutes, no download) or paper (as published)."
)
_TUNE = flags.DEFINE_bool(
    "tune",
    False,
    "Search for the arms' settings first, as the experiment's file says, and use what is found.",
)
_REPLICATION = flags.DEFINE_integer(
    "replication",
    0,
    "Which replication of the experiment to run: with seeds and splits that share nothing with the file's, for its "
    "own search, too. 0: the experiment itself.",
    lower_bound=0,
)
_PROCESSES = flags.DEFINE_integer(
    "processes",
    None,
    "Processes that share a sweep or an experiment. Default: 1; 2 for an experiment on a CPU.",
    lower_bound=1,
)
_RUNS_TOGETHER = flags.DEFINE_enum(
    "runs_together",
    None,
    ["auto", "never"],
    "Whether runs of a sweep or an experiment that differ in seeds and numbers share a program: auto, where that is "
    "quicker, or never. Changes results by rounding only. Default: auto.",
)
_PART = flags.DEFINE_string(
    "part",
    None,
    "Train one part of the runs of a sweep, an experiment or a comparison: 3/16 is the third of 16 parts, each of "
    "which is a process of its own, on any machine that sees output_dir. Default: 1/1, all runs; of a sweep or an "
    "experiment in a SLURM array, the part of the task.",
)
_REPORT = flags.DEFINE_string(
    "report", None, "Write report.html and report.md on all runs in this directory, and do nothing else."
)
_BASELINE = flags.DEFINE_string(
    "baseline",
    None,
    "What trips to the target are compared with (sweep, report). Default: fedavg if it runs, else the first "
    "algorithm; in a report of other runs, nothing.",
)
_COMPILATION_CACHE = flags.DEFINE_string(
    "compilation_cache",
    os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jafl"),
    "Folder that keeps compiled programs for the next start; empty: none is kept.",
)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace the run that output_dir holds.")
_DISTRIBUTED = flags.DEFINE_bool(
    "distributed",
    False,
    "Train each run on all devices of several hosts: start the same command on all of them. SLURM, Cloud TPU and "
    "Open MPI tell each process where the others are; else give --coordinator, --num_processes and --process_id.",
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "Where the processes of --distributed meet: HOST:PORT of the first of them."
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many processes --distributed has.")
_PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "Which process of --distributed this is, from 0 on; process 0 writes and prints."
)
_VERSION = flags.DEFINE_bool(
    "version", False, "Print the versions of jafl, JAX and Python, and do nothing else."
)


def define_settings() -> None:
    """One flag per setting, with its default and help text."""
    define: dict[type, Callable[..., Any]] = {
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
        bool: flags.DEFINE_bool,
    }
    for name, kinds in TYPES.items():
        define[kinds[0]](name, DEFAULTS[name], HELP[name])
    for name, path in SHORT_NAMES.items():
        flags.DEFINE_string(name, None, f"{SHORT_HELP[name]} A short name of --{path}.")


# What a command can do, and as what a message calls that.
_DOES = {
    "compare": "--compare",
    "benchmark": "--benchmark",
    "experiment": "--experiment",
    "report": "--report",
    "prepare": "--prepare",
    "forecast": "--forecast",
    "sweep": "--sweep",
    "part": "--part",
    "dry_run": "--dry_run",
    "run": "",
}
_RUNS = ("run", "sweep", "experiment", "dry_run", "forecast")
# The settings that a benchmark reads: they choose among its rows, or say how each is run.
OF_BENCHMARKS = (
    *("algorithm", "model", "num_clients"),
    *("client_trips", "devices", "compute_dtype", "matmul_precision"),
)
# {flag: the commands that read it}, of flags that only some do.
_READ_BY: dict[str, tuple[str, ...]] = {
    "scale": ("experiment",),
    "tune": ("experiment",),
    "replication": ("experiment",),
    "processes": ("sweep", "experiment"),
    "runs_together": ("sweep", "experiment"),
    "part": ("run", "sweep", "experiment"),
    "manual_dir": ("prepare",),
    "baseline": ("sweep", "report"),
    "output_dir": ("run", "sweep", "experiment", "dry_run", "forecast", "benchmark", "compare"),
    "checkpoint_every": ("run", "sweep", "experiment"),
    "tensorboard": ("run", "sweep", "experiment"),
    **dict.fromkeys(("distributed", "coordinator", "num_processes", "process_id"), ("run",)),
    "trackers": ("run", "sweep", "experiment"),
    **{name: (*_RUNS, name) for name in ("config", "sweep", "dry_run", "forecast")},
    "resume": (*_RUNS, "benchmark"),
    "overwrite": (*_RUNS, "benchmark", "compare"),
    "experiment": ("experiment",),
    "benchmark": ("benchmark",),
    **{name: (name, "experiment") for name in ("report", "prepare")},
    **dict.fromkeys((*TYPES, *SHORT_NAMES), _RUNS),
    **dict.fromkeys(OF_BENCHMARKS, (*_RUNS, "benchmark")),
    "data_dir": (*_RUNS, "prepare", "benchmark"),
}
# {flag: what to do where it is not read}
_INSTEAD = {
    "distributed": "It is for one run, or a comparison; docs/clusters.md shows how hosts share a sweep, with --part."
}
_arguments_of_calls: list[str] = []  # names of flags such as delay.shape
_typed_names: set[str] = set()  # of the flags on the command line itself, not in a --flagfile


def _names_typed(arguments: Iterable[str]) -> set[str]:
    """The names of the flags among the arguments."""
    words = [argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-")]
    names = [word if word in flags.FLAGS else word.removeprefix("no") for word in words]
    return set(names)


def _what_to_do() -> str:
    """What the command is to do, as ``_DOES`` lists it."""
    for flag in (_COMPARE, _BENCHMARK, _EXPERIMENT, _REPORT, _PREPARE, _FORECAST):
        if flag.value:
            return flag.name
    return "sweep" if _swept() else "dry_run" if _DRY_RUN.value else "part" if _PART.value else "run"


def _refuse_unread_flags() -> None:
    """Raises SettingError for a flag that was typed and is not read; tells of one that stands in a flag file."""
    doing = _what_to_do()
    for name, readers in _READ_BY.items():
        flag = flags.FLAGS[name]
        read = doing in readers or (doing == "part" and "sweep" in readers)
        if read or not flag.present or flag.value in (None, False):
            continue
        without = " or ".join(_DOES[each] for each in readers if each in _DOES)
        beside = "run" in readers or name in _DOES
        allowed = f"left out with {_DOES[doing]}" if beside else f"left out without {without}"
        if name in _typed_names:
            raise refusal(name, flag.value, allowed, _INSTEAD.get(name, ""))
        _warn(f"{name} is {flag.value!r} in the flag file, but is not read: it should be {allowed}.")


def _warn(text: str) -> None:
    print(f"Warning: {text}", file=sys.stderr)


def _typed() -> dict[str, Any]:
    """The settings that were typed, or stand in a flag file."""
    names = (*TYPES, *SHORT_NAMES, *_arguments_of_calls)
    typed: dict[str, Any] = {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].present}
    typed |= {name: literal(value) for name, value in typed.items() if "." in argument_path(name)}
    for name in [each for each in typed if "." in argument_path(each)]:
        setting, _, path = argument_path(name).partition(".")
        twice = setting in typed and says(setting, typed[setting], path)
        require(
            not twice,
            name,
            flags.FLAGS[name].value,
            f"left out where {setting} says it, too: {typed.get(setting)}",
        )
    return typed


def _swept() -> str | dict[str, Any]:
    """The sweep: the text that was typed, or what the ``sweep.json`` of --resume or --config crosses; or empty."""
    if _RESUME.value and not _SWEEP.value:
        return (_OUTPUT.value and reader.swept(_OUTPUT.value)) or ""
    file_sweep: dict[str, Any] = {}
    if _CONFIG.value:
        from jafl.config import grid

        file_sweep = grid.checked(reader.swept_in(config_content(_CONFIG.value)), _CONFIG.value)
    if _SWEEP.value:
        return {**file_sweep, "sweep": _SWEEP.value} if file_sweep else _SWEEP.value
    return file_sweep


def _without_unread(settings: Settings, swept: str | dict[str, Any]) -> Settings:
    """The settings without those of files that no run reads, of which it tells; refuses those typed."""
    from jafl.config.resolution import without_unread

    typed = set(filter(is_setting, _typed_names))
    readable_settings, left_out = without_unread(settings, typed, **_crossed(swept))
    flagged = set(map(argument_path, _typed()))
    for name, value, where, here in left_out:
        path = argument_path(name)
        in_flags = flagged & {path, path.partition(".")[0]}
        source = "the flag file" if in_flags else _CONFIG.value or _OUTPUT.value
        _warn(f"{name} is {value!r} in {source}, but no run reads it: only where {where}; here {here}.")
    return readable_settings


def _crossed(swept: str | dict[str, Any]) -> dict[str, Any]:
    """A sweep as keyword arguments: ``sweep``, ``arms`` and ``overrides``, as far as it has them."""
    if isinstance(swept, str):
        return {"sweep": swept}
    from jafl.config.arms import Override

    return {**swept, "overrides": [Override(**override) for override in swept.get("overrides", ())]}


def _settings() -> Settings:
    """The settings: those typed, over those of --config, over the defaults."""
    flag_values = _typed()
    if _RESUME.value:
        for flag, excluded in (("config", _CONFIG), ("overwrite", _OVERWRITE), ("dry_run", _DRY_RUN)):
            require(not excluded.value, flag, excluded.value, "left out with --resume")
        output = _OUTPUT.value or ""
        require(output, "output_dir", _OUTPUT.value, "the directory to go on with")
        if reader.settings_file(output).name == "config.json":
            reader.read_run(
                output, with_metrics=False
            )  # refuses a file without algorithm, which has a default
        return Settings.from_file(str(reader.settings_file(output)), **flag_values)
    if _CONFIG.value:
        settings = Settings.from_file(_CONFIG.value, **flag_values)
        _tell_of_changed_inputs(_CONFIG.value, flag_values)
        return settings
    return Settings.from_mapping(flag_values)


def _tell_of_changed_inputs(path: str, names: Iterable[str]) -> None:
    """Warns of files that the run of a config.json has read, and that hold something else now.

    names: the settings that were typed, which take the place of those in the file.
    """
    content = config_content(path)
    before = content.get("inputs")
    if not isinstance(before, dict):
        return
    from jafl.config import inputs

    files = {
        what: file
        for what, file in inputs.input_files(content).items()
        if not {what.partition("/")[0], what.partition(".")[0]} & set(names)
    }
    now = {what: checksums.file_checksum(file) for what, file in files.items() if file.is_file()}
    known = {what: digest for what, digest in before.items() if what in now}
    for line in inputs.changed(content, known, {what: now[what] for what in known}):
        _warn(f"the run of {path} had other inputs, so this one does not repeat it. {line}.")


def _define_arguments(arguments: Iterable[str]) -> None:
    """Defines a flag for each argument of a call that is among the arguments: ``--delay.shape=2``."""
    for name in _arguments_of_calls:  # of a command before, in the same process
        _READ_BY.pop(name, None)
    _arguments_of_calls.clear()
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0]
        if argument.startswith("-") and "." in name and name.partition(".")[0] in CALLS:
            if name not in flags.FLAGS:
                flags.DEFINE_string(name, None, f"An argument of {name.partition('.')[0]}.")
            _arguments_of_calls.append(name)
            _READ_BY[name] = _RUNS


def parse(arguments: list[str]) -> list[str]:
    """Reads the flags: a wrong one exits with status 2, as any wrong setting does, and --help with 0."""
    keep_going_without_readers()
    if arguments[1:2] == ["help"] and len(arguments) == 3:
        try:
            print(command_help.of_setting(arguments[2]))
        except SettingError as error:
            print(f"Error: {error}", file=sys.stderr)
            sys.exit(2)
        sys.exit(0)
    for argument in arguments[1:]:
        if argument.startswith("-") and (help_text := _HELP.get(argument.lstrip("-"))):
            called = _command(pathlib.PurePath(arguments[0]).name)
            print(help_text(" ".join(called), _own_flags()))
            sys.exit(0)
    try:
        _define_arguments(flags.FLAGS.read_flags_from_files(arguments[1:]))
        _typed_names.clear()
        _typed_names.update(_names_typed(arguments[1:]))
        return flags.FLAGS(arguments)
    except (flags.Error, UnicodeDecodeError) as error:
        file = "the file of --flagfile is not text: " if isinstance(error, UnicodeDecodeError) else ""
        former = former_argument(getattr(error, "flagname", ""))
        text = f"{str(error).partition(' Did you mean')[0].rstrip('.')}. {former}" if former else str(error)
        print(f"Error: {file}{text}\nSee --help for all flags.", file=sys.stderr)
        sys.exit(2)
    except SystemExit:  # from --helpxml, with status 1
        sys.exit(0)


_HELP = {
    "h": command_help.short,
    "?": command_help.short,
    "help": command_help.short,
    "helpshort": command_help.short,
    "helpfull": command_help.full,
}


def _own_flags() -> list[command_help.Explained]:
    """The flags that are no settings."""
    return [
        command_help.Explained(flag.name, flag.default, flag.help, is_switch=flag.boolean)
        for flag in flags.FLAGS.flags_by_module_dict()[__name__]
        if flag.name not in {*TYPES, *SHORT_NAMES}
    ]


def _command(script: str) -> list[str]:
    """How the program was called: python run.py, python -m jafl or jafl."""
    name = pathlib.PurePath(script).name
    if name == "__main__.py":
        return ["python", "-m", "jafl"]
    return ["jafl"] if name in ("jafl", "jafl.exe") else ["python", script]


def _set_up_jax(precision: str) -> None:
    """Before anything is computed: where compiled programs are kept, and in how many bits to compute."""
    import jax

    if _COMPILATION_CACHE.value and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", _COMPILATION_CACHE.value)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    if precision == "float64":
        jax.config.update("jax_enable_x64", True)


def _options() -> dict[str, Any]:
    """How runs are run: the fields of ``jafl.runs.runner.Options`` that have flags."""
    from jafl.runs.recording import trackers

    return {
        "command": [*_command(sys.argv[0]), *sys.argv[1:]],
        "checkpoint_every": _CHECKPOINT_EVERY.value,
        "trackers": trackers.named(",".join([_TRACKERS.value, "tensorboard" * _TENSORBOARD.value])),
        "pictures": _PICTURES.value,
        "runs_together": _RUNS_TOGETHER.value or "auto",
    }


def _run_experiment(name: str) -> int:
    """Runs an experiment of a paper, or lists them; returns the exit status."""
    for flag in (_CONFIG, _PREPARE, _RESUME, _SWEEP, _REPORT, _OVERWRITE, _BASELINE):
        require(not flag.value, flag.name, flag.value, "left out with --experiment")
    if _DRY_RUN.value:
        for unread in (
            _PICTURES,
            _CHECKPOINT_EVERY,
            _TRACKERS,
            _TENSORBOARD,
            _RUNS_TOGETHER,
            _PROCESSES,
            _PART,
        ):
            allowed = "left out with --dry_run, which trains nothing"
            require(not unread.value, unread.name, unread.value, allowed)
    if _FORECAST.value:
        for unread in (_PROCESSES, _PART):
            allowed = "left out with --forecast, which trains nothing"
            require(not unread.value, unread.name, unread.value, allowed)
    _find_experiments("experiment", name)
    from experiments.harness.declare import discovery

    if name == "list":
        from jafl.runs.directory.tables import aligned

        print("\n".join(aligned(discovery.listed())))
        return 0
    names = discovery.names() if name == "all" else [each.strip() for each in name.split(",")]
    for each in names:
        discovery.load(each)  # before JAX, which takes longer
    from experiments.harness.run.running import run_paper_experiments

    typed = _typed()
    _set_up_jax(typed.get("precision", "float32"))
    return run_paper_experiments(
        names,
        _SCALE.value,
        tune=_TUNE.value,
        typed=typed,
        output_dir=_OUTPUT.value,
        processes=_PROCESSES.value,
        forecast=_FORECAST.value,
        dry_run=_DRY_RUN.value,
        replication_number=_REPLICATION.value,
        part=None if _DRY_RUN.value or _FORECAST.value else _part(),
        **_options(),
    )


def _find_experiments(flag: str, value: str) -> None:
    """Puts the repository's folder on the path; raises SettingError where jafl is installed without it.

    flag, value: what asks for the experiments.
    """
    repository = pathlib.Path(jafl.__file__).parent.parent
    if not (repository / "experiments" / "harness").is_dir():
        remedy = f"Get the repository, and write python run.py --{flag}={_EXAMPLES[flag]} in its folder."
        allowed = f"left out where jafl is installed: {_MISSING[flag]} its repository"
        raise refusal(flag, value, allowed, remedy)
    if str(repository) not in sys.path:
        sys.path.append(str(repository))


_EXAMPLES = {"experiment": "NAME", "benchmark": "NAME", "compare": "a.json,b.json"}
_MISSING = {
    "experiment": "the experiments are files of",
    **dict.fromkeys(("benchmark", "compare"), "the benchmarks are files of"),
}


def _run_benchmark(name: str) -> int:
    """Runs a benchmark of this machine, or lists them; returns the exit status."""
    _find_experiments("benchmark", name)
    choose("benchmark", name, dict.fromkeys(["list", *BENCHMARKS]))
    if name == "list":
        print("\n".join(f"{name}  {text}" for name, text in BENCHMARKS.items()))
        return 0
    from experiments.tools.benchmarks.clients.running import run_clients

    return run_clients(
        _typed(),
        _OUTPUT.value,
        command=[*_command(sys.argv[0]), *sys.argv[1:]],
        resume=_RESUME.value,
        overwrite=_OVERWRITE.value,
    )


BENCHMARKS = {
    "clients": "FedBuff, ACE and WKAFL with 1,000 to 100,000 clients, and BlazeFL's published set-up: trips a "
    "second, time to the first step, memory, energy",
}


def _compare(paths: str) -> int:
    """Compares two benchmarks; returns the exit status."""
    _find_experiments("compare", paths)
    from experiments.tools.benchmarks.clients.comparing import compare

    return compare(paths, _OUTPUT.value, overwrite=_OVERWRITE.value)


def _part() -> str | None:
    """The part of the runs to train: as typed, else that of a task of a SLURM array."""
    from jafl.sweeps import parts

    if _PART.value:
        parts.parse(_PART.value)
        return _PART.value
    part = parts.slurm_part()
    if part:
        print(f"A task of a SLURM array: --part={part}. (--part=1/1: each task trains all runs.)")
    return part


def _run_sweep(
    settings: Settings, swept: str | dict[str, Any], output: str | os.PathLike[str] | None
) -> set[str]:
    """Runs a sweep, given as text or as ``sweep.json`` has it; returns the statuses of its runs, or of its part."""
    for flag in (_OVERWRITE, _DRY_RUN):
        require(not flag.value, flag.name, flag.value, "left out of a sweep")
    from jafl.sweeps.sweep import run_sweep

    crossed = _crossed(swept)
    options = {"baseline": _BASELINE.value, "processes": _PROCESSES.value or 1, "part": _part(), **_options()}
    ended = run_sweep(settings, crossed.pop("sweep", "") or {}, output, **crossed, **options)
    return {*ended.part_statuses, *([UNDRAWN] if ended.undrawn else [])}


def _run(settings: Settings, hosts: "Hosts | None" = None) -> set[str]:
    """Runs what the settings list, or a sweep, or goes on with either; returns the statuses of the runs."""
    _set_up_jax(settings.precision)
    from jafl.runs import runner

    swept = _swept()
    settings = _without_unread(settings, swept)
    if _FORECAST.value:
        for flag in (_DRY_RUN, _RESUME, _OVERWRITE, _OUTPUT):
            require(not flag.value, flag.name, flag.value, "left out with --forecast")
        from jafl.sweeps.forecast import forecast_runs

        forecast_runs(settings, _FORECAST.value, **_crossed(swept))
        return set()
    output = _OUTPUT.value
    if _DRY_RUN.value and not swept:
        command, pictures = _options()["command"], _PICTURES.value
        undrawn = runner.dry_run(
            settings, output, overwrite=_OVERWRITE.value, command=command, pictures=pictures
        )
        return {UNDRAWN} if undrawn else set()
    if _PART.value and not swept:  # a comparison in parts is a sweep in which nothing is swept
        several = len(items("algorithm", settings.algorithm)) > 1 or "," in settings.seed
        require(several, "part", _PART.value, "left out where there is one run")
        allowed = "left out with --resume, but for a sweep, and a comparison that began in parts"
        require(not _RESUME.value, "part", _PART.value, allowed)
    if swept or _PART.value:
        return _run_sweep(settings, swept, output)
    options = {**_options(), **({"hosts": hosts} if hosts else {})}
    outcomes = runner.run(settings, output, overwrite=_OVERWRITE.value, resume=_RESUME.value, **options)
    return {outcome.status for outcome in outcomes} | {UNDRAWN for outcome in outcomes if outcome.undrawn}


def _run_on_several_hosts() -> int:
    """Runs what the settings list in all processes of ``--distributed``; returns the exit status."""
    from jafl.runs.hosts import connection

    address = connection.Address(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    return connection.run(address, _run_as_member, _with_errors_shown)


def _run_as_member(member: "Member") -> int:
    """What one of several processes does: the first one runs the command, the others follow it."""
    from jafl.runs.hosts.several_hosts import Follower

    settings = member.settings(lambda: _without_unread(_settings(), ""))
    if not isinstance(member, Follower):
        return _exit_status(_run(settings, member))
    _set_up_jax(settings.precision)
    return member.follow(settings)


def _report(folder: str) -> None:
    from jafl.sweeps.report import write_report

    for file in write_report(folder, baseline=_BASELINE.value):
        print(f"Written: {file}")


def _do(arguments: list[str]) -> int:
    """Does what the flags ask for; returns the exit status."""
    if len(arguments) > 1:
        raise SettingError(f"{arguments[1]!r} is not a flag: write --name=value, and see --help.")
    _refuse_empty()
    if _VERSION.value:
        print(_versions())
        return 0
    _refuse_unread_flags()
    if _COMPARE.value:
        return _compare(_COMPARE.value)
    if _BENCHMARK.value:
        return _run_benchmark(_BENCHMARK.value)
    if _DISTRIBUTED.value:
        return _run_on_several_hosts()
    for flag in (_COORDINATOR, _NUM_PROCESSES, _PROCESS_ID):
        require(flag.value is None, flag.name, flag.value, "left out without --distributed")
    if _EXPERIMENT.value:
        return _run_experiment(_EXPERIMENT.value)
    if _REPORT.value:
        _report(_REPORT.value)
        return 0
    settings = _settings()
    if _PREPARE.value:
        from jafl.data import prepare

        prepare(_PREPARE.value, settings.data_dir, manual_dir=_MANUAL_DIR.value)
        return 0
    return _exit_status(_run(settings))


# That of the first of these which a run has.
UNDRAWN = "undrawn"
EXIT_STATUS = {"damaged": 2, "diverged": 1, "interrupted": 130, UNDRAWN: 3}


def _exit_status(statuses: set[str]) -> int:
    """The exit status for runs that ended so."""
    return next((number for status, number in EXIT_STATUS.items() if status in statuses), 0)


def _refuse_empty() -> None:
    """Raises SettingError for a flag that says what to do, or where, and has no value: as from an unset variable."""
    where = _CONFIG, _OUTPUT, _MANUAL_DIR, _COORDINATOR
    which = _FORECAST, _PREPARE, _SWEEP, _EXPERIMENT, _PART
    for flag in (*where, *which, _REPORT, _BASELINE, _BENCHMARK, _COMPARE):
        allowed = "left out, or given a value"
        require(flag.value is None or flag.value.strip(), flag.name, flag.value, allowed)


def _versions() -> str:
    """What --version prints; nothing heavy is imported for it."""
    import importlib.metadata
    import platform

    return f"jafl {jafl.__version__}, JAX {importlib.metadata.version('jax')}, Python {platform.python_version()}"


def main(arguments: list[str]) -> int:
    """Does what the flags ask for, and says in a sentence what went wrong; returns the exit status."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # JAX's news about other accelerators help nobody here
    with Stopwatch(jafl._BEGAN, "start"):
        return _with_errors_shown(lambda: _do(arguments))


def _with_errors_shown(act: Callable[[], int]) -> int:
    """``act()``; a sentence says what went wrong, and the exit status is that of what did."""
    try:
        return act()
    except MemoryError as error:
        print(
            f"Error: not enough memory for these settings ({error}). Lower num_clients, client_trips or "
            "dataset.mean_examples.",
            file=sys.stderr,
        )
        return 2
    except SettingError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"Error: {error}. What was written before is whole: once there is room, "
            "--resume --output_dir=DIR goes on from the last checkpoint.",
            file=sys.stderr,
        )
        return 3
    except KeyboardInterrupt:
        print("Interrupted: ended at once. What was measured before is kept.", file=sys.stderr)
        return 130


def start() -> None:
    """The command: defines the flags, reads them, does what they ask for and exits."""
    define_settings()
    app.run(main, flags_parser=parse)
