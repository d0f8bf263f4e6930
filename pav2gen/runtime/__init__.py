"""The code that every package of generated attention kernels contains: operators, argument checks and kernel selection.

pav2gen copies this folder unchanged into each generated package. The modules of this folder import nothing from the
rest of pav2gen.
"""
