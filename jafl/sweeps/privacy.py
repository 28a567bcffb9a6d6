"""What a report says of private runs: epsilon, noise and clipping of each, and what the claims stand on."""

from collections.abc import Iterable, Mapping
from typing import Any

from jafl.base.errors import SettingError
from jafl.config import calls
from jafl.runs.directory.reader import PastRun, read_json
from jafl.runs.recording import privacy

DIAGNOSTICS = "diagnostics.json"


def privacy_section(runs: Mapping[str, PastRun]) -> dict[str, Any]:
    """What the page shows of the private runs among these.

    Args:
      runs: {name: run}.

    Returns:
      {"privacy": the table, its heading first, or an empty list without private runs; "privacy_notes": sentences}.
    """
    blocks = {name: _block(run) for name, run in runs.items()}
    cells = privacy.table(blocks)
    notes = list(privacy.remarks(blocks))
    if cells:
        notes.insert(0, "Epsilons hold with delta, for one client, and only under the conditions below.")
    for whose, conditions in privacy.claims(blocks):
        notes.append(f"{whose} {' '.join(conditions)}")
    return {"privacy": [list(line) for line in cells], "privacy_notes": notes}


def _block(run: PastRun) -> Mapping[str, Any] | None:
    """What a run claims: of one that has not ended, what was known before it trained; None of other runs."""
    if run.summary is not None:
        block: Mapping[str, Any] | None = run.summary.get("privacy")
        return block
    try:
        return (
            read_json(run.path / DIAGNOSTICS).get("privacy") if (run.path / DIAGNOSTICS).is_file() else None
        )
    except SettingError:
        return None


def draw_noise(runs: Iterable[PastRun]) -> bool:
    """Whether one of the runs is private, with noise whose seed was drawn: it cannot be repeated to the last bit."""
    configs = [run.config for run in runs if _block(run)]
    return any(calls.argument(config, "privacy.noise_seed") is None for config in configs)
