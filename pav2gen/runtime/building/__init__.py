"""What surrounds the compilers: the folder of compiled libraries, its locks, failures that are known, builds ahead."""
