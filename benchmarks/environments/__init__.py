"""Environments in which people run roastcoffea, as constraints for pip, and a matrix of what works in each."""
