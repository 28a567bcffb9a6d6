"""The command ``jafl``, which is also ``python -m jafl`` and, in the repository, ``python run.py``.

It is separate from those three so that each of them is a line and a console script has a function to call. Which
commands there are, and which flags each reads, stands in ``commands``; ``given`` reads them and
makes settings of them, ``command_help`` writes what --help prints.

Exit status: 0 done, 1 diverged, or a row of a benchmark failed, 2 a setting cannot work or a run is damaged, 3 a file
could not be written, or a picture could not be drawn, 130 interrupted.
"""

import errno
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import app, flags, logging

import jafl
from jafl.ahead_of_time.compiler_process import run_command
from jafl.base.errors import SettingError, choose, refusal, require
from jafl.base.stopwatch import Stopwatch
from jafl.cli import command_help, given
from jafl.cli.commands import OF_EXPERIMENTS
from jafl.cli.given import Given, settings_of, swept_by, warn, without_unread
from jafl.config.grammar import Grammar
from jafl.config.settings import Settings
from jafl.config.values import items
from jafl.runs.hosts.streams import keep_going_without_readers

if TYPE_CHECKING:
    from jafl.runs.hosts.several_hosts import Hosts, Member

# The exit status is that of the first of these which a run has.
UNDRAWN = "undrawn"
EXIT_STATUS = {"damaged": 2, "diverged": 1, "interrupted": 130, UNDRAWN: 3}
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _train(asked: Given) -> int:
    """Trains what is described, or goes on with it; returns the exit status."""
    if asked.distributed is None:
        return _exit_status(_run(asked, *_described(asked)))
    remedy = (
        "It is for one run, or a comparison; docs/clusters.md shows how hosts share a sweep, with --part."
    )
    require(not swept_by(asked), "distributed", asked.distributed, "left out of a sweep", remedy)
    from jafl.runs.hosts import connection

    text, hosts = asked.distributed, connection.hosts
    address = Grammar("distributed", {"auto": lambda: hosts(), "hosts": hosts}).make(text)
    return connection.run(address, functools.partial(_run_as_member, asked), with_errors_shown)


def _run_as_member(asked: Given, member: "Member") -> int:
    """What one of several processes does: the first one runs the command, the others follow it."""
    from jafl.runs.hosts.several_hosts import Follower

    settings = member.settings(lambda: _described(asked)[0])
    _set_up_jax(settings.float_type)
    if isinstance(member, Follower):
        return member.follow(settings)
    return _exit_status(_run(asked, settings, {}, member))


def _described(asked: Given) -> tuple[Settings, dict[str, Any]]:
    """The settings of a command, without what no run reads, and what a sweep crosses them with; JAX is set up."""
    swept = swept_by(asked)  # first, for it says of a directory what is damaged there
    settings = settings_of(asked)
    _set_up_jax(settings.float_type)
    return without_unread(asked, settings, swept), swept


def _run(asked: Given, settings: Settings, swept: dict[str, Any], hosts: "Hosts | None" = None) -> set[str]:
    """Trains what the settings list, or goes on with it; returns the statuses of the runs.

    swept: the sweep that a file holds, or empty.
    """
    resume = asked.command.name == "resume"
    remedy = "A comparison that began in parts goes on by its command, run.py sweep."
    require(swept or not asked.part, "part", asked.part, "left out, but for a sweep", remedy)
    if swept:
        require(not asked.overwrite, "overwrite", asked.overwrite, "left out of a sweep")
        return _run_sweep(asked, settings, swept)
    if resume:
        _refuse(asked, ("processes", "runs_together", "baseline"), "where no sweep goes on")
    from jafl.runs import runner

    options = {**_options(asked), **({"hosts": hosts} if hosts else {})}
    overwrite = bool(asked.overwrite)
    outcomes = runner.run(settings, asked.output_dir, overwrite=overwrite, resume=resume, **options)
    return {outcome.status for outcome in outcomes} | {UNDRAWN for outcome in outcomes if outcome.undrawn}


def _sweep(asked: Given) -> int:
    settings, swept = _described(asked)
    several = len(items("algorithm", settings.algorithm)) > 1 or "," in settings.seed
    named = {"algorithm", "seed"} & set(asked.settings()) or asked.config
    allowed = 'given, sweep "partition.alpha=0.1,1", or several algorithms or seeds'
    require(swept or (several and named), "sweep", asked.sweep, allowed)
    return _exit_status(_run_sweep(asked, settings, swept))


def _run_sweep(asked: Given, settings: Settings, swept: dict[str, Any]) -> set[str]:
    """Runs a sweep; returns the statuses of its runs, or of its part."""
    from jafl.sweeps.sweep import run_sweep

    options = {
        "baseline": asked.baseline,
        "processes": asked.processes or 1,
        "part": _part(asked),
        **_options(asked),
    }
    crossed = {"sweep": {}, **swept}
    ended = run_sweep(settings, crossed.pop("sweep"), asked.output_dir, **crossed, **options)
    return {*ended.part_statuses, *([UNDRAWN] if ended.undrawn else [])}


