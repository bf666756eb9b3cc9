"""How the documentation is built: `make docs`, offline, and a warning is an error."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

project = "dagpu"
author = "the dagpu authors"
copyright = "the dagpu authors"  # noqa: A001  # reason: Sphinx's name for it

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "generated",
    "code_blocks",
    "short_signatures",
]
exclude_patterns = ["_build", "_ext"]
nitpicky = False

html_theme = "furo"
html_title = "dagpu"
html_static_path = ["_static"]
html_css_files = ["dagpu.css"]
html_js_files = ["scrolling.js"]
# the theme's own style for dark pages underlines names of modules, like links
pygments_dark_style = "monokai"

myst_enable_extensions = ["colon_fence", "deflist", "attrs_block"]
myst_heading_anchors = 3

# names in docstrings stand between single backticks
default_role = "literal"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# most classes are made by functions and methods, not by their users
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
copybutton_exclude = ".linenos, .gp"
# nobody pastes what a program has printed
copybutton_selector = "div:not(.output, .raises) > div.highlight > pre"
