"""What a family of kernels is: its variants, the spec that describes it, the card it is planned for.

May import: ``pav2gen.runtime`` and the helpers beside this package (errors, files, wording).
"""
