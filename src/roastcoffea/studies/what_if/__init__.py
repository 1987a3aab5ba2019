"""Wall time of a run on other resources, or with other chunks."""

from roastcoffea.studies.what_if.what_if import WhatIf

__all__ = ["WhatIf"]
