"""The commands, each with the flags that it reads and what the help says of it, and flags that are no settings."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from absl import flags

from jafl.config.calls import SHORT_NAMES
from jafl.config.settings import DEFAULTS, HELP, SHORT_HELP, TYPES

SETTINGS = (*TYPES, *SHORT_NAMES)
_RECORDING = ("checkpoint_every", "trackers", "pictures")  # while a run trains
_SHARED = ("processes", "runs_together", "part")  # of runs that processes share
OF_EXPERIMENTS = ("scale", "tune", "replication")


@dataclasses.dataclass(frozen=True)
class Command:
    """What ``run.py NAME`` does.

    Attributes:
      name: empty for training, which has none.
      summary: a phrase for the list of commands.
      text: sentences for the command's own help.
      examples: {what stands behind ``run.py``: what it does}; the first one is short, for the list of commands.
      flags: the names of the flags that it reads.
      words: what must stand behind the name, in capitals; in square brackets what can.
    """

    name: str
    summary: str
    text: str
    examples: Mapping[str, str]
    flags: tuple[str, ...]
    words: str = ""

    @property
    def word(self) -> str:
        """The flag that these words set, mostly the one named like the command; empty where there are none."""
        return (self.name if self.name in self.flags else "output_dir") if self.words else ""


_ALL = (
    Command(
        "",
        "trains one run, or several to compare",
        "Trains every algorithm and seed that the settings list, and leaves a directory with numbers and pictures.",
        {
            "--algorithm=fedbuff --seed=0,1,2": "one algorithm, three seeds",
            "": "compares four algorithms on handwritten digits",
            '--algorithm=fedbuff --delay="gamma(shape=2)"': "with durations of trips of another law",
            "--config=runs/001/fedbuff-seed0/config.json --output_dir=again": "repeats a run",
        },
        (*SETTINGS, "config", "output_dir", "overwrite", *_RECORDING, "distributed"),
    ),
    Command(
        "sweep",
        "tries values of settings, crossed with algorithms and seeds",
        "Trains every algorithm and seed under every condition, and reports on all of them. The same command goes on "
        "with a sweep that was stopped, also in several processes at once. Between values of one setting stand "
        "commas, between settings semicolons; without values it is a comparison that processes can share.",
        {
            'sweep "partition.alpha=0.1,1"': "two conditions",
            'sweep "partition.alpha=0.1,1; delay.sigma=0.5,2" --output_dir=runs/sweep': "four conditions",
            'sweep "delay=exponential,gamma(shape=2)" --algorithm=fedbuff,ace': "two laws, two algorithms",
        },
        (*SETTINGS, "sweep", "config", "output_dir", *_RECORDING, *_SHARED, "baseline"),
        words="[VALUES]",
    ),
    Command(
        "experiment",
        "runs a paper's figure or table",
        "Runs an experiment of a paper and says what came out. The same command goes on with what was stopped.",
        {
            "experiment fedbuff_fig3": "FedBuff's figure 3, at desk size",
            "experiment list": "which experiments there are",
            "experiment fedbuff_fig3 --tune": "searches for the settings first",
        },
        (*SETTINGS, "experiment", "output_dir", *OF_EXPERIMENTS, *_RECORDING, *_SHARED),
        words="NAME",
    ),
    Command(
        "resume",
        "goes on with what was stopped or killed",
        "Goes on with the run, comparison or sweep that a directory holds, with its settings and from the last "
        "checkpoint. target_accuracy may be another; with a larger client_trips or server_steps it trains again and "
        "then replaces what is there. Draws what is missing of pictures.",
        {"resume runs/001": "ends with the same bits as if it had not been stopped"},
        (
            *("output_dir", "client_trips", "server_steps", "protocol", "target_accuracy", "data_dir"),
            *(*_RECORDING, *_SHARED, "baseline", "distributed"),
        ),
        words="DIRECTORY",
    ),
    Command(
        "report",
        "writes one page on all runs of a directory",
        "Writes report.html and report.md on all runs in a directory.",
        {"report runs": "leaves runs/report.html"},
        ("report", "baseline"),
        words="DIRECTORY",
    ),
    Command(
        "plan",
        "says what would run, and draws the schedules",
        "Computes and draws the schedules of the runs, and trains nothing; of an experiment it says which runs, "
        "settings, seeds, trips, memory and multiply-adds it has.",
        {
            "plan --client_trips=100000": "the schedules of a comparison",
            "plan --experiment=fedbuff_fig3": "what an experiment would run",
        },
        (*SETTINGS, "config", "output_dir", "overwrite", "pictures", "experiment", *OF_EXPERIMENTS),
    ),
    Command(
        "forecast",
        "says whether runs would fit on chips that are not here",
        "Says whether the runs, or those of a sweep or an experiment, fit on these chips and what memory they need, "
        "and trains nothing: v5e:1x1, v5e:2x4, v6e:1x1, v4:2x2x1, ..., h100. Needs jafl[tpu], and no such chip.",
        {
            "forecast v5e:1x1": "the usual comparison on one TPU",
            "forecast h100 --experiment=fedbuff_fig3 --scale=paper": "an experiment on a GPU",
        },
        (*SETTINGS, "forecast", "config", "sweep", "experiment", *OF_EXPERIMENTS),
        words="CHIPS",
    ),
    Command(
        "prepare",
        "downloads and prepares a data set, once",
        "Downloads and prepares a data set of tensorflow-datasets under data_dir, once. fashion_mnist is also taken "
        "from Debian's package dataset-fashion-mnist, or from its four IDX files in manual_dir.",
        {
            "prepare cifar10": "CIFAR-10",
            "prepare cifar10 --data_dir=data": "into a folder of its own",
            "prepare fashion_mnist": "from Debian's package if that is installed, else downloaded",
        },
        ("prepare", "data_dir", "manual_dir"),
        words="NAME",
    ),
    Command(
        "benchmark",
        "measures how fast this machine trains",
        "Measures this machine; algorithm, model and num_clients choose among a benchmark's rows.",
        {
            "benchmark clients": "FedBuff, ACE and WKAFL with 1,000 to 100,000 clients",
            "benchmark clients --num_clients=1000": "trips a second, and memory",
        },
        (
            *("benchmark", "algorithm", "model", "num_clients", "client_trips", "devices", "precision"),
            *("data_dir", "output_dir", "resume", "overwrite"),
        ),
        words="NAME",
    ),
    Command(
        "compare",
        "puts two benchmarks side by side",
        "Prints and draws the ratios of two benchmarks, from their benchmark.json.",
        {"compare a.json b.json": "each row's ratio"},
        ("compare", "output_dir", "overwrite"),
        words="FILE FILE",
    ),
)
COMMANDS: Mapping[str, Command] = {command.name: command for command in _ALL}


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
    "benchmark": Declared("Name of the benchmark: clients."),
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
    makers: Mapping[type, Any] = {
        bool: flags.DEFINE_bool,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    for name in names:
        text, default, kind, allowed = declared(name)
        if isinstance(allowed, tuple):
            flags.DEFINE_enum(name, default, allowed, text, defined)
        elif kind is int:
            flags.DEFINE_integer(name, default, text, lower_bound=allowed, flag_values=defined)
        else:
            makers[kind](name, default, text, flag_values=defined)
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
