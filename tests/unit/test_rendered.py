"""What the repository holds of the code's own making is what the code makes now: `python docs/render.py`."""

import pytest

from docs import render

FILES = render.files()


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_what_the_code_renders(name):
    assert (render.ROOT / name).read_text() == FILES[name]
