"""Says and writes what an experiment would take (``--dry_run``); nothing is trained."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.machinery import discovery, plan_report, planning, times
from experiments.machinery.sweeps import Sweep
from jafl.ahead_of_time.forecast import duration
from jafl.runs.directory import RunDirectory
from jafl.runs.progress import Waiting
from jafl.runs.reader import read_json
from jafl.runs.tables import aligned


def dry_run(job: Any, sweeps: Sequence[Sweep], topology: str | None, processes: int) -> bool:
    """Shows and writes the plan of an experiment: ``plan.md`` and ``plan.json`` in its folder, anew each time.

    Args:
      job: the experiment at one scale, as ``experiments.machinery.running`` has it.
      sweeps: its runs; none for an experiment that trains nothing.
      topology: chips that need not be here, to ask their compiler about; None: none.
      processes: how many would share the runs.

    Returns:
      Whether a run is refused.

    Raises:
      SettingError: for settings that cannot work, before anything is written.
    """
    with Waiting(job.options.progress) as waiting:
        planner = planning.Planner(topology=topology, tell=waiting.tell)
        rows = {sweep.part: planner.planned(sweep) for sweep in sweeps}
    assumed = planner.loaded.assumed
    lines = plan_report.assumed(assumed) if sweeps else [_without_training(job)]
    for part, planned in rows.items():
        lines += aligned(plan_report.table(planned))
        lines += plan_report.totals(part.capitalize(), planned, processes=processes, topology=topology)
        lines.append("")
    for line in lines:
        job.show(line)
    _write(job, lines, rows, {"topology": topology, "assumed": assumed}, processes)
    job.show(f"Nothing was trained. The plan is in {job.folder}: plan.md, plan.json")
    return any(row.refused for planned in rows.values() for row in planned)


def together(folders: Mapping[str, pathlib.Path]) -> list[str]:
    """Lines on the plans of several experiments.

    Args:
      folders: {experiment: where its plan lies}.

    Returns:
      What they take in all, and in which of them evaluation takes more than ``plan_report.MOST_EVALUATION``.
    """
    sums = dict.fromkeys(("runs", "trips", "training", "evaluation", "seconds_with_processes"), 0.0)
    named = []
    for name, folder in folders.items():
        for part, planned in read_json(folder / "plan.json")["parts"].items():
            total = planned["total"]
            sums = {each: value + (total[each] or 0) for each, value in sums.items()}
            share = total["evaluation_over_training"] or 0.0
            if share > plan_report.MOST_EVALUATION:
                named.append(f"{name}{' (search)' if part == 'search' else ''}: {share:.2f}")
    return [
        f"All {len(folders)} together: {sums['runs']:,.0f} runs, {sums['trips']:,.0f} client trips, "
        f"{plan_report.powers(sums['training'])} multiply-adds for training, "
        f"{plan_report.powers(sums['evaluation'])} for evaluations, "
        f"{duration(sums['seconds_with_processes'])} on this machine.",
        f"Evaluation takes more than {plan_report.MOST_EVALUATION:g} of the compute of training in "
        f"{len(named) or 'none'} of them{': ' if named else '.'}{', '.join(named)}",
    ]


def _without_training(job: Any) -> str:
    page = discovery.page_name(job.experiment.name, job.scale_name)
    minutes = times.minutes(times.read().get(page), "results")
    time = f"It took {minutes} minutes for docs/results." if minutes != "-" else "No time has been measured."
    return f"It trains nothing: no runs, trips or evaluations. {time}"


def _write(
    job: Any,
    lines: Sequence[str],
    rows: Mapping[str, Sequence[planning.Planned]],
    more: Mapping[str, Any],
    processes: int,
) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(job.folder, resume=True)
    name = job.experiment.name
    parts = {
        part: {"rows": plan_report.content(planned), "total": plan_report.total_content(planned, processes)}
        for part, planned in rows.items()
    }
    content = {"experiment": name, "scale": job.scale_name, **more, "parts": parts}
    directory.write_result("plan.json", content)
    text = [f"# {name}, {job.scale_name} size: what it would take", "", "```", *lines, "```"]
    directory.write_text("plan.md", "\n".join(text) + "\n")
