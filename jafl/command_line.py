"""The command ``jafl``, which is also ``python -m jafl`` and, in the repository, ``python run.py``.

It is a module apart from those three so that each of them is a line, a console script has a function to call, and the
flags are defined once. Only this file reads flags; ``command_help`` writes what --help prints.

Exit status: 0 done, 1 diverged, 2 a setting cannot work, 3 a file could not be written, 130 interrupted.
"""

import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from absl import app, flags, logging

import jafl
from jafl import command_help
from jafl.config.settings import DEFAULTS, HELP, RENAMED, TYPES, Settings
from jafl.errors import SettingError, refusal, require
from jafl.runs import reader

_CONFIG = flags.DEFINE_string(
    "config", None, "Start from the settings in this config.json of an earlier run."
)
_OUTPUT = flags.DEFINE_string(
    "output_dir", None, "Directory for the results. Default: runs/001, or the next number."
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Compute and draw the schedules, and train nothing.")
_FORECAST = flags.DEFINE_string(
    "forecast",
    None,
    "Say whether the runs, or those of a sweep or an experiment, fit on these chips and how long they may take, and "
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
    "Go on with the run or comparison that output_dir holds, from its last checkpoint and with its settings.",
)
_CHECKPOINT_EVERY = flags.DEFINE_integer(
    "checkpoint_every",
    None,
    "Client trips between checkpoints; 0: none. Default: one a minute, and one at Ctrl-C.",
    lower_bound=0,
)
_TENSORBOARD = flags.DEFINE_bool(
    "tensorboard", False, "Also write metrics as TensorBoard event files (needs tensorboardX)."
)
_PICTURES = flags.DEFINE_bool("pictures", None, "Draw each run's pictures. Default: true, false in a sweep.")
_SWEEP = flags.DEFINE_string(
    "sweep",
    None,
    'Values to try, crossed with all algorithms and seeds: "dirichlet_alpha=0.1,1;delay_mean=5,30". The same command '
    "goes on with a sweep that was stopped, also in several processes at once.",
)
_EXPERIMENT = flags.DEFINE_string(
    "experiment",
    None,
    "Run this experiment of a paper; list: tells which there are. The same command goes on with what was stopped.",
)
_SCALE = flags.DEFINE_string(
    "scale", "desk", "Size of the experiment: desk (minutes, no download) or paper (as published)."
)
_TUNE = flags.DEFINE_bool(
    "tune",
    False,
    "Search for the arms' settings first, as the experiment's file says, and use what is found.",
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
    for earlier_name, name in RENAMED.items():
        flags.DEFINE_alias(earlier_name, name)


def _typed() -> dict[str, Any]:
    """The settings that were typed."""
    return {name: flags.FLAGS[name].value for name in TYPES if flags.FLAGS[name].present}


def _settings() -> Settings:
    """The settings: those typed, over those of --config, over the defaults."""
    given = _typed()
    if _RESUME.value:
        for flag, excluded in (("config", _CONFIG), ("overwrite", _OVERWRITE), ("dry_run", _DRY_RUN)):
            require(not excluded.value, flag, excluded.value, "left out with --resume")
        output = _OUTPUT.value or ""
        require(output, "output_dir", _OUTPUT.value, "the directory to go on with")
        return Settings.from_file(str(reader.settings_file(output)), **given)
    if _CONFIG.value:
        return Settings.from_file(_CONFIG.value, **given)
    return Settings.from_mapping(given)


def parse(arguments: list[str]) -> list[str]:
    """Reads the flags: a wrong one exits with status 2, as any wrong setting does, and --help with 0."""
    for argument in arguments[1:]:
        if argument.startswith("-") and (help_text := _HELP.get(argument.lstrip("-"))):
            called = _command(pathlib.PurePath(arguments[0]).name)
            print(help_text(" ".join(called), _own_flags()))
            sys.exit(0)
    try:
        return flags.FLAGS(arguments)
    except flags.Error as error:
        print(f"Error: {error}\nSee --help for all flags.", file=sys.stderr)
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
        if flag.name not in TYPES and flag.name not in RENAMED
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
    from jafl.runs import trackers

    return {
        "command": [*_command(sys.argv[0]), *sys.argv[1:]],
        "checkpoint_every": _CHECKPOINT_EVERY.value,
        "trackers": [trackers.tensorboard()] if _TENSORBOARD.value else [],
        "pictures": _PICTURES.value,
        "runs_together": _RUNS_TOGETHER.value or "auto",
    }


def _run_experiment(name: str) -> int:
    """Runs an experiment of a paper, or lists them; returns the exit status."""
    for flag in (_CONFIG, _DRY_RUN, _PREPARE, _RESUME, _SWEEP, _REPORT, _OVERWRITE, _BASELINE):
        require(not flag.value, flag.name, flag.value, "left out with --experiment")
    _find_experiments(name)
    from experiments.machinery import discovery

    if name == "list":
        from jafl.runs.tables import aligned

        print("\n".join(aligned(discovery.listed())))
        return 0
    discovery.load(name)  # before JAX, which takes longer
    from experiments.machinery.running import run_paper_experiment

    typed = _typed()
    _set_up_jax(typed.get("precision", "float32"))
    return run_paper_experiment(
        name,
        _SCALE.value,
        tune=_TUNE.value,
        typed=typed,
        output_dir=_OUTPUT.value,
        processes=_PROCESSES.value,
        forecast=_FORECAST.value,
        **_options(),
    )


def _find_experiments(name: str) -> None:
    """Puts the repository's folder on the path; raises SettingError where jafl is installed without it."""
    repository = pathlib.Path(jafl.__file__).parent.parent
    if not (repository / "experiments" / "machinery").is_dir():
        remedy = "Get the repository, and write python run.py --experiment=NAME in its folder."
        allowed = "left out where jafl is installed: the experiments are files of its repository"
        raise refusal("experiment", name, allowed, remedy)
    if str(repository) not in sys.path:
        sys.path.append(str(repository))


def _run_sweep(settings: Settings, swept: str | dict[str, Any], output: str | os.PathLike[str]) -> set[str]:
    """Runs a sweep, given as text or as ``sweep.json`` has it; returns the statuses of its runs."""
    for flag in (_OVERWRITE, _DRY_RUN):
        require(not flag.value, flag.name, flag.value, "left out of a sweep")
    from jafl.config.arms import Override
    from jafl.sweeps.sweep import run_sweep

    crossed: dict[str, Any] = dict(swept) if isinstance(swept, dict) else {"sweep": swept}
    crossed["overrides"] = [Override(**override) for override in crossed.get("overrides", ())]
    options = {"baseline": _BASELINE.value, "processes": _PROCESSES.value or 1, **_options()}
    return set(run_sweep(settings, crossed.pop("sweep"), output, **crossed, **options).statuses)


def _run(settings: Settings) -> set[str]:
    """Runs what the settings list, or a sweep, or goes on with either; returns the statuses of the runs."""
    _set_up_jax(settings.precision)
    from jafl.runs import directory, runner

    if _FORECAST.value:
        for flag in (_DRY_RUN, _RESUME, _OVERWRITE, _OUTPUT):
            require(not flag.value, flag.name, flag.value, "left out with --forecast")
        from jafl.sweeps.forecast import forecast_runs

        forecast_runs(settings, _FORECAST.value, sweep=_SWEEP.value or "")
        return set()
    output = _OUTPUT.value or directory.next_free_directory("runs")
    if _DRY_RUN.value and not _SWEEP.value:
        runner.dry_run(settings, output, overwrite=_OVERWRITE.value, command=_options()["command"])
        return set()
    if swept := _SWEEP.value or (_RESUME.value and reader.swept(output)):
        return _run_sweep(settings, swept, output)
    outcomes = runner.run(settings, output, overwrite=_OVERWRITE.value, resume=_RESUME.value, **_options())
    return {outcome.status for outcome in outcomes}


def _report(folder: str) -> None:
    from jafl.sweeps.report import write_report

    for file in write_report(folder, baseline=_BASELINE.value):
        print(f"Written: {file}")


def _do(arguments: list[str]) -> int:
    """Does what the flags ask for; returns the exit status."""
    if len(arguments) > 1:
        raise SettingError(f"{arguments[1]!r} is not a flag: write --name=value, and see --help.")
    if _EXPERIMENT.value:
        return _run_experiment(_EXPERIMENT.value)
    if _REPORT.value:
        _report(_REPORT.value)
        return 0
    require(not _TUNE.value, "tune", _TUNE.value, "left out without --experiment")
    several = bool(_SWEEP.value or _RESUME.value)
    for flag in (_PROCESSES, _RUNS_TOGETHER):
        allowed = "left out without --sweep or --experiment"
        require(several or not flag.value, flag.name, flag.value, allowed)
    settings = _settings()
    if _PREPARE.value:
        from jafl.data import prepare

        prepare(_PREPARE.value, settings.data_dir, manual_dir=_MANUAL_DIR.value)
        return 0
    statuses = _run(settings)
    return 1 if "diverged" in statuses else 130 if "interrupted" in statuses else 0


def main(arguments: list[str]) -> int:
    """Does what the flags ask for, and says in a sentence what went wrong; returns the exit status."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # JAX's news about other accelerators help nobody here
    try:
        return _do(arguments)
    except MemoryError as error:
        print(
            f"Error: not enough memory for these settings ({error}). Lower num_clients, client_trips or "
            "synthetic_mean_examples.",
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
