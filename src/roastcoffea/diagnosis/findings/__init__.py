"""Causes of lost time: each module here is imported, and what it registers becomes a finding with a page of its own."""

import importlib
import pkgutil

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")
