"""Metering of a chunk attempt's reads: bytes, storage waits, decompression, interpretation.

The meter shadows methods (replaces them with wrappers) on the objects that coffea creates only for this chunk (the
file's source, the mapping behind the events, an RNTuple, a Parquet file), and removes the shadows when the attempt
ends. Classes are patched only in `openings`, for files that a function opens itself. A shadow calls the original method
exactly once with the same arguments, even if metering fails. If a version of uproot or coffea lacks a shadowed method,
the affected values are reported as unknown.

`tally` adds up the reads. `servers` (file sources) and `formats` (TTree, RNTuple, Parquet) insert the shadows. Attempts
use the interface in `formats`.
"""
