"""The promotion chain: seven stages in order, each bound to its parent, judged by a plan that was there first."""
