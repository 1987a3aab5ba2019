"""How the site is built: `sphinx-build -W docs FOLDER`. Notebooks are executed; nothing is fetched from a network."""

import os

from roastcoffea import __version__

os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"  # kernels inherit it: a busy machine is no matter of the pages

project = "roastcoffea"
author = "The roastcoffea developers"
project_copyright = author
release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["write_references.py"]
default_role = "literal"

html_theme = "furo"
html_title = "roastcoffea"
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_output_stderr = "warn"
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
