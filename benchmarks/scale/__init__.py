"""The scale laboratory: campaigns on a model cluster whose plan is known, simulated or on a real scheduler."""
