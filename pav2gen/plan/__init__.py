"""What a kernel costs: every number that a template, a message or a report shows, computed once.

May import: ``family`` and what that may import.
"""
