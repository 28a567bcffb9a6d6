"""The flags that are no settings, each declared once; which commands read them stands in ``commands``."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from absl import flags

from jafl.config.calls import SHORT_NAMES
from jafl.config.settings import DEFAULTS, HELP, SHORT_HELP, TYPES


class Declared(NamedTuple):
    """A flag: what it says, its default, its type, and the words that it may be or the smallest number."""

    help: str
    default: Any = None
    type: type = str
    allowed: tuple[str, ...] | int | None = None


FLAGS: Mapping[str, Declared] = {
    "config": Declared("Start from the settings in this config.json of an earlier run."),
    "output_dir": Declared("Directory for the results. Default: runs/001, or the next number."),
    "overwrite": Declared("Replace what output_dir holds.", False, bool),
    "resume": Declared("Go on with the benchmark that output_dir holds.", False, bool),
    "checkpoint_every": Declared(
        "Client trips between checkpoints; 0: none. Default: one a minute, and one at Ctrl-C.", None, int, 0
    ),
    "trackers": Declared(
        "Where metrics also go, with commas: csv (metrics.csv in the run directory), tensorboard, wandb (Weights & "
        "Biases), mlflow; each needs its library. Default: nowhere."
    ),
    "pictures": Declared(
        "Which pictures are drawn: all; few, those that are mostly looked at (of a comparison or a sweep its own in "
        "place of its runs'); or none. Default: few.",
        None,
        str,
        ("all", "few", "none"),
    ),
    "distributed": Declared(
        "Train each run on all devices of several hosts; start the same command on all of them: auto, where SLURM, "
        "Cloud TPU, Open MPI or Kubernetes tell each process where the others are, else "
        "hosts('10.0.0.1:8476', num_processes=4, process_id=0), the address of the first process, how many there "
        "are, and which this one is."
    ),
    "sweep": Declared('The values to try: "partition.alpha=0.1,1; delay=exponential,gamma(shape=2)".'),
    "experiment": Declared(
        "Name of the experiment; several with commas; all; or list, which tells which there are."
    ),
    "report": Declared("Directory of the runs."),
    "forecast": Declared("The chips: v5e:1x1, v5e:2x4, v6e:1x1, v4:2x2x1, ..., h100."),
    "prepare": Declared("Name of the data set."),
    "benchmark": Declared("Name of the benchmark; list: tells which there are."),
    "compare": Declared("The two files, with a comma between them."),
    "scale": Declared(
        "Size of the experiment: desk (minutes) or paper (as published).",
        "desk",
    ),
    "tune": Declared(
        "Search for the arms' settings first, as the experiment's file says, and use what is found.",
        False,
        bool,
    ),
    "replication": Declared(
        "Which replication of the experiment: with seeds and splits that share nothing with the file's, for its own "
        "search, too. 0: the experiment itself.",
        0,
        int,
        0,
    ),
    "processes": Declared(
        "Processes that share the runs. Default: 1; 2 for an experiment on a CPU.", None, int, 1
    ),
    "runs_together": Declared(
        "Whether runs that differ in seeds and numbers share a program: auto, where that is quicker, or never. "
        "Changes results by rounding only. Default: auto.",
        None,
        str,
        ("auto", "never"),
    ),
    "part": Declared(
        "Train one part of the runs: 3/16 is the third of 16 parts, each of which is a process of its own, on any "
        "machine that sees output_dir. Default: 1/1, all runs; in a SLURM array, the part of the task."
    ),
    "baseline": Declared(
        "What trips to the target are compared with. Default: fedavg if it runs, else the first algorithm; in a "
        "report of other runs than a sweep's, nothing."
    ),
    "manual_dir": Declared(
        "Folder with archives or IDX files downloaded by hand. Default: downloads/manual/NAME in data_dir."
    ),
}


def define(names: Iterable[str], arguments: Iterable[str] = ()) -> flags.FlagValues:
    """The flags of a command, beside those of absl itself.

    Args:
      names: of flags that are declared here, of settings and of arguments with a short name.
      arguments: dotted names of arguments of calls: ``delay.shape``.

    Returns:
      The flags, not read yet. They are the caller's own; of what is shared, only absl's flags get values.
    """
    defined = flags.FlagValues()
    for module, of_module in flags.FLAGS.flags_by_module_dict().items():
        for flag in of_module if module.startswith("absl.") else ():
            defined[flag.name] = flag
    for name in names:
        _define(defined, name)
    for name in arguments:
        if name not in defined:
            flags.DEFINE_string(name, None, f"An argument of {name.partition('.')[0]}.", defined)
    defined.set_gnu_getopt(True)  # words may stand before and behind flags
    return defined


def declared(name: str) -> Declared:
    """What there is to say of a flag, which may be a setting or the short name of an argument."""
    if name in SHORT_NAMES:
        return Declared(f"{SHORT_HELP[name]} A short name of --{SHORT_NAMES[name]}.")
    return Declared(HELP[name], DEFAULTS[name], TYPES[name][0]) if name in TYPES else FLAGS[name]


def _define(defined: flags.FlagValues, name: str) -> None:
    text, default, kind, allowed = declared(name)
    if isinstance(allowed, tuple):
        flags.DEFINE_enum(name, default, allowed, text, defined)
    elif kind is int:
        flags.DEFINE_integer(name, default, text, lower_bound=allowed, flag_values=defined)
    else:
        of_kind: Mapping[type, Callable[..., Any]] = {
            bool: flags.DEFINE_bool,
            float: flags.DEFINE_float,
            str: flags.DEFINE_string,
        }
        of_kind[kind](name, default, text, flag_values=defined)
