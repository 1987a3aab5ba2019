"""Tables, pages and exports of a run, and the metric reference."""
