"""Data types that describe what pav2gen generates: spec files, kernels, the properties of kernels, and target GPUs.

A spec file is a YAML file that describes a model's attention and the kernels to generate. An axis is a property in
which kernels differ, such as the head size. A variant is one kernel, with one value for each axis. The family of a spec
file is the set of all its kernels.

This package may import ``pav2gen.runtime``, ``pav2gen.errors``, ``pav2gen.files`` and ``pav2gen.wording``.
"""
