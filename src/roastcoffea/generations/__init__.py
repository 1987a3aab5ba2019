"""What releases of coffea, uproot and distributed do differently: no other room asks for a version of theirs."""
