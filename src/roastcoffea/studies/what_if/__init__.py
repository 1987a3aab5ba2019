"""What a run would take on other resources, or with other chunks."""

from roastcoffea.studies.what_if.what_if import WhatIf

__all__ = ["WhatIf"]
