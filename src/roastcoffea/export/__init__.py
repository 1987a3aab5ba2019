"""The import path of the older prototype."""

from roastcoffea.compat.measurements import load_measurement, save_measurement

__all__ = ["load_measurement", "save_measurement"]
