"""What tests of refusals share."""

import re
from typing import Any

import pytest

from jafl.base.errors import SettingError


def refuses(*parts: object, error: type[Exception] = SettingError, on_one_line: bool = True) -> Any:
    """Expects ``error`` with a message that holds these parts in this order."""
    pattern = ".*".join(re.escape(str(part)) for part in parts)
    return pytest.raises(error, match=pattern if on_one_line else f"(?s){pattern}")
