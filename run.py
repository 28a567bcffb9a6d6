"""Simulates asynchronous federated learning: flags in, a run directory out.

    python run.py                                            compares four algorithms on handwritten digits
    python run.py --algorithm=fedbuff --seed=0,1,2           one algorithm, three seeds
    python run.py --algorithm=fedbuff --buffer_size=5 --delay=half_normal --delay_draw=per_trip
    python run.py --protocol=synchronous --algorithm=fedbuff FedBuff's rule in synchronous rounds
    python run.py --prepare=cifar10 --data_dir=data         downloads and prepares a data set, once
    python run.py --config=runs/001/fedbuff-seed0/config.json --output_dir=again     repeats a run
    python run.py --sweep="dirichlet_alpha=0.1,1;delay_sigma=0.5,2" --seed=0,1,2 --output_dir=runs/sweep
    python run.py --experiment=list                         the papers' figures and tables; --experiment=NAME runs one
    python run.py --report=runs/sweep                       one page on everything in it: runs/sweep/report.html
    python run.py --resume --output_dir=runs/001            goes on with what was stopped, killed or cut short

Every setting has a default. Settings can also stand in a file, one --name=value a line: --flagfile=FILE.
"""

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

from absl import app, flags, logging

from jafl.config.settings import RENAMED, TYPES, Settings
from jafl.errors import SettingError, require
from jafl.runs import reader

_CONFIG = flags.DEFINE_string(
    "config", None, "Start from the settings in this config.json of an earlier run."
)
_OUTPUT = flags.DEFINE_string(
    "output_dir", None, "Directory for the results. Default: runs/001, or the next number."
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Compute and draw the schedules, and train nothing.")
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


def _define_settings() -> None:
    """One flag per setting, with its default and help text."""
    define: dict[type, Callable[..., Any]] = {
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
        bool: flags.DEFINE_bool,
    }
    for field in dataclasses.fields(Settings):
        define[TYPES[field.name][0]](field.name, field.default, field.metadata["help"])
    for earlier, name in RENAMED.items():
        flags.DEFINE_alias(earlier, name)


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


def _parse(arguments: list[str]) -> list[str]:
    """Reads the flags: a wrong one exits with status 2, as any wrong setting does, and --help with 0."""
    try:
        return flags.FLAGS(arguments)
    except flags.Error as error:
        print(f"Error: {error}\nSee --help for all flags.", file=sys.stderr)
        sys.exit(2)
    except SystemExit:  # from --help, with status 1
        sys.exit(0)


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
        "command": ["python", *sys.argv],
        "checkpoint_every": _CHECKPOINT_EVERY.value,
        "trackers": [trackers.tensorboard()] if _TENSORBOARD.value else [],
        "pictures": _PICTURES.value,
        "runs_together": _RUNS_TOGETHER.value or "auto",
    }


def _run_experiment(name: str) -> int:
    """Runs an experiment of a paper, or lists them; returns the exit status."""
    for flag in (_CONFIG, _DRY_RUN, _PREPARE, _RESUME, _SWEEP, _REPORT, _OVERWRITE, _BASELINE):
        require(not flag.value, flag.name, flag.value, "left out with --experiment")
    if name == "list":
        from experiments.machinery.discovery import listed
        from jafl.runs.tables import aligned

        print("\n".join(aligned(listed())))
        return 0
    from experiments.machinery import discovery

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
        **_options(),
    )


def _run_sweep(settings: Settings, swept: str | dict[str, Any], output: str | os.PathLike[str]) -> set[str]:
    """Runs a sweep, given as text or as ``sweep.json`` has it; returns the statuses of its runs."""
    for flag in (_OVERWRITE, _DRY_RUN):
        require(not flag.value, flag.name, flag.value, "left out of a sweep")
    from jafl.config.arms import Refinement
    from jafl.sweeps.sweep import run_sweep

    what: dict[str, Any] = dict(swept) if isinstance(swept, dict) else {"sweep": swept}
    what["refinements"] = [Refinement(**one) for one in what.get("refinements", ())]
    options = {"baseline": _BASELINE.value, "processes": _PROCESSES.value or 1, **_options()}
    return set(run_sweep(settings, what.pop("sweep"), output, **what, **options).statuses)


def main(arguments: list[str]) -> int:
    """Runs what the flags ask for.

    Exit status: 0 done, 1 diverged, 2 a setting cannot work, 3 a file could not be written, 130 interrupted.
    """
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # JAX's news about other accelerators help nobody here
    try:
        if len(arguments) > 1:
            raise SettingError(f"{arguments[1]!r} is not a flag: write --name=value, and see --help.")
        if _EXPERIMENT.value:
            return _run_experiment(_EXPERIMENT.value)
        if _REPORT.value:
            from jafl.sweeps.report import write_report

            for file in write_report(_REPORT.value, baseline=_BASELINE.value):
                print(f"Written: {file}")
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
        _set_up_jax(settings.precision)
        from jafl.runs import directory, runner

        output = _OUTPUT.value or directory.next_free_directory("runs")
        if _DRY_RUN.value and not _SWEEP.value:
            runner.dry_run(settings, output, overwrite=_OVERWRITE.value, command=_options()["command"])
            return 0
        if swept := _SWEEP.value or (_RESUME.value and reader.swept(output)):
            statuses = _run_sweep(settings, swept, output)
        else:
            outcomes = runner.run(
                settings, output, overwrite=_OVERWRITE.value, resume=_RESUME.value, **_options()
            )
            statuses = {outcome.status for outcome in outcomes}
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
    return 1 if "diverged" in statuses else 130 if "interrupted" in statuses else 0


if __name__ == "__main__":
    _define_settings()
    app.run(main, flags_parser=_parse)
