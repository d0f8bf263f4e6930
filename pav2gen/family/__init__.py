"""The data types that describe what to generate: the spec, its axes, its kernel variants, and the target GPU.

An axis is a property in which kernels differ, such as the head size. A variant is one kernel: it has one value for each
axis. The "family" of a spec is the set of all its variants.

This package may import ``pav2gen.runtime``, ``pav2gen.errors``, ``pav2gen.files`` and ``pav2gen.wording``.
"""
