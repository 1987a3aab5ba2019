"""How the rate of an analysis scales with workers."""

from roastcoffea.studies.scaling.scaling import Scaling

__all__ = ["Scaling"]
