"""How long runs may take on chips that are not here, by their compiler's estimates.

    python -m experiments.tools.benchmarks.compiled_times --algorithm=fedbuff,ace
    python -m experiments.tools.benchmarks.compiled_times --topology=v5e:2x4 \
        --sweep="model=mlp,lenet5;batch_size=32"

Nothing runs there: every time is an estimate of the compiler (pip install "jafl[tpu]"). What it gives no time for is
listed with its bytes and counted at the memory's bandwidth; what chips exchange is listed and not counted. For h100
the compiler says no times. ``--sweep`` lists settings as ``run.py sweep`` does, each with one value or several.
"""

from collections.abc import Sequence

from absl import app, flags

from experiments.tools.benchmarks.compiled_estimates.times import times
from jafl.ahead_of_time.forecast import Known
from jafl.ahead_of_time.topologies import topology
from jafl.config import grid
from jafl.config.data_cache import DataCache
from jafl.config.experiment import make_experiment
from jafl.config.resolution import resolve
from jafl.config.settings import Settings
from jafl.sweeps.grid_runs import Request


def main(_: Sequence[str]) -> None:
    """Shows the estimate of each run."""
    options, loaded, known = flags.FLAGS, DataCache(), Known()
    topology(options.topology)  # refused here, not for each run
    settings = Settings.from_mapping({"algorithm": options.algorithm})
    values = grid.parse(options.sweep) if options.sweep else {}
    for condition, compared in Request(values, grid.algorithm_arms(settings), "0").conditions(settings, ()):
        for label, run in resolve(compared, loaded):
            experiment = make_experiment(label, run, loaded, must_fit=False)
            estimates = times(experiment, options.topology, devices=run.devices, known=known)
            where = f"{grid.folder(condition)}, " if condition else ""
            print(f"{where}{experiment.name}\n{estimates}", flush=True)


if __name__ == "__main__":
    flags.DEFINE_string("topology", "v5e:1x1", "What to compile for: v5e:1x1, v5e:2x2, v6e:1x1, ...")
    flags.DEFINE_string("algorithm", "fedbuff", "Algorithms, with commas between.")
    flags.DEFINE_string("sweep", "", "Settings of the runs: setting=value,value,...;setting=value,...")
    app.run(main)
