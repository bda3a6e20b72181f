"""Instruments: what a run can be watched with, without changing a number of it.

They hang on a model by hooks and come off again, keep a stated amount, and never enter evidence by themselves.
"""
