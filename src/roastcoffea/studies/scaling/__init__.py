"""How runs speed up with workers."""

from roastcoffea.studies.scaling.scaling import Scaling

__all__ = ["Scaling"]