def _plan(asked: Given) -> int:
    if asked.experiment:
        _refuse(asked, ("config", "overwrite", "pictures"), "with --experiment")
        return _run_experiment(asked, dry_run=True)
    _refuse(asked, OF_EXPERIMENTS, "without --experiment")
    settings = settings_of(asked)
    _set_up_jax(settings.float_type)
    from jafl.runs import runner

    how = {"overwrite": bool(asked.overwrite), "command": asked.words, "pictures": asked.pictures}
    undrawn = runner.dry_run(without_unread(asked, settings, {}), asked.output_dir, **how)
    return _exit_status({UNDRAWN} if undrawn else set())


def _forecast(asked: Given) -> int:
    """Forecasts, in a child process: a compiler that crashes then ends in a message."""
    if asked.experiment:
        _refuse(asked, ("config", "sweep"), "with --experiment")
    else:
        _refuse(asked, OF_EXPERIMENTS, "without --experiment")
        settings, swept = settings_of(asked), swept_by(asked)
    if (status := run_command(asked.arguments, asked.forecast)) is not None:
        return status
    if asked.experiment:
        return _run_experiment(asked, forecast=asked.forecast)
    _set_up_jax(settings.float_type)
    from jafl.sweeps.forecast import forecast_runs

    forecast_runs(without_unread(asked, settings, swept), asked.forecast, **swept)
    return 0


def _run_experiment(asked: Given, **how: Any) -> int:
    """Runs experiments of papers, or lists them; returns the exit status. how: of ``run_paper_experiments``."""
    name = asked.experiment
    _find_experiments("experiment", name, "the experiments")
    from experiments.harness.declare import discovery

    if name == "list":
        from jafl.runs.directory.tables import aligned

        print("\n".join(aligned(discovery.listed())))
        return 0
    names = discovery.names() if name == "all" else [each.strip() for each in name.split(",")]
    for each in names:
        discovery.load(each)  # before JAX, which takes longer
    from experiments.harness.run.running import run_paper_experiments

    typed = asked.settings()
    _set_up_jax(Settings.from_mapping({"precision": typed.get("precision", "float32")}).float_type)
    return run_paper_experiments(
        names,
        asked.scale or "desk",
        tune=asked.tune,
        typed=typed,
        output_dir=asked.output_dir,
        replication_number=asked.replication or 0,
        **how,
        **_options(asked),
    )


def _report(asked: Given) -> int:
    from jafl.sweeps.report import write_report

    for file in write_report(asked.report, baseline=asked.baseline):
        print(f"Written: {file}")
    return 0


def _prepare(asked: Given) -> int:
    from jafl.data import prepare

    prepare(asked.prepare, asked.data_dir, manual_dir=asked.manual_dir)
    return 0


def _benchmark(asked: Given) -> int:
    name = asked.benchmark
    _find_experiments("benchmark", name, "the benchmarks")
    choose("benchmark", name, {"clients": None})
    from experiments.tools.benchmarks.clients.running import run_clients

    how = {"resume": asked.resume, "overwrite": asked.overwrite}
    return run_clients(asked.settings(), asked.output_dir, command=asked.words, **how)


def _compare(asked: Given) -> int:
    _find_experiments("compare", asked.compare, "the benchmarks")
    from experiments.tools.benchmarks.clients.comparing import compare

    return compare(asked.compare, asked.output_dir, overwrite=asked.overwrite)


ACTS: Mapping[str, Callable[[Given], int]] = {
    "": _train,
    "sweep": _sweep,
    "experiment": lambda asked: _run_experiment(asked, processes=asked.processes, part=_part(asked)),
    "resume": _train,
    "report": _report,
    "plan": _plan,
    "forecast": _forecast,
    "prepare": _prepare,
    "benchmark": _benchmark,
    "compare": _compare,
}


def _refuse(asked: Given, names: Iterable[str], where: str) -> None:
    """Raises SettingError for the first of these flags that is typed; warns of those of a flag file."""
    for name in names:
        value = getattr(asked, name)
        require(name not in asked.typed, name, value, f"left out {where}")
        if asked.flags[name].present:
            warn(f"--{name}={value} stands in the flag file, but is not read {where}.")


def _find_experiments(setting: str, value: str, what: str) -> None:
    """Puts the repository's folder on the path; raises SettingError where jafl is installed without it.

    setting, value: what asks for them. what: what is missing.
    """
    repository = pathlib.Path(jafl.__file__).parent.parent
    if not (repository / "experiments" / "harness").is_dir():
        remedy = "Get the repository, and write python run.py in its folder in place of jafl."
        allowed = f"left out where jafl is installed: {what} are files of its repository"
        raise refusal(setting, value, allowed, remedy)
    if str(repository) not in sys.path:
        sys.path.append(str(repository))


def _set_up_jax(precision: str) -> None:
    """Before anything is computed: where compiled programs are kept, and in how many bits to compute."""
    import jax

    jafl.compilation_cache()
    if precision == "float64":
        jax.config.update("jax_enable_x64", True)


