"""Import path from version 0.1.2, kept for compatibility."""

from roastcoffea.compat.measurements import load_measurement, save_measurement

__all__ = ["load_measurement", "save_measurement"]
