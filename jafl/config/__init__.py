"""From settings to experiments: settings, presets, and the objects that they describe.

``load`` makes the objects of a run's ``config.json``; ``describe`` says the text that makes an object.
"""

import importlib
from typing import Any

_HOME = {"describe": "description", "load": "description"}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"jafl.config.{_HOME[name]}"), name)
    raise AttributeError(f"module 'jafl.config' has no attribute {name!r}")
