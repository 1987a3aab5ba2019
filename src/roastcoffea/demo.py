"""The public name of what is in `roastcoffea.cli.sample`."""

from roastcoffea.cli.sample import DijetProcessor, write_sample

__all__ = ["DijetProcessor", "write_sample"]
