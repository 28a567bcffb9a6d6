"""Runs the benchmark: one process after the other, each row kept as soon as it is measured."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import experiments
from experiments.tools.benchmarks.clients import files, machine, rows, tables
from experiments.tools.benchmarks.clients.rows import Row
from jafl.base.errors import SettingError, refusal, require, whole_number
from jafl.config.layers import with_arguments
from jafl.config.settings import DEFAULTS, Settings
from jafl.runs.directory.files import occupied
from jafl.runs.directory.previous_run import EarlierRun

DONE, FAILED, INTERRUPTED = 0, 1, 130  # exit statuses
# A process that takes longer is ended. Compiling a deep network for an accelerator can take many minutes.
MOST_SECONDS = {"facts": 300, "row": 3600, "estimate": 300}
REPOSITORY = pathlib.Path(experiments.__file__).parent.parent
Ask = Callable[[str, Row | None, Mapping[str, Any]], dict[str, Any] | None]


def run_clients(
    typed: Mapping[str, Any],
    output: str | None,
    *,
    command: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    show: Callable[[str], None] | None = None,
    ask: Ask | None = None,
) -> int:
    """Measures the rows that the settings ask for, and leaves a JSON file, a page and its text.

    Args:
      typed: the settings, by name: see ``rows.ALLOWED``.
      output: the folder; None: ``runs/001``, or the next number.
      command: that started it, for the files.
      resume: go on with the benchmark that ``output`` holds: rows that were measured are kept.
      overwrite: start again in a folder that holds a benchmark.
      show: gets each line that is meant for the user. Default: it is printed at once.
      ask: what answers for a row, "facts" or "estimate". Default: ``in_a_process``.

    Returns:
      The exit status: 0, 1 if a row failed, 130 if it was interrupted.

    Raises:
      SettingError: for settings that cannot work, before anything is measured or written.
    """
    wanted = rows.selected(typed)
    settings = _settings(typed)
    require(not (resume and overwrite), "overwrite", overwrite, "left out with --resume")
    require(output or not resume, "output_dir", output, "the folder of the benchmark to go on with")
    before = _earlier(output, resume, overwrite)
    show = show or functools.partial(print, flush=True)
    ask = ask or in_a_process
    facts = _facts(ask, settings)
    content = _begun(before, facts, settings, command)
    from experiments.tools.benchmarks.clients.page import write_page

    with occupied(output, resume=True) as (directory, _):
        for name in (files.PAGE, files.TEXT):  # of the rows as they were; written again at the end
            (directory.path / name).unlink(missing_ok=True)
        names_there = {row["name"] for row in content["rows"] if row["status"] != "failed"}
        left = [row for row in wanted if row.name not in names_there]
        show(tables.machine_line(content))
        if resume:
            show(f"{len(names_there)} rows are there, {len(left)} of those asked for are measured now.")
        try:
            _measure(left, content, directory.path, settings, ask, show)
        except KeyboardInterrupt:
            if content["rows"]:
                write_page(directory.path, content, show)
            show(
                f"Interrupted: run.py benchmark clients --resume --output_dir={directory.path} goes on with the "
                "rows that are left."
            )
            return INTERRUPTED
        undrawn = write_page(directory.path, content, show)
        show(f"Results, and how to read them, are in {directory.path / files.PAGE}")
        if any(row["status"] == "failed" for row in content["rows"]):
            return FAILED
        return undrawn


def in_a_process(what: str, row: Row | None, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of ``measure``, in a process of its own: a row's peak is its own, and so is its death.

    Args:
      what: "facts", "row" or "estimate".
      row: of which; None for "facts".
      settings: as ``measure`` takes them.

    Returns:
      The answer; ``{"status": "failed", "reason": ...}`` of a process that died.
    """
    request = json.dumps({"row": row._asdict() if row else None, "settings": dict(settings)})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *_python_path()])}
    with tempfile.TemporaryDirectory() as folder:
        answer, said = pathlib.Path(folder) / "answer.json", pathlib.Path(folder) / "said.txt"
        module = "experiments.tools.benchmarks.clients.measure"
        command = [sys.executable, "-m", module, what, str(answer), request]
        with open(said, "wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
            try:
                status = process.wait(MOST_SECONDS[what])
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return failed(f"it took longer than {MOST_SECONDS[what]:g} seconds")
            except BaseException:  # Ctrl-C
                process.kill()
                process.wait()
                raise
        if status or not answer.is_file():
            return failed(_why(status, said.read_text(encoding="utf-8", errors="replace")))
        return json.loads(answer.read_text(encoding="utf-8"))


def failed(reason: str) -> dict[str, Any]:
    """What is kept of a row whose process died."""
    return {"status": "failed", "reason": reason}


def _why(status: int, said: str) -> str:
    """Why a process died: the signal that ended it, or the last line that it wrote."""
    if status == -signal.SIGKILL:
        return "the system killed it, as it does when memory runs out"
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"it ended with status {status}: {lines[-1] if lines else 'it said nothing'}"


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _settings(typed: Mapping[str, Any]) -> dict[str, Any]:
    """How every row is run, as far as it was typed."""
    from experiments.tools.benchmarks.workloads import RULES
    from jafl.config.builders.data import precision_of

    own = {
        name: value for name, value in typed.items() if name.partition(".")[0] in ("precision", "data_dir")
    }
    given = with_arguments(own, defaults=DEFAULTS)
    settings = {name: given[name] for name in ("precision", "data_dir") if given.get(name) is not None}
    settings |= {name: typed[name] for name in ("client_trips", "devices") if typed.get(name) is not None}
    if "precision" in settings:
        precision = precision_of(Settings(precision=settings["precision"]))
        is_single = precision.float_type == "float32"
        require(is_single, "precision", settings["precision"], "float32, in which benchmarks train")
    if "devices" in settings:
        whole_number("devices", settings["devices"], 1)
    if "client_trips" in settings:
        whole_number("client_trips", settings["client_trips"], 1)
        least = 2 * max(size for _, size in RULES.values())
        allowed = f"at least {least}, for two server steps: one is not timed"
        require(settings["client_trips"] >= least, "client_trips", settings["client_trips"], allowed)
    return settings


def _earlier(output: str | None, resume: bool, overwrite: bool) -> dict[str, Any] | None:
    """The benchmark to go on with, or None; refuses to write where something else lies."""
    if output is None:
        return None
    folder = pathlib.Path(output)
    if resume:
        return files.read(folder / files.FILE, "output_dir")
    if (folder / files.FILE).exists() and not overwrite:
        remedy = "Name another directory, pass --overwrite to replace it, or --resume to go on with it."
        raise refusal("output_dir", output, "a directory without a benchmark", remedy)
    if folder.is_dir() and EarlierRun(folder).files:
        raise refusal("output_dir", output, "a directory without a run", "Name another directory.")
    return None


def _facts(ask: Ask, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Facts on the devices; SettingError if they, or the settings on them, cannot work."""
    facts = ask("facts", None, settings)
    if not facts or "reason" in facts:
        raise SettingError(str((facts or {}).get("reason") or "The devices say nothing of themselves."))
    return facts


def _begun(
    before: dict[str, Any] | None,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    command: Sequence[str],
) -> dict[str, Any]:
    """The content of a new file, or of the one that goes on; SettingError if that is of another machine."""
    machine_facts = {name: value for name, value in facts.items() if name != "versions"}
    content: dict[str, Any] = {
        "format": files.FORMAT,
        "benchmark": files.NAME,
        "began": machine.today(),
        "commands": [list(command)],
        "machine": {**machine.machine(), **machine_facts},
        "versions": {**facts.get("versions", {}), **machine.versions()},
        "settings": {name: value for name, value in settings.items() if name != "data_dir"},
        "rows": [],
    }
    if before is None:
        return content
    for part, names in (("machine", machine.SAME), ("versions", None), ("settings", None)):
        for name in names or sorted({*before[part], *content[part]}):
            then, now = before[part].get(name), content[part].get(name)
            allowed = f"on a machine, with versions and with settings as before: there {name} is {then!r}"
            require(then == now, f"{name} of a benchmark that goes on", now, allowed)
    return {**before, "commands": [*before.get("commands", []), list(command)]}


def _measure(
    left: Sequence[Row],
    content: dict[str, Any],
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    ask: Ask,
    show: Callable[[str], None],
) -> None:
    """Measures rows one by one; each is in the file before the next one begins."""
    if left:
        show(tables.printed(None))
    for row in left:
        facts: dict[str, Any] = {**row._asdict(), "name": row.name}
        facts |= ask("row", row, settings) or failed("it said nothing")
        facts.pop("published", None)
        _keep(content, facts, folder)
        if facts["status"] != "failed" and not _was_asked(content, row):
            said = ask("estimate", row, settings)
            died = said is not None and said.get("status") == "failed"
            facts |= {"no_estimate": said["reason"]} if said and died else {"estimate": said}
            _keep(content, facts, folder)
        show(tables.printed(facts))
        if facts["status"] == "failed":
            show(f"  failed: {facts['reason']}")


def _was_asked(content: Mapping[str, Any], row: Row) -> bool:
    """Whether the compiler need not be asked: of chips elsewhere, once for each model and rule is enough."""
    partners = (
        other for other in content["rows"] if (other["model"], other["rule"]) == (row.model, row.rule)
    )
    asked = any(other.get("estimate") or other.get("no_estimate") for other in partners)
    return asked and content["machine"].get("platform") == "cpu"


def _keep(content: dict[str, Any], facts: dict[str, Any], folder: pathlib.Path) -> None:
    """Puts a row into the file, in the place of an earlier one of its name, in the order of models and clients."""
    models = (*rows.TITLES, *rows.BLAZEFL)
    others = [row for row in content["rows"] if row["name"] != facts["name"]]
    order = {rule: number for number, rule in enumerate(rows.ALGORITHMS)}
    content["rows"] = sorted(
        [*others, facts],
        key=lambda row: (
            models.index(row["model"]) if row["model"] in models else len(models),
            order.get(row["rule"], len(order)),
            row["rule"],
            row["clients"],
        ),
    )
    files.write(folder, content)
