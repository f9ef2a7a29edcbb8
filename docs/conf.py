"""Configuration of the documentation site, which `script/docs` builds."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent / "src")]

from tickertape.base.version import __version__  # noqa: E402 - found through the path above

project = "Tickertape"
project_copyright = "Tickertape contributors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "tickertape_reference"]
exclude_patterns = [
    "_ext",
    "README.md",
]  # README.md is the index on a code host, index.md is the one of the site

# -- Markdown -----------------------------------------------------------------------------------------

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4

# -- Python -------------------------------------------------------------------------------------------

default_role = "code"
python_use_unqualified_type_names = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "inherited-members": "object,tuple,Exception,BaseException,Struct",
}
napoleon_numpy_docstring = False

# -- HTML ---------------------------------------------------------------------------------------------

toc_object_entries = False  # the headings of the Python pages name the classes
html_theme = "furo"
html_title = f"Tickertape {release}"
html_static_path = ["_static"]
html_css_files = ["tickertape.css"]
html_copy_source = False
html_show_sphinx = False
