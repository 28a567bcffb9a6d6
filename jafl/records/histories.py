"""What a run leaves."""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jafl.base import display
from jafl.base.contents import ByContents
from jafl.base.errors import choose, require
from jafl.base.extras import importing
from jafl.records import saved_histories
from jafl.records.schedules import EventSchedule
from jafl.records.types import Params

# The columns of a history's tables that are not reports of a rule, and not what evaluators measure.
EVALUATION_COLUMNS = ("server_step", "client_trips", "time", "train_loss")
TRIP_COLUMNS = ("client", "trip", "download_version", "step", "staleness", "download_time", "arrival_time")
STEP_COLUMNS = ("step", "step_time")


def check_column(name: Any, reports: Iterable[str], what: str) -> None:
    """Refuses a name of an evaluator, or of its column, that is no plain text or that another column has.

    reports: names that a rule reports, for trips and for server steps. what: the name is, for the message.
    """
    name = str(name) if isinstance(name, int) else name
    plain = isinstance(name, str) and re.fullmatch(r"[\w.-]+", name)
    require(
        plain, what, name, "a text of letters, digits and any of _-.", "Files and trackers write it as it is."
    )
    taken = sorted({*EVALUATION_COLUMNS, *TRIP_COLUMNS, *STEP_COLUMNS, "loss", "weight", *reports})
    allowed = f"none that the run itself records: {', '.join(taken)}"
    require(name not in taken, what, name, allowed, "Give it another name.")


