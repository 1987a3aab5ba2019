"""Public alias of `roastcoffea.cli.sample`."""

from roastcoffea.cli.sample import DijetProcessor, clean_jets, write_sample

__all__ = ["DijetProcessor", "clean_jets", "write_sample"]
