"""The examples of docs/privacy.md print what the page says."""

import contextlib
import io
import pathlib
import re

import pytest
from quick_compilation import quick_compilation  # noqa: F401

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "privacy.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.full
def test_the_examples_print_what_the_page_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```text") >= 5
    names: dict = {}
    for code, said in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, PAGE.name, "exec"), names)
        assert printed.getvalue() == said, code
