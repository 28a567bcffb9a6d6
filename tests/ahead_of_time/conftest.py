"""One compiler for all gates of a session."""

import pytest
from compiled_cases import Compiler


@pytest.fixture(scope="session")
def compiler(tmp_path_factory):
    """Compiles each case once; processes of one session share what is compiled."""
    folder = tmp_path_factory.getbasetemp()
    if folder.name.startswith("popen-"):  # of one of several processes of pytest-xdist
        folder = folder.parent
    folder = folder / "compiled-ahead-of-time"
    folder.mkdir(exist_ok=True)
    return Compiler(folder)
