"""How the documentation is built: `make docs`; a warning is an error."""

import os
import sys
from pathlib import Path

import kafka_ordered_ops

# Airflow writes a configuration where it is imported first.
os.environ.setdefault("AIRFLOW_HOME", str(Path(__file__).parents[1] / "build/airflow"))
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "kafka-ordered-ops"
author = "the authors of kafka-ordered-ops"
version = release = kafka_ordered_ops.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "code_facts",
    "moved_pages",
]
exclude_patterns = ["_ext", "snippets", "benchmarks/tables.md"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]

# A name in single backticks, in a docstring, links to its entry where there is one.
default_role = "py:obj"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 100

html_theme = "furo"
html_title = "kafka-ordered-ops"
html_static_path = ["_static"]
html_css_files = ["page.css"]
html_show_copyright = False
html_show_sphinx = False
