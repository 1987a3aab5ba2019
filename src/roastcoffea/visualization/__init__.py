"""Pictures of a run: what is measured is drawn here, and nothing is measured or stored."""
