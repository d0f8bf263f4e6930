"""Helpers of compilation: the folder of compiled libraries, its locks, known failures, and builds ahead of tests."""
