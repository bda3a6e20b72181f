"""Process groups, collectives with autograd, and a ledger of every collective."""
