# The modules of a generated package's runtime that the modules of the folder above import.