@dataclasses.dataclass(frozen=True, eq=False)
class History(ByContents):
    """What a run leaves: its evaluations, what each trip and step reported, and the final model.

    Attributes:
      evaluations: list of dicts, in order: ``server_step``, ``client_trips`` (started so far: applied and thrown
        away), ``time`` (simulated), ``test_accuracy``, ``test_loss``, ..., ``train_loss`` (mean over the trips since
        the last evaluation; None at step 0) and the means of what the rule reports.
      params: [*P] NumPy, after the last step that was run.
      trip_reports: {name: [J'] NumPy}: per applied trip; ``loss`` and what the rule's ``fold`` reports.
      step_reports: {name: [T', ...] NumPy}: per server step; what the rule's ``finish`` reports.
      schedule: the event schedule.
      server_steps: T', the steps that were run: fewer than the schedule's if the run was stopped.
      num_slots: rows of the snapshot buffer that the plan needed.
      compile_seconds: wall-clock: tracing, lowering and compiling, of evaluation too.
      run_seconds: wall-clock: training and evaluation, without compiling; data are placed before.
      temporary_bytes: what the compiled program holds beside its arguments; None if not known.
      stopped_when: the condition ``stop_when`` that the last evaluation met; None if none did.
      best_params: [*P] NumPy, those of the best evaluation, the first of equal ones, by the column ``keep_best``;
        None without that.
      best_step: its server step; None without ``keep_best``.
      client_metrics: {metric: [evaluations, N] NumPy}: what was measured on each client's own examples, NaN for one
        without any; None without ``evaluate_clients``. Of clients with models of their own also
        ``personal_accuracy``, ``personal_loss``, ..., of these models on the same examples.
      personal_params: [N, *P] NumPy, the clients' own models after the last step (``jafl.ditto``); None without.
    """

    evaluations: list[dict[str, Any]]
    params: Params
    trip_reports: Mapping[str, np.ndarray]
    step_reports: Mapping[str, np.ndarray]
    schedule: EventSchedule
    server_steps: int
    num_slots: int
    compile_seconds: float
    run_seconds: float
    temporary_bytes: int | None = None
    stopped_when: str | None = None
    best_params: Params = None
    best_step: int | None = None
    client_metrics: Mapping[str, np.ndarray] | None = None
    personal_params: Params = None

    @property
    def weights(self) -> np.ndarray:
        """[J'] float64: the factor with which each applied trip's update entered the pseudo-gradient."""
        return weights_given(self.schedule, self.trip_reports, self.step_reports)

    @property
    def influence(self) -> np.ndarray:
        """[N] float64: each client's share of all weight given; sums to 1."""
        weights = self.weights
        clients = self.schedule.client[: len(weights)]
        total = np.bincount(clients, weights, minlength=self.schedule.num_clients)
        return total / max(total.sum(), np.finfo(float).tiny)

    def to_dataframe(self, rows: str = "evaluations") -> Any:
        """The history as a table of pandas.

        Args:
          rows: "evaluations": a row for each evaluation, with its keys as columns. "trips": a row for each applied
            trip, with its columns of the schedule, its staleness and what it reported. "steps": a row for each
            server step, with its simulated time and what it reported, as far as that is one number.

        Returns:
          A ``pandas.DataFrame``.

        Raises:
          SettingError: for other ``rows``.
          ImportError: without pandas, which jafl itself does not need: ``pip install jafl[pandas]``.
        """
        table = choose(
            "rows",
            rows,
            {"evaluations": lambda: self.evaluations, "trips": self._trips, "steps": self._steps},
        )
        with importing():
            import pandas

        return pandas.DataFrame(table())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the history into one file, whole or not at all; ``History.load`` reads the same history back.

        The file is an archive of NumPy's (.npz) without pickles: ``numpy.load`` reads its arrays, too.

        Args:
          path: of the file, ``"fedbuff.npz"`` for example. Its folder must be there.
          overwrite: whether a file that is there already is replaced.

        Raises:
          SettingError: if there is such a file already, no such folder, or parameters that are no arrays.
        """
        saved_histories.write(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, params: Params = None) -> "History":
        """Reads a history that ``save`` has written.

        Args:
          path: of the file.
          params: parameters of the same model, the initial ones for example: where they are objects of a class of
            their own (as Equinox makes them), the history's are made like them. Not needed for dicts, lists and
            tuples of arrays, as Flax makes them.

        Returns:
          The history, equal in every number and type to the one that was saved.

        Raises:
          SettingError: if there is no such file, or it is damaged, or is none that ``save`` has written.
        """
        loaded: History = saved_histories.read(cls, path, params)
        return loaded

    def __repr__(self) -> str:
        last = self.evaluations[-1] if self.evaluations else {}
        measured = [name for name in last if name.startswith(("test_", "validation_"))]
        return display.one_line(
            "History",
            f"{self.server_steps:,} of {display.count(self.schedule.num_steps, 'server step')}",
            display.count(last.get("client_trips", 0), "client trip"),
            f"simulated time {display.number(last.get('time', 0.0))}",
            *(f"{name} {display.number(last[name])}" for name in measured[:4]),
        )

    def _repr_html_(self) -> str:
        last = self.evaluations[-1] if self.evaluations else {}
        facts = {
            "server steps": f"{self.server_steps:,} of {self.schedule.num_steps:,}",
            "clients": self.schedule.num_clients,
            "client trips": last.get("client_trips", 0),
            "simulated time": last.get("time", 0.0),
            **{name.replace("_", " "): last[name] for name in last if name.startswith(MEASURED)},
            "seconds of compiling": float(self.compile_seconds),
            "seconds of training": float(self.run_seconds),
        }
        return display.card("History", facts, self._picture())

    def _picture(self) -> str:
        """The first metric on the test examples over the run; where there is none, the training loss."""
        rows = [row for row in self.evaluations if "client_trips" in row]
        names = dict.fromkeys(
            name for row in rows for name, value in row.items() if isinstance(value, (int, float))
        )
        measured = [name for start in MEASURED for name in names if name.startswith(start)]
        accuracy = [name for name in measured if name.endswith("accuracy")]
        if not measured:
            return ""
        column = [*accuracy, *measured][0]
        points = [(row["client_trips"], row[column]) for row in rows if row.get(column) is not None]
        across, values = zip(*points, strict=True)
        return display.line_chart(across, values, "client trips", column.replace("_", " "))

    def _trips(self) -> dict[str, np.ndarray]:
        trips = len(self.trip_reports["loss"])
        return {name: getattr(self.schedule, name)[:trips] for name in TRIP_COLUMNS} | dict(self.trip_reports)

    def _steps(self) -> dict[str, np.ndarray]:
        numbers = {name: rows for name, rows in self.step_reports.items() if np.ndim(rows) == 1}
        steps = np.arange(self.server_steps), self.schedule.step_time[: self.server_steps]
        return dict(zip(STEP_COLUMNS, steps, strict=True)) | numbers


MEASURED = ("test_", "validation_", "train_")


def weights_given(
    schedule: EventSchedule, trip_reports: Mapping[str, Any], step_reports: Mapping[str, Any]
) -> np.ndarray:
    """[J'] float64, ``History.weights``: the factor with which each applied update entered the pseudo-gradient.

    Reports are by name: [J'] of each applied trip, "loss" among them; [T'] or [T', K] of each server step.
    """
    trips = len(trip_reports["loss"])
    if "weight" in step_reports:  # [T', K], of a rule that weighs its whole buffer at the step
        return np.asarray(step_reports["weight"], np.float64).reshape(-1)
    weight = np.asarray(trip_reports.get("weight", np.ones(trips)), np.float64)
    if "weight_scale" in step_reports:
        weight = weight * step_reports["weight_scale"][schedule.step[:trips]]
    return weight
