"""A family of kernels: its axes and variants, the spec that describes it, the target card.

May import: ``pav2gen.runtime`` and the helpers beside this package (errors, files, wording).
"""
