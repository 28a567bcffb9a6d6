"""Every command that the README and docs/ show is run as it stands, to its end, and learns.

A few cannot be run here; each is left out for a reason of ``LEFT_OUT``.
"""

import json
import pathlib
import re
import shlex

import in_process
import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# {part of a command: why it is not run here}
LEFT_OUT = {
    "--help": "trains nothing; tests/test_readme.py runs it",
    "=FILE": "names no file",
    "forecast ": "trains nothing; tests/ahead_of_time runs it",
    "sweep.json": "names a sweep of another example; tests/config/test_readers.py repeats one",
    "benchmark ": "takes minutes; tests/experiments runs a small one",
    "compare ": "names the files of two machines; tests/experiments compares some",
    "experiment": "tests/experiments runs them; their learning rates are searched for, not preset",
    "--precision.matmul_precision": "for TPUs and GPUs",
    "--distributed": "needs several processes, which tests/distributed starts",
    "/shared/": "for several machines; tests/sweeps/test_cluster_scripts.py runs the scripts of that page",
    "windows.npz": "reads files made of FedScale's tables; tests/schedule/test_device_traces.py converts some",
    "fashion_mnist": "needs files that have to be fetched; tests/data reads tiny ones",
    "causal_transformer": "predicts characters, few of which can be foretold; tests/models trains one",
    "--pictures=all": "a command of the gallery, which tests/test_gallery.py tries",
}
# Ten labels, so a model that has learned nothing is right in a tenth of the cases.
LEARNED = 0.5


def commands() -> list[str]:
    """The arguments of run.py in every line of a page that begins with a call of it."""
    found = []
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            called = re.match(r"(?: {4}|.* && )?[\w./]*python3? run\.py(.*)", line)
            if called:
                found.append(re.split(r" {2,}", called[1].strip())[0])
    return list(dict.fromkeys(found))


def reason(command: str) -> str | None:
    """Why a command is not run here; None if it is."""
    return next((why for part, why in LEFT_OUT.items() if part in command), None)


def needs_a_run(command: str) -> bool:
    """Whether a command reads what the main job has left."""
    return "runs/001" in command or command.startswith("report ")


RUN = [command for command in commands() if reason(command) is None]
MAIN_JOB = ""


def run_py(command, folder):
    """Does what run.py does, without pictures, which are no part of what is asked; returns what it said."""
    pictures = [] if command.startswith(("report ", "plan ")) else ["--pictures=none"]
    said = in_process.command([*shlex.split(command), *pictures], folder)
    assert said.status == 0, said.text
    return said.text


def assert_learned(folder, *, private=False):
    """Every run below ``folder`` has ended well above chance, and without a warning.

    A private run draws other noise each time: by chance its last model is so much worse than its best that it warns,
    in one of eight runs of the gallery's command.
    """
    summaries = [json.loads(file.read_text()) for file in folder.rglob("summary.json")]
    runs = [summary for summary in summaries if "status" in summary]
    assert runs
    for summary in runs:
        assert summary["status"] == "finished"
        assert private or summary["warning"] is None, summary["warning"]
        assert summary["final"]["test_accuracy"] > LEARNED, summary["final"]


def test_the_pages_show_what_is_meant_to_be_run():
    assert MAIN_JOB in RUN and any(re.search("--delay=[\"']?groups", command) for command in RUN)
    assert any("--precision.compute_dtype" in command for command in RUN) and any(
        command.startswith("sweep ") for command in RUN
    )
    for part in LEFT_OUT:
        assert any(part in command for command in commands()), f"no page shows {part} any more"


@pytest.mark.gate
def test_the_main_job_learns_and_can_be_resumed_repeated_and_reported(tmp_path):
    run_py(MAIN_JOB, tmp_path)
    assert_learned(tmp_path)
    for command in filter(needs_a_run, RUN):
        run_py(command, tmp_path)
        assert_learned(tmp_path)


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.parametrize("command", [one for one in RUN if one != MAIN_JOB and not needs_a_run(one)])
def test_a_command_of_the_pages_learns(command, tmp_path):
    said = run_py(command, tmp_path)
    if command.startswith("plan "):
        assert list(tmp_path.rglob("diagnostics.json"))
    else:
        assert_learned(tmp_path, private="epsilon=" in command)
        assert "did not learn" not in said
