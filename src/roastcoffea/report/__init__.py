"""Tables, pages and exports of a run, and the reference of metrics."""
