"""One run on a Ray cluster: journal, placement, rank actors, driver, and the cleanup that proves absence.

`driver` and `rank_actor` need ray; `journal`, `process`, `leftovers` and the local half of `cleanup` do not, so a
crashed run can be cleaned up without it.
"""
