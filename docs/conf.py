"""How Sphinx makes the site of these pages: ``python3 tools/docs.py``.

Nothing is loaded from the network, neither while building nor by the pages.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import figures  # noqa: E402
import tables  # noqa: E402

import polyconv  # noqa: E402

project = "polyconv"
author = "the authors of polyconv"
copyright = author
version = release = polyconv.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
root_doc = "index"
exclude_patterns = ["README.md", "made"]  # included by pages
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say what a parameter is
numpydoc_show_class_members = False  # autodoc shows them
numpydoc_class_members_toctree = False
add_module_names = False
highlight_language = "python"

html_theme = "pydata_sphinx_theme"
html_title = "polyconv"
html_context = {"default_mode": "auto"}
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_sidebars = {"index": []}
html_theme_options = {
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
}


def setup(app: Sphinx) -> None:
    """Draw the figures and write the tables before the pages that show them are read."""
    made = HERE / "made"
    app.connect("builder-inited", lambda app: (tables.write(made), figures.draw(made)))