def _options(asked: Given) -> dict[str, Any]:
    """How runs are run: the fields of ``jafl.runs.runner.Options`` that have flags."""
    from jafl.runs.recording import trackers

    return {
        "command": asked.words,
        "checkpoint_every": asked.checkpoint_every,
        "trackers": trackers.named(asked.trackers or ""),
        "pictures": asked.pictures,
        "runs_together": asked.runs_together or "auto",
    }


def _part(asked: Given) -> str | None:
    """The part of the runs to train: as typed, else that of a task of a SLURM array."""
    from jafl.sweeps import parts

    if asked.part:
        parts.parse(asked.part)
        return str(asked.part)
    part = parts.slurm_part()
    if part:
        print(f"A task of a SLURM array: --part={part}. (--part=1/1: each task trains all runs.)")
    return part


def _exit_status(statuses: set[str]) -> int:
    """The exit status for runs that ended so."""
    return next((number for status, number in EXIT_STATUS.items() if status in statuses), 0)


def _versions() -> str:
    """What --version prints; nothing heavy is imported for it."""
    import importlib.metadata
    import platform

    return f"jafl {jafl.__version__}, JAX {importlib.metadata.version('jax')}, Python {platform.python_version()}"


def _text_asked_for(script: str, arguments: Sequence[str]) -> str | None:
    """What --help, --helpfull, --version or ``help NAME`` print; None where a command is to be done.

    Raises SettingError for help on a name that nothing has.
    """
    program = " ".join(given.program_name(script))
    flags = {each.lstrip("-") for each in arguments if each.startswith("-")}
    if arguments[:1] == ["help"]:
        require(len(arguments) <= 2, "help", " ".join(arguments[1:]), "one name")
        return command_help.of(arguments[1], program) if arguments[1:] else command_help.short(program)
    if flags & {"h", "?", "help", "helpshort"}:
        command = given.command_of(arguments)
        return command_help.explain_command(command, program) if command.name else command_help.short(program)
    if "helpfull" in flags:
        return command_help.full(program)
    return _versions() if "version" in flags else None


def read(script: str, arguments: Sequence[str]) -> Callable[[], int]:
    """What the arguments behind a script's name ask for, as a function that does it and returns the exit status.

    Raises SettingError for what cannot be meant.
    """
    text = _text_asked_for(script, arguments)
    if text is not None:
        return lambda: print(text) or 0
    asked = given.read(script, arguments)
    if not asked.flags["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # JAX's news about other accelerators help nobody here
    return functools.partial(ACTS[asked.command.name], asked)


def run(act: Callable[[], int]) -> int:
    """``act()``, timed; a sentence says what went wrong, and the exit status is that of what did."""
    with Stopwatch(jafl._BEGAN, "start"):
        return with_errors_shown(act)


def with_errors_shown(act: Callable[[], int]) -> int:
    """``act()``; a sentence says what went wrong, and the exit status is that of what did."""
    try:
        return act()
    except MemoryError as error:
        remedy = "Lower num_clients, client_trips or dataset.mean_examples."
        text, status = f"Error: not enough memory for these settings ({error}). {remedy}", 2
    except SettingError as error:
        text, status = f"Error: {error}", 2
    except OSError as error:
        remedy = "A run that had begun goes on from its last checkpoint by run.py resume DIRECTORY"
        # A user's function may find no file: then room helps nobody.
        room = ", once there is room" if error.errno in NO_ROOM else ""
        text, status = f"Error: {error}. {remedy}{room}.", 3
    except KeyboardInterrupt:
        text, status = "Interrupted: ended at once. What was measured before is kept.", 130
    except (AssertionError, RuntimeError) as error:
        if not (wanted := _missing_platforms(error)):
            raise
        remedy = "Unset it, and JAX takes what is there; JAX_PLATFORMS=cpu takes the CPU."
        text, status = f"Error: JAX_PLATFORMS is {wanted!r}, but JAX finds no such device here. {remedy}", 2
    print(text, file=sys.stderr)
    return status


def _missing_platforms(error: Exception) -> str:
    """What ``JAX_PLATFORMS`` asks for, if it is the reason why JAX computes nothing; "" otherwise."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.config.jax_platforms:
        return ""
    missing = str(error).startswith("Unable to initialize backend")
    if isinstance(error, AssertionError):  # JAX's own, without a word, where an accelerator is not there
        try:
            jax.devices()
        except AssertionError:
            missing = True
    return jax.config.jax_platforms if missing else ""


def start() -> None:
    """The command: reads the arguments, does what they ask for and exits."""
    acts: list[Callable[[], int]] = []

    def parse(arguments: list[str]) -> list[str]:
        keep_going_without_readers()
        # Nothing here asks for them: guards against transfers that are not meant, and what draws in windows.
        for name in [each for each in os.environ if each.startswith(("JAX_TRANSFER_GUARD", "MPLBACKEND"))]:
            del os.environ[name]
        flags.FLAGS.mark_as_parsed()  # all but absl's own flags are the command's, which are not among these

        def keep() -> int:
            acts.append(read(arguments[0], arguments[1:]))
            return 0

        status = with_errors_shown(keep)
        if status:
            sys.exit(status)
        return arguments

    app.run(lambda arguments: run(acts[0]), flags_parser=parse)
