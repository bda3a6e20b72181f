"""Release bundles: what is in one, how one is made, and whether a checkout is ready to be released."""
