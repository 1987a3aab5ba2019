"""The import path of version 0.1.2."""

from roastcoffea.compat.measurements import load_measurement, save_measurement

__all__ = ["load_measurement", "save_measurement"]
