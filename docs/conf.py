"""How the site is built: `sphinx-build -W docs FOLDER`. Notebooks are executed; nothing is fetched from a network."""

import os
import re
from pathlib import Path
from shutil import copytree

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from roastcoffea import __version__
from roastcoffea.diagnosis.finding import CAUSES, page_of
from roastcoffea.report.glossary import DOCUMENTATION, glossary, page_address

# kernels inherit these: a busy machine is no matter of the pages, and some pages draw the made-up runs of tests
os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
TESTS = Path(__file__).parents[1] / "tests"
HERE = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, str(TESTS), os.environ.get("PYTHONPATH")]))

project = "roastcoffea"
author = "The roastcoffea developers"
project_copyright = author
release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["make_picture.py", "write_limited.py", "write_references.py"]
default_role = "literal"

html_theme = "furo"
html_title = "roastcoffea"
html_static_path = ["_static"]
html_extra_path = ["page.png"]  # which the README shows, also on an index
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


SITES = ("coffea-casa", "gateway", "htcondor", "kubernetes", "lpc", "lxplus", "slurm")
OF_CAUSES = {f"limited/{cause.replace(' ', '-')}": page_of(cause) for cause in CAUSES}
MOVED = {
    **{f"facility/{site}": f"facility/index.html#{site}" for site in SITES},
    "facility/gateway": "facility/index.html#dask-gateway",
    "facility/lpc": "facility/index.html#fermilab-lpc",
    "facility/lxplus": "facility/index.html#cern-lxplus",
    "howto/no-installation": "facility/index.html#workers-without-roastcoffea",
    **{old: new.replace("#", ".html#") for old, new in OF_CAUSES.items() if not f"{new}#".startswith(f"{old}#")},
    "howto/backends": "extending.html#backends-and-executors",
    "howto/collections": "howto/functions.html#dask-collections",
    "howto/failures": "howto/recover.html",
    "howto/gate": "howto/compare.html#fail-a-ci-job",
    "howto/live": "howto/watch.html",
    "howto/merge": "howto/compare.html#merge-independent-jobs",
    "howto/stragglers": "howto/task-stream.html#find-stragglers",
    "explanation/scaling": "howto/scaling.html#how-scaling-works",
    "explanation/what-if": "howto/scaling.html#how-what-if-works",
    "howto/sections": "howto/profile.html#sections",
    "howto/secrets": "howto/publish.html#secrets",
}
"""Pages that others may link to, and where their text is now."""


def write_moved_pages(app: Sphinx, problem: Exception | None) -> None:
    """Send readers of pages that are gone to where their text is now; fail if it is not there."""
    if problem is not None:
        return
    site = Path(app.outdir)
    for old, new in MOVED.items():
        name, _, anchor = new.partition("#")
        if anchor and f'id="{anchor}"' not in (site / name).read_text():
            raise ExtensionError(f"{old} has moved to {new}, which is not there")
        address = "../" * old.count("/") + new
        (site / f"{old}.html").write_text(
            f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">Moved</a>'
        )


def copy_schemas(app: Sphinx, problem: Exception | None) -> None:
    """Put the schemas at the addresses in their `$id`."""
    if problem is None:
        copytree(Path(app.srcdir, "schemas"), Path(app.outdir, "schemas"), dirs_exist_ok=True)


def find_lost_pictures(app: Sphinx, problem: Exception | None) -> None:
    """Fail where a page shows a picture that is not there: Sphinx says nothing of those that notebooks make."""
    site = Path(app.outdir)
    pages = {page: re.findall(r'src="(?:\.\./)*(_images/[^"]+)"', page.read_text()) for page in site.rglob("*.html")}
    lost = [
        f"{page}: {picture}"
        for page, pictures in pages.items()
        for picture in pictures
        if not (site / picture).exists()
    ]
    if lost and problem is None:
        raise ExtensionError(f"pictures are missing: {'; '.join(lost)}")


def find_lost_addresses(app: Sphinx, problem: Exception | None) -> None:
    """Fail where an address that pages of runs link to leads nowhere: terms of the glossary, and pages on causes."""
    site, lost = Path(app.outdir), []
    addresses = [*(term.address for term in glossary().values()), *(page_address(page_of(cause)) for cause in CAUSES)]
    for address in addresses:
        name, _, anchor = address.removeprefix(DOCUMENTATION).partition("#")
        page = site / name
        if not page.exists() or (anchor and f'id="{anchor}"' not in page.read_text()):
            lost.append(address)
    if lost and problem is None:
        raise ExtensionError(f"addresses lead nowhere: {'; '.join(lost)}")


def first_sentence(  # noqa: PLR0917
    app: Sphinx, kind: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Put the first sentence of an attribute together again: napoleon takes what is before a colon for its type."""
    types = [line for line in lines if line.startswith(":type: ")]
    if kind in {"attribute", "property"} and types:
        lines.remove(types[0])
        lines[0] = f"{types[0].removeprefix(':type: ')}: {lines[0]}"


def pages_to_read_again(app: Sphinx, *changes: object) -> list[str]:
    """The first page: it shows a picture that a notebook makes, and does not know when that is made anew."""
    return ["index"]


def setup(app: Sphinx) -> None:
    """Have docstrings looked at once napoleon is done with them, and pages once they are there."""
    app.connect("env-get-outdated", pages_to_read_again)
    app.connect("autodoc-process-docstring", first_sentence, priority=900)
    app.connect("build-finished", write_moved_pages)
    app.connect("build-finished", copy_schemas)
    app.connect("build-finished", find_lost_pictures)
    app.connect("build-finished", find_lost_addresses)
