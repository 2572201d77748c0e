"""How work is launched: plans, the order of launches, launchers, and the runner of a study."""
