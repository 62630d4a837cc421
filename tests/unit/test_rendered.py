"""What the repository holds of the code's own making is what the code makes now: `python -m docs.render`."""

import pytest

from docs import render

FILES = render.files()


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_what_the_code_renders(name):
    assert (render.ROOT / name).read_text() == FILES[name]


def test_no_page_is_left_of_a_verb_that_is_gone():
    assert {str(path.relative_to(render.ROOT)) for path in render.ROOT.glob("docs/man/*")} <= FILES.keys()
