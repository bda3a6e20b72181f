"""The stages of a promotion run: each does its work, writes raw artifacts, and is judged by the verifier's own code.

`planner` and `run` are imported by the command line; what runs inside ranks is imported by name from `ray_stage`.
"""
