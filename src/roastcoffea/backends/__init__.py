"""Recording of workers and tasks, on the client and in Dask plugins."""
