"""How records travel: kinds of entries, their packing, the scheduler's writer and the client's reader."""
