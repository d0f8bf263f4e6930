"""Computes the plan of each kernel: its buffer sizes, its thread layout and its estimated costs.

Kernel templates, error messages and reports use the computed numbers. Modules of this package import only from
``plan``, from ``family`` and from the packages that ``family`` imports.
"""
