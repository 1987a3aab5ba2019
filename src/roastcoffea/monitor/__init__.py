"""Every task of a cluster, seen from outside."""
