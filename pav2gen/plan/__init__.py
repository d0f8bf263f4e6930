"""Plans: every number that a template, a message or a report shows for a kernel, computed once.

May import: ``family`` and what that may import.
"""
