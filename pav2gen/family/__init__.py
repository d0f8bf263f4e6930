"""A family of kernels: its axes, its variants, the spec that describes it, and the GPU that it is for (the target).

An axis is a property in which the kernels of a family differ, such as the head size. A variant is one kernel.

May import: ``pav2gen.runtime`` and the helpers beside this package (errors, files, wording).
"""
