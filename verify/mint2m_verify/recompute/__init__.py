"""The numbers of an update again, from its raw artifacts; numpy only, float64 unless the rule says otherwise."""
