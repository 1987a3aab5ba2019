"""What an attempt of a chunk reads: bytes by branch and basket, waiting for storage, decompression, interpretation.

The meter patches nothing of uproot, Arrow or coffea. It shadows methods on the objects that coffea makes for this chunk
alone (the file's source, the mapping behind the events, an RNTuple, a Parquet file), and takes the shadows away when
the attempt ends. A shadow calls the original once, with what it was given, whatever becomes of the metering; where a
version of uproot or coffea lacks what is shadowed, what cannot be metered is unknown, and reported.

`tally` adds up; `sources` and `formats` (TTree, RNTuple, Parquet) put the shadows in; `meter` is what an attempt holds.
"""
