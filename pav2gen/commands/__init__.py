"""The commands, one module each. A command calls the layers below in their order and has no logic of theirs.

May import: every other package except ``cli``.
"""
