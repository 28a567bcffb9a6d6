"""Simulates asynchronous federated learning: flags in, a run directory out.

    python run.py                                            compares four algorithms on handwritten digits
    python run.py --algorithm=fedbuff --seed=0,1,2           one algorithm, three seeds
    python run.py --algorithm=fedbuff --buffer_size=5 --delay=half_normal --delay_draw=per_trip
    python run.py --protocol=synchronous --algorithm=fedbuff FedBuff's rule in synchronous rounds
    python run.py --config=runs/001/fedbuff-seed0/config.json --output_dir=again     repeats a run

Every setting has a default. Settings can also stand in a file, one --name=value a line: --flagfile=FILE.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from absl import app, flags, logging

from jafl.records import SettingError
from jafl.settings import TYPES, Settings

_CONFIG = flags.DEFINE_string(
    "config", None, "Start from the settings in this config.json of an earlier run."
)
_OUTPUT = flags.DEFINE_string(
    "output_dir", None, "Directory for the results. Default: runs/001, or the next number."
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Compute and draw the schedules, and train nothing.")
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


def _settings() -> Settings:
    """The settings: those typed, over those of --config, over the defaults."""
    given = {name: flags.FLAGS[name].value for name in TYPES if flags.FLAGS[name].present}
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


def main(arguments: list[str]) -> int:
    """Runs what the flags ask for. Exit status: 0 done, 1 diverged, 2 a setting cannot work, 130 interrupted."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # JAX's news about other accelerators help nobody here
    try:
        if len(arguments) > 1:
            raise SettingError(f"{arguments[1]!r} is not a flag: write --name=value, and see --help.")
        settings = _settings()
        import jax

        if settings.precision == "float64":
            jax.config.update("jax_enable_x64", True)
        from jafl import results, runner

        output = _OUTPUT.value or results.next_free_directory("runs")
        command = ["python", *sys.argv]
        if _DRY_RUN.value:
            runner.dry_run(settings, output, overwrite=_OVERWRITE.value, command=command)
            return 0
        outcomes = runner.run(settings, output, overwrite=_OVERWRITE.value, command=command)
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
    except KeyboardInterrupt:
        print("Interrupted: ended at once. What was measured before is kept.", file=sys.stderr)
        return 130
    statuses = {outcome.status for outcome in outcomes}
    return 1 if "diverged" in statuses else 130 if "interrupted" in statuses else 0


if __name__ == "__main__":
    _define_settings()
    app.run(main, flags_parser=_parse)
