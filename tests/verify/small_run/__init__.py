"""The parts of `build_run.py`, in the order in which a run is made: inputs and plan, the update, the ranks' records."""
