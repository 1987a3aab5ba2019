"""Causes of lost time. Importing a module registers its findings and their documentation."""

import importlib
import pkgutil

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")
