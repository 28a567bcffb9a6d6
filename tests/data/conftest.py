"""Fixtures of several modules of this folder."""

import pytest
from post_files import write_posts


@pytest.fixture
def folders(tmp_path):
    """The folder that holds the posts of 20 Newsgroups."""
    write_posts(tmp_path)
    return tmp_path
