"""Studies of several runs, and of a run under other conditions."""

from pathlib import Path

from roastcoffea.errors import MeasurementError
from roastcoffea.storage.folders import whole_file


def write_page(path: Path, text: str, *, overwrite: bool = False) -> Path:
    """Write a page to a file, whole or not at all; give its path.

    Raises
    ------
    MeasurementError
        If something is there already, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, overwrite=overwrite) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise MeasurementError(f"the page was not written to {path}: {error}") from error
    return path
