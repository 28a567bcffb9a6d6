"""What a command describes: its settings, typed and in files, and what a sweep crosses them with."""

import sys
from collections.abc import Iterable
from typing import Any

from jafl.base import checksums
from jafl.cli.given import Given
from jafl.config import calls, grid, inputs
from jafl.config.arms import Override
from jafl.config.calls import argument_path
from jafl.config.settings import Settings, config_content, is_setting
from jafl.runs.directory import reader


def settings_of(asked: Given) -> Settings:
    """The settings: those typed, over those of a file, over the defaults."""
    typed = asked.settings()
    if asked.command.name == "resume":
        return Settings.from_file(str(reader.settings_file(asked.output_dir)), **typed)
    if not asked.config:
        return Settings.from_mapping(typed)
    settings = Settings.from_file(asked.config, **typed)
    _tell_of_changed_inputs(asked.config, typed)
    return settings


def swept_by(asked: Given) -> dict[str, Any]:
    """``sweep``, ``arms`` and ``overrides``, typed or of a ``sweep.json``, as keyword arguments; or nothing."""
    content: dict[str, Any] = {}
    if asked.command.name == "resume":
        if reader.settings_file(asked.output_dir).name == "config.json":
            reader.read_run(asked.output_dir, with_metrics=False)  # refuses a file without algorithm
        content = reader.swept(asked.output_dir) or {}
    elif asked.config:
        content = grid.checked(reader.swept_in(config_content(asked.config)), asked.config)
    if "overrides" in content:
        content = {**content, "overrides": [Override(**each) for each in content["overrides"]]}
    return {**content, "sweep": asked.sweep} if asked.sweep else content


def without_unread(asked: Given, settings: Settings, swept: dict[str, Any]) -> Settings:
    """The settings without those of files that no run reads, of which it tells; refuses those typed."""
    from jafl.config import resolution  # imports JAX, which a mistyped command does without

    typed = set(filter(is_setting, asked.typed))
    readable_settings, left_out = resolution.without_unread(settings, typed, **swept)
    flagged = set(map(argument_path, asked.settings()))
    for name, value, reason in left_out:
        path = argument_path(name)
        in_flags = flagged & {path, path.partition(".")[0]}
        source = "the flag file" if in_flags else asked.config or asked.output_dir
        warn(f"{name} is {value!r} in {source}, but no run reads it. {reason}")
    return readable_settings


def _tell_of_changed_inputs(path: str, names: Iterable[str]) -> None:
    """Warns of files that the run of a config.json has read, and that hold something else now.

    names: the settings that were typed, which take the place of those in the file.
    """
    content = config_content(path)
    before = content.get("inputs")
    if not isinstance(before, dict):
        return
    files = {
        what: file
        for what, file in calls.files(content).items()
        if not {what.partition("/")[0], what.partition(".")[0]} & set(names)
    }
    now = {what: checksums.file_checksum(file) for what, file in files.items() if file.is_file()}
    known = {what: digest for what, digest in before.items() if what in now}
    for line in inputs.changed(content, known, {what: now[what] for what in known}):
        warn(f"the run of {path} had other inputs, so this one does not repeat it. {line}.")


def warn(text: str) -> None:
    """Prints a warning."""
    print(f"Warning: {text}", file=sys.stderr)
