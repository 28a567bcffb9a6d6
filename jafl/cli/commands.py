"""The commands, each with its words, the flags that it reads, and what the help says of it."""

import dataclasses
from collections.abc import Mapping

from jafl.config.calls import SHORT_NAMES
from jafl.config.settings import TYPES

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
            "benchmark list": "which benchmarks there are",
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
