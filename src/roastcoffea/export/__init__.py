"""Import path from the original prototype, kept for compatibility."""

from roastcoffea.compat.measurements import load_measurement, save_measurement

__all__ = ["load_measurement", "save_measurement"]
