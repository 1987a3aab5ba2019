"""What an attempt of a chunk reads: bytes by branch and basket, waiting for storage, decompression, interpretation.

The meter patches no class of uproot, Arrow or coffea. It shadows methods on the objects that coffea makes for this
chunk alone (the file's source, the mapping behind the events, an RNTuple, a Parquet file), and removes the shadows when
the attempt ends. A shadow calls the original exactly once with the same arguments, even if metering fails; if a version
of uproot or coffea lacks a shadowed method, the affected values are unknown and reported.

`tally` adds up; `servers` (sources of files) and `formats` (TTree, RNTuple, Parquet) insert the shadows, and
`formats` has the attempt's interface.
"""
