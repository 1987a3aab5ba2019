"""The public name of what is in `roastcoffea.cli.demo`."""

from roastcoffea.cli.demo import DijetProcessor, write_sample

__all__ = ["DijetProcessor", "write_sample"]
